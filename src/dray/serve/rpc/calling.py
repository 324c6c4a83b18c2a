"""One call, as the methods see it."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from dray.app import App
from dray.serve.callers import Caller
from dray.serve.feed import Hub
from dray.serve.rpc.statuses import Context

T = TypeVar("T")
MARGIN_MIN: Final = 0.1
MARGIN_MAX: Final = 1.0
"""Seconds before its deadline at which a wait ends, so that the answer is in time: a tenth of the rest."""


class Shared:
    """What all calls of one server have in common."""

    def __init__(self, app: App) -> None:
        self.app, self.hub = app, Hub(app)
        self.leaving = asyncio.Event()
        """Set when the server stops: whoever waits is answered."""
        self._afterwards: set[asyncio.Task[None]] = set()

    def afterwards(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that the end of the call must not interrupt."""
        task = asyncio.get_running_loop().create_task(work)
        self._afterwards.add(task)
        task.add_done_callback(self._afterwards.discard)

    async def finish(self) -> None:
        """Wait for what goes on after calls that have ended."""
        while self._afterwards:
            await asyncio.gather(*self._afterwards, return_exceptions=True)


class Calling:
    """Who calls, and until when they listen."""

    def __init__(self, shared: Shared, caller: Caller, context: Context) -> None:
        self.shared, self.app, self.caller, self.context = shared, shared.app, caller, context

    def patience(self, wanted: float | None) -> float | None:
        """Seconds to wait for something: as wanted, but not beyond the deadline. None: for ever."""
        left: float | None = self.context.time_remaining()  # its stubs forget that there may be none
        until = math.inf
        if left is not None:
            until = max(0.0, left - min(max(left / 10, MARGIN_MIN), MARGIN_MAX))
        least = min(math.inf if wanted is None else wanted, until)
        return None if math.isinf(least) else least

    async def unless_leaving(self, wanted: Awaitable[T]) -> T | None:
        """Wait for something, but no longer than the server runs; None if that was not long enough."""
        task = asyncio.ensure_future(wanted)
        leaving = asyncio.ensure_future(self.shared.leaving.wait())
        try:
            await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            leaving.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
