"""What `take` hands out, and in which order."""

from __future__ import annotations

import pytest

from dray.broker.verbs import Filter
from dray.errors import InvalidInput, SessionLost
from dray.job import ENVELOPE_VERSION, State
from dray.testing.conformance.bench import LEASE, MINUTE, SECOND, Bench, Theme, job, jobs


class TestOrder(Theme):
    async def test_first_come_first_served(self, bench: Bench) -> None:
        await bench.put(job("c"))
        await bench.put(job("a"), job("b"))
        assert await (await bench.worker()).take_ids(5) == ["c", "a", "b"]

    async def test_priorities_are_strict_and_0_is_first(self, bench: Bench) -> None:
        await bench.put(*(job(str(n), priority=n) for n in (5, 9, 0, 3, 1)))
        ann = await bench.worker()
        assert await ann.take_ids(2) == ["0", "1"]
        await bench.put(job("late", priority=0))
        assert await ann.take_ids(5) == ["late", "3", "5", "9"]

    async def test_queues_are_served_in_the_order_the_worker_names_them(self, bench: Bench) -> None:
        await bench.put(job("x", queue="x", priority=0), job("y", queue="y", priority=9), job("z", queue="z"))
        assert await (await bench.worker()).take_ids(5, ["y", "x"]) == ["y", "x"]
        assert await bench.state("z") == State.READY

    async def test_no_more_are_handed_out_than_wanted(self, bench: Bench) -> None:
        await bench.put(*jobs(5), *jobs(5, "other", queue="other"))
        ann = await bench.worker()
        assert await ann.take(0) == []
        assert len(await ann.take(3, ["default", "other"])) == 3
        assert len(await ann.take(4, ["default", "other"])) == 4
        assert len(await ann.take(100, ["default", "other"])) == 3
        assert await ann.take(100, ["default", "other"]) == []

    async def test_with_a_share_each_queue_gives_that_many_at_most(self, bench: Bench) -> None:
        for queue in "xyz":
            await bench.put(*(job(f"{queue}{n}", queue=queue) for n in range(4 if queue != "y" else 1)))
        ann = await bench.worker()
        first = await ann.take_shares(6, ["x", "y", "z"], 2)
        assert first == ["x0", "x1", "y0", "z0", "z1"]
        assert [taken.job.id for taken in await ann.take_again(6, ["x", "y", "z"], share=2)] == first
        assert await ann.take_shares(3, ["x", "y", "z"], 2) == ["x2", "x3", "z2"], "never more than wanted"
        assert await ann.take_shares(9, ["x", "y", "z"], 3) == ["z3"]

    async def test_a_share_obeys_limits_and_priorities_of_each_queue(self, bench: Bench) -> None:
        await bench.put(job("low", queue="x", priority=9), job("high", queue="x", priority=0))
        await bench.put(*(job(f"one{n}", queue="y", max_running=1) for n in range(3)))
        ann = await bench.worker()
        assert await ann.take_shares(4, ["y", "x"], 2) == ["one0", "high", "low"]

    async def test_of_many_tasks_those_whose_next_jobs_waited_longest_go_first(self, bench: Bench) -> None:
        names = [f"task{n * 37 % 150}" for n in range(150)]
        await bench.put(*(job(name, name, priority=n % 2) for n, name in enumerate(names)))
        await bench.put(*(job(f"{name}-later", name, priority=0) for name in names))
        ann = await bench.worker()
        taken = [(await ann.take_ids())[0] for _ in range(80)]
        assert taken == [*names[::2], *(f"{name}-later" for name in names[:5])]
        only = Filter(tasks=frozenset({names[-1]}))
        assert await ann.take_ids(5, filter=only) == [f"{names[-1]}-later", names[-1]]

    async def test_of_two_tasks_the_one_whose_next_job_waited_longer_goes_first(self, bench: Bench) -> None:
        await bench.put(job("a", "one"), job("b", "two"), job("c", "one"), job("d", "two"))
        ann = await bench.worker()
        assert [await ann.take_ids() for _ in range(4)] == [["a"], ["b"], ["c"], ["d"]]

    async def test_what_fell_due_is_made_ready_first_in_the_order_of_its_time(self, bench: Bench) -> None:
        await bench.put(job("late", due=bench.clock.after(2)), job("early", due=bench.clock.after(1)))
        await bench.put(job("ready"), job("future", due=bench.clock.after(MINUTE)))
        bench.clock.advance(SECOND)
        assert await (await bench.worker()).take_ids(5) == ["ready", "early", "late"]

    async def test_a_job_due_at_the_same_time_goes_in_the_order_of_arrival(self, bench: Bench) -> None:
        due = bench.clock.after(1)
        await bench.put(job("b", due=due), job("a", due=due), job("c", due=due))
        bench.clock.advance(1)
        assert await (await bench.worker()).take_ids(5) == ["b", "a", "c"]

    async def test_a_job_that_was_given_back_keeps_its_place_in_line(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c"))
        ann = await bench.worker()
        [first, second] = await ann.take(2)
        await ann.give_back(second)
        await ann.give_back(first)
        assert await ann.take_ids(5) == ["a", "b", "c"]

    async def test_a_job_of_a_dead_worker_keeps_its_place_in_line(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await ann.leave()
        assert await bob.take_ids(5) == ["a", "b"]

    async def test_a_job_that_failed_goes_to_the_end_of_the_line(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        ann = await bench.worker()
        await ann.retry(await ann.take_one())
        assert await ann.take_ids(5) == ["b", "a"]

    async def test_workers_never_get_the_same_job(self, bench: Bench) -> None:
        await bench.put(*jobs(200))
        workers = [await bench.worker(name) for name in ("ann", "bob", "cat")]
        ids: list[str] = []
        for turn in range(40):
            ids += await workers[turn % 3].take_ids(7)
        assert sorted(ids) == [one.id for one in jobs(200)]


class TestFairness(Theme):
    async def test_groups_take_turns(self, bench: Bench) -> None:
        await bench.put(*(job(f"a{n}", group="a") for n in range(4)))
        await bench.put(*(job(f"b{n}", group="b") for n in range(2)))
        assert await (await bench.worker()).take_ids(6) == ["a0", "b0", "a1", "b1", "a2", "a3"]

    async def test_groups_take_turns_also_one_take_at_a_time(self, bench: Bench) -> None:
        await bench.put(*(job(f"{group}{n}", group=group) for group in "abc" for n in range(2)))
        ann = await bench.worker()
        assert [(await ann.take_ids())[0] for _ in range(6)] == ["a0", "b0", "c0", "a1", "b1", "c1"]

    async def test_a_group_of_one_does_not_wait_behind_a_group_of_a_thousand(self, bench: Bench) -> None:
        await bench.put(*jobs(1000, "flood", group="big"))
        await bench.put(job("single", group="small"))
        ann = await bench.worker()
        assert "single" in await ann.take_ids(2)

    async def test_a_group_that_comes_late_does_not_wait_behind_a_flood(self, bench: Bench) -> None:
        await bench.put(*jobs(100, "flood", group="big"))
        ann = await bench.worker()
        await ann.take(10)
        await bench.put(job("single", group="small"))
        assert "single" in await ann.take_ids(2)

    async def test_jobs_without_a_group_share_one_turn(self, bench: Bench) -> None:
        await bench.put(job("x0"), job("x1"), job("x2"), job("g0", group="g"), job("g1", group="g"))
        assert await (await bench.worker()).take_ids(5) == ["x0", "g0", "x1", "g1", "x2"]

    async def test_priority_comes_before_fairness(self, bench: Bench) -> None:
        await bench.put(
            job("a0", group="a", priority=1), job("a1", group="a", priority=1), job("b0", group="b")
        )
        assert await (await bench.worker()).take_ids(5) == ["a0", "a1", "b0"]

    async def test_a_group_with_many_keys_has_no_more_turns_than_another(self, bench: Bench) -> None:
        flood = [job(f"f{n}", group="big", running_key=f"key{n}", max_running=1) for n in range(100)]
        await bench.put(*flood, job("single", group="small"))
        assert "single" in await (await bench.worker()).take_ids(2)

    async def test_inside_a_group_first_come_is_first_served_whatever_the_keys(self, bench: Bench) -> None:
        await bench.put(
            job("a", group="g", running_key="x", max_running=5),
            job("b", group="g", running_key="x", max_running=5),
            job("c", group="g", running_key="y", max_running=5),
        )
        assert await (await bench.worker()).take_ids(5) == ["a", "b", "c"]


class TestFilters(Theme):
    async def test_a_worker_gets_only_tasks_it_knows(self, bench: Bench) -> None:
        await bench.put(*jobs(50, "unknown", task="new"), job("known"))
        ann = await bench.worker()
        assert await ann.take_ids(60, filter=Filter(tasks=frozenset({"work"}))) == ["known"]
        assert await ann.take_ids(60, filter=Filter(tasks=frozenset())) == []

    async def test_a_job_whose_task_nobody_knows_stays_ready(self, bench: Bench) -> None:
        await bench.put(job(task="new"))
        ann = await bench.worker(lease=100 * MINUTE)
        for _ in range(5):
            assert await ann.take(filter=Filter(tasks=frozenset({"work"}))) == []
            bench.clock.advance(MINUTE)
            await bench.sweep()
        record = await bench.record("job")
        assert (record.state, record.run) == (State.READY, 0)
        assert await ann.take_ids(filter=Filter(tasks=frozenset({"new"}))) == ["job"]

    async def test_a_worker_may_serve_some_priorities_only(self, bench: Bench) -> None:
        await bench.put(*(job(str(n), priority=n) for n in range(10)))
        high = Filter(priorities=frozenset({0, 1, 2, 3}))
        assert await (await bench.worker()).take_ids(10, filter=high) == ["0", "1", "2", "3"]

    async def test_a_job_of_a_newer_version_stays_ready_for_newer_workers(self, bench: Bench) -> None:
        newer = ENVELOPE_VERSION + 1
        await bench.put(job("new", version=newer), job("old"))
        ann = await bench.worker()
        assert await ann.take_ids(5) == ["old"]
        assert await bench.state("new") == State.READY
        assert await ann.take_ids(5, filter=Filter(version=newer)) == ["new"]

    async def test_a_newer_worker_takes_older_jobs_too(self, bench: Bench) -> None:
        await bench.put(job("old"))
        assert await (await bench.worker()).take_ids(filter=Filter(version=ENVELOPE_VERSION + 1)) == ["old"]


class TestRuns(Theme):
    async def test_every_start_has_a_new_number(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        first = await ann.take_one()
        assert (first.run, first.attempt, first.crashes, first.suspect) == (1, 1, 0, False)
        await ann.retry(first)
        second = await ann.take_one()
        assert (second.run, second.attempt) == (2, 2)
        await ann.give_back(second)
        third = await ann.take_one()
        assert (third.run, third.attempt) == (3, 2)

    async def test_a_running_job_names_who_runs_it_and_since_when(self, bench: Bench) -> None:
        await bench.put(job())
        bench.clock.advance(SECOND)
        ann = await bench.worker()
        await ann.take_one()
        record = await bench.record("job")
        assert (record.state, record.run, record.attempt) == (State.RUNNING, 1, 1)
        assert record.started == bench.clock.time
        assert [(run.number, run.session, run.since) for run in record.runs] == [(1, "ann", bench.clock.time)]

    async def test_a_repeated_request_returns_the_same_runs(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        ann = await bench.worker()
        first = await ann.take(3)
        assert await ann.take_again(3) == first
        assert await ann.take_again(5) == first
        assert len(await ann.take(5)) == 2

    async def test_a_repeated_request_leaves_out_what_is_not_held_any_more(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        [first, second, third] = await ann.take(3)
        await ann.succeed(second)
        assert await ann.take_again(3) == [first, third]

    async def test_a_repeated_request_that_got_nothing_still_gets_nothing(self, bench: Bench) -> None:
        ann = await bench.worker()
        assert await ann.take() == []
        await bench.put(job())
        assert await ann.take_again() == []
        assert await ann.take_ids() == ["job"]

    async def test_an_older_request_is_refused(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        await ann.take()
        await ann.take()
        ann.request = 1
        with pytest.raises(InvalidInput, match="request"):
            await ann.take_again()
        assert await bench.state("job-0002") == State.READY

    async def test_a_request_may_skip_numbers(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        ann.request = 1_000
        assert await ann.take_ids() == ["job"]

    async def test_requests_of_different_sessions_are_counted_apart(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        assert await ann.take_ids() == ["job-0000"]
        assert await bob.take_ids() == ["job-0001"]

    async def test_an_unknown_session_gets_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        with pytest.raises(SessionLost):
            await bench.broker.take("nobody", 1, ["default"], Filter(), 1, now=bench.clock.now)
        assert await bench.state("job") == State.READY

    async def test_a_session_past_its_lease_gets_nothing_until_it_renews(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann = await bench.worker()
        bench.clock.advance(LEASE - 1)
        assert len(await ann.take()) == 1
        bench.clock.advance(1)
        with pytest.raises(SessionLost):
            await ann.take()
        await ann.beat()
        assert await ann.take_ids() == ["job-0001"]
