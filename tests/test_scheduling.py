"""The duty that makes jobs of schedules: in time, once per tick, by the overlap rule, with rivals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from msgspec.structs import replace
from sim import run as run_virtually

from dray.broker.actions import Delete, Ids, Query, Scope, SetLimits
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Filter
from dray.errors import BrokerAway
from dray.job import Job, State
from dray.schedules.cron import Cron, Every
from dray.schedules.schedule import KIND, NEWS, Paused, Schedule, decode, encode, tick_id
from dray.worker.duties.ticker import PUT_OFF, Ticker
from dray.worker.retrying_broker import RetryingBroker

START = 1_800_000_000_000
"""A full hour."""
LEASE = 30_000


class Store:
    """A broker on the virtual clock, and schedules in it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.broker = MemoryBroker("dray", clock=lambda: START + round(self._loop.time() * 1000))

    def line(self) -> RetryingBroker:
        time = self._loop.time
        return RetryingBroker(self.broker.view(blocking=False), LEASE / 1000, wall=time, monotonic=time)

    async def add(self, name: str, *, queue: str = "default", news: bool = True, **options: Any) -> None:
        rule = options.pop("rule", Every(1000))
        schedule = Schedule(
            name=name,
            task="t",
            rule=rule,
            job=Job(id="", task="t", queue=queue),
            next_run=rule.next(self.broker.clock() - 1),
            **options,
        )
        await self.write(schedule, news=news)

    async def write(self, schedule: Schedule, *, news: bool = True) -> None:
        await self.broker.doc(KIND, schedule.name, encode(schedule))
        if news:
            await self.broker.doc(*NEWS, b"")

    async def read(self, name: str) -> Schedule:
        doc = (await self.broker.doc(KIND, name)).doc
        assert doc is not None
        return decode(doc.value)

    async def jobs(self, state: State | None = None) -> list[str]:
        found = await self.broker.find(Query(state=state), limit=1000)
        return sorted(record.id for record in found.records)

    async def start(self, id: str) -> None:
        await self.broker.renew([Beat("s", 10**9)])
        (taken,) = await self.broker.take("s", 1, ["default"], Filter(), 1)
        assert taken.job.id == id


def on_store(test: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await test(Store())

    run_virtually(main())


async def work(duty: Ticker, line: RetryingBroker, seconds: float) -> int:
    """Do what `Duties` does, for a while; how many steps it took."""
    steps, until = 0, line.monotonic() + seconds
    while (left := until - line.monotonic()) >= 0:
        steps += 1
        pause = await duty.step(line)
        await asyncio.sleep(min(pause, max(left, 0.001)))
    return steps


def ticks(name: str, first: int, last: int, every: int = 1000, queue: str = "default") -> list[str]:
    return sorted(tick_id(name, queue, START + tick) for tick in range(first, last + 1, every))


def test_each_tick_gets_its_job_at_its_time_and_nothing_is_done_between_them() -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(10_000))
        calls = await work(Ticker(LEASE), store.line(), 35)
        assert await store.jobs() == ticks("a", 0, 30_000, 10_000)
        assert calls < 60  # a look for news every second, and the ticks
        kept = await store.read("a")
        assert (kept.run_count, kept.last_run, kept.next_run) == (4, START + 30_000, START + 40_000)
        assert kept.last_job == tick_id("a", "default", START + 30_000)
        for record in (await store.broker.find(Query())).records:
            assert record.job.due == record.created

    on_store(test)


def test_many_that_are_due_at_once_are_all_dealt_with() -> None:
    async def test(store: Store) -> None:
        for place in range(500):
            await store.add(f"s{place}", rule=Cron("0 * * * *"))
        for place in range(200):
            await store.add(f"later{place}", rule=Cron("30 4 1 1 *"))
        await work(Ticker(LEASE), store.line(), 1)
        assert len(await store.jobs()) == 500

    on_store(test)


def test_changes_are_noticed_within_a_second_and_those_nobody_told_of_within_a_minute() -> None:
    async def test(store: Store) -> None:
        duty, line = Ticker(LEASE), store.line()
        await work(duty, line, 5.5)
        await store.add("told", rule=Every(1000))
        began = store.broker.clock()
        await work(duty, line, 2)
        assert len(await store.jobs()) >= 1
        await store.add("untold", rule=Every(1000), queue="other", news=False)
        await work(duty, line, 61)
        assert (await store.read("untold")).run_count > 0
        paused = replace(await store.read("told"), paused=Paused(at=began))
        await store.write(paused)
        await work(duty, line, 1.5)
        count = (await store.read("told")).run_count
        await work(duty, line, 5)
        assert (await store.read("told")).run_count == count
        await store.write(replace(paused, paused=None, next_run=store.broker.clock()))
        await work(duty, line, 1.5)
        assert (await store.read("told")).run_count > paused.run_count
        await store.broker.doc(KIND, "told", None)
        await store.broker.doc(*NEWS, b"")
        await work(duty, line, 5)
        assert (await store.broker.doc(KIND, "told")).doc is None

    on_store(test)


def test_reading_them_all_takes_no_more_than_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: Store) -> None:
        line, read = store.line(), 0

        async def slowly(*_: object, **__: object) -> list[Any]:
            nonlocal read
            read += 1
            await asyncio.sleep(2)
            return []

        monkeypatch.setattr(line.broker, "docs", slowly)
        duty = Ticker(LEASE)
        for _ in range(200):
            await store.broker.doc(*NEWS, b"")
            await work(duty, line, 1)
        assert 200 // 24 <= read <= 200 // 18

    on_store(test)


def test_two_that_both_believe_to_lead_make_one_job_of_each_tick() -> None:
    async def test(store: Store) -> None:
        for place in range(20):
            await store.add(f"s{place}", rule=Every(1000))
        await asyncio.gather(*(work(Ticker(LEASE), store.line(), 10) for _ in range(3)))
        wanted = sorted(id for place in range(20) for id in ticks(f"s{place}", 0, 10_000))
        assert await store.jobs() == wanted
        assert (await store.read("s7")).run_count == 11

    on_store(test)


def test_one_that_was_frozen_makes_nothing_of_what_others_have_dealt_with() -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(1000))
        frozen, line = Ticker(LEASE), store.line()
        await work(frozen, line, 2)
        await work(Ticker(LEASE), store.line(), 20)
        await store.broker.edit(Ids(tuple(await store.jobs())), Delete())  # as if they were pruned
        await work(frozen, line, 0)
        assert await store.jobs() == []
        assert (await store.read("a")).run_count == 23

    on_store(test)


def test_a_reply_that_got_lost_costs_nothing_and_makes_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(store: Store) -> None:
        line, tries = store.line(), 0
        put = line.broker.put

        async def unheard(*args: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries % 2:
                raise BrokerAway("before")
            await put(*args, **options)
            raise BrokerAway("after")

        await store.add("a", rule=Every(5000))
        await store.add("b", rule=Every(5000))
        duty = Ticker(LEASE)
        monkeypatch.setattr(line.broker, "put", unheard)
        while tries < 4:
            with pytest.raises(BrokerAway):
                await duty.step(line)
        monkeypatch.undo()
        await work(duty, line, 6)
        assert await store.jobs() == sorted([*ticks("a", 0, 5000, 5000), *ticks("b", 0, 5000, 5000)])

    on_store(test)


def test_what_fell_due_while_leadership_changed_hands_is_late_not_missed() -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(30_000))
        await asyncio.sleep(170)
        await work(Ticker(100_000), store.line(), 1)
        assert await store.jobs() == ticks("a", 0, 150_000, 30_000)

    on_store(test)


def test_missed_ticks_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(30_000))
        await asyncio.sleep(3600)
        await work(Ticker(LEASE), store.line(), 1)
        assert len(await store.jobs()) == 3
        assert "missed" in str((await store.read("a")).last_error)

    on_store(test)
    assert "schedule a missed" in caplog.text


@pytest.mark.parametrize("overlap", ["skip", "cancel_previous"])
def test_a_tick_whose_forerunner_is_unfinished_obeys_the_overlap_rule(overlap: Any) -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(1000), overlap=overlap)
        duty, line = Ticker(LEASE), store.line()
        await work(duty, line, 0.5)
        (first,) = await store.jobs()
        await store.start(first)
        await work(duty, line, 2)
        (record,) = await store.broker.get([first])
        assert record is not None
        if overlap == "skip":
            assert await store.jobs() == [first]
            assert "skipped" in str((await store.read("a")).last_error)
            assert record.cancel is None
        else:
            assert await store.jobs() == ticks("a", 0, 2000)
            assert "schedule a" in str(record.cancel)
            assert await store.jobs(State.CANCELLED) == ticks("a", 1000, 1000)

    on_store(test)


def test_a_queue_that_takes_no_more_is_told_of_and_ticks_go_on() -> None:
    async def test(store: Store) -> None:
        await store.add("a", rule=Every(1000))
        await store.broker.edit(Scope("default"), SetLimits(max_ready=2))
        duty, line = Ticker(LEASE), store.line()
        await work(duty, line, 4.5)
        kept = await store.read("a")
        assert await store.jobs() == ticks("a", 0, 1000)
        assert (kept.run_count, kept.last_run, kept.next_run) == (2, START + 1000, START + 5000)
        assert kept.last_job == tick_id("a", "default", START + 1000)
        assert "takes no more" in str(kept.last_error)

    on_store(test)


def test_one_that_cannot_be_dealt_with_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test(store: Store) -> None:
        await store.add("good", rule=Every(1000))
        await store.add("bad", rule=Every(1000))
        await store.write(replace(await store.read("bad"), rule=Cron("* * * * *", "Atlantis/Central")))
        await store.broker.doc(KIND, "odd", b"\xc1 from the future")
        await store.broker.doc(*NEWS, b"")
        steps = await work(Ticker(LEASE), store.line(), PUT_OFF / 1000 + 3)
        assert len(await store.jobs()) == PUT_OFF // 1000 + 4
        assert "Atlantis" in str((await store.read("bad")).last_error)
        assert steps < 400

    caplog.set_level(logging.ERROR)
    on_store(test)
    assert caplog.text.count("schedule odd cannot be read") == 1
    assert caplog.text.count("schedule bad cannot run") == 2
