"""Deadlines: a job that is not finished in time is dead, in whatever state it is."""

from __future__ import annotations

from typing import Any

from dray.broker.actions import Cancel, Delete, Pause, Query, Reschedule, Retry, Scope, Speculate
from dray.broker.verbs import EXPIRE_STEP
from dray.job import Error, OutcomeKind, Record, RunEnd, State, Verdict
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme, Worker, job, jobs

REASON = "deadline: it was not finished in time"


async def assert_dead(bench: Bench, id: str = "job", reason: str = REASON) -> Record:
    record = await bench.record(id)
    assert (record.state, record.reason) == (State.DEAD, reason)
    return record


class TestDeadlines(Theme):
    """Jobs that are not running when their deadline passes."""

    async def test_a_ready_job_past_its_deadline_is_buried_by_a_sweep(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        assert (await bench.record("job")).deadline == bench.clock.after(MINUTE)
        bench.clock.advance(MINUTE - 1)
        swept = await bench.sweep()
        assert (swept.expired, await bench.state("job")) == (0, State.READY)
        bench.clock.advance(1)
        assert (await bench.sweep()).expired == 1
        record = await assert_dead(bench)
        assert (record.run, record.finished) == (0, bench.clock.time)
        assert (await bench.happened())[-1] == ("died", "job")
        assert (await bench.sweep()).expired == 0

    async def test_take_never_hands_out_an_overdue_job(self, bench: Bench) -> None:
        await bench.put(job("late", deadline=SECOND, rate="1/m"), job("fresh", rate="1/m"))
        bench.clock.advance(SECOND)
        assert await (await bench.worker()).take_ids(5) == ["fresh"]
        await assert_dead(bench, "late")

    async def test_a_heap_of_overdue_jobs_does_not_hide_what_can_run(self, bench: Bench) -> None:
        await bench.put(*jobs(2 * EXPIRE_STEP + 1, "late", deadline=SECOND), job("fresh"))
        bench.clock.advance(SECOND)
        ann = await bench.worker()
        assert [id for _ in range(4) for id in await ann.take_ids(5)] == ["fresh"]

    async def test_a_scheduled_job_counts_from_its_due_time(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(HOUR), deadline=MINUTE))
        assert (await bench.record("job")).deadline == bench.clock.after(HOUR + MINUTE)
        bench.clock.advance(HOUR + MINUTE - 1)
        await bench.sweep()
        assert await bench.state("job") == State.READY
        bench.clock.advance(1)
        assert (await bench.sweep()).expired == 1
        await assert_dead(bench)

    async def test_a_due_time_in_the_past_does_not_shorten_the_deadline(self, bench: Bench) -> None:
        await bench.put(job(due=bench.clock.after(-HOUR), deadline=MINUTE))
        assert (await bench.record("job")).deadline == bench.clock.after(MINUTE)

    async def test_a_job_that_falls_due_after_its_deadline_is_not_handed_out(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        await bench.edit("job", Reschedule(bench.clock.after(HOUR)))
        ann = await bench.worker(lease=2 * HOUR)
        bench.clock.advance(HOUR)
        assert await ann.take() == []
        await assert_dead(bench)

    async def test_a_scheduled_job_past_its_deadline_is_buried_by_a_sweep(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        await bench.edit("job", Reschedule(bench.clock.after(HOUR)))
        record = await bench.record("job")
        assert (record.state, record.deadline) == (State.SCHEDULED, bench.clock.after(MINUTE))
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 1
        assert (await assert_dead(bench)).due is None

    async def test_a_retrying_job_past_its_deadline_is_buried_by_a_sweep(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        ann = await bench.worker()
        await ann.retry(await ann.take_one(), at=bench.clock.after(HOUR), error=Error("ValueError", "no"))
        assert await bench.state("job") == State.RETRYING
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 1
        record = await assert_dead(bench)
        assert (record.attempt, record.error) == (1, Error("ValueError", "no"))

    async def test_a_job_that_waits_for_others_past_its_deadline_is_buried(self, bench: Bench) -> None:
        await bench.put(job("a"), job(waits_for=("a",), deadline=MINUTE))
        ann = await bench.worker(lease=HOUR)
        taken = await ann.take_one()
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 1
        assert (await assert_dead(bench)).waiting == ()
        await ann.succeed(taken)
        await assert_dead(bench)

    async def test_waiting_for_others_counts_towards_the_deadline(self, bench: Bench) -> None:
        await bench.put(job("a"), job(waits_for=("a",), deadline=MINUTE))
        ann = await bench.worker(lease=HOUR)
        deadline = (await bench.record("job")).deadline
        bench.clock.advance(MINUTE - 1)
        await ann.succeed(await ann.take_one())
        record = await bench.record("job")
        assert (record.state, record.deadline) == (State.READY, deadline)
        bench.clock.advance(1)
        assert await ann.take() == []
        await assert_dead(bench)

    async def test_dependants_hear_of_the_death(self, bench: Bench) -> None:
        await bench.put(
            job("a", deadline=MINUTE),
            job("cancelled", waits_for=("a",)),
            job("runs", waits_for=("a",), orphan="run"),
            job("waits", waits_for=("a",), orphan="wait"),
        )
        bench.clock.advance(MINUTE)
        await bench.sweep()
        await bench.sweep()
        states = await bench.states("a", "cancelled", "runs", "waits")
        assert states == [State.DEAD, State.CANCELLED, State.READY, State.WAITING]
        assert (await bench.record("cancelled")).reason == "a, which it waits for, is dead"

    async def test_the_death_frees_the_key(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", deadline=SECOND))
        bench.clock.advance(SECOND)
        await bench.sweep()
        assert (await bench.put_one(job("b", key="k"))).verdict == "created"

    async def test_a_pause_does_not_stop_the_time(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE), job("b", deadline=HOUR))
        await bench.edit(Scope("default"), Pause())
        bench.clock.advance(MINUTE)
        await bench.sweep()
        assert await bench.states("job", "b") == [State.DEAD, State.READY]

    async def test_of_ttl_and_deadline_the_ttl_is_named_when_both_have_passed(self, bench: Bench) -> None:
        await bench.put(job("both", ttl=MINUTE, deadline=SECOND), job("one", ttl=HOUR, deadline=SECOND))
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 2
        assert str((await bench.record("both")).reason).startswith("expired")
        await assert_dead(bench, "one")

    async def test_one_sweep_buries_no_more_than_its_limit_the_longest_overdue_first(
        self, bench: Bench
    ) -> None:
        await bench.put(
            job("c", deadline=3 * SECOND),
            job("b", queue="other", deadline=2 * SECOND),
            job("a", deadline=SECOND),
            job("ttl", ttl=4 * SECOND),
        )
        bench.clock.advance(MINUTE)
        for dead in (["a", "b"], ["a", "b", "c", "ttl"]):
            swept = await bench.sweep(2)
            assert (swept.expired, swept.more) == (2, True)
            assert sorted(await bench.find(Query(state=State.DEAD))) == dead
        assert (await bench.sweep(2)).expired == 0

    async def test_a_job_without_a_deadline_has_no_moment_and_never_dies_of_it(self, bench: Bench) -> None:
        await bench.put(job(), job("later", due=bench.clock.after(SECOND)))
        bench.clock.advance(1000 * HOUR)
        assert (await bench.sweep()).expired == 0
        taken = await (await bench.worker()).take(5)
        assert [(one.job.id, one.deadline) for one in taken] == [("job", None), ("later", None)]
        assert (await bench.record("job")).deadline is None

    async def test_putting_it_again_does_not_prolong_the_deadline(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", deadline=MINUTE))
        deadline = (await bench.record("a")).deadline
        bench.clock.advance(SECOND)
        assert (await bench.put_one(job("a", key="k", deadline=MINUTE))).verdict == "duplicate"
        assert (await bench.put_one(job("b", key="k", deadline=HOUR))).verdict == "duplicate"
        assert (await bench.record("a")).deadline == deadline

    async def test_a_replacement_brings_its_own_deadline(self, bench: Bench) -> None:
        await bench.put(job("a", key="k", deadline=MINUTE), job("same", deadline=MINUTE))
        await bench.put(job("b", key="k", on_duplicate="replace"))
        await bench.put(job("same", deadline=HOUR, on_duplicate="replace"))
        assert (await bench.record("b")).deadline is None
        assert (await bench.record("same")).deadline == bench.clock.after(HOUR)
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 0

    async def test_a_retry_by_hand_counts_anew(self, bench: Bench) -> None:
        await bench.put(job("dead", deadline=MINUTE), job("delayed", deadline=MINUTE))
        await bench.edit("delayed", Reschedule(bench.clock.after(HOUR)))
        bench.clock.advance(SECOND)
        await bench.edit("delayed", Retry())
        assert (await bench.record("delayed")).deadline == bench.clock.after(MINUTE)
        bench.clock.advance(MINUTE)
        await bench.sweep()
        await assert_dead(bench, "dead")
        await bench.edit("dead", Retry())
        record = await bench.record("dead")
        assert (record.state, record.deadline) == (State.READY, bench.clock.after(MINUTE))
        bench.clock.advance(MINUTE)
        await bench.sweep()
        await assert_dead(bench, "dead")

    async def test_a_cancelled_job_stays_cancelled(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        await bench.edit("job", Cancel())
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 0
        assert await bench.state("job") == State.CANCELLED


class TestRunsPastTheirDeadline(Theme):
    """A run is left alone while its session lives; the job dies when the run comes back."""

    async def late_run(self, bench: Bench, **fields: Any) -> Worker:
        """The worker that runs a job while its deadline passes."""
        await bench.put(job(deadline=MINUTE, **fields))
        ann = await bench.worker(lease=HOUR)
        taken = await ann.take_one()
        assert taken.deadline == bench.clock.after(MINUTE)
        assert (await ann.take_again())[0].deadline == taken.deadline
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 0
        assert await bench.state("job") == State.RUNNING
        return ann

    async def test_a_success_that_comes_late_is_a_success(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        assert (await ann.succeed(("job", 1), b"r")).state == State.SUCCEEDED
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 0
        record = await bench.record("job")
        assert (record.state, record.result) == (State.SUCCEEDED, b"r")

    async def test_a_retry_after_the_moment_is_a_death(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        error = Error("ValueError", "no")
        settled = await ann.retry(("job", 1), at=bench.clock.after(SECOND), error=error)
        assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.DEAD)
        record = await assert_dead(bench)
        assert (record.failures, record.attempt, record.error) == (1, 1, error)
        assert [run.how for run in record.past] == [RunEnd.FAILED]
        assert (await bench.happened())[-1] == ("died", "job")
        assert (await ann.retry(("job", 1))).verdict == Verdict.ALREADY

    async def test_a_job_given_back_after_the_moment_is_dead(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        assert (await ann.give_back(("job", 1))).state == State.DEAD
        assert (await assert_dead(bench)).failures == 0

    async def test_a_crash_after_the_moment_is_a_death(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        assert (await ann.settle(("job", 1), OutcomeKind.CRASHED)).state == State.DEAD
        assert (await assert_dead(bench)).crashes == 1

    async def test_a_crash_too_many_is_named_before_the_deadline(self, bench: Bench) -> None:
        ann = await self.late_run(bench, max_crashes=1)
        await ann.settle(("job", 1), OutcomeKind.CRASHED)
        assert str((await bench.record("job")).reason).startswith("poison")

    async def test_a_job_whose_session_lapses_after_the_moment_is_dead(self, bench: Bench) -> None:
        await self.late_run(bench)
        bench.clock.advance(HOUR)
        swept = await bench.sweep()
        assert (swept.lapsed, swept.freed) == (1, 1)
        await assert_dead(bench)

    async def test_a_job_whose_session_is_released_after_the_moment_is_dead(self, bench: Bench) -> None:
        for suspect in (True, False):
            ann = await self.late_run(bench)
            assert await ann.leave(suspect=suspect) == 1
            await assert_dead(bench)
            await bench.edit("job", Delete())

    async def test_an_outcome_says_why_a_late_run_died(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        await ann.kill(("job", 1), "rejected")
        await assert_dead(bench, reason="rejected")

    async def test_a_job_asked_to_stop_is_cancelled_though_it_is_late(self, bench: Bench) -> None:
        ann = await self.late_run(bench)
        await bench.edit("job", Cancel("no more"))
        assert (await ann.retry(("job", 1))).state == State.CANCELLED

    async def test_a_retry_before_the_moment_is_retried(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        ann = await bench.worker(lease=HOUR)
        bench.clock.advance(MINUTE - 1)
        assert (await ann.retry(await ann.take_one())).state == State.READY

    async def test_an_overdue_job_is_not_offered_for_a_second_run(self, bench: Bench) -> None:
        ann = await self.late_run(bench, speculate=True)
        await bench.edit("job", Speculate())
        bob = await bench.worker("bob", lease=HOUR)
        assert await bob.take() == []
        assert (await ann.succeed(("job", 1))).state == State.SUCCEEDED

    async def test_while_a_second_run_goes_on_the_job_lives(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE, speculate=True))
        ann, bob = await bench.worker(lease=HOUR), await bench.worker("bob", lease=HOUR)
        first = await ann.take_one()
        await bench.edit("job", Speculate())
        second = await bob.take_one()
        assert second.deadline == first.deadline
        bench.clock.advance(MINUTE)
        assert (await ann.retry(first)).state == State.RUNNING
        assert (await bob.succeed(second)).state == State.SUCCEEDED
