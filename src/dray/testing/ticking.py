"""Schedules in a test: the duty of a real worker, done whenever the clock was moved."""

from __future__ import annotations

from dray.app import App
from dray.broker.verbs import run_blocking
from dray.reconciling import read_schedules, reconcile
from dray.testing.store import Clock, Store
from dray.worker.lifeline import Lifeline
from dray.worker.schedules import Schedules


class Ticking:
    """Writes what the app declares, and makes jobs of the ticks that are due."""

    def __init__(self, app: App, store: Store, clock: Clock) -> None:
        self._app, self._store, self._clock = app, store, clock

    def reconcile(self) -> None:
        """As a worker does when it starts. A test may declare more at any time, so it is done often."""
        if self._app.declarations:
            run_blocking(reconcile(self._store.view(blocking=True), self._app.declared_schedules()))

    async def put_due(self) -> None:
        """Put the jobs of all ticks that are due by now."""
        lease = self._app.settings.lease
        duty = Schedules(lease)
        line = Lifeline(
            self._store.view(blocking=False), lease / 1000, wall=self._seconds, monotonic=self._seconds
        )
        while not await duty.step(line):  # seconds to the next one
            pass

    async def next_time(self) -> int | None:
        """When the next tick is due, if there is any."""
        now, found = self._clock(), await read_schedules(self._store.view(blocking=False))
        times = (schedule.next_run for schedule, _ in found if schedule.paused is None)
        return min((at for at in times if at is not None and at > now), default=None)

    def _seconds(self) -> float:
        return self._clock() / 1000
