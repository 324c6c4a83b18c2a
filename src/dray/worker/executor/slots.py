"""The slots of an executor: how many more jobs it can start now.

A fixed concurrency is that of all runs together. With `auto` the number of slots adapts, but runs that leave
the event loop, for a thread or a child process of their own, have a bound beside it. A take cannot know what
it will get: it asks for as many jobs as fit if runs leave the loop as often as lately, and what still does
not fit is given back. While that bound is reached, only jobs for the event loop are asked for, and only from
time to time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final, NamedTuple

from dray.settings import Settings
from dray.worker.executor.adaptive_limit import AdaptiveLimit, Observation
from dray.worker.process import memory_used
from dray.worker.shared_memory import SleepSign

OFF_LOOP: Final = 32
"""Runs in threads and child processes at a time, if the number of slots adapts; ..."""
OFF_LOOP_MOST: Final = 100
AHEAD: Final = 0.01
"""... but as many as ended in so many seconds when there was enough to do, up to `OFF_LOOP_MOST`."""
NEARLY: Final = 0.9
"""The share of slots in use that counts as full: some are just being filled again."""
FEW: Final = 0.005
"""A smaller share of runs that leave the event loop is none."""


class Executed(NamedTuple):
    """The work of an executor from its start to one moment."""

    time: float = 0.0
    started: int = 0
    ended: int = 0
    used: int = 0
    """Slots in use at the moment."""
    took: float = 0.0
    measured: int = 0
    """Seconds that measured runs took in all, and how many those are."""


class Slots:
    """The slots of one executor, on its event loop."""

    def __init__(
        self, settings: Settings, *, loop_tasks: bool, cpu_clock: Callable[[], float], sleep: SleepSign | None
    ) -> None:
        self.limit = settings.slots
        """Jobs that may run at a time."""
        self.adapts = settings.concurrency is None
        self.off_loop = 0
        """Runs in threads and child processes, without those that wait for other jobs."""
        self.off_loop_limit = OFF_LOOP if self.adapts else sys.maxsize
        self._reached = False
        """That bound was reached since the last observation."""
        self.past_threads = False
        """Ask for jobs of the event loop, although no more can leave it."""
        self.filled = False
        """A take has filled all slots since the last observation."""
        self._loop_tasks, self._cpu_clock, self._sleep = loop_tasks, cpu_clock, sleep
        self._memory_limit = settings.max_memory
        self._adaptive = AdaptiveLimit()
        self._share = 0.0
        """The share of runs that left the loop lately."""
        self._left = self._seen_left = self._seen_ended = 0
        """Runs that left the loop since the start; how many at the last observation, and had ended."""
        self._seen, self._cpu = Executed(), cpu_clock()

    # asking for jobs

    @property
    def crowded(self) -> bool:
        """No more runs can leave the event loop, and some are to be expected."""
        return self._share > 0 and self.off_loop >= self.off_loop_limit

    def free(self, used: int) -> int:
        """How many jobs to ask for: of the event loop only, if `crowded`."""
        free = self.limit - used
        if not self._share or free <= 0:
            return free
        if self.crowded:
            return free if self.past_threads else 0
        return min(free, int((self.off_loop_limit - self.off_loop) / self._share))

    def leaves_loop(self) -> bool:
        """Count a run that leaves the event loop; false if there is no room for it."""
        if self.off_loop >= self.off_loop_limit:
            self._share, self.past_threads = 1.0, False
            return False
        self.off_loop += 1
        self._left += 1
        self._reached = self._reached or self.off_loop >= self.off_loop_limit
        return True

    # adapting

    def adapt(self, seen: Executed, lag: float, ready: bool) -> None:
        """Observe what was done since the last time, and set the limits anew. `ready`: there is more work."""
        seconds, cpu = seen.time - self._seen.time, self._cpu_clock()
        self._adapt_off_loop(seen.started - self._seen.started, seconds)
        full = ready and (self.filled or seen.used >= NEARLY * self.limit)
        self.limit = self._adaptive.observe(
            Observation(
                time=seen.time,
                completed=seen.ended,
                used=seen.used,
                full=full and (self._loop_tasks or not self.crowded),
                took=seen.took - self._seen.took,
                measured=seen.measured - self._seen.measured,
                lag=lag,
                cpu=(cpu - self._cpu) / seconds if seconds > 0 else 1.0,
                memory=memory_used() / self._memory_limit if self._memory_limit else 0.0,
                others_sleep=self._others_sleep(asleep=not ready and seen.used < self.limit),
            )
        )
        if not self._loop_tasks:
            self.limit = min(self.limit, self.off_loop_limit)
        self._seen, self._cpu, self.filled = seen, cpu, False
        self.past_threads = self.crowded and self._loop_tasks

    def _adapt_off_loop(self, started: int, seconds: float) -> None:
        left, ended = self._left, self._left - self.off_loop
        if started:
            share = (left - self._seen_left) / started
            self._share = share if share > self._share else (share + self._share) / 2
            if self._share < FEW:
                self._share = 0.0
        rate = (ended - self._seen_ended) / seconds if seconds > 0 else 0.0
        most = max(OFF_LOOP, min(OFF_LOOP_MOST, int(rate * AHEAD)))
        if self._reached or most > self.off_loop_limit:  # a low rate says nothing if there was little to do
            self.off_loop_limit = most
        self._reached = self.off_loop >= self.off_loop_limit
        self._seen_left, self._seen_ended = left, ended

    def _others_sleep(self, asleep: bool) -> bool:
        if self._sleep is None:
            return False
        if asleep:
            self._sleep.show()
        return self._sleep.shown
