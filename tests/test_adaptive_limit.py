"""The limit that an executor finds by itself: simulated jobs of several kinds, and each rule for itself."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable

import pytest

from dray.settings import AUTO_MOST, AUTO_START
from dray.worker.executor.adaptive_limit import LEAST, AdaptiveLimit, Observation

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


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cpu", [0.00002, 0.00005, 0.00015])
def test_short_waits_reach_the_best_fixed_limit_within_five_seconds(seed: int, cpu: float) -> None:
    machine = Machine(waits(0.01), cpu=cpu, seed=seed).run(15)
    assert machine.rate(since=5) >= 0.95 * best_rate(waits(0.01), cpu)


if __name__ == "__main__":
    import sys
    def show(name, m, marks):
        L = m.limits()
        print(name, "turns", m.turns(10), "limits", [L[int(t*4)-1] for t in marks], "rates", [int(m.rate(t-2, t)) for t in marks])
    marks=(1,2,3,4,5,7,10,15,20,30,60,120,300)
    for cpu in (0.00002,0.00005,0.00015):
        m=Machine(waits(.01),cpu=cpu).run(301); show(f"io10ms cpu {cpu}", m, marks); print(best_rate(waits(.01),cpu))
    m=Machine(waits(.0),cpu=2e-5).run(301); show("noop", m, marks)
    m=Machine(waits(.1),cpu=1e-4).run(301); show("io100ms", m, marks)
    m=Machine(waits(1.0),cpu=1e-4).run(301); show("io1s", m, marks)
    m=Machine(waits(10.0),cpu=1e-4).run(301); show("io10s", m, marks)
    m=Machine(waits(3600.0),cpu=1e-4).run(401); show("io1h", m, marks)
    for c in (.002,.005,.02,.2):
        m=Machine(waits(0.0),cpu=c).run(301); show(f"cpu {c}", m, marks)
    for k in (10,50,70,150,400):
        for T in (.02,.2,1.0):
            m=Machine(saturates(T,k),cpu=1e-4).run(301); show(f"api {T} k={k}", m, marks)
    mixed=lambda b,t,d: 0.01 if d.random()<.5 else 1.0
    m=Machine(mixed,cpu=1e-4).run(301); show("mixed", m, marks)
    heavy=lambda b,t,d: 0.05*d.paretovariate(1.5)
    m=Machine(heavy,cpu=1e-4).run(301); show("heavy", m, marks)
    drop=lambda b,t,d: .1*max(1.0,b/(300 if t<60 or t>150 else 50))*(.8+.4*d.random())
    m=Machine(drop,cpu=1e-4).run(301); show("api drops 60..150", m, (10,30,59,62,65,70,80,100,149,155,160,170,200,300))
    noisy=lambda b,t,d: .1*(1+ (int(t*2)*7919%13)/13)
    m=Machine(noisy,cpu=1e-4).run(301); show("noisy api", m, marks)
