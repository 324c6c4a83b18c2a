"""`GET /metrics`: how everything stands, for Prometheus."""

from __future__ import annotations

import asyncio
import time
import weakref
from typing import Final

from dray.app import App
from dray.observe import CONTENT_TYPE, ametrics
from dray.serve.refusals import RETRY_AFTER, forbidden, try_later
from dray.serve.routes import Ask, Reply, Route

FRESH: Final = 1.0
"""Seconds for which a text is good: however many ask, the broker is read once in a while."""
PATIENCE: Final = 10.0
"""Seconds: what Prometheus waits for, unless it is told otherwise."""


class Page:
    """The text of an app, read anew when it is old. Who asks meanwhile waits for the same."""

    def __init__(self) -> None:
        self._reading = asyncio.Lock()
        self._text, self._read_at = "", float("-inf")

    async def text(self, app: App) -> str:
        async with self._reading:
            if time.monotonic() - self._read_at > FRESH:
                self._text = await ametrics(app)
                self._read_at = time.monotonic()
            return self._text


_pages: weakref.WeakKeyDictionary[App, Page] = weakref.WeakKeyDictionary()


async def show(ask: Ask) -> Reply:
    """In the text format of Prometheus. It tells of all queues and workers, and is at most a second old."""
    if ask.caller.limited:
        raise forbidden("this key is limited to some queues or tasks, and metrics tell of all")
    page = _pages.setdefault(ask.app, Page())
    try:
        async with asyncio.timeout(PATIENCE):
            return Reply(text=await page.text(ask.app))
    except TimeoutError:
        raise try_later(503, "broker_away", "the broker does not answer in time", RETRY_AFTER) from None


ROUTES: Final = (
    Route(
        method="GET",
        path="/metrics",
        handler=show,
        role="read",
        summary="Metrics of all queues, tasks and workers",
        replies={},
        text=CONTENT_TYPE,
    ),
)
