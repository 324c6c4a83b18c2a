"""Bounded queues and rates of acceptance: what happens to a job that does not fit, or comes too soon."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Scope, SetLimits
from dray.job import Overflow, State
from dray.testing.conformance.bench import HOUR, SECOND, Bench, Theme, job, jobs


class TestBounds(Theme):
    @pytest.mark.parametrize("overflow", ["raise", "wait"])
    async def test_a_full_queue_refuses_and_says_its_bound(self, bench: Bench, overflow: Overflow) -> None:
        replies = await bench.put(*jobs(3, max_ready=2, overflow=overflow))
        assert [reply.verdict for reply in replies] == ["created", "created", "full"]
        assert (replies[2].max_ready, replies[2].state) == (2, State.NOT_FOUND)
        assert await bench.state("job-0002") == State.NOT_FOUND

    async def test_a_queue_has_room_again_when_a_job_was_taken(self, bench: Bench) -> None:
        await bench.put(job("a", max_ready=1))
        assert (await bench.put_one(job("b", max_ready=1))).verdict == "full"
        await (await bench.worker()).take_one()
        assert (await bench.put_one(job("b", max_ready=1))).verdict == "created"

    async def test_a_job_without_a_bound_always_fits(self, bench: Bench) -> None:
        await bench.put(job("a", max_ready=1))
        assert (await bench.put_one(job("b"))).verdict == "created"

    async def test_only_ready_jobs_of_the_same_queue_count(self, bench: Bench) -> None:
        later = bench.clock.after(HOUR)
        await bench.put(job("a", queue="other"), job("b", due=later), job("c", waits_for=("b",)))
        assert (await bench.put_one(job("d", max_ready=1))).verdict == "created"

    async def test_a_job_that_starts_later_is_accepted_by_a_full_queue(self, bench: Bench) -> None:
        await bench.put(job("a", max_ready=1))
        replies = await bench.put(
            job("b", max_ready=1, due=bench.clock.after(HOUR)), job("c", max_ready=1, waits_for=("a",))
        )
        assert [reply.verdict for reply in replies] == ["created", "created"]

    async def test_a_job_falls_due_into_a_full_queue_and_is_not_lost(self, bench: Bench) -> None:
        await bench.put(job("b", max_ready=1, due=bench.clock.after(SECOND)))
        await bench.put(job("a", max_ready=1))
        bench.clock.advance(SECOND)
        assert await (await bench.worker()).take_ids(5) == ["a", "b"]

    async def test_a_repeated_put_into_a_full_queue_is_a_duplicate(self, bench: Bench) -> None:
        await bench.put(job("a", max_ready=1))
        assert (await bench.put_one(job("a", max_ready=1))).verdict == "duplicate"

    async def test_drop_oldest_makes_room_and_the_dropped_job_is_dead_not_gone(self, bench: Bench) -> None:
        await bench.put(*jobs(2, max_ready=2))
        accepted = await bench.put_one(job("new", max_ready=2, overflow="drop-oldest"))
        assert accepted.verdict == "created"
        dropped = await bench.record("job-0000")
        assert dropped.state == State.DEAD
        assert str(dropped.reason).startswith("dropped")
        assert await (await bench.worker()).take_ids(5) == ["job-0001", "new"]

    async def test_a_repeated_drop_oldest_drops_nobody_else(self, bench: Bench) -> None:
        await bench.put(*jobs(2, max_ready=2))
        for _ in range(3):
            await bench.put(job("new", max_ready=2, overflow="drop-oldest"))
        assert await (await bench.worker()).take_ids(5) == ["job-0001", "new"]

    async def test_drop_oldest_begins_with_the_least_important(self, bench: Bench) -> None:
        await bench.put(job("high", priority=1), job("low1", priority=8), job("low2", priority=8))
        await bench.put(job("new", max_ready=3, overflow="drop-oldest"))
        assert await bench.states("high", "low1", "low2") == [State.READY, State.DEAD, State.READY]

    async def test_drop_oldest_never_drops_what_is_more_important(self, bench: Bench) -> None:
        await bench.put(job("high", priority=1))
        accepted = await bench.put_one(job("new", priority=5, max_ready=1, overflow="drop-oldest"))
        assert (accepted.verdict, accepted.max_ready) == ("full", 1)
        assert await bench.state("high") == State.READY

    async def test_a_dropped_job_frees_its_key_and_tells_who_waits_for_it(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"), job("after", waits_for=("a",), queue="other"))
        await bench.put(job("new", max_ready=1, overflow="drop-oldest"))
        assert await bench.state("after") == State.CANCELLED
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_the_operator_bounds_a_queue_whatever_jobs_declare(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(max_ready=1))
        await bench.put(job("a"))
        assert (await bench.put_one(job("b", max_ready=100))).verdict == "full"
        await bench.edit(Scope("default"), SetLimits(overflow="drop-oldest"))
        assert (await bench.put_one(job("b", max_ready=100))).verdict == "created"
        assert await bench.state("a") == State.DEAD
        await bench.edit(Scope("default"), SetLimits(max_ready=None, overflow=None))
        assert (await bench.put_one(job("c"))).verdict == "created"

    async def test_a_job_that_replaces_another_needs_no_room(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", max_ready=1))
        accepted = await bench.put_one(job("b", key="k", max_ready=1, on_duplicate="replace"))
        assert (accepted.verdict, accepted.replaced) == ("created", "a")

    async def test_a_job_that_does_not_fit_replaces_nobody(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", due=bench.clock.after(HOUR)), job("ready"))
        accepted = await bench.put_one(job("b", key="k", max_ready=1, on_duplicate="replace"))
        assert accepted.verdict == "full"
        assert await bench.state("a") == State.SCHEDULED

    async def test_given_back_jobs_return_into_a_full_queue(self, bench: Bench) -> None:
        await bench.put(job("a", max_ready=1))
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.put(job("b", max_ready=1))
        await ann.give_back(taken)
        assert await ann.take_ids(5) == ["a", "b"]


class TestEnqueueRate(Theme):
    async def limit(self, bench: Bench, rate: str | None) -> None:
        await bench.edit(Scope("default"), SetLimits(enqueue_rate=rate))

    async def test_jobs_beyond_the_rate_are_refused_and_told_when_to_come_again(self, bench: Bench) -> None:
        await self.limit(bench, "2/s+2")
        replies = await bench.put(*jobs(4))
        assert [reply.verdict for reply in replies] == ["created", "created", "limited", "limited"]
        assert (replies[2].retry_after, replies[2].state) == (500, State.NOT_FOUND)
        assert await bench.state("job-0002") == State.NOT_FOUND
        bench.clock.advance(499)
        again = await bench.put_one(job("job-0002"))
        assert (again.verdict, again.retry_after) == ("limited", 1)
        bench.clock.advance(1)
        assert (await bench.put_one(job("job-0002"))).verdict == "created"

    async def test_duplicates_and_refused_jobs_cost_nothing(self, bench: Bench) -> None:
        await self.limit(bench, "1/s+2")
        await bench.put(job("a", key="k"))
        for _ in range(3):
            assert (await bench.put_one(job("a", key="k"))).verdict == "duplicate"
            assert (await bench.put_one(job("b", key="k"))).verdict == "duplicate"
        assert (await bench.put_one(job("c"))).verdict == "created"
        for _ in range(3):
            assert (await bench.put_one(job("d"))).verdict == "limited"
        bench.clock.advance(SECOND)
        assert (await bench.put_one(job("d"))).verdict == "created"

    async def test_every_kind_of_new_job_counts_in_its_own_queue_only(self, bench: Bench) -> None:
        await self.limit(bench, "1/s+3")
        replies = await bench.put(
            job("later", due=bench.clock.after(HOUR)),
            job("waits", waits_for=("later",)),
            job("plain", key="k"),
            job("over"),
            job("else", queue="other"),
        )
        assert [reply.verdict for reply in replies] == ["created", "created", "created", "limited", "created"]

    async def test_a_job_that_comes_too_soon_replaces_and_drops_nobody(self, bench: Bench) -> None:
        await self.limit(bench, "1/s")
        await bench.put(job("a", key="k"))
        replies = await bench.put(
            job("b", key="k", on_duplicate="replace"), job("c", max_ready=1, overflow="drop-oldest")
        )
        assert [reply.verdict for reply in replies] == ["limited", "limited"]
        assert await bench.state("a") == State.READY

    async def test_a_job_that_waits_for_a_refused_one_does_not_wait_for_ever(self, bench: Bench) -> None:
        await self.limit(bench, "1/s")
        replies = await bench.put(job("a"), job("b"), job("after", queue="other", waits_for=("b",)))
        assert [reply.verdict for reply in replies] == ["created", "limited", "created"]
        await bench.sweep()
        assert await bench.state("after") == State.CANCELLED

    async def test_what_comes_back_into_line_was_accepted_before(self, bench: Bench) -> None:
        await self.limit(bench, "1/h")
        await bench.put(job("a"))
        ann = await bench.worker()
        await ann.give_back(await ann.take_one())
        assert await ann.take_ids() == ["a"]

    async def test_a_rate_of_acceptance_can_be_seen_changed_and_taken_back(self, bench: Bench) -> None:
        await self.limit(bench, "1/h")
        info = await bench.queue()
        assert info is not None
        assert info.limits.enqueue_rate == "1/h"
        await bench.put(job("a"))
        assert (await bench.put_one(job("b"))).verdict == "limited"
        await self.limit(bench, None)
        assert (await bench.put_one(job("b"))).verdict == "created"
        await bench.edit("a", Cancel())

    async def test_starting_jobs_uses_up_no_acceptance(self, bench: Bench) -> None:
        await self.limit(bench, "1/s+2")
        await bench.edit(Scope("default"), SetLimits(rate="1/s+2"))
        await bench.put(*jobs(2))
        assert len(await (await bench.worker()).take(5)) == 2
        bench.clock.advance(SECOND)
        assert [reply.verdict for reply in await bench.put(job("x"), job("y"))] == ["created", "limited"]
