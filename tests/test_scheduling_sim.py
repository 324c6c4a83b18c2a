"""A day of schedules whose schedulers die and freeze: every tick makes its job, once; and bugs are found."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from sim.calendar import live_through
from sim.lives import Violation

from dray.broker.verbs import Doc, DocWrite
from dray.errors import BrokerAway
from dray.schedules.schedule import KIND, Schedule, Step, encode
from dray.worker.duties.ticker import Ticker
from dray.worker.retrying_broker import RetryingBroker

SEEDS_MAX = 40
"""How many seeds a planted bug may take to be found."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A day of outages fills pages of log."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_a_day_of_five_hundred_rules_with_dying_schedulers_makes_just_the_jobs_of_their_ticks() -> None:
    day = live_through(seed=7)
    assert day.jobs > 6000
    assert day.crashes > 100
    assert day.freezes > 100


def test_the_same_seed_gives_the_same_day() -> None:
    assert live_through(seed=3, hours=0.3) == live_through(seed=3, hours=0.3)


class AdvancesWithoutComparing(Ticker):
    """Writes its schedule whatever became of it meanwhile."""

    async def _put(self, line: RetryingBroker, doc: Doc, due: Step) -> bool:
        when = DocWrite(kind=KIND, name=doc.name, value=encode(due.schedule))
        return bool(await line.ask(lambda broker: broker.put(due.jobs, when=when)))


class PutsFirst(Ticker):
    """Puts under ids of its own making, and advances after that."""

    _ids = itertools.count()

    async def _put(self, line: RetryingBroker, doc: Doc, due: Step) -> bool:
        jobs = [replace(job, id=f"default:{next(self._ids):032x}") for job in due.jobs]
        await line.ask(lambda broker: broker.put(jobs))
        return await self._write_schedule(line, doc, due.schedule)


class AdvancesFirst(Ticker):
    """Advances by compare-and-set, and puts after that."""

    async def _put(self, line: RetryingBroker, doc: Doc, due: Step) -> bool:
        if not await self._write_schedule(line, doc, due.schedule):
            return False
        await line.ask(lambda broker: broker.put(due.jobs))
        return True


class TrustsItsHold(Ticker):
    """Believes that nobody else can have led since it last looked: goes by what it remembers."""

    def __init__(self, lease: int) -> None:
        super().__init__(lease)
        self._known: dict[str, tuple[Doc, Schedule]] = {}

    async def _handle(self, line: RetryingBroker, name: str) -> int | None:
        if name not in self._known:
            doc = (await line.ask(lambda broker: broker.doc(KIND, name))).doc
            assert doc is not None
            schedule = self._read(doc)
            assert schedule is not None
            self._known[name] = (doc, schedule)
        return await self._advance(line, *self._known[name])

    async def _put(self, line: RetryingBroker, doc: Doc, due: Step) -> bool:
        self._known[doc.name] = (doc, due.schedule)
        await line.ask(lambda broker: broker.put(due.jobs))
        await line.ask(lambda broker: broker.doc(KIND, doc.name, encode(due.schedule)))
        return True


class TakesSilenceForAnAnswer(Ticker):
    """A put without a reply is none of its business any more."""

    async def _put(self, line: RetryingBroker, doc: Doc, due: Step) -> bool:
        try:
            return await super()._put(line, doc, due)
        except BrokerAway:
            await line.retry(lambda broker: broker.doc(KIND, doc.name, encode(due.schedule)))
            return True


@pytest.mark.parametrize(
    "bug",
    [AdvancesWithoutComparing, PutsFirst, AdvancesFirst, TrustsItsHold, TakesSilenceForAnAnswer],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(bug: type[Ticker]) -> None:
    for seed in range(SEEDS_MAX):
        try:
            live_through(seed, hours=2, rules=201, schedules=bug)
        except Violation:
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not find it")
