"""Changing jobs by hand: cancel, retry, delete, reschedule, reprioritise."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Edited, JobAction, Reprioritise, Reschedule, Retry
from dray.job import Error, OutcomeKind, State
from dray.testing.conformance.bench import HOUR, MINUTE, SECOND, Bench, Theme, job

STATES = [
    State.WAITING,
    State.SCHEDULED,
    State.READY,
    State.RUNNING,
    State.RETRYING,
    State.SUCCEEDED,
    State.DEAD,
    State.CANCELLED,
]


async def bring(bench: Bench, state: State, id: str = "job") -> None:
    """Put a job and bring it into a state."""
    if state == State.WAITING:
        await bench.put(job("dependency", queue="other"), job(id, waits_for=("dependency",)))
        return
    due = bench.clock.after(HOUR) if state == State.SCHEDULED else None
    await bench.put(job(id, due=due))
    if state in (State.SCHEDULED, State.READY):
        return
    ann = await bench.worker()
    taken = await ann.take_one()
    match state:
        case State.RETRYING:
            await ann.retry(taken, at=bench.clock.after(HOUR))
        case State.SUCCEEDED:
            await ann.succeed(taken, b"result")
        case State.DEAD:
            await ann.settle(taken, OutcomeKind.DEAD, error=Error("E", "e"), reason="failed")
        case State.CANCELLED:
            await ann.settle(taken, OutcomeKind.CANCELLED)
    assert await bench.state(id) == state


def was_refused(edited: Edited, id: str = "job") -> bool:
    """Named, not changed, and there is a reason."""
    return edited.changed == () and [(one, bool(why)) for one, why in edited.refused] == [(id, True)]


class TestEdits(Theme):
    @pytest.mark.parametrize(
        "action", [Cancel(), Retry(), Delete(), Reschedule(due=1), Reprioritise(priority=1)]
    )
    async def test_an_unknown_job_is_refused(self, bench: Bench, action: JobAction) -> None:
        edited = await bench.edit("nobody", action)
        assert edited.changed == ()
        assert edited.refused == (("nobody", "not_found"),)

    @pytest.mark.parametrize("state", [State.WAITING, State.SCHEDULED, State.READY, State.RETRYING])
    async def test_a_job_that_does_not_run_is_cancelled_at_once(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        assert (await bench.edit("job", Cancel("not needed"))).changed == ("job",)
        record = await bench.record("job")
        assert (record.state, record.reason) == (State.CANCELLED, "not needed")
        assert (record.finished, record.due, record.waiting) == (bench.clock.time, None, ())
        bench.clock.advance(2 * HOUR)
        await bench.sweep()
        bob = await bench.worker("bob")
        assert await bob.take(5) == []

    async def test_a_running_job_is_asked_to_stop_and_the_first_reason_stays(self, bench: Bench) -> None:
        await bring(bench, State.RUNNING)
        assert (await bench.edit("job", Cancel("first"))).changed == ("job",)
        await bench.edit("job", Cancel("second"))
        record = await bench.record("job")
        assert (record.state, record.cancel, record.reason) == (State.RUNNING, "first", None)

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD, State.CANCELLED])
    async def test_a_finished_job_cannot_be_cancelled(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        assert was_refused(await bench.edit("job", Cancel()))
        assert await bench.state("job") == state

    async def test_a_cancelled_job_is_never_retried_by_itself(self, bench: Bench) -> None:
        await bring(bench, State.RETRYING)
        await bench.edit("job", Cancel())
        bench.clock.advance(10 * HOUR)
        await bench.sweep()
        assert await bench.state("job") == State.CANCELLED

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.DEAD, State.CANCELLED])
    async def test_retry_runs_a_finished_job_again_with_all_its_retries(
        self, bench: Bench, state: State
    ) -> None:
        await bring(bench, state)
        assert (await bench.edit("job", Retry())).changed == ("job",)
        record = await bench.record("job")
        assert (record.state, record.failures, record.crashes) == (State.READY, 0, 0)
        assert (record.finished, record.reason, record.result, record.error) == (None, None, None, None)
        taken = await (await bench.worker("bob")).take_one()
        assert (taken.run, taken.attempt, taken.suspect) == (2, 1, False)

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING])
    async def test_retry_runs_a_delayed_job_now(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        await bench.edit("job", Retry())
        record = await bench.record("job")
        assert (record.state, record.due, record.failures) == (State.READY, None, 0)
        assert await (await bench.worker("bob")).take_ids(5) == ["job"]

    @pytest.mark.parametrize("state", [State.WAITING, State.READY, State.RUNNING])
    async def test_there_is_nothing_to_retry_before_the_end(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        assert was_refused(await bench.edit("job", Retry()))
        assert await bench.state("job") == state

    async def test_retry_repeated_makes_no_second_run(self, bench: Bench) -> None:
        await bring(bench, State.DEAD)
        await bench.edit("job", Retry())
        assert was_refused(await bench.edit("job", Retry()))
        assert await (await bench.worker("bob")).take_ids(5) == ["job"]

    async def test_poison_that_is_retried_by_hand_starts_with_a_clean_slate(self, bench: Bench) -> None:
        await bench.put(job(max_crashes=1))
        ann = await bench.worker()
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED)
        assert await bench.state("job") == State.DEAD
        await bench.edit("job", Retry())
        taken = await ann.take_one()
        assert (taken.crashes, taken.suspect) == (0, False)

    async def test_a_retried_job_takes_its_key_again(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"))
        ann = await bench.worker()
        await ann.kill(await ann.take_one())
        await bench.edit("a", Retry())
        assert (await bench.put_one(job("b", key="k"))).id == "a"

    async def test_a_job_whose_key_another_has_cannot_be_retried(self, bench: Bench) -> None:
        await bench.put(job("a", key="k"))
        ann = await bench.worker()
        await ann.kill(await ann.take_one())
        await bench.put(job("b", key="k"))
        edited = await bench.edit("a", Retry())
        assert was_refused(edited, "a")
        assert "b" in edited.refused[0][1]
        assert await bench.state("a") == State.DEAD

    @pytest.mark.parametrize("state", [state for state in STATES if state != State.RUNNING])
    async def test_a_deleted_job_is_forgotten(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        assert (await bench.edit("job", Delete())).changed == ("job",)
        assert await bench.state("job") == State.NOT_FOUND
        assert (await bench.edit("job", Delete())).refused == (("job", "not_found"),)
        bench.clock.advance(2 * HOUR)
        await bench.sweep()
        assert await (await bench.worker("bob")).take(5) == []

    async def test_a_running_job_cannot_be_deleted(self, bench: Bench) -> None:
        await bring(bench, State.RUNNING)
        edited = await bench.edit("job", Delete())
        assert was_refused(edited)
        assert "cancel" in edited.refused[0][1]
        assert await bench.state("job") == State.RUNNING

    @pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYING, State.READY])
    async def test_reschedule_sets_the_due_time(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        due = bench.clock.after(MINUTE)
        assert (await bench.edit("job", Reschedule(due))).changed == ("job",)
        await bench.edit("job", Reschedule(due))
        record = await bench.record("job")
        assert record.due == due
        assert record.state == (State.RETRYING if state == State.RETRYING else State.SCHEDULED)
        bob = await bench.worker("bob", lease=HOUR)
        bench.clock.advance(MINUTE - 1)
        assert await bob.take() == []
        bench.clock.advance(1)
        assert await bob.take_ids() == ["job"]

    async def test_reschedule_to_now_makes_a_job_ready(self, bench: Bench) -> None:
        await bring(bench, State.SCHEDULED)
        await bench.edit("job", Reschedule(bench.clock.time))
        assert await bench.state("job") == State.READY

    @pytest.mark.parametrize("state", [State.RUNNING, State.SUCCEEDED, State.DEAD, State.CANCELLED])
    async def test_what_runs_or_has_ended_cannot_be_rescheduled_or_reprioritised(
        self, bench: Bench, state: State
    ) -> None:
        await bring(bench, state)
        assert was_refused(await bench.edit("job", Reschedule(bench.clock.after(HOUR))))
        assert was_refused(await bench.edit("job", Reprioritise(0)))
        record = await bench.record("job")
        assert (record.state, record.job.priority, record.due) == (state, 5, None)

    async def test_reprioritise_moves_a_job_in_line(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c"))
        assert (await bench.edit("b", Reprioritise(1))).changed == ("b",)
        await bench.edit("b", Reprioritise(1))
        assert (await bench.record("b")).job.priority == 1
        taken = await (await bench.worker()).take(5)
        assert [(one.job.id, one.job.priority) for one in taken] == [("b", 1), ("a", 5), ("c", 5)]

    async def test_a_job_that_gets_its_priority_back_gets_its_place_back(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"), job("c"))
        await bench.edit("b", Reprioritise(9))
        await bench.edit("b", Reprioritise(5))
        assert await (await bench.worker()).take_ids(5) == ["a", "b", "c"]

    @pytest.mark.parametrize("state", [State.WAITING, State.SCHEDULED, State.RETRYING])
    async def test_reprioritise_leaves_a_job_where_it_waits(self, bench: Bench, state: State) -> None:
        await bring(bench, state)
        before = await bench.record("job")
        await bench.edit("job", Reprioritise(0))
        after = await bench.record("job")
        assert after.job.priority == 0
        assert (after.state, after.due, after.waiting) == (before.state, before.due, before.waiting)

    async def test_a_rescheduled_job_has_its_ttl_from_the_new_due_time(self, bench: Bench) -> None:
        await bench.put(job(ttl=MINUTE))
        await bench.edit("job", Reschedule(bench.clock.after(HOUR)))
        bench.clock.advance(HOUR + MINUTE - SECOND)
        await bench.sweep()
        assert await bench.state("job") == State.READY
