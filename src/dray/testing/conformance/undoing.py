"""Durable jobs that are undone before they end, and the jobs they call."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel, Delete, Retry
from dray.broker.verbs import Interest
from dray.job import OutcomeKind, State, Taken, Undo, Verdict
from dray.testing.conformance.bench import HOUR, LEASE, MINUTE, SECOND, Bench, Theme, Worker, job


async def started(bench: Bench, ann: Worker, **fields: Any) -> Taken:
    """The run of a job that has something to undo."""
    await bench.put(job(**fields))
    taken = await ann.take_one()
    await ann.memo(taken, 0, b"charged", undo=True)
    return taken


class TestUndo(Theme):
    @pytest.mark.parametrize("how", ["dead", "cancelled", "asked to stop", "poison", "deadline"])
    async def test_before_a_bad_end_the_job_is_undone(self, bench: Bench, how: str) -> None:
        ann = await bench.worker(lease=HOUR)
        taken = await started(bench, ann, max_crashes=1, deadline=MINUTE)
        state, reason = State.CANCELLED, "cancelled"
        if how == "dead":
            state, reason = State.DEAD, "rejected"
            await ann.kill(taken)
        elif how == "cancelled":
            await ann.settle(taken, OutcomeKind.CANCELLED)
        elif how == "asked to stop":
            await bench.edit("job", Cancel())
            await ann.give_back(taken)
        elif how == "poison":
            state, reason = State.DEAD, "poison: it crashed 1 times while running alone"
            await ann.settle(taken, OutcomeKind.CRASHED)
        else:
            state, reason = State.DEAD, "deadline: it was not finished in time"
            bench.clock.advance(MINUTE)
            await ann.retry(taken)
        record = await bench.record("job")
        assert (record.state, record.undo, record.finished) == (State.READY, Undo(state, reason), None)
        assert (record.cancel, record.reason, record.crashes, record.deadline) == (None, None, 0, None)
        undoing = await ann.take_one()
        assert (undoing.run, undoing.undo, undoing.memos) == (2, Undo(state, reason), 1)
        assert (await ann.settle(undoing, OutcomeKind.CANCELLED)).state == state
        record = await bench.record("job")
        assert (record.state, record.undo, record.reason) == (state, None, reason)
        assert ("undoing", "job") in await bench.happened()

    @pytest.mark.parametrize("how", ["sleeping", "waiting", "retrying", "ready"])
    async def test_cancelling_a_job_that_does_not_run_undoes_it(self, bench: Bench, how: str) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann)
        if how == "sleeping":
            await ann.suspend(taken, until=bench.clock.after(HOUR))
        elif how == "waiting":
            await ann.suspend(taken, events={"go": 0}, until=bench.clock.after(HOUR))
        elif how == "retrying":
            await ann.retry(taken, at=bench.clock.after(HOUR))
        else:
            await ann.retry(taken)
        await bench.edit("job", Cancel("enough"))
        record = await bench.record("job")
        assert (record.state, record.undo) == (State.READY, Undo(State.CANCELLED, "enough"))
        assert (record.suspended, record.due) == (None, None)
        assert (await ann.take_one()).undo == Undo(State.CANCELLED, "enough")

    async def test_a_sleeping_job_past_its_deadline_is_undone(self, bench: Bench) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann, deadline=MINUTE)
        await ann.suspend(taken, until=bench.clock.after(HOUR))
        bench.clock.advance(MINUTE)
        assert (await bench.sweep()).expired == 1
        await ann.beat()
        undoing = await ann.take_one()
        assert (undoing.deadline, undoing.undo is not None) == (None, True)
        bench.clock.advance(HOUR)
        assert (await bench.sweep(lapse=False)).expired == 0
        assert (await ann.settle(undoing, OutcomeKind.SUCCEEDED)).state == State.DEAD

    async def test_a_take_that_meets_a_late_job_begins_its_undo(self, bench: Bench) -> None:
        ann = await bench.worker(lease=HOUR)
        taken = await started(bench, ann, deadline=MINUTE)
        await ann.retry(taken)
        bench.clock.advance(MINUTE)
        undoing = [*await ann.take(1), *await ann.take(1)]
        assert [one.undo is not None for one in undoing] == [True]

    async def test_a_success_is_a_success(self, bench: Bench) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann)
        assert (await ann.succeed(taken, b"done")).state == State.SUCCEEDED
        assert (await bench.record("job")).result == b"done"

    async def test_what_was_undone_already_is_not_undone_again(self, bench: Bench) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann)
        await ann.memo(taken, 1, b"refunded", undo=False)
        assert (await ann.kill(taken)).state == State.DEAD

    async def test_an_undo_run_that_fails_is_told_in_the_reason(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann), "no stock")
        assert (await ann.kill(await ann.take_one(), "no bank")).state == State.DEAD
        assert (await bench.record("job")).reason == "no stock; undo: no bank"

    @pytest.mark.parametrize("how", ["retry", "suspended", "give_back", "crashed", "lapsed"])
    async def test_an_undo_run_that_does_not_end_it_is_followed_by_another(
        self, bench: Bench, how: str
    ) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann))
        undoing = await ann.take_one()
        if how == "suspended":
            await ann.suspend(undoing, until=bench.clock.after(SECOND))
        elif how == "lapsed":
            bench.clock.advance(LEASE)
            await bench.sweep()
        else:
            await ann.settle(undoing, OutcomeKind(how))
        bench.clock.advance(SECOND)
        await ann.beat()
        again = await ann.take_one()
        assert again.undo == Undo(State.DEAD, "rejected")
        assert (await ann.settle(again, OutcomeKind.CANCELLED)).state == State.DEAD

    async def test_poison_while_undoing_ends_it_with_both_reasons(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.settle(await started(bench, ann, max_crashes=2), OutcomeKind.CANCELLED, reason="enough")
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED)
        assert await bench.state("job") == State.READY
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED)
        record = await bench.record("job")
        assert record.state == State.DEAD
        assert record.reason == "enough; undo: poison: it crashed 2 times while running alone"

    async def test_force_skips_the_undo(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.suspend(await started(bench, ann), events={"go": 0})
        await bench.edit("job", Cancel("now", force=True))
        record = await bench.record("job")
        assert (record.state, record.reason, record.undo) == (State.CANCELLED, "now", None)

    async def test_force_skips_the_undo_of_a_run_too(self, bench: Bench) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann)
        await bench.edit("job", Cancel("now", force=True))
        assert (await ann.give_back(taken)).state == State.CANCELLED

    async def test_force_ends_an_undo(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann), "no stock")
        await bench.edit("job", Cancel("now", force=True))
        record = await bench.record("job")
        assert (record.state, record.reason) == (State.DEAD, "no stock; undo: now")
        assert await ann.take(1) == []

    async def test_force_stops_an_undo_run(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann), "no stock")
        undoing = await ann.take_one()
        await bench.edit("job", Cancel("now", force=True))
        assert (await ann.beat()).forced == (("job", 2),)
        assert (await ann.retry(undoing)).state == State.DEAD
        assert (await bench.record("job")).reason == "no stock; undo: now"

    async def test_a_job_that_is_being_undone_is_neither_cancelled_nor_deleted(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann))
        for action in (Cancel(), Delete()):
            assert (await bench.edit("job", action)).refused == (("job", "it is being undone"),)
        await ann.take_one()
        assert (await bench.edit("job", Cancel())).refused == (("job", "it is being undone"),)
        assert (await ann.beat()).cancelled == ()

    async def test_who_waits_hears_of_the_real_end_only(self, bench: Bench) -> None:
        ann = await bench.worker()
        taken = await started(bench, ann)
        await bench.put(job("next", waits_for=("job",)))
        await bench.broker.get(["job"], watch="me", now=bench.clock.now)
        await ann.kill(taken)
        assert (await bench.broker.wait(Interest(watcher="me"), 0)).finished == ()
        assert await bench.state("next") == State.WAITING
        await ann.settle(await ann.take_one(), OutcomeKind.CANCELLED)
        assert (await bench.broker.wait(Interest(watcher="me"), 1)).finished == ("job",)
        assert await bench.state("next") == State.CANCELLED

    async def test_a_key_is_kept_until_the_job_is_undone(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann, key="k"))
        assert (await bench.put_one(job("other", key="k"))).verdict == "duplicate"
        await ann.settle(await ann.take_one(), OutcomeKind.CANCELLED)
        assert (await bench.put_one(job("other", key="k"))).verdict == "created"

    async def test_a_stale_run_cannot_settle_a_job_that_is_being_undone(self, bench: Bench) -> None:
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        taken = await started(bench, ann)
        bench.clock.advance(LEASE)
        await bob.beat()
        await bench.sweep()
        await bench.edit("job", Cancel())
        await ann.beat()
        assert (await ann.succeed(taken)).verdict == Verdict.REFUSED
        assert await ann.memo(taken, 1, b"late") == Verdict.REFUSED

    async def test_a_replay_after_an_undo_begins_with_an_empty_log(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.kill(await started(bench, ann))
        await ann.settle(await ann.take_one(), OutcomeKind.CANCELLED)
        assert await bench.log("job") == [b"charged"]
        await bench.edit("job", Retry())
        again = await ann.take_one()
        assert (again.memos, again.undo, again.replayed) == (0, None, 2)
        assert await bench.log("job") == []
        assert (await ann.kill(again)).state == State.DEAD

    async def test_a_replay_without_an_undo_keeps_log_and_undo(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.suspend(await started(bench, ann), events={"go": 0})
        await bench.edit("job", Cancel(force=True))
        await bench.edit("job", Retry())
        again = await ann.take_one()
        assert (again.memos, again.undo) == (1, None)
        assert (await ann.kill(again)).state == State.READY


class TestChildren(Theme):
    @pytest.mark.parametrize("how", ["succeeded", "dead", "cancelled", "deleted"])
    async def test_the_end_of_a_job_cancels_the_jobs_it_calls(self, bench: Bench, how: str) -> None:
        await bench.put(job("parent"), job("child", queue="other"), job("done", queue="x"))
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.succeed(await ann.take_one(["x"]))
        await ann.memo(taken, 0, b"called", children=("child", "done", "never"))
        if how == "succeeded":
            await ann.succeed(taken)
        elif how == "dead":
            await ann.kill(taken)
        else:
            await ann.suspend(taken, jobs=("child",))
            await bench.edit("parent", Cancel() if how == "cancelled" else Delete())
        ended = "not_found" if how == "deleted" else how
        record = await bench.record("child")
        assert (record.state, record.reason) == (
            State.CANCELLED,
            f"parent, which called it, is {ended}",
        )
        assert await bench.state("done") == State.SUCCEEDED

    async def test_a_child_that_runs_is_asked_to_stop(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child"))
        ann = await bench.worker()
        [parent, child] = await ann.take(2)
        await ann.memo(parent, 0, b"called", children=("child",))
        await ann.kill(parent)
        assert (await ann.beat()).cancelled == (("child", 1),)
        assert (await ann.succeed(child)).state == State.CANCELLED

    async def test_children_are_cancelled_when_the_undo_begins(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child", queue="other"))
        ann = await bench.worker()
        parent = await ann.take_one()
        await ann.memo(parent, 0, b"called", children=("child",), undo=True)
        await ann.kill(parent)
        assert await bench.states("parent", "child") == [State.READY, State.CANCELLED]

    async def test_a_child_with_something_to_undo_is_undone(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child"))
        ann = await bench.worker()
        [parent, child] = await ann.take(2)
        await ann.memo(parent, 0, b"called", children=("child",))
        await ann.memo(child, 0, b"charged", undo=True)
        await ann.suspend(child, events={"go": 0})
        await ann.kill(parent)
        record = await bench.record("child")
        assert (record.state, record.undo) == (
            State.READY,
            Undo(State.CANCELLED, "parent, which called it, is dead"),
        )

    async def test_a_suspension_cancels_no_child(self, bench: Bench) -> None:
        await bench.put(job("parent", priority=0), job("child"))
        ann = await bench.worker()
        parent = await ann.take_one()
        await ann.memo(parent, 0, b"called", children=("child",))
        await ann.suspend(parent, events={"go": 0})
        await ann.leave()
        assert await bench.state("child") == State.READY
