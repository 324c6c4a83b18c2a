"""Reading: single jobs, pages of them, queues; and for how long there is something to read."""

from __future__ import annotations

import pytest

from dray.broker.actions import Delete, Pause, Query, Scope, SetLimits
from dray.broker.verbs import Limits
from dray.errors import InvalidInput
from dray.job import Error, OutcomeKind, State
from dray.policy import Retention
from dray.testing.conformance.bench import HOUR, MINUTE, Bench, Theme, job, jobs


class TestReading(Theme):
    async def test_get_answers_in_the_order_asked_and_none_for_the_unknown(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        records = await bench.broker.get(["b", "nobody", "a", "b"], now=bench.clock.now)
        assert [record and record.id for record in records] == ["b", None, "a", "b"]
        assert await bench.broker.get([], now=bench.clock.now) == []

    async def test_find_goes_by_state_and_then_by_queue(self, bench: Bench) -> None:
        later = bench.clock.after(HOUR)
        await bench.put(job("b", queue="b"), job("a", queue="a"), job("s", due=later), job("r", queue="r"))
        await bench.put(job("w", waits_for=("s",)))
        assert await bench.find(Query()) == ["w", "s", "a", "b", "r"]
        assert await bench.find(Query(state=State.READY)) == ["a", "b", "r"]
        assert await bench.find(Query(queue="b")) == ["b"]

    @pytest.mark.parametrize(
        ("query", "ids"),
        [
            (Query(task="mail"), ["a"]),
            (Query(priorities=frozenset({0, 1})), ["b"]),
            (Query(tag="x"), ["a", "b"]),
            (Query(group="g"), ["c"]),
            (Query(key="k"), ["d"]),
            (Query(parent="p"), ["e"]),
            (Query(tag="x", task="mail"), ["a"]),
            (Query(tag="x", state=State.DEAD), []),
            (Query(queue="nowhere"), []),
            (Query(state=State.NOT_FOUND), []),
        ],
    )
    async def test_find_by_what_a_job_is(self, bench: Bench, query: Query, ids: list[str]) -> None:
        await bench.put(
            job("a", "mail", tags=("x", "y")),
            job("b", priority=1, tags=("x",)),
            job("c", group="g"),
            job("d", key="k"),
            job("e", parent="p"),
        )
        assert await bench.find(query) == ids

    @pytest.mark.parametrize("limit", [1, 7, 25, 1000])
    async def test_pages_together_hold_every_job_once(self, bench: Bench, limit: int) -> None:
        await bench.put(*jobs(20), *jobs(5, "other", queue="other"))
        assert await bench.find(Query(), limit) == [one.id for one in [*jobs(20), *jobs(5, "other")]]

    async def test_no_page_is_longer_than_its_limit(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        page = await bench.broker.find(Query(), limit=3, now=bench.clock.now)
        assert len(page.records) == 3
        assert page.cursor is not None

    async def test_a_rare_match_is_found_by_going_on(self, bench: Bench) -> None:
        await bench.put(*jobs(300), job("rare", tags=("x",)))
        assert await bench.find(Query(tag="x"), limit=2) == ["rare"]

    async def test_paging_goes_on_when_the_last_seen_job_is_gone(self, bench: Bench) -> None:
        await bench.put(*jobs(6))
        page = await bench.broker.find(Query(state=State.READY), limit=3, now=bench.clock.now)
        await (await bench.worker()).take(3)
        rest = await bench.broker.find(
            Query(state=State.READY), cursor=page.cursor, limit=9, now=bench.clock.now
        )
        assert [record.id for record in rest.records] == ["job-0003", "job-0004", "job-0005"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "1:2", "a:b:c"])
    async def test_a_cursor_that_no_page_returned_is_refused(self, bench: Bench, cursor: str) -> None:
        with pytest.raises(InvalidInput, match="cursor"):
            await bench.broker.find(Query(), cursor=cursor, now=bench.clock.now)

    async def test_find_and_get_tell_the_same(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        await (await bench.worker()).take(1)
        page = await bench.broker.find(Query(), now=bench.clock.now)
        ids = [record.id for record in page.records]
        assert await bench.broker.get(ids, now=bench.clock.now) == page.records


class TestNewestFirst(Theme):
    async def test_the_job_that_arrived_last_comes_first_whatever_its_state_and_queue(
        self, bench: Bench
    ) -> None:
        await bench.put(*jobs(3), job("b", queue="b"))
        await bench.put(job("s", due=bench.clock.after(HOUR)), job("a", queue="a"))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        await ann.settle(await ann.take_one(), OutcomeKind.DEAD)
        expected = ["a", "s", "b", "job-0002", "job-0001", "job-0000"]
        for limit in (1, 2, 100):
            assert await bench.find(Query(), limit, newest=True) == expected
        assert await bench.find(Query(queue="default"), newest=True) == expected[1:2] + expected[3:]
        assert await bench.find(Query(state=State.READY), newest=True) == ["a", "b", "job-0002"]
        assert await bench.find(Query(state=State.DEAD), newest=True) == ["job-0001"]
        assert await bench.find(Query(state=State.SUCCEEDED, queue="a"), newest=True) == []
        assert await bench.find(Query(state=State.NOT_FOUND), newest=True) == []

    async def test_a_cursor_stays_good_while_jobs_move_come_and_go(self, bench: Bench) -> None:
        await bench.put(*jobs(10))
        page = await bench.broker.find(Query(), limit=4, newest=True, now=bench.clock.now)
        assert [record.id for record in page.records] == [f"job-{n:04}" for n in (9, 8, 7, 6)]
        ann = await bench.worker()
        for taken in await ann.take(3):
            await ann.succeed(taken)
        await bench.edit("job-0006", Delete())
        await bench.put(job("new"))
        rest = await bench.broker.find(
            Query(), cursor=page.cursor, limit=100, newest=True, now=bench.clock.now
        )
        assert [record.id for record in rest.records] == [f"job-{n:04}" for n in range(5, -1, -1)]

    async def test_jobs_since_a_time(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        since = bench.clock.after(MINUTE)
        bench.clock.advance(MINUTE)
        await bench.put(*jobs(2, "later"))
        for newest in (True, False):
            found = await bench.find(Query(since=since), newest=newest)
            assert sorted(found) == ["later-0000", "later-0001"]
            assert await bench.find(Query(since=since + 1), newest=newest) == []
        assert len(await bench.find(Query(since=since - MINUTE, state=State.READY), newest=True)) == 5
        edited = await bench.edit(Query(since=since), Delete())
        assert sorted(edited.changed) == ["later-0000", "later-0001"]

    async def test_a_rare_match_among_many_arrivals_is_found_by_going_on(self, bench: Bench) -> None:
        await bench.put(job("rare", tags=("x",), parent="p"), *jobs(300))
        assert await bench.find(Query(tag="x"), 2, newest=True) == ["rare"]
        assert await bench.find(Query(parent="p"), 2, newest=True) == ["rare"]

    @pytest.mark.parametrize("cursor", ["", "nonsense", "s", "f1", "x12", "f1:x", "0:default:1", "-1"])
    async def test_a_cursor_that_no_page_by_arrival_returned_is_refused(
        self, bench: Bench, cursor: str
    ) -> None:
        with pytest.raises(InvalidInput, match="cursor"):
            await bench.broker.find(Query(), cursor=cursor, newest=True, now=bench.clock.now)


class TestQueues(Theme):
    async def test_queues_are_listed_by_name_with_their_counts(self, bench: Bench) -> None:
        later = bench.clock.after(HOUR)
        await bench.put(job("z", queue="z"), *jobs(3), job("d", due=later), job("w", waits_for=("d",)))
        await (await bench.worker()).take(1)
        queues = await bench.broker.queues(now=bench.clock.now)
        assert [queue.name for queue in queues] == ["default", "z"]
        assert queues[0].counts == {
            State.WAITING: 1,
            State.SCHEDULED: 1,
            State.READY: 2,
            State.RUNNING: 1,
        }
        assert queues[1].counts == {State.READY: 1}

    async def test_finished_jobs_are_counted_while_they_are_kept(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        kinds = [OutcomeKind.SUCCEEDED, OutcomeKind.DEAD, OutcomeKind.CANCELLED]
        for taken, kind in zip(await ann.take(3), kinds, strict=True):
            await ann.settle(taken, kind)
        info = await bench.queue()
        assert info is not None
        assert info.counts == {State.SUCCEEDED: 1, State.DEAD: 1, State.CANCELLED: 1}

    async def test_looking_for_work_makes_no_queue(self, bench: Bench) -> None:
        await (await bench.worker()).take(5, ["nothing-here"])
        assert await bench.broker.queues(now=bench.clock.now) == []

    async def test_the_next_due_time_and_the_oldest_ready_job_are_shown(self, bench: Bench) -> None:
        created = bench.clock.time
        soon, later = bench.clock.after(MINUTE), bench.clock.after(HOUR)
        await bench.put(job("later", due=later), job("soon", due=soon), job("first"))
        bench.clock.advance(5)
        await bench.put(job("second"))
        info = await bench.queue()
        assert info is not None
        assert (info.next_due, info.oldest_ready) == (soon, created)
        await (await bench.worker()).take(2)
        info = await bench.queue()
        assert info is not None
        assert info.oldest_ready is None

    async def test_ready_jobs_are_counted_by_priority_with_the_age_of_the_oldest(self, bench: Bench) -> None:
        start = bench.clock.time
        await bench.put(job("a", priority=5), job("b", priority=0, group="x"))
        bench.clock.advance(5)
        await bench.put(job("c", priority=5, group="y"), job("d", priority=9, due=bench.clock.after(HOUR)))
        info = await bench.queue()
        assert info is not None
        assert info.ready == {0: (1, start), 5: (2, start)}
        ann = await bench.worker()
        await ann.take(2)
        info = await bench.queue()
        assert info is not None
        assert sum(count for count, _ in info.ready.values()) == 1
        await ann.take(2)
        info = await bench.queue()
        assert info is not None
        assert info.ready == {}

    async def test_ready_jobs_that_a_limit_holds_back_are_counted_too(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(group_running=1))
        await bench.put(*(job(f"j{n}", priority=n % 2, group="g") for n in range(6)))
        ann = await bench.worker()
        assert len(await ann.take(6)) == 1
        info = await bench.queue()
        assert info is not None
        assert {priority: count for priority, (count, _) in info.ready.items()} == {0: 2, 1: 3}

    async def test_a_queue_with_settings_is_listed_though_it_is_empty(self, bench: Bench) -> None:
        await bench.edit(Scope("q"), SetLimits(max_running=3, rate="1/s"))
        await bench.edit(Scope("q", "t"), SetLimits(max_running=1))
        await bench.edit(Scope("p", "t"), Pause(by="eve"))
        p, q = await bench.broker.queues(now=bench.clock.now)
        assert (p.name, list(p.paused_tasks), p.paused) == ("p", ["t"], None)
        assert (q.name, q.counts, q.limits) == ("q", {}, Limits(max_running=3, rate="1/s"))
        assert q.task_limits == {"t": Limits(max_running=1)}
        await bench.edit(Scope("q"), SetLimits(max_running=None, rate=None))
        await bench.edit(Scope("q", "t"), SetLimits(max_running=None))
        assert await bench.queue("q") is None


class TestRetention(Theme):
    async def test_a_result_is_shown_for_its_ttl(self, bench: Bench) -> None:
        await bench.reopen("kept", Retention(result_ttl=MINUTE))
        await bench.put(job("default"), job("longer", result_ttl=HOUR), job("off", result_ttl=0))
        ann = await bench.worker()
        for taken in await ann.take(3):
            await ann.succeed(taken, b"result")
        assert await self.results(bench) == [b"result", b"result", None]
        bench.clock.advance(MINUTE)
        assert await self.results(bench) == [None, b"result", None]
        bench.clock.advance(HOUR)
        assert await self.results(bench) == [None, None, None]

    @staticmethod
    async def results(bench: Bench) -> list[bytes | None]:
        return [(await bench.record(id)).result for id in ("default", "longer", "off")]

    async def test_a_dead_job_keeps_its_error_and_another_for_error_ttl(self, bench: Bench) -> None:
        await bench.reopen("kept", Retention(error_ttl=MINUTE))
        await bench.put(job("a"), job("b"))
        ann = await bench.worker()
        error = Error("E", "e")
        [a, b] = await ann.take(2)
        await ann.settle(a, OutcomeKind.DEAD, error=error)
        await ann.retry(b, error=error)
        await ann.succeed(await ann.take_one())
        assert (await bench.record("b")).error == error
        bench.clock.advance(MINUTE)
        assert (await bench.record("a")).error == error
        assert (await bench.record("b")).error is None

    async def test_done_jobs_are_forgotten_after_done_ttl(self, bench: Bench) -> None:
        await bench.reopen("kept", Retention(done_ttl=HOUR))
        await bench.put(*jobs(2))
        ann = await bench.worker()
        [a, b] = await ann.take(2)
        await ann.succeed(a)
        await ann.settle(b, OutcomeKind.CANCELLED)
        bench.clock.advance(HOUR - 1)
        assert (await bench.sweep()).pruned == 0
        bench.clock.advance(1)
        assert (await bench.sweep()).pruned == 2
        assert await bench.find(Query()) == []
        assert (await bench.put_one(job("job-0000"))).verdict == "created"

    async def test_dead_jobs_stay_until_purged_unless_dead_ttl_says_otherwise(self, bench: Bench) -> None:
        for name, retention in (("for-ever", Retention(done_ttl=1)), ("limited", Retention(dead_ttl=HOUR))):
            await bench.reopen(name, retention)
            await bench.put(job())
            ann = await bench.worker()
            await ann.kill(await ann.take_one())
            bench.clock.advance(1000 * HOUR)
            await bench.sweep()
            assert await bench.state("job") == (State.DEAD if name == "for-ever" else State.NOT_FOUND)

    async def test_a_job_retried_by_hand_is_not_forgotten_while_it_is_unfinished(self, bench: Bench) -> None:
        await bench.reopen("kept", Retention(done_ttl=HOUR))
        await bench.put(job())
        ann = await bench.worker(lease=100 * HOUR)
        await ann.settle(await ann.take_one(), OutcomeKind.RETRY, at=bench.clock.after(50 * HOUR))
        bench.clock.advance(40 * HOUR)
        await bench.sweep()
        assert await bench.state("job") == State.RETRYING
