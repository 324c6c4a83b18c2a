"""An executor's eye on the time: timeouts, runs that do not stop, signs of life.

There is one timer for all timeouts, set to the earliest. Ending runs do not touch it: when it goes off for
one that is gone, the next is looked for.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, Protocol

from dray.broker.verbs import Ref
from dray.worker.accounting import Accounts
from dray.worker.live import Live, Why
from dray.worker.pulse import Pulse, now

PATIENCE: Final = 5.0
"""Seconds that a run past its timeout gets before its executor is given up."""
BEAT: Final = 0.25
SECOND: Final = 1.0


class Watched(Protocol):
    def halt(self, live: Live, why: Why) -> None: ...
    def give_up(self, live: Live) -> None: ...
    def every_second(self) -> None: ...


class Watch:
    def __init__(
        self,
        watched: Watched,
        runs: dict[Ref, Live],
        zombies: dict[Live, None],
        pulse: Pulse | None,
        accounts: Accounts,
    ) -> None:
        self._accounts = accounts
        self._watched, self._runs, self._zombies, self._pulse = watched, runs, zombies, pulse
        self._loop = asyncio.get_running_loop()
        self._earliest = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._next_second = 0.0
        self.halting: dict[Live, Callable[[Live], None]] = {}
        """Runs that were asked to stop, and how to ask again."""

    def begin(self) -> None:
        self._next_second = self._loop.time() + SECOND
        self._ticked()

    def end(self) -> None:
        for timer in (self._timer, self._tick):
            if timer is not None:
                timer.cancel()

    def expect(self, deadline: float) -> None:
        """A run that started has this deadline."""
        if deadline < self._earliest:
            self._earliest = deadline
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(deadline, self._check)
            if self._pulse is not None:
                self._tell_deadline(self._pulse)

    def tried(self) -> None:
        """The broker answered."""
        if self._pulse is not None:
            self._pulse.write("tried", now())

    def _check(self) -> None:
        time = self._loop.time()
        for live in [*self._runs.values(), *self._zombies]:
            if live.deadline > time:
                continue
            if live.overdue:
                live.deadline, live.stuck = math.inf, True
                self._watched.give_up(live)
            else:
                live.overdue, live.deadline = True, time + PATIENCE
                self._watched.halt(live, Why.TIMEOUT)
        self._timer, self._earliest = None, math.inf
        self.expect(min((live.deadline for live in self._all()), default=math.inf))

    def _all(self) -> list[Live]:
        return [*self._runs.values(), *self._zombies]

    def _ticked(self) -> None:
        time = self._loop.time()
        if self._tick is not None and time - self._tick.when() > self._accounts.lag:
            self._accounts.lag = time - self._tick.when()
        self._tick = self._loop.call_at(time + (SECOND if self._pulse is None else BEAT), self._ticked)
        if self._pulse is not None:
            self._beat(self._pulse)
        if time < self._next_second:
            return
        self._next_second = time + SECOND
        for live, ask in list(self.halting.items()):
            if time - live.nudged >= SECOND * 0.9:
                live.nudged = time
                ask(live)
        self._watched.every_second()

    def _beat(self, pulse: Pulse) -> None:
        pulse.write("beat", now())
        pulse.write("running", len(self._runs))
        self._tell_deadline(pulse)

    def _tell_deadline(self, pulse: Pulse) -> None:
        end = min(
            (live.deadline + (0.0 if live.overdue else PATIENCE) for live in self._all()), default=math.inf
        )
        if math.isinf(end):
            pulse.write("deadline", 0)
        else:
            pulse.write("deadline", now() + int((end - self._loop.time()) * 1e9))
