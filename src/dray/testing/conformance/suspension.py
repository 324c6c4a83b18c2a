"""Durable jobs that sleep, or wait for events and jobs; what wakes them."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel, Continue, Delete, Query, Reprioritise, Reschedule, Retry, Speculate
from dray.errors import InvalidInput
from dray.job import Error, Outcome, OutcomeKind, RunEnd, State, Suspension, Verdict
from dray.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench, Theme, Worker, job, jobs

BOOM = Error("ValueError", "boom", "")


async def asleep(bench: Bench, ann: Worker, **waits: Any) -> None:
    """A job named `job`, suspended."""
    await bench.put(job())
    await ann.suspend(await ann.take_one(), **waits)


class TestSleeping(Theme):
    async def test_a_job_that_sleeps_is_scheduled_until_then(self, bench: Bench) -> None:
        ann = await bench.worker(lease=2 * HOUR)
        await bench.put(job())
        taken = await ann.take_one()
        until = bench.clock.after(HOUR)
        settled = await ann.suspend(taken, until=until)
        assert (settled.verdict, settled.state) == (Verdict.ACCEPTED, State.SCHEDULED)
        record = await bench.record("job")
        assert (record.due, record.suspended) == (until, Suspension(until=until))
        assert (record.runs, record.failures, record.attempt) == ((), 0, 0)
        bench.clock.advance(HOUR - 1)
        assert await ann.take(1) == []
        bench.clock.advance(1)
        again = await ann.take_one()
        assert (again.run, again.attempt, again.crashes) == (2, 1, 0)
        record = await bench.record("job")
        assert (record.suspended, record.past[-1].how) == (None, RunEnd.SUSPENDED)
        assert ("suspended", "job") in await bench.happened()
        assert ("promoted", "job") in await bench.happened()

    async def test_between_the_tries_of_a_step_the_job_is_retrying(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, until=bench.clock.after(SECOND), error=BOOM)
        record = await bench.record("job")
        assert (record.state, record.failures, record.error) == (State.RETRYING, 0, BOOM)
        bench.clock.advance(SECOND)
        assert (await ann.take_one()).attempt == 1

    async def test_a_sleep_that_is_over_already_ends_at_once(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, until=bench.clock.time, events={"go": 0})
        assert (await bench.record("job")).suspended is None
        assert await ann.take_ids() == ["job"]

    async def test_a_suspended_job_gives_back_slot_and_lease_but_keeps_its_key(self, bench: Bench) -> None:
        await bench.put(*jobs(2, max_running=1), job("keyed", "other", key="k"))
        ann = await bench.worker()
        for taken in await ann.take(5):
            await ann.suspend(taken, until=bench.clock.after(HOUR))
        assert await ann.take_ids(5) == ["job-0001"]
        assert (await bench.put_one(job("next", "other", key="k"))).id == "keyed"
        await ann.leave()
        assert await bench.states("job-0000", "keyed") == [State.SCHEDULED, State.SCHEDULED]

    async def test_a_suspended_run_is_over(self, bench: Bench) -> None:
        ann = await bench.worker()
        await bench.put(job())
        taken = await ann.take_one()
        await ann.suspend(taken, until=bench.clock.after(HOUR))
        assert (await ann.suspend(taken, until=bench.clock.after(1))).verdict == Verdict.ALREADY
        assert (await ann.succeed(taken)).verdict == Verdict.ALREADY
        assert await ann.memo(taken, 0, b"late") == Verdict.REFUSED
        assert await bench.state("job") == State.SCHEDULED

    async def test_a_suspension_clears_suspicion(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker("ann")
        await ann.take_one()
        await ann.leave()
        bob = await bench.worker("bob")
        taken = await bob.take_one()
        assert taken.suspect
        await bob.suspend(taken, until=bench.clock.after(1))
        bench.clock.advance(1)
        assert (await bob.take_one()).suspect == 0

    async def test_a_retry_by_hand_wakes_a_sleeping_job_early(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, until=bench.clock.after(HOUR))
        await bench.edit("job", Retry())
        taken = await ann.take_one()
        assert (taken.replayed, (await bench.record("job")).suspended) == (0, None)

    async def test_a_sleep_can_be_moved(self, bench: Bench) -> None:
        ann = await bench.worker()
        await bench.put(job())
        await ann.retry(await ann.take_one())
        await ann.suspend(await ann.take_one(), until=bench.clock.after(HOUR))
        await bench.edit("job", Reschedule(bench.clock.after(MINUTE)))
        record = await bench.record("job")
        assert (record.state, record.due, record.failures) == (State.SCHEDULED, bench.clock.after(MINUTE), 1)
        assert record.suspended == Suspension(until=bench.clock.after(MINUTE))
        await bench.edit("job", Reschedule(bench.clock.time))
        assert (await bench.record("job")).suspended is None
        assert await ann.take_ids() == ["job"]

    async def test_a_started_job_does_not_expire(self, bench: Bench) -> None:
        await bench.put(job(ttl=SECOND))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), until=bench.clock.after(MINUTE))
        bench.clock.advance(HOUR)
        assert (await bench.sweep()).expired == 0
        await ann.beat()
        assert await ann.take_ids() == ["job"]

    async def test_a_started_job_is_not_dropped_for_a_new_one(self, bench: Bench) -> None:
        await bench.put(job("old"), job("other"))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), until=bench.clock.time)
        bound: dict[str, Any] = {"max_ready": 2, "overflow": "drop-oldest"}
        assert (await bench.put_one(job("new", **bound))).verdict == "created"
        assert await bench.states("old", "other") == [State.READY, State.DEAD]
        [old] = [one for one in await ann.take(5) if one.job.id == "old"]
        await ann.retry(old)
        await bench.edit("new", Cancel())
        assert (await bench.put_one(job("newer", **bound | {"max_ready": 1}))).verdict == "full"
        assert await bench.state("old") == State.READY

    async def test_a_sleeping_job_dies_at_its_deadline(self, bench: Bench) -> None:
        await bench.put(job(deadline=MINUTE))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), until=bench.clock.after(HOUR))
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 1
        record = await bench.record("job")
        assert (record.state, record.suspended) == (State.DEAD, None)

    async def test_a_run_that_suspends_past_its_deadline_makes_the_job_dead(self, bench: Bench) -> None:
        await bench.put(job(deadline=SECOND))
        ann = await bench.worker()
        taken = await ann.take_one()
        bench.clock.advance(SECOND)
        assert (await ann.suspend(taken, until=bench.clock.after(1))).state == State.DEAD

    async def test_a_job_that_was_asked_to_stop_does_not_go_to_sleep(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.edit("job", Cancel("enough"))
        assert (await ann.suspend(taken, events={"go": 0})).state == State.CANCELLED
        assert (await bench.record("job")).reason == "enough"

    async def test_cancelling_a_suspended_job_ends_it(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0}, until=bench.clock.after(HOUR))
        await bench.edit("job", Cancel())
        record = await bench.record("job")
        assert (record.state, record.suspended) == (State.CANCELLED, None)
        bench.clock.advance(HOUR)
        assert (await bench.sweep()).promoted == 0

    async def test_the_priority_of_a_suspended_job_can_change(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, until=bench.clock.after(SECOND))
        await bench.put(job("other"))
        await bench.edit("job", Reprioritise(0))
        bench.clock.advance(SECOND)
        assert await ann.take_ids(2) == ["job", "other"]

    @pytest.mark.parametrize(
        "wrong",
        [
            Suspension(),
            Suspension(until=-1),
            Suspension(events={"": 0}),
            Suspension(events={"go": -1}),
            Suspension(jobs=("a", "a")),
            Suspension(jobs=("job",)),
            Suspension(parked=True, until=5),
            None,
        ],
    )
    async def test_a_nonsensical_suspension_is_refused(self, bench: Bench, wrong: Suspension | None) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        outcome = Outcome(id="job", run=taken.run, kind=OutcomeKind.SUSPENDED, suspend=wrong)
        with pytest.raises(InvalidInput):
            await ann.broker.settle("ann", [outcome], now=bench.clock.now)
        with pytest.raises(InvalidInput):
            await ann.settle(taken, OutcomeKind.RETRY, suspend=Suspension(until=1))
        assert await bench.state("job") == State.RUNNING


class TestWaitingForEvents(Theme):
    async def test_a_message_wakes_the_job_that_waits_for_its_name(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0, "stop": 0})
        assert await bench.state("job") == State.WAITING
        assert (await bench.send("job", "other")).state == State.WAITING
        assert (await bench.send("job", "stop")).state == State.READY
        assert (await bench.record("job")).suspended is None
        assert ("woken", "job") in await bench.happened()
        assert await ann.take_ids() == ["job"]

    async def test_a_message_that_was_sent_before_is_not_waited_for(self, bench: Bench) -> None:
        ann = await bench.worker()
        await bench.put(job())
        await bench.send("job")
        assert (await ann.suspend(await ann.take_one(), events={"go": 0})).state == State.READY
        assert (await ann.suspend(await ann.take_one(), events={"go": 1})).state == State.WAITING
        assert (await bench.send("job", message="again")).state == State.READY

    async def test_a_message_that_was_seen_and_dropped_does_not_wake(self, bench: Bench) -> None:
        ann = await bench.worker()
        await bench.put(job())
        await bench.send("job")
        taken = await ann.take_one()
        await ann.memo(taken, 0, b"got", consumed={"go": 1})
        assert (await ann.suspend(taken, events={"go": 1})).state == State.WAITING
        assert (await bench.send("job")).verdict == "already"
        assert await bench.state("job") == State.WAITING

    async def test_the_time_out_of_an_event_wakes_the_job_in_its_place(self, bench: Bench) -> None:
        ann = await bench.worker()
        until = bench.clock.after(HOUR)
        await asleep(bench, ann, events={"go": 0}, until=until)
        record = await bench.record("job")
        assert (record.state, record.due) == (State.WAITING, None)
        info = await bench.queue()
        assert info is not None
        assert (info.next_due, info.counts) == (until, {State.WAITING: 1})
        bench.clock.advance(HOUR - 1)
        assert (await bench.sweep()).promoted == 0
        bench.clock.advance(1)
        assert (await bench.sweep()).promoted == 1
        assert await bench.state("job") == State.READY
        assert ("woken", "job") in await bench.happened()

    async def test_a_take_wakes_what_has_timed_out(self, bench: Bench) -> None:
        ann = await bench.worker(lease=2 * HOUR)
        await asleep(bench, ann, events={"go": 0}, until=bench.clock.after(HOUR))
        await bench.put(job("late", due=bench.clock.after(HOUR)), job("early", due=bench.clock.after(MINUTE)))
        bench.clock.advance(HOUR)
        assert await ann.take_ids(5) == ["early", "job", "late"]

    async def test_an_event_in_time_drops_the_time_out(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0}, until=bench.clock.after(SECOND))
        await bench.send("job")
        await ann.suspend(await ann.take_one(), events={"go": 1})
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).promoted == 0
        assert await bench.state("job") == State.WAITING

    async def test_a_waiting_job_is_not_retried_or_moved_by_hand(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0})
        for action in (Retry(), Reschedule(bench.clock.time), Continue()):
            assert (await bench.edit("job", action)).changed == ()
        assert await bench.find(Query(state=State.WAITING)) == ["job"]

    async def test_a_deleted_job_wakes_nothing(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0}, until=bench.clock.after(SECOND))
        await bench.edit("job", Delete())
        bench.clock.advance(SECOND)
        assert (await bench.sweep()).promoted == 0
        assert (await bench.send("job")).verdict == "not_found"

    async def test_a_parked_job_goes_on_when_it_is_told_to(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, parked=True, reason="changed: step 3")
        record = await bench.record("job")
        assert (record.state, record.reason) == (State.WAITING, "changed: step 3")
        await bench.send("job")
        bench.clock.advance(HOUR)
        await bench.sweep()
        assert await bench.state("job") == State.WAITING
        assert (await bench.edit("job", Continue())).changed == ("job",)
        assert (await bench.record("job")).reason is None
        await ann.beat()
        assert await ann.take_ids() == ["job"]
        assert (await bench.edit("job", Continue())).changed == ()

    async def test_a_woken_job_goes_to_the_end_of_the_line(self, bench: Bench) -> None:
        ann = await bench.worker()
        await asleep(bench, ann, events={"go": 0})
        await bench.put(*jobs(2))
        await bench.send("job")
        assert await ann.take_ids(5) == ["job-0000", "job-0001", "job"]

    async def test_only_one_of_two_runs_that_suspends_leaves_the_other(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        first = await ann.take_one()
        await bench.edit("job", Speculate())
        second = await bob.take_one()
        assert (await ann.suspend(first, events={"go": 0})).state == State.RUNNING
        assert (await bob.succeed(second)).state == State.SUCCEEDED


class TestWaitingForChildren(Theme):
    @pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled", "deleted"])
    async def test_any_end_of_a_job_wakes_who_waits_for_it(self, bench: Bench, how: str) -> None:
        await bench.put(job("parent"), job("child", queue="other"), job("slow"))
        ann = await bench.worker()
        parent = await ann.take_one()
        await ann.suspend(parent, jobs=("child", "slow"))
        record = await bench.record("parent")
        assert (record.state, record.waiting) == (State.WAITING, ("child", "slow"))
        if how == "cancelled":
            await bench.edit("child", Cancel())
        elif how == "deleted":
            await bench.edit("child", Delete())
        else:
            child = await ann.take_one(["other"])
            await (ann.succeed(child) if how == "succeeded" else ann.kill(child))
        record = await bench.record("parent")
        assert (record.state, record.waiting, record.suspended) == (State.READY, (), None)

    async def test_with_all_jobs_the_last_end_wakes(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("a"), job("b"), job("c"))
        ann = await bench.worker()
        [parent, a, b, c] = await ann.take(4)
        await ann.succeed(c)
        await ann.suspend(parent, jobs=("a", "b", "c"), all_jobs=True)
        await ann.succeed(b)
        assert (await bench.record("parent")).waiting == ("a",)
        await ann.kill(a)
        assert await bench.state("parent") == State.READY

    @pytest.mark.parametrize("all_jobs", [False, True])
    async def test_what_has_ended_already_is_not_waited_for(self, bench: Bench, all_jobs: bool) -> None:
        await bench.put(job("parent", priority=0), job("a"))
        ann = await bench.worker()
        [parent, a] = await ann.take(2)
        await ann.succeed(a)
        gone = "default:0123456789abcdef0123456789abcdef"
        settled = await ann.suspend(parent, jobs=("a", gone), all_jobs=all_jobs)
        assert settled.state == State.READY

    async def test_an_event_or_the_time_wakes_before_the_job_ends(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child", queue="other"))
        ann = await bench.worker(lease=2 * HOUR)
        waits: dict[str, Any] = {"jobs": ("child",), "events": {"go": 0}, "until": bench.clock.after(HOUR)}
        await ann.suspend(await ann.take_one(), **waits)
        await bench.send("parent")
        await ann.suspend(await ann.take_one(), **waits | {"events": {"go": 1}})
        bench.clock.advance(HOUR)
        await ann.suspend(await ann.take_one(), **waits | {"events": {"go": 1}, "until": None})
        assert await bench.state("parent") == State.WAITING
        await ann.succeed(await ann.take_one(["other"]))
        assert await bench.state("parent") == State.READY

    @pytest.mark.parametrize("all_jobs", [False, True])
    async def test_a_job_may_wait_for_many(self, bench: Bench, all_jobs: bool) -> None:
        await bench.put(job("parent", priority=0), *jobs(150, queue="other"))
        ann = await bench.worker()
        names = tuple(one.id for one in jobs(150))
        await ann.suspend(await ann.take_one(), jobs=names, all_jobs=all_jobs)
        record = await bench.record("parent")
        assert (record.waiting, record.suspended) == (names, Suspension(jobs=names, all_jobs=all_jobs))
        taken = await ann.take(150, ["other"])
        for one in taken[:-1] if all_jobs else ():
            await ann.succeed(one)
        assert await bench.state("parent") == State.WAITING
        await ann.kill(taken[-1])
        record = await bench.record("parent")
        assert (record.state, record.waiting, record.suspended) == (State.READY, (), None)

    async def test_a_retry_of_the_job_wakes_nobody(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child"))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), jobs=("child",))
        await ann.retry(await ann.take_one())
        assert await bench.state("parent") == State.WAITING

    async def test_jobs_that_wait_for_a_suspended_job_hear_of_its_end_only(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b", waits_for=("a",)))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), events={"go": 0})
        assert await bench.state("b") == State.WAITING
        await bench.send("a")
        await ann.succeed(await ann.take_one())
        assert await bench.state("b") == State.READY

    async def test_a_lost_worker_takes_no_suspended_job_along(self, bench: Bench) -> None:
        await bench.put(job("parent"), job("child", queue="other"))
        ann = await bench.worker()
        await ann.suspend(await ann.take_one(), jobs=("child",))
        bench.clock.advance(LEASE)
        await bench.sweep()
        bob = await bench.worker("bob")
        await bob.succeed(await bob.take_one(["other"]))
        taken = await bob.take_one()
        assert (taken.job.id, taken.run, taken.crashes, taken.suspect) == ("parent", 2, 0, 0)

    async def test_several_outcomes_in_one_call_wake_each_other(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child"))
        ann = await bench.worker()
        [parent, child] = await ann.take(2)
        suspended = Suspension(jobs=("child",))
        outcomes = [
            Outcome(id="parent", run=parent.run, kind=OutcomeKind.SUSPENDED, suspend=suspended),
            Outcome(id="child", run=child.run, kind=OutcomeKind.SUCCEEDED),
        ]
        await ann.broker.settle("ann", outcomes, now=bench.clock.now)
        assert await bench.state("parent") == State.READY
