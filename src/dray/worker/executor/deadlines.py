"""Stops runs at their timeout or deadline, asks again those that do not stop, and writes the heartbeat.

One timer serves all runs, set to the earliest moment. A run that ends does not touch it: when it goes off
for a run that is gone, it is set to the next moment.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dray.broker.verbs import Ref
from dray.worker.executor.accounting import Accounts
from dray.worker.run.run_state import RunState, StopReason
from dray.worker.shared_memory import SharedHeartbeat, now

if TYPE_CHECKING:
    from dray.worker.executor.runs import Runs

PATIENCE: Final = 5.0
"""Seconds that an overdue run has to stop before its executor is given up."""
BEAT: Final = 0.25
SECOND: Final = 1.0


class Deadlines:
    def __init__(
        self,
        executor: Runs,
        runs: dict[Ref, RunState],
        zombies: dict[RunState, None],
        heartbeat: SharedHeartbeat | None,
        accounts: Accounts,
    ) -> None:
        self._executor, self._runs, self._zombies = executor, runs, zombies
        self._heartbeat, self._accounts = heartbeat, accounts
        self._loop = asyncio.get_running_loop()
        self._earliest = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._tick: asyncio.Handle | None = None
        self._tick_at = math.inf
        self._next_second = 0.0
        self.halting: dict[RunState, Callable[[RunState], None]] = {}
        """Runs that were asked to stop, and the function that asks again."""

    def begin(self) -> None:
        self._next_second = self._loop.time() + SECOND
        self._ticked()

    def end(self) -> None:
        for timer in (self._timer, self._tick):
            if timer is not None:
                timer.cancel()

    def expect(self, stop_at: float) -> None:
        """A run has to be stopped at this time."""
        if stop_at < self._earliest:
            self._earliest = stop_at
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(stop_at, self._check)
            if self._heartbeat is not None:
                self._show_deadline(self._heartbeat)

    def tried(self) -> None:
        """The broker answered."""
        if self._heartbeat is not None:
            self._heartbeat.write("tried", now())

    def _check(self) -> None:
        time = self._loop.time()
        for run in self._all():
            if run.stop_at > time:
                continue
            if run.overdue:
                run.stop_at, run.stuck = math.inf, True
                self._executor.give_up(run)
            else:
                run.overdue, run.stop_at = True, time + PATIENCE
                missed = run.deadline <= time
                self._executor.halt(run, StopReason.DEADLINE if missed else StopReason.TIMEOUT)
        self._timer, self._earliest = None, math.inf
        self._expect_next()

    def _all(self) -> list[RunState]:
        return [*self._runs.values(), *self._zombies]

    def _expect_next(self) -> None:
        self.expect(min((run.stop_at for run in self._all()), default=math.inf))

    def _ticked(self) -> None:
        time = self._loop.time()
        lag = max(0.0, time - self._tick_at)
        self._accounts.lag = max(self._accounts.lag, lag)
        self._executor.every_beat(lag)
        self._tick_at = time + (SECOND if self._heartbeat is None else BEAT)
        self._tick = self._loop.call_at(self._tick_at, self._ticked)
        if self._heartbeat is not None:
            self._beat(self._heartbeat)
        if time < self._next_second:
            return
        self._next_second = time + SECOND
        self._expect_next()
        for run, ask in list(self.halting.items()):
            if time - run.asked >= SECOND * 0.9:
                run.asked = time
                if run.stop_reason is StopReason.CANCELLED and not run.heeded:
                    self.hurry(run)
                ask(run)
        self._executor.every_second()

    def hurry(self, run: RunState) -> None:
        """Treat a cancelled run in a thread that has not noticed it like one past its timeout."""
        if run.work is not None and not run.overdue:
            run.overdue, run.stop_at = True, self._loop.time() + PATIENCE
            self.expect(run.stop_at)

    def _beat(self, heartbeat: SharedHeartbeat) -> None:
        heartbeat.write("beat", now())
        heartbeat.write("running", len(self._runs))
        heartbeat.write("slots", self._executor.slots.limit)
        self._show_deadline(heartbeat)

    def _show_deadline(self, heartbeat: SharedHeartbeat) -> None:
        ends = (run.stop_at + (0.0 if run.overdue else PATIENCE) for run in self._all())
        end = min(ends, default=math.inf)
        left = end - self._loop.time()
        heartbeat.write("deadline", 0 if math.isinf(end) else now() + int(left * 1e9))
