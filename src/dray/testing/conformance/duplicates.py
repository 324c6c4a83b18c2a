"""Ids and keys: what counts as the same job, and for how long."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete
from dray.job import OnDuplicate, OutcomeKind, State
from dray.policy import Retention
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme, job


class TestDuplicates(Theme):
    async def test_an_id_that_exists_returns_the_job_that_has_it(self, bench: Bench) -> None:
        await bench.put(job("a", payload=b"first"))
        again = await bench.put_one(job("a", payload=b"second"))
        assert (again.id, again.verdict, again.state) == ("a", "duplicate", State.READY)
        assert (await bench.record("a")).job.payload == b"first"

    async def test_an_id_is_taken_in_every_queue(self, bench: Bench) -> None:
        await bench.put(job("a", queue="one"))
        assert (await bench.put_one(job("a", queue="two"))).verdict == "duplicate"
        assert (await bench.record("a")).job.queue == "one"

    async def test_an_id_is_free_again_after_the_job_was_deleted(self, bench: Bench) -> None:
        await bench.put(job("a"))
        await bench.edit("a", Delete())
        assert (await bench.put_one(job("a"))).verdict == "created"

    async def test_a_key_allows_one_unfinished_job(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"))
        again = await bench.put_one(job("b", key="k"))
        assert (again.id, again.verdict) == ("a", "duplicate")
        assert await bench.state("b") == State.NOT_FOUND

    async def test_a_key_belongs_to_one_queue(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", queue="one"))
        assert (await bench.put_one(job("b", key="k", queue="two"))).verdict == "created"

    async def test_of_two_equal_keys_in_one_list_the_first_wins(self, bench: Bench) -> None:
        first, second = await bench.put(job("a", key="k"), job("b", key="k"))
        assert (first.verdict, second.verdict, second.id) == ("created", "duplicate", "a")

    async def test_of_two_producers_with_one_key_the_first_wins(self, bench: Bench) -> None:
        other = await bench.open()
        await bench.put(job("a", key="k"))
        [reply] = await other.put([job("b", key="k")], now=bench.clock.now)
        assert (reply.id, reply.verdict) == ("a", "duplicate")

    @pytest.mark.parametrize("kind", [OutcomeKind.SUCCEEDED, OutcomeKind.DEAD, OutcomeKind.CANCELLED])
    async def test_a_key_is_free_when_its_job_has_ended(self, bench: Bench, kind: OutcomeKind) -> None:
        await bench.put(job("a", key="k"))
        ann = await bench.worker()
        await ann.settle(await ann.take_one(), kind)
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_a_key_is_free_when_its_job_was_cancelled_or_deleted_by_hand(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"), job("b", key="l"))
        await bench.edit("a", Cancel())
        await bench.edit("b", Delete())
        replies = await bench.put(job("c", key="k"), job("d", key="l"))
        assert [reply.verdict for reply in replies] == ["created", "created"]

    async def test_a_key_stays_taken_through_retries_and_crashes(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"))
        ann = await bench.worker()
        await ann.retry(await ann.take_one(), at=bench.clock.after(SECOND))
        assert (await bench.put_one(job("b", key="k"))).id == "a"
        bench.clock.advance(SECOND)
        await ann.take_one()
        await ann.leave()
        assert (await bench.put_one(job("b", key="k"))).id == "a"

    async def test_key_ttl_frees_the_key_before_the_job_ends(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", key_ttl=MINUTE))
        bench.clock.advance(MINUTE - 1)
        assert (await bench.put_one(job("b", key="k"))).id == "a"
        bench.clock.advance(1)
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_a_job_that_lost_its_key_does_not_free_it_for_the_next_holder(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", key_ttl=MINUTE))
        bench.clock.advance(MINUTE)
        await bench.put(job("b", key="k"))
        ann = await bench.worker()
        taken = await ann.take_one()
        assert taken.job.id == "a"
        await ann.succeed(taken)
        assert (await bench.put_one(job("c", key="k"))).id == "b"

    async def test_key_ttl_does_not_outlive_the_job(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", key_ttl=HOUR))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_once_keeps_the_key_taken_after_success(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", once=HOUR))
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        bench.clock.advance(HOUR - 1)
        again = await bench.put_one(job("b", key="k", once=HOUR))
        assert (again.id, again.verdict, again.state) == ("a", "duplicate", State.SUCCEEDED)
        bench.clock.advance(1)
        assert (await bench.put_one(job("b", key="k", once=HOUR))).verdict == "created"

    async def test_once_takes_the_key_again_when_its_ttl_was_over_before(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", key_ttl=1000, once=HOUR))
        ann = await bench.worker(lease=10 * HOUR)
        taken = await ann.take_one()
        bench.clock.advance(2000)
        await bench.sweep()
        await ann.succeed(taken)
        assert (await bench.put_one(job("b", key="k"))).verdict == "duplicate"

    async def test_once_leaves_the_key_to_a_job_that_took_it_meanwhile(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", key_ttl=1000, once=HOUR))
        ann = await bench.worker(lease=10 * HOUR)
        taken = await ann.take_one()
        bench.clock.advance(2000)
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"
        await ann.succeed(taken)
        assert (await bench.put_one(job("c", key="k"))).id == "b"

    async def test_once_keeps_the_id_taken_longer_than_finished_jobs_are_kept(self, bench: Bench) -> None:
        await bench.reopen("short", Retention(done_ttl=MINUTE))
        await bench.put(job("a", once=HOUR), job("b"))
        ann = await bench.worker()
        for taken in await ann.take(2):
            await ann.succeed(taken)
        bench.clock.advance(HOUR - 1)
        await bench.sweep()
        assert await bench.states("a", "b") == [State.SUCCEEDED, State.NOT_FOUND]
        assert (await bench.put_one(job("a", once=HOUR))).verdict == "duplicate"
        bench.clock.advance(1)
        await bench.sweep()
        assert (await bench.put_one(job("a", once=HOUR))).verdict == "created"

    @pytest.mark.parametrize("kind", [OutcomeKind.DEAD, OutcomeKind.CANCELLED])
    async def test_once_keeps_nothing_after_a_failure(self, bench: Bench, kind: OutcomeKind) -> None:
        await bench.put(job("a", key="k", once=HOUR))
        ann = await bench.worker()
        await ann.settle(await ann.take_one(), kind)
        assert (await bench.put_one(job("b", key="k", once=HOUR))).verdict == "created"

    async def test_raise_is_answered_like_return_for_the_client_to_raise(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"))
        again = await bench.put_one(job("b", key="k", on_duplicate="raise"))
        assert (again.id, again.verdict) == ("a", "duplicate")


class TestReplacing(Theme):
    @pytest.mark.parametrize("start", ["ready", "scheduled", "waiting"])
    async def test_replace_cancels_a_job_that_has_not_started(self, bench: Bench, start: str) -> None:
        due = bench.clock.after(HOUR) if start == "scheduled" else None
        waits_for = ("other",) if start == "waiting" else ()
        await bench.put(job("other", queue="o"), job("a", key="k", due=due, waits_for=waits_for))
        accepted = await bench.put_one(job("b", key="k", on_duplicate="replace"))
        assert (accepted.id, accepted.verdict, accepted.replaced) == ("b", "created", "a")
        replaced = await bench.record("a")
        assert replaced.state == State.CANCELLED
        assert "replaced by b" in str(replaced.reason)
        assert await (await bench.worker()).take_ids(5) == ["b"]

    @pytest.mark.parametrize("start", ["running", "retrying", "given back", "succeeded"])
    async def test_replace_leaves_a_job_alone_that_has_started(self, bench: Bench, start: str) -> None:
        await bench.put(job("a", key="k", once=HOUR))
        ann = await bench.worker()
        taken = await ann.take_one()
        if start == "retrying":
            await ann.retry(taken, at=bench.clock.after(HOUR))
        elif start == "given back":
            await ann.give_back(taken)
        elif start == "succeeded":
            await ann.succeed(taken)
        before = await bench.record("a")
        again = await bench.put_one(job("b", key="k", on_duplicate="replace"))
        assert (again.id, again.verdict) == ("a", "duplicate")
        assert await bench.record("a") == before

    async def test_replace_by_id_puts_the_new_job_in_the_place_of_the_old(self, bench: Bench) -> None:
        await bench.put(job("a", payload=b"old", due=bench.clock.after(HOUR)))
        accepted = await bench.put_one(job("a", payload=b"new", on_duplicate="replace"))
        assert (accepted.verdict, accepted.replaced, accepted.state) == ("created", "a", State.READY)
        taken = await (await bench.worker()).take(5)
        assert [one.job.payload for one in taken] == [b"new"]

    async def test_replace_by_id_and_key_at_once_works_too(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", payload=b"old"))
        await bench.put(job("a", key="k", payload=b"new", on_duplicate="replace"))
        assert (await bench.record("a")).job.payload == b"new"
        assert (await bench.put_one(job("b", key="k"))).id == "a"

    @pytest.mark.parametrize("mode", ["return", "replace"])
    async def test_a_put_with_a_key_can_be_repeated(self, bench: Bench, mode: OnDuplicate) -> None:
        await bench.put(job("old", key="k", due=bench.clock.after(HOUR)))
        await bench.put(job("a", key="k", on_duplicate=mode))
        holder = await bench.put_one(job("a", key="k", on_duplicate=mode))
        assert holder.id == ("old" if mode == "return" else "a")
        assert await (await bench.worker()).take_ids(5) == ([] if mode == "return" else ["a"])

    async def test_a_repeated_replace_leaves_the_jobs_that_wait_for_it_waiting(self, bench: Bench) -> None:
        batch = [job("a", on_duplicate="replace"), job("b", waits_for=("a",))]
        await bench.put(*batch)
        await bench.put(*batch)
        assert await bench.states("a", "b") == [State.READY, State.WAITING]
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        assert await ann.take_ids() == ["b"]

    async def test_jobs_that_wait_for_an_id_wait_for_whoever_replaces_it(self, bench: Bench) -> None:
        await bench.put(job("a", payload=b"old"), job("b", waits_for=("a",)))
        await bench.put(job("a", payload=b"new", on_duplicate="replace"))
        assert await bench.state("b") == State.WAITING
        ann = await bench.worker()
        await ann.succeed(await ann.take_one())
        assert await ann.take_ids(5) == ["b"]

    async def test_a_repeated_replace_keeps_its_place_in_line(self, bench: Bench) -> None:
        await bench.put(job("a", on_duplicate="replace"))
        await bench.put(job("b"))
        await bench.put(job("a", on_duplicate="replace"))
        assert await (await bench.worker()).take_ids(5) == ["a", "b"]

    async def test_a_replaced_job_releases_nobody_and_tells_whoever_waits_for_it(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", due=bench.clock.after(HOUR)))
        await bench.put(job("after", waits_for=("a",)))
        await bench.put(job("b", key="k", on_duplicate="replace"))
        after = await bench.record("after")
        assert after.state == State.CANCELLED
        assert "a" in str(after.reason)
