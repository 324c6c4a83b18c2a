"""Decides how many jobs an executor runs at a time, from what it observes four times a second.

Every change is a trial. More slots are kept if completions per second rise with them and run times do not:
else the limit steps back, and the next trial is smaller and later. When run times rise or the event loop
lags, fewer slots are tried, and kept unless completions fall in proportion. Slots that stay unused are given
up in time.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from dray.settings import AUTO_MOST, AUTO_START

LEAST: Final = 8
STEP: Final = 32
"""Slots that are added per observation, or half of those there are, until a trial has its size."""
WIDE, NARROW = 2.0, 1.25
"""The size of a trial, as a factor; the narrow one after a trial that failed."""
CUT: Final = 0.75
SETTLE: Final = 0.2
MEASURE: Final = 0.45
"""Seconds at least that a change has to show, and to be measured; and until all slots have turned over."""
ENOUGH: Final = 64
"""Runs that a measurement counts at least."""
BARREN: Final = 10.0
"""Seconds without the end of any run after which there is nothing to wait for: the limit grows by `STEP`."""
FIRST_HOLD: Final = 2.0
LONGEST_HOLD: Final = 60.0
"""Seconds without a trial after one that failed; doubled each time."""
UNUSED: Final = 10.0
"""Seconds after which slots that nothing uses are given up, half of them at a time."""
RISE: Final = 1.05
"""Completions per second must rise by this factor for more slots to be kept."""
SHORT: Final = 0.01
BATCH: Final = 256
FALL: Final = 0.9
"""While runs take fewer seconds than `SHORT`, slots are a batch rather than a load: then more of them are
kept, up to `BATCH`, unless completions per second fall by a tenth."""
SLOWER: Final = 1.5
"""Run times that rise by this factor make it try fewer slots."""
SLOWEST: Final = 2.0
"""No growth is kept that makes run times rise by this factor over the usual."""
DRIFT: Final = 1.01
"""Run times that rise slower than this, per measurement, become usual."""
LOW_LAG, HIGH_LAG = 0.025, 0.1
"""Seconds by which the event loop is late: below, the limit may grow; above, it shrinks."""
SMOOTH: Final = 0.2
LONGEST_LAG: Final = 0.5
"""The weight of the latest observation in the average lag, and what it counts for at most: a loop that is
late by minutes was frozen, which says nothing of the load."""
BUSY, SATURATED = 0.7, 0.95
"""The share of its time that the event loop computes: if busy, it may itself be what makes runs slower."""
MEMORY_ENOUGH, MEMORY_SCARCE = 0.7, 0.85
"""Shares of the memory that an executor may use: below, the limit may grow; above, it shrinks."""


class Observation(NamedTuple):
    """The state of an executor at one moment, and what happened since the moment before."""

    time: float
    """Seconds."""
    completed: int
    """Runs that have ended since the executor started."""
    used: int
    """Slots in use."""
    full: bool
    """All slots were in use, and more work was ready."""
    took: float = 0.0
    measured: int = 0
    """Seconds that runs took which ended since the last moment, in all, and how many were measured."""
    lag: float = 0.0
    """Seconds by which the event loop was late."""
    cpu: float = 0.0
    """The share of the time that the event loop's thread computed."""
    memory: float = 0.0
    """The share of the allowed memory that is used; 0 if there is no bound."""
    others_sleep: bool = False
    """Another executor of the worker waits for work."""


class _Point(NamedTuple):
    """The measured effect of a limit."""

    limit: int
    rate: float
    """Completions per second."""
    seconds: float
    """The mean run time."""
    lag: float


class _Measurement:
    """Counts what ends under one limit, once the change to it had time to show."""

    def __init__(self, limit: int, seen: Observation, *, settled: bool) -> None:
        self._limit, self._settled = limit, settled
        self._begin(seen)

    def _begin(self, seen: Observation) -> None:
        self._since, self._completed = seen.time, seen.completed
        self._took, self._measured = 0.0, 0

    def barren(self, seen: Observation) -> bool:
        return seen.completed == self._completed and seen.time - self._since >= BARREN

    def add(self, seen: Observation, lag: float) -> _Point | None:
        """The measured point, once there is enough to tell."""
        self._took += seen.took
        self._measured += seen.measured
        seconds, completed = seen.time - self._since, seen.completed - self._completed
        if not self._settled:
            if completed >= self._limit and seconds >= SETTLE:
                self._settled = True
                self._begin(seen)
            return None
        if completed < max(self._limit, ENOUGH) or seconds < MEASURE:
            return None
        rate = completed / seconds
        took = self._took / self._measured if self._measured else self._limit / rate
        return _Point(self._limit, rate, took, lag)


class AdaptiveLimit:
    """The limit of one executor: `observe` returns it anew."""

    def __init__(self, start: int = AUTO_START, most: int = AUTO_MOST) -> None:
        self.limit = self._target = start
        self._start, self._most = start, most
        self._base: _Point | None = None
        """The last point that was found good; a trial is compared with it."""
        self._usual = math.inf
        """The shortest run time lately."""
        self._slow = 0
        """Measurements in a row that found longer run times: in the first, old and new ones may mix."""
        self._measurement: _Measurement | None = None
        self._factor, self._hold = WIDE, FIRST_HOLD
        self._no_growth_until = self._no_cut_until = -math.inf
        self._lag = 0.0
        self._unused_since, self._most_used = math.inf, 0

    def observe(self, seen: Observation) -> int:
        """The limit from now on."""
        self._lag += SMOOTH * (min(seen.lag, LONGEST_LAG) - self._lag)
        too_many = seen.memory > MEMORY_SCARCE or (self._lag > HIGH_LAG and not seen.full)
        if too_many and self.limit > self._start:
            self._shed(seen)
        elif seen.full:
            self._unused_since, self._most_used = math.inf, 0
            self._go_on(seen)
        else:
            self._rest(seen)
        return self.limit

    def _shed(self, seen: Observation) -> None:
        """Give up slots without a trial, and wait: memory and event loop recover as runs end."""
        if seen.time >= self._no_cut_until:
            self._set(max(self._start, int(self.limit * CUT)))
            self._base, self._no_cut_until = None, seen.time + FIRST_HOLD
            self._wait(seen)

    def _rest(self, seen: Observation) -> None:
        """There is less work than slots: nothing can be learned, and slots may be too many."""
        self._set(self.limit)
        self._base = None
        self._unused_since = min(self._unused_since, seen.time)
        self._most_used = max(self._most_used, seen.used)
        if seen.time - self._unused_since >= UNUSED:
            if self._most_used < max(self._start, self.limit // 2):
                self._set(max(self._start, self.limit // 2))
                self._factor, self._hold, self._usual = WIDE, FIRST_HOLD, math.inf
            self._unused_since, self._most_used = seen.time, 0

    def _go_on(self, seen: Observation) -> None:
        if self._base is not None and self.limit > self._base.limit and self._lag > HIGH_LAG:
            self._step_back(self._base, seen)
        elif self.limit < self._target:
            self._climb(seen)
        elif self._measurement is None:
            self._measurement = _Measurement(self.limit, seen, settled=self._base is None)
        elif (point := self._measurement.add(seen, self._lag)) is not None:
            self._judge(point, seen)
        elif self._measurement.barren(seen) and self._may_grow(seen):
            self._target = min(self._most, self.limit + STEP)

    def _climb(self, seen: Observation) -> None:
        if self._may_grow(seen):
            self.limit = min(self._target, self.limit + max(STEP, self.limit // 2))
        else:
            self._target = self.limit
        self._measurement = None

    def _may_grow(self, seen: Observation) -> bool:
        return (
            self.limit < self._most
            and self._lag < LOW_LAG
            and seen.cpu < SATURATED
            and seen.memory < MEMORY_ENOUGH
            and not seen.others_sleep
        )

    # trials

    def _judge(self, point: _Point, seen: Observation) -> None:
        base, self._measurement = self._base, _Measurement(self.limit, seen, settled=True)
        self._slow = self._slow + 1 if point.seconds > max(SHORT, SLOWER * self._usual) else 0
        if base is None or point.limit == base.limit:
            self._adopt(point)
            self._try_other(point, seen)
        elif point.limit > base.limit:
            self._judge_growth(base, point, seen)
        else:
            self._judge_cut(base, point, seen)

    def _adopt(self, point: _Point) -> None:
        self._base, self._usual = point, min(point.seconds, self._usual * DRIFT)

    def _try_other(self, point: _Point, seen: Observation) -> None:
        """Begin a trial, if there is a reason for one."""
        if (self._lag > HIGH_LAG or self._slow >= 2) and seen.time >= self._no_cut_until:
            self._set(max(LEAST, int(self.limit * CUT)))
        elif seen.time >= self._no_growth_until and self._may_grow(seen):
            most = BATCH if point.seconds < SHORT and self.limit < BATCH else self._most
            self._target = min(most, math.ceil(self.limit * self._factor))

    def _judge_growth(self, base: _Point, point: _Point, seen: Observation) -> None:
        if not self._pays(base, point, seen):
            self._step_back(base, seen)
            return
        self._hold = FIRST_HOLD
        if point.rate / base.rate > math.sqrt(point.limit / base.limit):
            self._factor = WIDE
        self._adopt(point)
        self._try_other(point, seen)

    def _pays(self, base: _Point, point: _Point, seen: Observation) -> bool:
        if point.seconds < SHORT and point.limit <= BATCH:
            return point.rate > FALL * base.rate
        rise, much = point.rate / base.rate, math.sqrt(point.limit / base.limit)
        if rise < RISE or rise > much:
            return rise > much
        # What the runs wait for is saturated if they take longer the more there are, unless it is this loop.
        return seen.cpu > BUSY or point.seconds < min(much * base.seconds, SLOWEST * self._usual)

    def _step_back(self, base: _Point, seen: Observation) -> None:
        self._set(base.limit)
        self._factor = NARROW
        self._wait(seen)

    def _judge_cut(self, base: _Point, point: _Point, seen: Observation) -> None:
        """Keep fewer slots unless that costs completions in proportion and does not help the lag."""
        loss, cut = 1 - point.rate / base.rate, 1 - point.limit / base.limit
        helped = base.lag > HIGH_LAG and point.lag < base.lag * (1 - cut / 2)
        if loss < cut / 2 or helped:
            self._base = point
            self._no_growth_until = seen.time + self._hold
            self._try_other(point, seen)
            return
        self._set(base.limit)
        self._usual, self._slow = base.seconds, 0
        self._no_cut_until = seen.time + self._hold
        self._wait(seen)

    def _wait(self, seen: Observation) -> None:
        """Try no growth for a while, which gets longer each time."""
        self._no_growth_until = seen.time + self._hold
        self._hold = min(2 * self._hold, LONGEST_HOLD)

    def _set(self, limit: int) -> None:
        self.limit = self._target = limit
        self._measurement = None
