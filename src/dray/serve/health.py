"""Whether the server is alive, and whether it is of use. Open to all, and telling nothing else."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Final

from dray.app import App
from dray.errors import BrokerError
from dray.serve.models import HealthOut
from dray.serve.refusals import RETRY_AFTER, try_later
from dray.serve.routes import Ask, Reply, Route

FRESH: Final = 1.0
"""Seconds for which an answer is good: whoever asks all the time does not reach the broker each time."""
PATIENCE: Final = 5.0

_known: weakref.WeakKeyDictionary[App, tuple[float, bool]] = weakref.WeakKeyDictionary()


async def alive(ask: Ask) -> Reply:
    return Reply(HealthOut(status="ok"))


async def ready(ask: Ask) -> Reply:
    """Whether the broker answers."""
    at, reached = _known.get(ask.app, (float("-inf"), False))
    if time.monotonic() - at > FRESH:
        reached = await _reaches(ask.app)
        _known[ask.app] = (time.monotonic(), reached)
    if not reached:
        raise try_later(503, "broker_away", "the broker does not answer", RETRY_AFTER)
    return Reply(HealthOut(status="ok"))


async def _reaches(app: App) -> bool:
    try:
        async with asyncio.timeout(PATIENCE):
            await app.workers.alist()
    except (BrokerError, TimeoutError):
        return False
    return True


ROUTES: Final = (
    Route(
        method="GET",
        path="/healthz",
        handler=alive,
        role=None,
        summary="Whether the server runs",
        replies={200: HealthOut},
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=ready,
        role=None,
        summary="Whether the server reaches its broker",
        replies={200: HealthOut},
    ),
)
