"""Sessions, their leases, and what happens when a worker dies."""

from __future__ import annotations

from typing import Any

import pytest

from dray.broker.actions import Cancel
from dray.broker.verbs import Beat, ProgressReport
from dray.errors import InvalidInput, SessionLost
from dray.job import GROUP_MAX, Error, OutcomeKind, Progress, State
from dray.testing.conformance.bench import LEASE, Bench, Theme, Worker, job, jobs


class TestSessions(Theme):
    async def test_the_first_beat_opens_a_session_and_later_ones_keep_it(self, bench: Bench) -> None:
        ann = Worker(bench.broker, bench.clock, "ann")
        assert (await ann.beat()).opened is True
        assert (await ann.beat()).opened is False

    async def test_beats_are_answered_one_by_one_in_their_order(self, bench: Bench) -> None:
        await bench.worker("ann")
        heard = await bench.broker.renew([Beat("bob", LEASE), Beat("ann", LEASE)], now=bench.clock.now)
        assert [one.opened for one in heard] == [True, False]
        assert await bench.broker.renew([], now=bench.clock.now) == []

    async def test_one_beat_keeps_everything_the_session_holds(self, bench: Bench) -> None:
        await bench.put(*jobs(20))
        ann = await bench.worker()
        taken = await ann.take(20)
        for _ in range(5):
            bench.clock.advance(LEASE - 1)
            await ann.beat()
            assert (await bench.sweep()).lapsed == 0
        assert {(await ann.succeed(one)).verdict for one in taken} == {"accepted"}

    async def test_jobs_of_a_lapsed_session_are_free_after_a_sweep(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        await ann.take(2)
        bench.clock.advance(LEASE)
        swept = await bench.sweep()
        assert (swept.lapsed, swept.freed) == (1, 2)
        record = await bench.record("job-0000")
        assert (record.state, record.runs, record.suspect) == (State.READY, (), GROUP_MAX)
        assert (record.failures, record.crashes, record.attempt) == (0, 0, 0)
        bob = await bench.worker("bob")
        assert await bob.take_ids(5) == ["job-0000", "job-0001", "job-0002"]

    async def test_a_sweep_repeated_frees_nothing_twice(self, bench: Bench) -> None:
        await bench.put(job(max_crashes=1))
        ann = await bench.worker()
        await ann.take_one()
        bench.clock.advance(LEASE)
        await bench.sweep()
        swept = await bench.sweep()
        assert (swept.lapsed, swept.freed) == (0, 0)
        assert await bench.state("job") == State.READY

    async def test_a_sweeper_that_was_out_of_contact_judges_nobody(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        bench.clock.advance(LEASE)
        assert (await bench.sweep(lapse=False)).lapsed == 0
        assert await bench.state("job") == State.RUNNING

    async def test_a_session_that_renews_before_it_is_swept_has_lost_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        bench.clock.advance(10 * LEASE)
        heard = await ann.beat()
        assert (heard.opened, heard.lost) == (False, ())
        await bench.sweep()
        assert (await ann.succeed(taken)).verdict == "accepted"

    async def test_a_session_that_was_swept_is_opened_anew_and_holds_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        bench.clock.advance(LEASE)
        await bench.sweep()
        with pytest.raises(SessionLost):
            await ann.take()
        assert (await ann.beat()).opened is True
        ann.request = 0
        assert (await ann.take_one()).run == 2

    async def test_the_epoch_tells_a_worker_that_it_missed_the_loss_of_its_session(
        self, bench: Bench
    ) -> None:
        ann = await bench.worker()
        first = (await ann.beat()).epoch
        assert (await ann.beat()).epoch == first
        bench.clock.advance(LEASE)
        await bench.sweep()
        await ann.beat()  # opens it again; say that this reply is lost
        heard = await ann.beat()
        assert heard.opened is False
        assert heard.epoch > first

    async def test_no_two_openings_share_an_epoch(self, bench: Bench) -> None:
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        assert (await ann.beat()).epoch != (await bob.beat()).epoch

    async def test_every_beat_sets_the_lease_anew(self, bench: Bench) -> None:
        ann = await bench.worker(lease=10 * LEASE)
        await ann.beat(lease=5)
        bench.clock.advance(5)
        assert (await bench.sweep()).lapsed == 1

    async def test_a_lapsed_session_leaves_the_others_alone(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob", lease=2 * LEASE)
        await ann.take_one()
        await bob.take_one()
        bench.clock.advance(LEASE)
        await bench.sweep()
        assert await bench.states("job-0000", "job-0001") == [State.READY, State.RUNNING]

    async def test_a_beat_carries_progress(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        await ann.beat(ProgressReport("job", taken.run, Progress(3, 10, "rows")))
        [run] = (await bench.record("job")).runs
        assert run.progress == Progress(3, 10, "rows")
        await ann.beat(ProgressReport("job", taken.run, Progress(4)))
        [run] = (await bench.record("job")).runs
        assert run.progress == Progress(4)

    async def test_progress_of_a_run_that_is_not_held_is_ignored(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        before = await bench.everything()
        await bob.beat(
            ProgressReport("job-0000", 1, Progress(1)),
            ProgressReport("job-0001", 1, Progress(1)),
            ProgressReport("nobody", 1, Progress(1)),
        )
        await ann.beat(ProgressReport("job-0000", 2, Progress(1)))
        assert await bench.everything() == before

    async def test_a_beat_tells_which_runs_should_stop_until_they_are_settled(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann = await bench.worker()
        [first, _] = await ann.take(2)
        await bench.edit("job-0000", Cancel())
        for _ in range(2):
            heard = await ann.beat()
            assert (heard.cancelled, heard.lost) == (((first.job.id, first.run),), ())
        await ann.settle(first, OutcomeKind.CANCELLED)
        assert (await ann.beat()).cancelled == ()


class TestCrashes(Theme):
    async def test_release_frees_what_the_session_held_at_once(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take(2)
        assert await ann.leave() == 2
        taken = await bob.take(5)
        assert [(one.job.id, one.run, one.suspect) for one in taken] == [
            ("job-0000", 2, GROUP_MAX),
            ("job-0001", 2, GROUP_MAX),
            ("job-0002", 1, 0),
        ]

    async def test_a_worker_that_ended_in_good_order_casts_no_suspicion(self, bench: Bench) -> None:
        await bench.put(job())
        ann = await bench.worker()
        await ann.take_one()
        await ann.leave(suspect=False)
        record = await bench.record("job")
        assert (record.state, record.suspect, record.failures) == (State.READY, 0, 0)

    async def test_a_released_session_is_gone(self, bench: Bench) -> None:
        ann = await bench.worker()
        await ann.leave()
        with pytest.raises(SessionLost):
            await ann.take()

    async def test_release_repeated_or_of_a_stranger_frees_nothing(self, bench: Bench) -> None:
        await bench.put(job())
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        assert await ann.leave() == 1
        await bob.take_one()
        assert await ann.leave() == 0
        assert await bench.broker.release("nobody", now=bench.clock.now) == 0
        assert await bench.state("job") == State.RUNNING

    async def test_a_dead_worker_does_not_use_up_retries(self, bench: Bench) -> None:
        await bench.put(job(retries=0, max_crashes=2))
        for n in range(10):
            worker = await bench.worker(f"w{n}")
            taken = await worker.take_one()
            assert (taken.run, taken.attempt, taken.crashes) == (n + 1, 1, 0)
            await worker.leave()
        assert await bench.state("job") == State.READY

    async def test_a_run_that_crashed_alone_counts_and_no_neighbour_suffers(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann = await bench.worker()
        [guilty, _] = await ann.take(2)
        await ann.leave((guilty.job.id, guilty.run))
        first, second = await bench.record("job-0000"), await bench.record("job-0001")
        assert (first.crashes, first.suspect) == (1, 1)
        assert (second.crashes, second.suspect) == (0, GROUP_MAX)

    async def test_blame_for_a_run_that_is_not_held_is_ignored(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bob.take_one()
        await ann.leave(("job-0001", 1), ("job-0000", 7), ("nobody", 1))
        assert (await bench.record("job-0000")).crashes == 0
        assert (await bench.record("job-0001")).crashes == 0

    @pytest.mark.parametrize("max_crashes", [1, 3])
    async def test_after_max_crashes_the_job_is_dead_as_poison(self, bench: Bench, max_crashes: int) -> None:
        await bench.put(job(max_crashes=max_crashes))
        for n in range(max_crashes):
            assert await bench.state("job") == State.READY
            worker = await bench.worker(f"w{n}")
            taken = await worker.take_one()
            assert taken.crashes == n
            await worker.leave(("job", taken.run))
        record = await bench.record("job")
        assert (record.state, record.crashes) == (State.DEAD, max_crashes)
        assert str(record.reason).startswith("poison")

    async def test_a_child_that_crashed_is_settled_as_such_and_counts_too(self, bench: Bench) -> None:
        await bench.put(job(max_crashes=2))
        ann = await bench.worker()
        killed = Error("Crashed", "signal 9")
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED, error=killed)
        taken = await ann.take_one()
        assert (taken.crashes, taken.suspect, taken.attempt) == (1, 1, 1)
        settled = await ann.settle(taken, OutcomeKind.CRASHED, error=killed)
        record = await bench.record("job")
        assert settled.state == record.state == State.DEAD
        assert str(record.reason).startswith("poison")
        assert record.error == killed

    async def test_a_crash_in_company_does_not_count_and_halves_the_group(self, bench: Bench) -> None:
        await bench.put(job(max_crashes=1))
        ann = await bench.worker()
        for run, (together, group) in enumerate([(200, 100), (100, 50), (7, 4), (4, 2), (3, 2), (2, 1)], 1):
            taken = await ann.take_one()
            settled = await ann.settle(taken, OutcomeKind.CRASHED, together=together)
            assert settled.state == State.READY
            record = await bench.record("job")
            assert (record.run, record.crashes, record.failures, record.suspect) == (run, 0, 0, group)
        taken = await ann.take_one()
        assert (taken.suspect, taken.crashes, taken.attempt) == (1, 0, 1)
        assert (await ann.settle(taken, OutcomeKind.CRASHED)).state == State.DEAD

    async def test_a_group_never_grows_again(self, bench: Bench) -> None:
        await bench.put(job(retries=2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED, together=10)
        await ann.settle(await ann.take_one(), OutcomeKind.CRASHED, together=500)
        assert (await bench.record("job")).suspect == 5
        await ann.take_one()
        await ann.leave()
        assert (await bench.record("job")).suspect == 5
        await bob.give_back(await bob.take_one())
        await bob.retry(await bob.take_one())
        await bob.take_one()
        bench.clock.advance(LEASE)
        await bench.sweep()
        assert (await bench.record("job")).suspect == 5

    @pytest.mark.parametrize("together", [0, -1, 1.5, "2"])
    async def test_a_crash_without_a_number_of_jobs_is_refused(self, bench: Bench, together: Any) -> None:
        await bench.put(job())
        ann = await bench.worker()
        taken = await ann.take_one()
        with pytest.raises(InvalidInput, match="together"):
            await ann.settle(taken, OutcomeKind.CRASHED, together=together)
        assert await bench.state("job") == State.RUNNING

    async def test_a_job_asked_to_stop_is_cancelled_when_its_worker_dies(self, bench: Bench) -> None:
        await bench.put(*jobs(2))
        ann, bob = await bench.worker("ann"), await bench.worker("bob")
        await ann.take_one()
        await bob.take_one()
        await bench.edit("job-0000", Cancel("why"))
        await bench.edit("job-0001", Cancel("why"))
        await ann.leave()
        bench.clock.advance(LEASE)
        await bench.sweep()
        for id in ("job-0000", "job-0001"):
            record = await bench.record(id)
            assert (record.state, record.reason) == (State.CANCELLED, "why")

    async def test_a_crash_between_take_and_reply_loses_nothing(self, bench: Bench) -> None:
        await bench.put(*jobs(3))
        ann = await bench.worker()
        await ann.take(3)
        bench.clock.advance(LEASE)
        await bench.sweep()
        bob = await bench.worker("bob")
        assert len(await bob.take(5)) == 3
