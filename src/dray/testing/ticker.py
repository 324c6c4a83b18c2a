"""Schedules in a test: the duty of a real worker, called whenever the clock has moved."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from dray.app import App
from dray.broker import Broker
from dray.broker.verbs import run_blocking
from dray.schedules.store import reconcile
from dray.testing.memory_store import Clock, HarnessStore
from dray.worker.duties.ticker import Ticker
from dray.worker.retrying_broker import RetryingBroker

T = TypeVar("T")


class HarnessScheduler:
    """Stores the declared schedules, and puts the jobs of due ticks."""

    def __init__(self, app: App, store: HarnessStore, clock: Clock) -> None:
        self._app, self._store, self._clock = app, store, clock
        self._duty = _Ticker(app.settings.lease)
        self._line: RetryingBroker | None = None

    def reconcile(self) -> None:
        """Store the declared schedules, as a worker does at its start. Tests may declare more at any time."""
        if self._app.declarations:
            run_blocking(reconcile(self._store.view(blocking=True), self._app.declared_schedules()))

    async def put_due(self) -> None:
        """Put the jobs of all ticks that are due by now."""
        line = self._lifeline()
        self._duty.look_again()
        while not await self._duty.step(line):  # seconds to the next one
            pass

    async def next_time(self) -> int | None:
        """The time of the next tick, if there is one."""
        return await self._duty.next_time(self._lifeline())

    def _lifeline(self) -> RetryingBroker:
        if self._line is None:
            lease, store = self._app.settings.lease / 1000, self._store.view(blocking=False)
            self._line = _DirectBroker(store, lease, wall=self._seconds, monotonic=self._seconds)
        return self._line

    def _seconds(self) -> float:
        return self._clock() / 1000


class _DirectBroker(RetryingBroker):
    """Calls to a broker in the same process, which has no outages."""

    async def ask(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        return await call(self.broker)


class _Ticker(Ticker):
    """The duty of a worker, with access to its next tick."""

    def look_again(self) -> None:
        """Read changed schedules also if the clock stood still."""
        self._next_look = 0.0

    async def next_time(self, line: RetryingBroker) -> int | None:
        self.look_again()
        await self._look(line)
        return self._next()
