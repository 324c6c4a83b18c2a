"""Schedules: one job per tick, on any number of schedulers, however late, whatever became of the job."""

from __future__ import annotations

import time
from typing import Final

from dray.broker.actions import Cancel, Query
from dray.broker.verbs import Broker, Doc, DocWrite
from dray.job import Job, State
from dray.policy import Retention
from dray.schedules.cron import Every
from dray.schedules.schedule import KIND, Schedule, Step, decode, encode, step, tick_id
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme

NAME: Final = "report"


async def announce(bench: Bench, **options: object) -> Schedule:
    """A schedule whose first tick is a minute away."""
    schedule = Schedule(
        name=NAME,
        task="work",
        rule=Every(MINUTE),
        job=Job(id="", task="work"),
        next_run=Every(MINUTE).next(bench.clock.time),
        **options,  # type: ignore[arg-type]
    )
    await bench.broker.doc(KIND, NAME, encode(schedule), now=bench.clock.now)
    bench.clock.advance(MINUTE)
    return schedule


class Scheduler:
    """Reads the schedule, works out what is due, and puts it: as a leader does, a step at a time."""

    def __init__(self, bench: Bench, broker: Broker) -> None:
        self._bench, self._broker = bench, broker
        self._doc: Doc | None = None
        self.due: Step | None = None

    async def read(self, *, ahead: int = 0) -> Scheduler:
        now = self._bench.clock.now
        self._doc = (await self._broker.doc(KIND, NAME, now=now)).doc
        assert self._doc is not None
        self.due = step(decode(self._doc.value), self._bench.clock.time + ahead)
        return self

    async def put(self) -> list[str]:
        """The verdicts; none if another was quicker."""
        assert self._doc is not None
        assert self.due is not None
        value, version = encode(self.due.schedule), self._doc.version
        when = DocWrite(kind=KIND, name=NAME, value=value, expect_version=version)
        accepted = await self._broker.put(self.due.jobs, when=when, now=self._bench.clock.now)
        return [reply.verdict for reply in accepted]


async def scheduler(bench: Bench) -> Scheduler:
    return Scheduler(bench, await bench.open(bench.broker.namespace, bench.broker.retention))


async def stored(bench: Bench) -> Schedule:
    doc = (await bench.broker.doc(KIND, NAME, now=bench.clock.now)).doc
    assert doc is not None
    return decode(doc.value)


def id_of(tick: int | None) -> str:
    assert tick is not None
    return tick_id(NAME, "default", tick)


class TestTicks(Theme):
    async def test_a_tick_makes_its_job_and_advances_its_schedule(self, bench: Bench) -> None:
        before = await announce(bench)
        assert await (await (await scheduler(bench)).read()).put() == ["created"]
        after = await stored(bench)
        assert (after.last_run, after.run_count, after.last_job) == (
            before.next_run,
            1,
            id_of(before.next_run),
        )
        assert after.next_run == Every(MINUTE).next(bench.clock.time)
        assert await bench.state(id_of(before.next_run)) is State.READY

    async def test_of_two_leaders_that_read_the_same_one_makes_the_job(self, bench: Bench) -> None:
        before = await announce(bench)
        one, other = await scheduler(bench), await scheduler(bench)
        await one.read()
        await other.read(ahead=200)  # its clock is a little ahead
        assert await one.put() == ["created"]
        assert await other.put() == []
        assert await bench.find(Query()) == [id_of(before.next_run)]
        assert (await stored(bench)).run_count == 1

    async def test_a_put_that_is_repeated_after_a_lost_reply_does_nothing(self, bench: Bench) -> None:
        await announce(bench)
        one = await (await scheduler(bench)).read()
        await one.put()
        before = await stored(bench)
        assert await one.put() == []
        assert await stored(bench) == before
        assert len(await bench.find(Query())) == 1

    async def test_a_leader_that_slept_through_ticks_of_others_makes_nothing(self, bench: Bench) -> None:
        await announce(bench)
        frozen = await (await scheduler(bench)).read()
        other = await scheduler(bench)
        for _ in range(3):
            assert await (await other.read()).put() == ["created"]
            bench.clock.advance(MINUTE)
        assert await frozen.put() == []
        assert len(await bench.find(Query())) == 3

    async def test_a_leader_that_comes_back_after_the_job_was_pruned_makes_nothing(
        self, bench: Bench
    ) -> None:
        await bench.reopen("brief", Retention(done_ttl=SECOND, result_ttl=0))
        before = await announce(bench)
        frozen = await (await scheduler(bench)).read()
        await (await (await scheduler(bench)).read()).put()
        worker = await bench.worker()
        await worker.succeed(await worker.take_one())
        bench.clock.advance(HOUR)
        await bench.sweep()
        assert await bench.state(id_of(before.next_run)) is State.NOT_FOUND
        assert await frozen.put() == []
        assert await bench.find(Query()) == []

    async def test_a_tick_whose_job_is_there_already_makes_no_other_one(self, bench: Bench) -> None:
        """A schedule that was deleted and made anew, or came back from a copy, is at an old tick."""
        before = await announce(bench)
        await (await (await scheduler(bench)).read()).put()
        await bench.broker.doc(KIND, NAME, encode(before), now=bench.clock.now)
        assert await (await (await scheduler(bench)).read()).put() == ["duplicate"]
        assert (await stored(bench)).next_run != before.next_run
        assert await bench.find(Query()) == [id_of(before.next_run)]

    async def test_ticks_that_are_caught_up_with_come_in_one_step(self, bench: Bench) -> None:
        before = await announce(bench, catch_up="all", catch_up_cap=1000)
        bench.clock.advance(100 * HOUR)
        one = await (await scheduler(bench)).read()
        other = await (await scheduler(bench)).read()
        assert set(await one.put()) == {"created"}
        assert await other.put() == []
        queue = await bench.queue()
        assert queue is not None
        assert queue.counts[State.READY] == 1000
        assert (await stored(bench)).run_count == 1000
        assert before.run_count == 0

    async def test_jitter_lets_the_job_start_later_than_its_tick(self, bench: Bench) -> None:
        before = await announce(bench, jitter=HOUR)
        assert before.next_run is not None
        await (await (await scheduler(bench)).read()).put()
        record = await bench.record(id_of(before.next_run))
        assert record.job.due is not None
        assert before.next_run <= record.job.due <= before.next_run + HOUR
        bench.clock.advance(HOUR)
        worker = await bench.worker()
        assert await worker.take_ids() == [record.id]

    async def test_a_schedule_that_was_changed_or_deleted_in_between_makes_nothing(
        self, bench: Bench
    ) -> None:
        before = await announce(bench)
        one = await (await scheduler(bench)).read()
        await bench.broker.doc(KIND, NAME, encode(before), now=bench.clock.now)
        assert await one.put() == []
        await one.read()
        await bench.broker.doc(KIND, NAME, None, now=bench.clock.now)
        assert await one.put() == []
        assert await bench.find(Query()) == []

    async def test_the_job_before_can_be_cancelled_again_and_again(self, bench: Bench) -> None:
        before = await announce(bench)
        one = await scheduler(bench)
        await (await one.read()).put()
        last = id_of(before.next_run)
        bench.clock.advance(MINUTE)
        await one.read()
        for _ in range(2):
            await bench.edit(last, Cancel("the next run is due"))
        assert await one.put() == ["created"]
        assert await bench.state(last) is State.CANCELLED


class TestClock(Theme):
    async def test_it_is_known_without_asking_and_does_not_go_back(self, bench: Bench) -> None:
        read = [bench.broker.clock() for _ in range(100)]
        assert read == sorted(read)
        assert abs(read[-1] - time.time() * 1000) < MINUTE

    async def test_it_is_not_ahead_of_what_the_broker_goes_by(self, bench: Bench) -> None:
        for _ in range(5):
            known = bench.broker.clock()
            doc = (await bench.broker.doc("note", "n", b"", ttl=MINUTE)).doc
            assert doc is not None
            assert doc.expires is not None
            assert known <= doc.expires - MINUTE
