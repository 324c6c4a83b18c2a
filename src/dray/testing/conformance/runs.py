"""What is remembered of runs that have ended, and runs that are stopped by force."""

from __future__ import annotations

import pytest

from dray.broker.actions import Cancel, Delete, Retry, Speculate
from dray.broker.verbs import Interest, ProgressReport
from dray.errors import InvalidInput
from dray.job import (
    PROGRESS_DATA_MAX,
    RUN_ERROR_MAX,
    RUNS_KEPT,
    Error,
    OutcomeKind,
    PastRun,
    Progress,
    RunEnd,
    State,
)
from dray.testing.conformance.bench import LEASE, MINUTE, Bench, Theme, job

BOOM = Error("ValueError", "boom", "Traceback …")


class TestPastRuns(Theme):
    async def test_a_job_that_succeeds_at_once_remembers_nothing_beside_its_record(
        self, bench: Bench
    ) -> None:
        await bench.put(job(), job("keyed", key="k", group="g"))
        ann = await bench.worker()
        for taken in await ann.take(2):
            await ann.succeed(taken)
        assert (await bench.record("job")).past == (await bench.record("keyed")).past == ()

    async def test_every_run_is_told_by_whom_from_when_to_when_and_how_it_ended(self, bench: Bench) -> None:
        await bench.put(job())
        ann, bob = await bench.worker("ann", lease=MINUTE), await bench.worker("bob", lease=MINUTE)
        begun = bench.clock.time
        taken = await ann.take_one()
        bench.clock.advance(5)
        await ann.retry(taken, error=BOOM)
        failed = PastRun(1, "ann", begun, bench.clock.time, RunEnd.FAILED, "ValueError: boom")
        assert (await bench.record("job")).past == (failed,)
        begun = bench.clock.time
        taken = await bob.take_one()
        bench.clock.advance(7)
        await bob.succeed(taken)
        succeeded = PastRun(2, "bob", begun, bench.clock.time, RunEnd.SUCCEEDED)
        assert (await bench.record("job")).past == (failed, succeeded)

    async def test_the_last_failure_is_told_as_well(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.settle(await ann.take_one(), OutcomeKind.DEAD, error=BOOM)
        record = await bench.record("job")
        assert (record.state, [run.how for run in record.past]) == (State.DEAD, [RunEnd.FAILED])

    async def test_lost_crashed_handed_back_and_cancelled_runs_are_told_apart(self, bench: Bench) -> None:
        await bench.put(job(max_crashes=3))
        ann = await bench.worker("ann")
        await ann.take_one()
        bench.clock.advance(LEASE)
        await bench.sweep()
        bob = await bench.worker("bob", lease=MINUTE)
        error = Error("Crashed", "it was killed")
        await bob.settle(await bob.take_one(), OutcomeKind.CRASHED, error=error)
        await bob.give_back(await bob.take_one())
        taken = await bob.take_one()
        await bench.edit("job", Cancel())
        await bob.succeed(taken)
        past = (await bench.record("job")).past
        assert [run.how for run in past] == [
            RunEnd.LOST,
            RunEnd.CRASHED,
            RunEnd.GIVEN_BACK,
            RunEnd.CANCELLED,
        ]
        assert [run.session for run in past] == ["ann", "bob", "bob", "bob"]
        assert past[1].error == "Crashed: it was killed"

    async def test_of_two_runs_the_one_that_came_second_was_overtaken(self, bench: Bench) -> None:
        await bench.put(job(speculate=True))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        taken = await ann.take_one()
        await bench.edit("job", Speculate())
        await bob.take_one()
        await ann.succeed(taken)
        past = (await bench.record("job")).past
        assert {(run.number, run.how) for run in past} == {(1, RunEnd.SUCCEEDED), (2, RunEnd.OVERTAKEN)}

    async def test_only_the_newest_are_kept(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker(lease=MINUTE)
        for _ in range(RUNS_KEPT + 5):
            await ann.retry(await ann.take_one(), error=BOOM)
        numbers = [run.number for run in (await bench.record("job")).past]
        assert numbers == list(range(6, RUNS_KEPT + 6))

    @pytest.mark.parametrize("letter", ["x", "ä", "𐍈", "é"])
    async def test_a_long_error_is_cut_at_a_character(self, bench: Bench, letter: str) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.retry(await ann.take_one(), error=Error("E", letter * 300))
        [run] = (await bench.record("job")).past
        size = len(letter.encode())
        assert run.error == "E: " + letter * ((RUN_ERROR_MAX - 3) // size)

    async def test_a_job_that_is_run_again_by_hand_remembers_its_only_run(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker(lease=MINUTE)
        begun = bench.clock.time
        taken = await ann.take_one()
        bench.clock.advance(5)
        await ann.succeed(taken)
        ended = bench.clock.time
        await bench.edit("job", Retry())
        await ann.retry(await ann.take_one())
        first, second = (await bench.record("job")).past
        assert first == PastRun(1, "", begun, ended, RunEnd.SUCCEEDED)
        assert (second.number, second.how) == (2, RunEnd.FAILED)

    async def test_a_deleted_job_takes_its_past_along(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.kill(await ann.take_one())
        await bench.edit("job", Delete())
        await bench.put(job())
        assert (await bench.record("job")).past == ()


class TestProgressData(Theme):
    async def test_what_a_run_tells_of_its_progress_is_read_back(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        progress = Progress(1, 2, "half", {"files": ["ä", None, 1.5], "deep": {"x": [True]}})
        await ann.beat(ProgressReport("job", 1, progress))
        assert (await bench.record("job")).runs[0].progress == progress

    async def test_data_that_is_too_large_or_no_dict_is_refused(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        for data in ({"x": "y" * PROGRESS_DATA_MAX}, [1], {"x": object()}):
            with pytest.raises(InvalidInput):
                await ann.beat(ProgressReport("job", 1, Progress(1, data=data)))  # type: ignore[arg-type]
        assert (await bench.record("job")).runs[0].progress is None


class TestForce(Theme):
    async def test_a_session_is_told_which_runs_to_stop_at_once(self, bench: Bench) -> None:
        await bench.put(job("a"), job("b"))
        ann = await bench.worker()
        await ann.take(2)
        await bench.edit("a", Cancel())
        await bench.edit("b", Cancel(force=True))
        heard = await ann.beat()
        assert set(heard.cancelled) == {("a", 1), ("b", 1)}
        assert heard.forced == (("b", 1),)

    async def test_a_job_that_was_asked_to_stop_can_be_forced_to_and_its_session_is_woken(
        self, bench: Bench
    ) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await bench.edit("job", Cancel("first"))
        assert (await ann.beat()).forced == ()
        interest = Interest(session="ann")
        assert not (await ann.broker.wait(interest, 0)).told
        assert (await bench.edit("job", Cancel("second", force=True))).changed == ("job",)
        assert (await ann.broker.wait(interest, 0)).told
        assert (await ann.beat()).forced == (("job", 1),)
        record = await bench.record("job")
        assert (record.state, record.cancel) == (State.RUNNING, "first")
        await ann.succeed(taken)
        assert await bench.state("job") == State.CANCELLED

    async def test_force_repeated_is_said_once(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        for _ in range(3):
            await bench.edit("job", Cancel(force=True))
        asked = [kind for kind, _ in await bench.happened() if kind == "cancel_asked"]
        assert len(asked) == 1
        await ann.beat()
        assert not (await ann.broker.wait(Interest(session="ann"), 0)).told

    async def test_what_does_not_run_is_cancelled_as_without_force(self, bench: Bench) -> None:
        await bench.put(job())
        assert (await bench.edit("job", Cancel("no", force=True))).changed == ("job",)
        record = await bench.record("job")
        assert (record.state, record.reason) == (State.CANCELLED, "no")
        await bench.edit("job", Retry())
        ann = await bench.worker()
        await ann.take_one()
        assert (await ann.beat()).forced == ()
