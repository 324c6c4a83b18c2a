"""A day of schedules on virtual time: the real duties, schedulers that die and freeze, a faulty network.

    python -c "from sim.calendar import live_through; print(live_through(seed=1))"

Mixed cron and interval rules in several time zones, over a night in which clocks are put forward. What ends
up in the broker is held against the ticks of the rules: every one must have made its job, under its id, once.
Jobs are counted and deleted as they come, as if they were pruned at once: so nothing but the compare-and-set
with the schedule keeps a tick from being dealt with twice.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from dray.broker.actions import Delete, Ids, Query
from dray.broker.memory import MemoryBroker
from dray.duration import HOUR, SECOND
from dray.job import Job
from dray.schedules.cron import Cron, Every, Rule
from dray.schedules.schedule import KIND, Schedule, encode, tick_id
from dray.worker.duties.duties import Duties, Sweep
from dray.worker.duties.ticker import Ticker
from dray.worker.retrying_broker import RetryingBroker
from sim.lives import Violation
from sim.loop import Process, VirtualLoop
from sim.plan import Plan
from sim.transport import Call, Network, Transport

START: Final = int(datetime(2027, 3, 27, 18, tzinfo=UTC).timestamp()) * SECOND
"""The evening before clocks are put forward in Europe."""
ZONES: Final = (
    "UTC",
    "Europe/London",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",
    "Pacific/Auckland",
)
LEASE: Final = 60 * SECOND
LOOK_EVERY: Final = 20.0
READ_EVERY: Final = 600.0
"""Seconds between looks for leadership, instead of one: most of a day is waiting."""
COUNT_EVERY: Final = 97.0
SCHEDULERS: Final = 3


@dataclass
class Day:
    """What happened."""

    jobs: int = 0
    crashes: int = 0
    freezes: int = 0
    calls: int = 0


def live_through(seed: int, *, hours: float = 24, rules: int = 500, schedules: type[Ticker] = Ticker) -> Day:
    """Simulate the day; raises `Violation` unless every tick made exactly one job."""
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(_Calendar(seed, loop, schedules, hours, rules).play())
    finally:
        loop.bury()


class _Nobody:
    """Watches the broker without an opinion: everything is checked at the end."""

    def arrived(self, call: Call) -> None: ...

    def replied(self, call: Call, reply: Any) -> None: ...

    def refused(self, call: Call, error: Exception) -> None: ...

    def failed(self, violation: Violation) -> None: ...


class _Calendar:
    def __init__(
        self, seed: int, loop: VirtualLoop, schedules: type[Ticker], hours: float, rules: int
    ) -> None:
        self._loop, self._dice = loop, random.Random(f"calendar:{seed}")
        # The same program at a calmer pace.
        self._schedules = type(
            schedules.__name__, (schedules,), {"look_every": LOOK_EVERY, "read_every": READ_EVERY}
        )
        self._end = START + round(hours * HOUR)
        self._broker = MemoryBroker("dray", clock=self._clock)
        plan = Plan(
            seed=seed, slow=0.05, lost=0.02, unheard=0.03, twice=0.03, late=0.03, stale=0.01, crash=0.02
        )
        self._network = Network(plan, loop, self._broker, _Nobody())
        self._rules = {f"rule-{n}": self._rule(n) for n in range(rules)}
        self._staff: dict[str, Process] = {}
        self._made: Counter[str] = Counter()
        self._day = Day()
        self._over = False

    def _clock(self) -> int:
        return START + int(self._loop.time() * 1000)

    def _rule(self, n: int) -> Rule:
        """A few busy schedules and many quiet ones."""
        dice = self._dice
        minute, hour, zone = dice.randrange(60), dice.randrange(24), dice.choice(ZONES)
        if n % 200 == 0:
            return Every.parse("1m") if dice.random() < 0.5 else Cron.parse("* * * * *", zone)
        if n % 40 == 1:
            return Every.parse(f"{dice.randint(7, 40)}m")
        if n % 40 == 2:
            return Cron.parse(f"*/{dice.choice([10, 15, 20])} * * * *", zone)
        if n % 40 == 3:
            return Cron.parse(f"{minute},{(minute + 30) % 60} * * * MON-SUN", zone)
        if n % 5 == 4:
            return Cron.parse(f"{minute} */{dice.choice([1, 2, 3])} * * *", zone)
        seldom = (
            f"{minute} {hour} * * *",
            f"{minute} {hour} * * MON,SUN",
            f"{minute} {hour} 28 * *",
            "@daily",
        )
        return Cron.parse(dice.choice((*seldom, f"{dice.randrange(60)} {minute} {hour} * * *")), zone)

    def _wanted(self) -> Iterator[str]:
        for name, rule in self._rules.items():
            tick = rule.next(START)
            while tick is not None and tick <= self._end:
                yield tick_id(name, "default", tick)
                tick = rule.next(tick)

    async def play(self) -> Day:
        for name, rule in self._rules.items():
            jitter = self._dice.choice([0, 0, 30 * SECOND])
            job = Job(id="", task="t")
            # Whatever nobody was there for in time is made up for: so the jobs are known beforehand.
            schedule = Schedule(
                name=name,
                task="t",
                rule=rule,
                job=job,
                jitter=jitter,
                catch_up="all",
                next_run=rule.next(START),
            )
            await self._broker.doc(KIND, name, encode(schedule))
        for n in range(SCHEDULERS):
            self._hire(f"scheduler{n}")
        while self._clock() < self._end:
            await asyncio.sleep(COUNT_EVERY)
            self._harm()
            await self._count()
        await self._settle()
        self._reckon()
        self._day.calls = self._network.calls
        return self._day

    # schedulers

    def _hire(self, name: str) -> None:
        process = self._staff[name] = Process(name, self._loop)
        process.on_kill.append(lambda: self._died(name))
        process.start(self._work(process))

    async def _work(self, process: Process) -> None:
        time = self._loop.time
        broker = Transport(self._network, process)
        line = RetryingBroker(broker, LEASE / 1000, wall=time, monotonic=time, random=self._dice.random)
        # A name of its own for each life, as workers have.
        worker = f"{process.name}-{time()}"
        duties = Duties(line, worker, [Sweep(60_000), self._schedules(LEASE)], lease=LEASE, interval=12_000)
        duties.leadership.seek_every = LOOK_EVERY
        await duties.run()

    def _died(self, name: str) -> None:
        self._day.crashes += 1
        if not self._over:
            self._loop.call_later(self._dice.uniform(1, 40), self._hire, name)

    def _harm(self) -> None:
        """Kill or freeze one scheduler while another is well: without any, no tick is promised."""
        well = [one for one in self._staff.values() if one.alive and not one.frozen]
        if len(well) < 2 or self._dice.random() < 0.5:
            return
        victim = self._dice.choice(well)
        if self._dice.random() < 0.5:
            victim.kill()
        else:
            self._day.freezes += 1
            victim.freeze(self._dice.uniform(0.1, 3 * LEASE / 1000))

    # reckoning

    async def _count(self) -> None:
        while True:
            ids = tuple(record.id for record in (await self._broker.find(Query(), limit=1000)).records)
            if not ids:
                return
            self._made.update(ids)
            await self._broker.edit(Ids(ids), Delete())

    async def _settle(self) -> None:
        """Wait for late calls, then compare the jobs with the ticks."""
        await asyncio.sleep(4 * LEASE / 1000)
        self._over = True
        for process in self._staff.values():
            process.kill()
        await asyncio.sleep(60)
        await self._count()

    def _reckon(self) -> None:
        wanted = set(self._wanted())
        late = {
            tick_id(name, "default", tick)
            for name, rule in self._rules.items()
            for tick in _between(rule, self._end, self._clock())
        }
        twice = sorted(id for id, count in self._made.items() if count > 1)
        missing, unknown = sorted(wanted - self._made.keys()), sorted(self._made.keys() - wanted - late)
        if twice or missing or unknown:
            counts = (
                f"{len(twice)} made twice, {len(missing)} missing, {len(unknown)} that no tick stands for"
            )
            raise Violation("ticks", f"of {len(wanted)} jobs {counts}: {(twice + missing + unknown)[:3]}")
        self._day.jobs = len(wanted)


def _between(rule: Rule, start: int, end: int) -> Iterator[int]:
    tick = rule.next(start)
    while tick is not None and tick <= end:
        yield tick
        tick = rule.next(tick)
