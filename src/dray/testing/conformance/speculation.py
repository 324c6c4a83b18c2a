"""A second run of a job that takes long: the first completion counts."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Scope, SetLimits, Speculate
from dray.broker.verbs import Filter
from dray.job import OutcomeKind, State, Taken, Verdict
from dray.testing.conformance.bench import LEASE, MINUTE, Bench, Theme, Worker, job


async def two_runs(bench: Bench) -> tuple[Worker, Taken, Worker, Taken]:
    await bench.put(job(speculate=True))
    ann, bob = await bench.worker("ann"), await bench.worker("bob", lease=10 * LEASE)
    first = await ann.take_one()
    assert (await bench.edit("job", Speculate())).changed == ("job",)
    second = await bob.take_one()
    return ann, first, bob, second


class TestSpeculation(Theme):
    async def test_a_second_session_may_run_it_too_and_both_runs_are_valid(self, bench: Bench) -> None:
        _, first, _, second = await two_runs(bench)
        assert (first.run, second.run) == (1, 2)
        record = await bench.record("job")
        assert record.state == State.RUNNING
        assert [(run.number, run.session) for run in record.runs] == [(1, "ann"), (2, "bob")]

    @pytest.mark.parametrize("winner", [1, 2])
    async def test_the_first_completion_counts_and_the_other_run_is_lost(
        self, bench: Bench, winner: int
    ) -> None:
        ann, first, bob, second = await two_runs(bench)
        fast, run, slow, late = (ann, first, bob, second) if winner == 1 else (bob, second, ann, first)
        assert (await fast.succeed(run, b"fast")).verdict == Verdict.ACCEPTED
        heard = await slow.beat()
        assert (heard.opened, heard.lost, heard.cancelled) == (False, (("job", late.run),), ())
        settled = await slow.succeed(late, b"slow")
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.SUCCEEDED)
        assert (await bench.record("job")).result == b"fast"
        assert (await slow.beat()).lost == ()
        assert (await fast.succeed(run)).verdict == Verdict.ALREADY

    async def test_the_session_that_runs_it_is_not_offered_it_again(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann = await bench.worker()
        await ann.take_one()
        await bench.edit("job", Speculate())
        assert await ann.take(5) == []

    async def test_there_are_never_more_than_two_runs(self, bench: Bench) -> None:
        await two_runs(bench)
        cat = await bench.worker("cat")
        assert (await bench.edit("job", Speculate())).changed == ()
        assert await cat.take(5) == []

    async def test_an_offer_repeated_is_one_offer(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob, cat = [await bench.worker(name) for name in ("ann", "bob", "cat")]
        await ann.take_one()
        await bench.edit("job", Speculate())
        assert (await bench.edit("job", Speculate())).changed == ()
        assert len(await bob.take(5)) == 1
        assert await cat.take(5) == []

    async def test_an_offer_for_a_run_that_is_not_the_newest_any_more_is_refused(self, bench: Bench) -> None:
        ann, first, bob, _ = await two_runs(bench)
        await bench.broker.release(ann.session, suspect=False, now=bench.clock.now)
        edited = await bench.edit("job", Speculate(first.run))
        assert edited.refused == (("job", "its newest run is 2"),)
        assert (await bench.edit("job", Speculate(2))).changed == ("job",)
        assert (await (await bench.worker("cat")).take_one()).run == 3
        assert (await bob.beat()).lost == ()

    async def test_only_a_running_job_marked_for_it_can_be_offered(self, bench: Bench) -> None:
        await bench.put(job("plain"), job("ready", speculate=True, priority=9))
        ann = await bench.worker()
        assert (await ann.take_one()).job.id == "plain"
        for id in ("plain", "ready", "nobody"):
            edited = await bench.edit(id, Speculate())
            assert (edited.changed, [refused for refused, _ in edited.refused]) == ((), [id])

    async def test_an_offer_goes_only_to_who_can_run_it(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        assert await bob.take(5, filter=Filter(tasks=frozenset({"other"}))) == []
        assert await bob.take(5, ["elsewhere"]) == []
        assert await bob.take_ids(5) == ["job"]

    async def test_a_second_run_counts_against_limits(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await bench.edit(Scope("default"), SetLimits(max_running=1))
        await ann.take_one()
        await bench.edit("job", Speculate())
        assert await bob.take(5) == []
        await bench.edit(Scope("default"), SetLimits(max_running=2))
        assert await bob.take_ids(5) == ["job"]
        await bench.put(job("next"))
        assert await bob.take(5) == []

    async def test_the_end_of_both_runs_frees_both_slots(self, bench: Bench) -> None:
        await bench.edit(Scope("default"), SetLimits(max_running=2))
        ann, first, _, _ = await two_runs(bench)
        await bench.put(job("a"), job("b"), job("c"))
        await ann.succeed(first)
        assert await ann.take_ids(5) == ["a", "b"]

    @pytest.mark.parametrize("kind", [OutcomeKind.RETRY, OutcomeKind.GIVE_BACK, OutcomeKind.CRASHED])
    async def test_when_one_run_fails_the_other_goes_on(self, bench: Bench, kind: OutcomeKind) -> None:
        ann, first, bob, second = await two_runs(bench)
        settled = await bob.settle(second, kind, at=bench.clock.after(MINUTE))
        assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.RUNNING)
        record = await bench.record("job")
        assert (record.failures, [run.number for run in record.runs]) == (0, [1])
        assert (await ann.succeed(first)).verdict == Verdict.ACCEPTED

    async def test_when_one_worker_dies_the_other_run_goes_on(self, bench: Bench) -> None:
        ann, first, bob, second = await two_runs(bench)
        bench.clock.advance(LEASE)
        assert (await bench.sweep()).freed == 1
        assert (await ann.succeed(first)).verdict == Verdict.REFUSED
        assert (await bob.succeed(second)).verdict == Verdict.ACCEPTED

    async def test_when_both_fail_the_job_is_retried_once(self, bench: Bench) -> None:
        ann, first, bob, second = await two_runs(bench)
        await bob.retry(second)
        assert (await ann.retry(first)).state == State.READY
        assert (await bench.record("job")).failures == 1
        taken = await ann.take(5)
        assert [(one.run, one.attempt) for one in taken] == [(3, 2)]

    async def test_after_one_run_ended_a_new_second_run_may_be_offered(self, bench: Bench) -> None:
        ann, _, bob, second = await two_runs(bench)
        await bob.give_back(second)
        assert (await bench.edit("job", Speculate())).changed == ("job",)
        assert await ann.take(5) == []
        assert (await bob.take_one()).run == 3

    async def test_both_runs_are_told_to_stop_and_the_first_to_end_ends_the_job(self, bench: Bench) -> None:
        ann, first, bob, second = await two_runs(bench)
        await bench.edit("job", Cancel())
        assert (await ann.beat()).cancelled == (("job", 1),)
        assert (await bob.beat()).cancelled == (("job", 2),)
        assert (await ann.succeed(first)).state == State.CANCELLED
        assert (await bob.succeed(second)).verdict == Verdict.REFUSED

    async def test_a_cancelled_job_is_offered_to_nobody(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        await bench.edit("job", Cancel())
        assert await bob.take(5) == []
        assert (await bench.edit("job", Speculate())).changed == ()

    @pytest.mark.parametrize(
        "kind", [OutcomeKind.RETRY, OutcomeKind.GIVE_BACK, OutcomeKind.CRASHED, OutcomeKind.SUCCEEDED]
    )
    async def test_an_offer_ends_with_the_run_that_it_was_to_help(
        self, bench: Bench, kind: OutcomeKind
    ) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        taken = await ann.take_one()
        await bench.edit("job", Speculate())
        await ann.settle(taken, kind, at=bench.clock.after(MINUTE))
        assert await bench.broker.audit() == []
        ready = kind in (OutcomeKind.GIVE_BACK, OutcomeKind.CRASHED)
        assert len(await bob.take(5)) == ready

    async def test_an_offer_ends_with_the_worker_that_ran_it(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bench.edit("job", Speculate())
        await ann.leave()
        assert await bench.broker.audit() == []
        assert len(await bob.take(5)) == 1
