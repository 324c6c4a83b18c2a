"""What becomes of a run, and who may say so."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Retry
from dray.broker.verbs import ProgressReport
from dray.job import Error, Outcome, OutcomeKind, Progress, State, Verdict
from dray.testing.conformance.bench import LEASE, MINUTE, Bench, Theme, Worker, job, jobs

BOOM = Error("ValueError", "boom", "Traceback …")
AFTER = {
    OutcomeKind.SUCCEEDED: State.SUCCEEDED,
    OutcomeKind.RETRY: State.READY,
    OutcomeKind.DEAD: State.DEAD,
    OutcomeKind.CANCELLED: State.CANCELLED,
    OutcomeKind.GIVE_BACK: State.READY,
    OutcomeKind.CRASHED: State.READY,
    OutcomeKind.SUSPENDED: State.SCHEDULED,
}


class TestOutcomes(Theme):
    @pytest.mark.parametrize("result", [None, b"", b"\x00\xff"])
    async def test_a_success_is_recorded_with_its_result(self, bench: Bench, result: bytes | None) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        bench.clock.advance(5)
        settled = await ann.succeed(taken, result)
        assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.SUCCEEDED)
        record = await bench.record("job")
        assert (record.state, record.result, record.settled) == (State.SUCCEEDED, result, 1)
        assert (record.finished, record.runs, record.attempt) == (bench.clock.time, (), 1)

    async def test_a_failure_to_be_retried_waits_for_its_time(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker(lease=MINUTE)
        settled = await ann.retry(await ann.take_one(), at=bench.clock.after(10), error=BOOM)
        assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.RETRYING)
        record = await bench.record("job")
        assert (record.state, record.due, record.failures) == (State.RETRYING, bench.clock.after(10), 1)
        assert record.error == BOOM
        bench.clock.advance(9)
        assert await ann.take() == []
        bench.clock.advance(1)
        assert (await ann.take_one()).attempt == 2

    @pytest.mark.parametrize("at", [None, 0])
    async def test_a_retry_without_a_time_or_in_the_past_is_ready_at_once(
        self, bench: Bench, at: int | None
    ) -> None:
        await bench.put(job())
        ann = await bench.worker()
        assert (await ann.retry(await ann.take_one(), at=at)).state == State.READY
        assert (await ann.take_one()).attempt == 2

    async def test_the_broker_leaves_it_to_the_worker_how_often_to_retry(self, bench: Bench) -> None:
        await bench.put(job(retries=0))
        ann = await bench.worker()
        for _ in range(5):
            await ann.retry(await ann.take_one())
        taken = await ann.take_one()
        assert (taken.attempt, taken.job.retries) == (6, 0)

    async def test_a_dead_job_keeps_reason_and_error_and_is_not_handed_out(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        settled = await ann.settle(
            await ann.take_one(), OutcomeKind.DEAD, error=BOOM, reason="rejected: no such user"
        )
        assert settled.state == State.DEAD
        record = await bench.record("job")
        assert (record.reason, record.error) == ("rejected: no such user", BOOM)
        assert await ann.take() == []

    async def test_the_failure_that_ends_a_job_counts_and_a_replay_begins_anew(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.retry(await ann.take_one())
        await ann.kill(await ann.take_one())
        record = await bench.record("job")
        assert (record.failures, record.attempt, record.run) == (2, 2, 2)
        await bench.edit("job", Retry())
        assert (await bench.record("job")).failures == 0
        assert (await ann.take_one()).attempt == 1

    async def test_a_dead_job_always_has_a_reason(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.kill(await ann.take_one(), reason=None)
        assert (await bench.record("job")).reason

    async def test_a_worker_may_end_a_job_as_cancelled(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.settle(await ann.take_one(), OutcomeKind.CANCELLED, reason="not today")
        record = await bench.record("job")
        assert (record.state, record.reason) == (State.CANCELLED, "not today")

    async def test_giving_back_uses_no_retry_and_casts_no_suspicion(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        assert (await ann.give_back(await ann.take_one())).state == State.READY
        record = await bench.record("job")
        assert (record.failures, record.crashes, record.suspect, record.runs) == (0, 0, False, ())
        assert (await ann.take_one()).attempt == 1

    async def test_the_last_error_stays_visible_after_a_later_success(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.retry(await ann.take_one(), error=BOOM)
        await ann.succeed(await ann.take_one(), b"ok")
        record = await bench.record("job")
        assert (record.error, record.result, record.failures) == (BOOM, b"ok", 1)

    async def test_there_is_one_reply_per_outcome_in_their_order(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        [a, _, c] = await ann.take(3)
        outcomes = [
            Outcome(id=c.job.id, run=c.run, kind=OutcomeKind.DEAD),
            Outcome(id="nobody", run=1, kind=OutcomeKind.SUCCEEDED),
            Outcome(id=a.job.id, run=a.run, kind=OutcomeKind.SUCCEEDED),
            Outcome(id=a.job.id, run=a.run, kind=OutcomeKind.SUCCEEDED),
        ]
        replies = await ann.broker.settle("ann", outcomes, now=bench.clock.now)
        assert [(reply.verdict, reply.state) for reply in replies] == [
            (Verdict.ACCEPTED, State.DEAD),
            (Verdict.REFUSED, State.NOT_FOUND),
            (Verdict.ACCEPTED, State.SUCCEEDED),
            (Verdict.ALREADY, State.SUCCEEDED),
        ]
        assert await ann.broker.settle("ann", [], now=bench.clock.now) == []


class TestFencing(Theme):
    @pytest.mark.parametrize("kind", list(OutcomeKind))
    async def test_a_repeated_outcome_has_no_second_effect(self, bench: Bench, kind: OutcomeKind) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        first = await ann.settle(taken, kind, reason="r")
        before = await bench.everything()
        again = await ann.settle(taken, kind, reason="r")
        assert (first.verdict, again.verdict) == (Verdict.ACCEPTED, Verdict.ALREADY)
        assert first.state == again.state == AFTER[kind]
        assert await bench.everything() == before

    async def test_the_first_outcome_of_a_run_counts(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.succeed(taken, b"first")
        settled = await ann.kill(taken)
        assert (settled.verdict, settled.state) == (Verdict.ALREADY, State.SUCCEEDED)
        assert (await bench.record("job")).result == b"first"

    async def test_only_the_session_that_holds_a_run_may_settle_it(self, bench: Bench) -> None:
        await bench.put(job())
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        taken = await ann.take_one()
        settled = await bob.succeed(taken)
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.RUNNING)
        assert (await ann.succeed(taken)).verdict == Verdict.ACCEPTED

    @pytest.mark.parametrize("run", [2, 99])
    async def test_a_run_that_never_was_cannot_be_settled(self, bench: Bench, run: int) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        settled = await ann.succeed(("job", run))
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.RUNNING)

    async def test_a_job_that_never_ran_cannot_be_settled(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        settled = await ann.succeed(("job", 1))
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.READY)

    async def test_an_unknown_session_can_settle_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        stranger = Worker(ann.broker, bench.clock, "stranger")
        assert (await stranger.succeed(taken)).verdict == Verdict.REFUSED

    @pytest.mark.parametrize("how", ["released", "left in good order", "lapsed"])
    @pytest.mark.parametrize("kind", list(OutcomeKind))
    async def test_a_run_that_was_taken_over_can_do_nothing_any_more(
        self, bench: Bench, how: str, kind: OutcomeKind
    ) -> None:
        await bench.put(job())
        ann, bob = await bench.worker("ann"), await bench.worker("bob", lease=10 * LEASE)
        stale = await ann.take_one()
        if how == "lapsed":
            bench.clock.advance(LEASE)
            await bench.sweep()
        else:
            await ann.leave(suspect=how == "released")
        assert (await ann.settle(stale, kind)).verdict == Verdict.REFUSED
        valid = await bob.take_one()
        assert valid.run == stale.run + 1
        await ann.beat()
        before = await bench.everything()
        settled = await ann.settle(stale, kind, result=b"stale")
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.RUNNING)
        await ann.beat(ProgressReport("job", stale.run, Progress(1, 2, "stale")))
        assert await bench.everything() == before
        assert (await bob.succeed(valid)).verdict == Verdict.ACCEPTED
        assert (await ann.settle(stale, kind)).verdict == Verdict.REFUSED

    async def test_an_old_run_of_the_same_session_is_stale_too(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        first = await ann.take_one()
        await ann.retry(first)
        second = await ann.take_one()
        assert (await ann.succeed(first)).verdict == Verdict.ALREADY
        assert await bench.state("job") == State.RUNNING
        await ann.retry(second)
        assert (await ann.succeed(first)).verdict == Verdict.REFUSED
        assert await bench.state("job") == State.READY

    async def test_a_late_outcome_counts_as_long_as_nobody_judged_the_session(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        bench.clock.advance(10 * LEASE)
        await bench.sweep(lapse=False)
        assert (await ann.succeed(taken)).verdict == Verdict.ACCEPTED

    async def test_a_job_cancelled_before_it_started_again_refuses_the_old_run(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.leave()
        await bench.edit("job", Cancel())
        settled = await ann.succeed(taken)
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.CANCELLED)

    async def test_a_deleted_job_refuses_its_old_run(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.leave()
        await bench.edit("job", Delete())
        settled = await ann.succeed(taken)
        assert (settled.verdict, settled.state) == (Verdict.REFUSED, State.NOT_FOUND)
        assert await bench.state("job") == State.NOT_FOUND

    async def test_a_job_retried_by_hand_does_not_end_by_its_old_run(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        old = await ann.take_one()
        await ann.kill(old)
        await bench.edit("job", Retry())
        assert (await ann.succeed(old)).verdict == Verdict.ALREADY
        assert await bench.state("job") == State.READY
        new = await ann.take_one()
        assert new.run == old.run + 1
        assert (await ann.succeed(new)).verdict == Verdict.ACCEPTED

    async def test_a_cancelled_run_is_recorded_as_cancelled_whatever_it_came_to(self, bench: Bench) -> None:
        ann = await bench.worker()
        for kind in OutcomeKind:
            await bench.put(job(kind))
            taken = await ann.take_one()
            await bench.edit(kind, Cancel("enough"))
            assert await bench.state(kind) == State.RUNNING
            settled = await ann.settle(taken, kind, result=b"done", at=bench.clock.after(1))
            assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.CANCELLED)
            record = await bench.record(kind)
            assert (record.reason, record.result, record.cancel) == ("enough", None, None)
        assert await ann.take(5) == []

    async def test_a_cancellation_after_the_completion_comes_too_late(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.succeed(await ann.take_one(), b"done")
        edited = await bench.edit("job", Cancel())
        assert (edited.changed, [id for id, _ in edited.refused]) == ((), ["job"])
        assert (await bench.record("job")).result == b"done"
