"""The limit that an executor finds by itself: simulated jobs of several kinds, and each rule for itself."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from dray.settings import AUTO_MOST, AUTO_START
from dray.worker.executor.adaptive_limit import BATCH, LEAST, AdaptiveLimit, Observation

TICK = 0.25
TRIP = 0.002
"""Seconds from the end of a run to the start of the next in its slot."""

Service = Callable[[int, float, random.Random], float]
"""Seconds that a job waits for something else, by the number of runs beside it, the time and a die."""


class Machine:
    """An executor that always has work: runs wait for a service, and compute on one event loop."""

    def __init__(self, service: Service, *, cpu: float = 0.0001, seed: int = 1, demand: float = 1e9) -> None:
        self.limit = AdaptiveLimit()
        self.service, self.cpu, self.demand = service, cpu, demand
        self.dice = random.Random(seed)
        self.now, self.completed, self.loop_free = 0.0, 0, 0.0
        self.memory_of: Callable[[int], float] = lambda used: 0.0
        self.history: list[tuple[float, int, float]] = []
        """Time, limit and completions per second, by tick."""
        self._ends: list[tuple[float, float]] = []
        """When each run ends, and when it began."""
        self._took: list[float] = []
        self._computed = 0.0

    @property
    def used(self) -> int:
        return len(self._ends)

    def run(self, seconds: float) -> Machine:
        end = self.now + seconds
        while self.now < end:
            self._tick(self.now + TICK)
        return self

    def _tick(self, until: float) -> None:
        completed, computed = self.completed, self._computed
        full = self._fill(self.now)
        while self._ends and self._ends[0][0] <= until:
            at, began = heapq.heappop(self._ends)
            self.completed += 1
            self._took.append(at - began)
            full = self._fill(at + TRIP) or full
        self.now = until
        took, self._took = self._took, []
        self.limit.observe(
            Observation(
                time=until,
                completed=self.completed,
                used=self.used,
                full=full or self.used >= self.limit.limit,
                took=sum(took),
                measured=len(took),
                lag=max(0.0, self.loop_free - until),
                cpu=min(1.0, (self._computed - computed) / TICK),
                memory=self.memory_of(self.used),
            )
        )
        self.history.append((until, self.limit.limit, (self.completed - completed) / TICK))

    def _fill(self, at: float) -> bool:
        """Start what fits; true if that are all slots."""
        while self.used < min(self.limit.limit, self.demand):
            self.loop_free = max(self.loop_free, at) + self.cpu
            self._computed += self.cpu
            waits = self.service(self.used + 1, at, self.dice)
            heapq.heappush(self._ends, (self.loop_free + waits, at))
        return self.used >= self.limit.limit

    # what came of it

    def limits(self, since: float = 0.0) -> list[int]:
        return [limit for time, limit, _ in self.history if time > since]

    def rate(self, since: float, until: float = 1e9) -> float:
        rates = [rate for time, _, rate in self.history if since < time <= until]
        return sum(rates) / len(rates)

    def turns(self, since: float) -> int:
        """How often the limit changed its direction."""
        steps = [b - a for a, b in itertools.pairwise(self.limits(since)) if a != b]
        return sum((a > 0) != (b > 0) for a, b in itertools.pairwise(steps))


def waits(seconds: float, spread: float = 0.3) -> Service:
    return lambda beside, time, dice: seconds * (1 + spread * (2 * dice.random() - 1))


def saturates(seconds: float, at: int) -> Service:
    """A service that works on `at` requests at a time and makes the others wait."""
    return lambda beside, time, dice: seconds * max(1.0, beside / at) * (0.8 + 0.4 * dice.random())


def best_rate(service: Service, cpu: float, limits: tuple[int, ...] = (32, 100, 300, 1000)) -> float:
    """Completions per second with the best of some fixed limits."""
    found = []
    for limit in limits:
        machine = Machine(service, cpu=cpu)
        machine.limit = AdaptiveLimit(start=limit, most=limit)
        found.append(machine.run(5).rate(since=2))
    return max(found)


def settles_at(machine: Machine, since: float) -> int:
    """The limit that holds for most of the time."""
    limits = machine.limits(since)
    return max(set(limits), key=limits.count)


# kinds of jobs


@pytest.mark.parametrize("cpu", [0.00005, 0.00015])
def test_short_waits_reach_the_best_fixed_limit_within_five_seconds(cpu: float) -> None:
    machine = Machine(waits(0.01), cpu=cpu).run(12)
    assert machine.rate(since=5) >= 0.95 * best_rate(waits(0.01), cpu)
    assert machine.turns(since=5) <= 2


def test_long_waits_get_as_many_slots_as_there_may_be_and_keep_them() -> None:
    machine = Machine(waits(1.0)).run(60)
    assert machine.limits(since=30) == [AUTO_MOST] * 120


def test_jobs_that_do_not_end_get_more_slots_slowly() -> None:
    machine = Machine(waits(3600)).run(60)
    limits = machine.limits()
    assert limits == sorted(limits)
    assert 3 * AUTO_START <= limits[-1] <= 8 * AUTO_START


def test_short_jobs_get_a_larger_batch_but_no_more() -> None:
    machine = Machine(waits(0), cpu=0.00001).run(60)
    assert AUTO_START < settles_at(machine, since=10) <= BATCH
    assert machine.turns(since=10) == 0


@pytest.mark.parametrize(
    ("cpu", "least", "most"), [(0.002, 24, 32), (0.005, LEAST, 24), (0.05, LEAST, LEAST)]
)
def test_jobs_that_compute_get_few_slots_and_lose_nothing(cpu: float, least: int, most: int) -> None:
    machine = Machine(waits(0), cpu=cpu).run(90)
    assert least <= settles_at(machine, since=60) <= most
    assert machine.turns(since=0) == 0
    assert machine.rate(since=1) == pytest.approx(1 / cpu, rel=0.02)


@pytest.mark.parametrize(("seconds", "at"), [(0.2, 50), (0.2, 150), (1.0, 70), (0.2, 400)])
def test_a_saturated_service_gets_about_what_it_can_work_on(seconds: float, at: int) -> None:
    machine = Machine(saturates(seconds, at)).run(120)
    assert at * 0.8 <= settles_at(machine, since=60) <= at * 1.4
    assert machine.rate(since=60) >= 0.85 * at / seconds
    assert max(machine.limits()) <= 2.6 * at
    assert machine.turns(since=60) <= 4, "a trial now and then, no oscillation"


def test_a_service_that_gets_slower_is_spared_and_found_again() -> None:
    def service(beside: int, time: float, dice: random.Random) -> float:
        at = 50 if 30 <= time < 120 else 300
        return 0.1 * max(1.0, beside / at) * (0.8 + 0.4 * dice.random())

    machine = Machine(service).run(240)
    before, during = machine.limits(since=20)[:40], machine.limits(since=50)[:280]
    assert min(before) >= 240
    assert max(during) <= 120
    assert settles_at(machine, since=200) >= 240


def test_runs_that_take_longer_for_another_reason_keep_their_slots() -> None:
    machine = Machine(lambda beside, time, dice: 0.05 if time < 15 else 0.5).run(60)
    assert settles_at(machine, since=30) == AUTO_MOST


def test_long_and_short_jobs_together_do_not_confuse_it() -> None:
    machine = Machine(lambda beside, time, dice: 0.01 if dice.random() < 0.5 else 1.0).run(60)
    assert settles_at(machine, since=30) == AUTO_MOST
    assert machine.turns(since=30) <= 2


def test_a_service_with_moods_makes_it_try_fewer_slots_ever_more_rarely() -> None:
    machine = Machine(lambda beside, time, dice: 0.1 * (1 + int(time * 2) * 7919 % 13 / 13)).run(90)
    assert settles_at(machine, since=15) == AUTO_MOST
    assert machine.turns(since=45) <= 4


# each rule for itself


def test_less_work_than_slots_needs_no_more_of_them() -> None:
    machine = Machine(waits(0.1), demand=20).run(30)
    assert set(machine.limits()) == {AUTO_START}


def test_slots_that_nothing_uses_are_given_up_in_time() -> None:
    machine = Machine(waits(0.1)).run(20)
    assert machine.limit.limit == AUTO_MOST
    machine.demand = 400
    machine.run(40)
    assert AUTO_START < machine.limit.limit <= AUTO_MOST // 2, "those in use stay"
    machine.demand = 3
    machine.run(60)
    assert machine.limit.limit == AUTO_START


def test_scarce_memory_takes_slots_away_and_gives_them_back_slowly() -> None:
    machine = Machine(waits(0.1))
    machine.memory_of = lambda used: 0.3 + used / 1000
    machine.run(120)
    limits = machine.limits(since=20)
    assert max(limits) < 700
    assert min(limits) >= 300
    assert machine.turns(since=60) <= 4


def seen(time: float, completed: int, **more: Any) -> Observation:
    return Observation(**{"time": time, "completed": completed, "used": 32, "full": True} | more)


def highest(seconds: float, **more: Any) -> int:
    """The highest limit in so many seconds of 1,000 completions each, seen the same way every time."""
    limit = AdaptiveLimit()
    ticks = range(int(seconds / TICK))
    return max(limit.observe(seen(tick * TICK, int(tick * TICK * 1000), **more)) for tick in ticks)


def test_it_grows_only_while_the_loop_is_idle_and_no_other_executor_sleeps() -> None:
    assert highest(2) > AUTO_START
    assert highest(2, others_sleep=True) == AUTO_START
    assert highest(2, cpu=0.97) == AUTO_START
    assert highest(2, lag=0.05) == AUTO_START
    assert highest(2, memory=0.8) == AUTO_START


@pytest.mark.parametrize("lag", [0.3, 3600.0])
def test_a_loop_that_lags_for_a_moment_changes_nothing(lag: float) -> None:
    limit = AdaptiveLimit()
    for tick in range(40):
        limit.observe(seen(tick * TICK, tick * 250, lag=lag if tick == 20 else 0.0, others_sleep=True))
    assert limit.limit == AUTO_START


def test_a_lag_that_fewer_slots_do_not_cure_costs_none() -> None:
    limit = AdaptiveLimit()
    completed = 0
    for tick in range(400):
        completed += 10 * limit.limit
        limit.observe(seen(tick * TICK, completed, lag=0.3))
    assert limit.limit == AUTO_START
