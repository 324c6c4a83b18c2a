"""How many may run at once and how many may start in a while: per queue, task, key and group."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel, Scope, SetLimits
from dray.job import OutcomeKind
from dray.testing.conformance.bench import LEASE, MINUTE, SECOND, Bench, Theme, job, jobs


class TestMaxRunning(Theme):
    async def test_no_more_jobs_of_a_task_run_at_once_than_they_declare(self, bench: Bench) -> None:
        await bench.put(*jobs(5, max_running=2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        assert len(await ann.take(5)) == 2
        assert await bob.take(5) == []

    async def test_what_is_held_back_does_not_stand_in_the_way(self, bench: Bench) -> None:
        await bench.put(*jobs(200, max_running=1, priority=0), job("free", "other", priority=9))
        assert await (await bench.worker()).take_ids(5) == ["job-0000", "free"]

    @pytest.mark.parametrize("kind", list(OutcomeKind))
    async def test_every_outcome_frees_the_slot_once(self, bench: Bench, kind: OutcomeKind) -> None:
        await bench.put(*jobs(4, max_running=1))
        ann = await bench.worker()
        taken = await ann.take_one()
        later = bench.clock.after(MINUTE)
        await ann.settle(taken, kind, at=later)
        await ann.settle(taken, kind, at=later)
        assert len(await ann.take(5)) == 1
        await ann.settle(taken, kind, at=later)
        assert await ann.take(5) == []

    @pytest.mark.parametrize("how", ["release", "lapse"])
    async def test_a_dead_worker_frees_its_slots_once(self, bench: Bench, how: str) -> None:
        await bench.put(*jobs(4, max_running=2))
        ann = await bench.worker("ann")
        stale = await ann.take(2)
        for _ in range(2):
            if how == "release":
                await ann.leave()
            else:
                bench.clock.advance(LEASE)
                await bench.sweep()
        bob = await bench.worker("bob")
        assert len(await bob.take(5)) == 2
        for one in stale:
            await ann.succeed(one)
        assert await bob.take(5) == []

    async def test_a_run_asked_to_stop_keeps_its_slot_until_it_has_ended(self, bench: Bench) -> None:
        await bench.put(*jobs(2, max_running=1))
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.edit("job-0000", Cancel())
        assert await ann.take(5) == []
        await ann.settle(taken, OutcomeKind.CANCELLED)
        assert await ann.take_ids(5) == ["job-0001"]

    async def test_a_limit_of_a_task_holds_over_all_its_priorities(self, bench: Bench) -> None:
        await bench.put(*(job(str(n), priority=n, max_running=2) for n in range(5)))
        assert await (await bench.worker()).take_ids(5) == ["0", "1"]

    async def test_a_limit_of_a_task_holds_in_one_queue(self, bench: Bench) -> None:
        await bench.put(job("a", queue="x", max_running=1), job("b", queue="y", max_running=1))
        assert await (await bench.worker()).take_ids(5, ["x", "y"]) == ["a", "b"]

    async def test_tasks_do_not_share_a_limit(self, bench: Bench) -> None:
        await bench.put(job("a", "one", max_running=1), job("b", "two", max_running=1))
        assert await (await bench.worker()).take_ids(5) == ["a", "b"]

    async def test_the_job_that_came_last_says_what_the_limit_is(self, bench: Bench) -> None:
        await bench.put(*jobs(5, "old", max_running=1), job("new", max_running=3))
        assert len(await (await bench.worker()).take(9)) == 3

    async def test_a_running_key_limits_the_jobs_that_share_it(self, bench: Bench) -> None:
        await bench.put(
            job("a1", running_key="a", max_running=1),
            job("a2", running_key="a", max_running=1),
            job("b1", running_key="b", max_running=1),
            job("none"),
        )
        ann = await bench.worker()
        taken = await ann.take(9)
        assert sorted(one.job.id for one in taken) == ["a1", "b1", "none"]
        await ann.succeed(next(one for one in taken if one.job.id == "a1"))
        assert await ann.take_ids(9) == ["a2"]

    async def test_a_running_key_is_shared_by_all_tasks_of_the_queue(self, bench: Bench) -> None:
        await bench.put(
            job("a", "one", running_key="k", max_running=1), job("b", "two", running_key="k", max_running=1)
        )
        assert await (await bench.worker()).take_ids(9) == ["a"]

    async def test_the_operator_limits_a_whole_queue(self, bench: Bench) -> None:
        await bench.put(*(job(f"{n}", f"task{n}") for n in range(5)), job("else", queue="other"))
        await bench.edit(Scope("default"), SetLimits(max_running=2))
        ann = await bench.worker()
        taken = await ann.take(9, ["default", "other"])
        assert [one.job.id for one in taken] == ["0", "1", "else"]
        await ann.succeed(taken[0])
        assert await ann.take_ids(9) == ["2"]

    async def test_the_word_of_the_operator_wins_over_what_jobs_declare(self, bench: Bench) -> None:
        await bench.put(*jobs(9, max_running=1))
        ann = await bench.worker()
        await bench.edit(Scope("default", "work"), SetLimits(max_running=3))
        assert len(await ann.take(9)) == 3
        await bench.edit(Scope("default", "work"), SetLimits(max_running=None))
        assert await ann.take(9) == []

    async def test_a_limit_below_what_runs_stops_nothing_and_starts_nothing(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        ann = await bench.worker()
        taken = await ann.take(3)
        await bench.edit(Scope("default"), SetLimits(max_running=1))
        assert await ann.take(9) == []
        for one in taken[:2]:
            assert (await ann.succeed(one)).verdict == "accepted"
        assert await ann.take(9) == []
        await ann.succeed(taken[2])
        assert len(await ann.take(9)) == 1

    async def test_the_operator_limits_how_many_of_each_group_run_at_once(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(group_running=2))
        await bench.put(*jobs(5, "a", group="a"), *jobs(5, "b", group="b"), *jobs(3, "x"))
        ann = await bench.worker()
        taken = await ann.take(99)
        groups = [one.job.group for one in taken]
        assert (groups.count("a"), groups.count("b"), groups.count(None)) == (2, 2, 3)
        await ann.succeed(next(one for one in taken if one.job.group == "b"))
        assert [one.job.group for one in await ann.take(99)] == ["b"]

    async def test_limits_set_one_by_one_add_up(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(max_running=7))
        await bench.edit(Scope("default"), SetLimits(group_running=2))
        await bench.edit(Scope("default"), SetLimits(group_running=2))
        info = await bench.queue()
        assert info is not None
        assert (info.limits.max_running, info.limits.group_running, info.limits.rate) == (7, 2, None)


class TestRates(Theme):
    async def test_a_rate_spreads_starts_over_time(self, bench: Bench) -> None:
        await bench.put(*jobs(5, rate="2/s"))
        ann = await bench.worker()
        assert len(await ann.take(5)) == 1
        bench.clock.advance(499)
        assert await ann.take(5) == []
        bench.clock.advance(1)
        assert len(await ann.take(5)) == 1

    async def test_a_burst_may_start_at_once(self, bench: Bench) -> None:
        await bench.put(*jobs(9, rate="1/m+3"))
        ann = await bench.worker(lease=LEASE * 10)
        assert len(await ann.take(9)) == 3
        assert await ann.take(9) == []
        bench.clock.advance(MINUTE)
        assert len(await ann.take(9)) == 1

    async def test_a_refused_try_costs_nothing(self, bench: Bench) -> None:
        await bench.put(*jobs(3, rate="1/s"))
        ann = await bench.worker()
        await ann.take()
        for _ in range(10):
            bench.clock.advance(99)
            assert await ann.take() == []
        bench.clock.advance(10)
        assert len(await ann.take()) == 1

    async def test_a_repeated_take_costs_no_second_start(self, bench: Bench) -> None:
        await bench.put(*jobs(3, rate="1/s"))
        ann = await bench.worker()
        for _ in range(5):
            await ann.take() if ann.request == 0 else await ann.take_again()
        bench.clock.advance(SECOND)
        assert len(await ann.take()) == 1

    async def test_a_rate_is_shared_by_all_workers(self, bench: Bench) -> None:
        await bench.put(*jobs(5, rate="1/s"))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        assert len(await ann.take(5)) == 1
        assert await bob.take(5) == []

    async def test_a_rate_holds_over_all_priorities_of_a_task_and_no_other_task(self, bench: Bench) -> None:
        await bench.put(job("a", rate="1/s", priority=1), job("b", rate="1/s"), job("c", "other", rate="1/s"))
        assert await (await bench.worker()).take_ids(5) == ["a", "c"]

    async def test_a_crash_gives_no_start_back(self, bench: Bench) -> None:
        await bench.put(*jobs(2, rate="1/m"))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take()
        await ann.leave()
        assert await bob.take(5) == []

    async def test_a_rate_key_limits_the_jobs_that_share_it(self, bench: Bench) -> None:
        await bench.put(
            job("a1", rate_key="a", rate="1/s"),
            job("a2", rate_key="a", rate="1/s"),
            job("b1", "other", rate_key="b", rate="1/s"),
            job("a3", "other", rate_key="a", rate="1/s"),
            job("none"),
        )
        ann = await bench.worker()
        assert sorted(await ann.take_ids(9)) == ["a1", "b1", "none"]
        bench.clock.advance(SECOND)
        assert len(await ann.take_ids(9)) == 1

    async def test_the_operator_sets_a_rate_for_a_whole_queue(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(rate="1/s"))
        await bench.put(job("a", "one"), job("b", "two"), job("c", queue="other"))
        ann = await bench.worker()
        assert await ann.take_ids(9, ["default", "other"]) == ["a", "c"]
        bench.clock.advance(SECOND)
        assert await ann.take_ids(9) == ["b"]

    async def test_the_rate_of_the_operator_wins_over_that_of_the_task(self, bench: Bench) -> None:
        await bench.put(*jobs(9, rate="1/h"))
        await bench.edit(Scope("default", "work"), SetLimits(rate="1/s+4"))
        assert len(await (await bench.worker()).take(9)) == 4

    async def test_a_rate_that_was_taken_back_limits_nothing(self, bench: Bench) -> None:
        await bench.put(*jobs(5))
        await bench.edit(Scope("default"), SetLimits(rate="1/h"))
        ann = await bench.worker()
        assert len(await ann.take(5)) == 1
        await bench.edit(Scope("default"), SetLimits(rate=None))
        assert len(await ann.take(5)) == 4

    async def test_upkeep_does_not_forget_a_rate_that_is_in_use(self, bench: Bench) -> None:
        await bench.put(*jobs(3, rate="1/m"))
        ann = await bench.worker(lease=10 * MINUTE)
        await ann.take()
        bench.clock.advance(MINUTE - 1)
        await bench.sweep()
        assert await ann.take() == []
        bench.clock.advance(1)
        await bench.sweep()
        assert len(await ann.take()) == 1


class TestUsage(Theme):
    async def test_what_is_in_use_can_be_read(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(rate="1/s+2"))
        fields: dict[str, Any] = {
            "group": "g",
            "rate_key": "r",
            "running_key": "k",
            "rate": "1/m",
            "max_running": 3,
        }
        await bench.put(job("a", **fields), job("b", "other", group="g"), job("c", queue="elsewhere"))
        ann = await bench.worker()
        taken = await ann.take(5, ["default", "elsewhere"])
        assert len(taken) == 3
        now = bench.clock.time
        usage = await bench.broker.usage(job("x", **fields), now=now)
        assert usage.now == now
        assert usage.running == {"queue": 2, "task": 1, "group": 2, "key": 1}
        assert usage.tats == {"queue": (now + 2 * SECOND) * 1000, "task": 0, "key": (now + MINUTE) * 1000}
        for one in taken:
            await ann.succeed(one)
        usage = await bench.broker.usage(job("x"), now=now)
        assert usage.running == {"queue": 0, "task": 0}

    async def test_a_queue_that_nobody_knows_uses_nothing(self, bench: Bench) -> None:
        usage = await bench.broker.usage(job(queue="new"), now=bench.clock.time)
        assert (set(usage.running.values()), set(usage.tats.values())) == ({0}, {0})
        assert await bench.queue("new") is None
