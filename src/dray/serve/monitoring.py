"""For load balancers and Prometheus: health, readiness and metrics."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Final

from dray.app import App
from dray.errors import BrokerError
from dray.observe import CONTENT_TYPE, ametrics
from dray.serve.errors import RETRY_AFTER, forbidden, try_later
from dray.serve.http_request import HttpRequest
from dray.serve.models import HealthOut
from dray.serve.routes import Reply, Route

FRESH: Final = 1.0
"""Seconds for which an answer is reused: the broker is read once in a while, however many ask."""
READY_SECONDS: Final = 5.0
METRICS_SECONDS: Final = 10.0
"""The time that Prometheus waits for by default."""


class CachedMetrics:
    """The metrics of an app, read anew when they are old. Requests that come meanwhile wait for the same."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._text, self._read_at = b"", float("-inf")

    async def text(self, app: App) -> bytes:
        async with self._reading:
            if time.monotonic() - self._read_at > FRESH:
                self._text = (await ametrics(app)).encode()
                self._read_at = time.monotonic()
            return self._text


_ready: weakref.WeakKeyDictionary[App, tuple[float, bool]] = weakref.WeakKeyDictionary()
_metrics: weakref.WeakKeyDictionary[App, CachedMetrics] = weakref.WeakKeyDictionary()


async def alive(request: HttpRequest) -> Reply:
    return Reply(HealthOut(status="ok"))


async def ready(request: HttpRequest) -> Reply:
    """Whether the broker answers."""
    at, reached = _ready.get(request.app, (float("-inf"), False))
    if time.monotonic() - at > FRESH:
        reached = await _reaches_broker(request.app)
        _ready[request.app] = (time.monotonic(), reached)
    if not reached:
        raise try_later(503, "broker_away", "the broker does not answer", RETRY_AFTER)
    return Reply(HealthOut(status="ok"))


async def _reaches_broker(app: App) -> bool:
    try:
        async with asyncio.timeout(READY_SECONDS):
            await app.workers.alist()
    except (BrokerError, TimeoutError):
        return False
    return True


async def show_metrics(request: HttpRequest) -> Reply:
    """In the text format of Prometheus. It tells of all queues and workers, and is at most a second old."""
    if request.caller.limited:
        raise forbidden("this key is limited to some queues or tasks, and metrics tell of all")
    cached = _metrics.setdefault(request.app, CachedMetrics())
    try:
        async with asyncio.timeout(METRICS_SECONDS):
            return Reply(await cached.text(request.app), media_type=CONTENT_TYPE)
    except TimeoutError:
        raise try_later(503, "broker_away", "the broker does not answer in time", RETRY_AFTER) from None


ROUTES: Final = (
    Route("GET", "/healthz", alive, None, "Whether the server runs", {200: HealthOut}),
    Route("GET", "/readyz", ready, None, "Whether the server reaches its broker", {200: HealthOut}),
    Route(
        "GET",
        "/metrics",
        show_metrics,
        "read",
        "Metrics of all queues, tasks and workers",
        {},
        text=CONTENT_TYPE,
    ),
)
