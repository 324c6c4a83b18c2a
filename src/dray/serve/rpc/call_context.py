"""One call, as the methods see it, and the state that all calls of a server share."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dray.app import App
from dray.serve.auth import Caller
from dray.serve.event_feed import EventBroadcaster
from dray.serve.request import Request
from dray.serve.rpc.errors import Context

MARGIN_MIN: Final = 0.1
MARGIN_MAX: Final = 1.0
"""Seconds before its deadline at which a wait ends, so that the answer is in time: a tenth of the rest."""


class CallState:
    """State that all calls of one server share."""

    def __init__(self, app: App) -> None:
        self.app, self.events = app, EventBroadcaster(app)
        self.stopping = asyncio.Event()
        """Set when the server stops: calls that wait are answered."""
        self._background: set[asyncio.Task[None]] = set()
        self._open: set[Callable[[], Coroutine[Any, Any, None]]] = set()

    @contextmanager
    def closing(self, close: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
        """Run `close` in the background at the end of the block.

        A stopped server does not wait for the block: gRPC ends a call before its method has noticed.
        """
        self._open.add(close)
        try:
            yield
        finally:
            self._close(close)

    def _close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if close in self._open:
            self._open.remove(close)
            self.run_in_background(close())

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that the end of the call must not interrupt."""
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def finish(self) -> None:
        """Close what calls left open, and wait for all background work."""
        for close in list(self._open):
            self._close(close)
        while self._background:
            await asyncio.gather(*self._background, return_exceptions=True)


class GrpcCall(Request):
    """One call of an admitted caller, with its deadline."""

    def __init__(
        self, state: CallState, caller: Caller, context: Context, requests: AsyncIterator[Any]
    ) -> None:
        super().__init__(state.app, state.events, caller)
        self.state, self.stopping, self._context = state, state.stopping, context
        self.requests = requests
        """What follows the first request; of most methods nothing."""

    def time_to_wait(self, wanted: float | None) -> float | None:
        """Seconds to wait for something: as wanted, but not beyond the deadline. None: for ever."""
        left: float | None = self._context.time_remaining()  # its stubs forget that there may be none
        until = math.inf
        if left is not None:
            until = max(0.0, left - min(max(left / 10, MARGIN_MIN), MARGIN_MAX))
        least = min(math.inf if wanted is None else wanted, until)
        return None if math.isinf(least) else least
