"""A job goes straight to a sleeper: the broker answers the take that the sleeper would make next.

Like those of `waking`, these tests run in real time. A sleeper that was not asleep yet when the job came
finds work instead of a run, so what must be handed over is tried again. A broker whose `hands_over` is false
only wakes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from dray.broker.actions import Cancel, Pause, Resume, Scope, SetLimits, Speculate
from dray.broker.interest import CONFIRM_WITHIN, HAND_OVER_MAX
from dray.broker.verbs import Filter, Interest, NextTake, Wake
from dray.errors import InvalidInput
from dray.job import Job, State, Taken, Verdict
from dray.testing.conformance.bench import HOUR, SECOND, Bench, Worker, job
from dray.testing.conformance.waking import RealTime, asleep

TRIES = 20
DEFAULT = ("default",)
Act = Callable[[str], Awaitable[object]]
"""Makes a job ready; gets an id for it."""


def offering(worker: Worker, *queues: str, filter: Filter | None = None) -> Interest:
    take = NextTake(worker.request + 1, queues or DEFAULT)
    return Interest(
        queues=queues or DEFAULT, filter=filter or Filter(), session=worker.session, next_take=take
    )


async def idle(bench: Bench, *queues: str, name: str = "ann") -> Worker:
    """A worker that has found nothing to take."""
    worker = await bench.worker(name)
    assert await worker.take(5, queues or DEFAULT) == []
    return worker


async def wake_of(bench: Bench, worker: Worker, act: Act, *queues: str) -> Wake:
    """The wake of a sleeper that was asleep when `act` came, if the broker hands over at all."""
    for number in range(TRIES):
        answer = await asleep(bench, offering(worker, *queues))
        await act(f"job-{number}")
        wake = await answer()
        if wake.taken or not bench.broker.hands_over:
            return wake
        for taken in await worker.take(100, queues or DEFAULT):
            await worker.succeed(taken)
    raise AssertionError("no job was handed over")


async def given(bench: Bench, worker: Worker, act: Act | None = None) -> Taken:
    """The run that a sleeper was given, by hand-over or by the take that it makes otherwise."""
    wake = await wake_of(bench, worker, act or (lambda name: bench.put(job(name))))
    [again] = await worker.take(1)
    assert wake.taken in ((), (again,))
    return again


class TestHandingOver(RealTime):
    async def test_a_job_that_is_put_goes_straight_to_a_sleeper(self, bench: Bench) -> None:
        ann = await idle(bench)
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name, payload=b"\x00\xff")))
        if not bench.broker.hands_over:
            assert wake == Wake(work=True, queues=DEFAULT)
            return
        [taken] = wake.taken
        assert (taken.job.payload, taken.run, taken.attempt, taken.suspect) == (b"\x00\xff", 1, 1, 0)
        record = await bench.record(taken.job.id)
        assert [(run.number, run.session) for run in record.runs] == [(1, "ann")]
        assert abs(wake.handed_at - bench.clock.time) < HOUR
        assert [kind for kind, id in await bench.happened() if id == taken.job.id] == ["put", "taken"]
        assert (await ann.succeed(taken)).verdict is Verdict.ACCEPTED

    async def test_a_repeated_take_returns_what_was_handed_over(self, bench: Bench) -> None:
        ann = await idle(bench)
        taken = await given(bench, ann)
        assert await ann.take_again(5) == [taken]
        await ann.succeed(taken)
        assert await ann.take_again(5) == []
        assert await ann.take(5) == []

    async def test_a_take_with_an_older_number_is_refused_afterwards(self, bench: Bench) -> None:
        ann = await idle(bench)
        await given(bench, ann)
        ann.request -= 1
        with pytest.raises(InvalidInput):
            await ann.take_again(1)

    async def test_the_end_of_a_dependency_hands_over(self, bench: Bench) -> None:
        ann, bob = await idle(bench), await bench.worker("bob")

        async def act(id: str) -> None:
            await bench.put(job(f"first-{id}", queue="other"), job(id, waits_for=(f"first-{id}",)))
            await bob.succeed(await bob.take_one(["other"]))

        assert (await given(bench, ann, act)).job.waits_for

    @pytest.mark.parametrize("how", ["sweep", "take"])
    async def test_a_due_time_that_a_sweep_or_take_finds_hands_over(self, bench: Bench, how: str) -> None:
        """The other worker's take asks for no job itself."""
        ann, bob = await idle(bench), await bench.worker("bob")

        async def act(id: str) -> None:
            await bench.put(job(id, due=bench.clock.after(HOUR)))
            later = bench.clock.after(HOUR)
            bob.request += 1
            if how == "sweep":
                await bench.broker.sweep(lapse=False, now=later)
            else:
                await bob.broker.renew([], now=later)
                await bob.broker.take("bob", bob.request, DEFAULT, Filter(), 0, now=later)

        await ann.beat(lease=3 * HOUR)
        await bob.beat(lease=3 * HOUR)
        assert (await given(bench, ann, act)).run == 1

    async def test_a_sleeper_gets_one_job_at_most(self, bench: Bench) -> None:
        ann = await idle(bench)
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name)))
        await bench.put(job("second"))
        assert await bench.state("second") is State.READY
        taken = await ann.take(5)
        assert len(taken) == (1 if wake.taken else 2)
        assert [one.job.id for one in await ann.take(5)] == (["second"] if wake.taken else [])

    async def test_jobs_that_come_together_only_wake(self, bench: Bench) -> None:
        ann = await idle(bench)
        answer = await asleep(bench, offering(ann))
        await bench.put(job("late", priority=9), job("soon", priority=1))
        wake = await answer()
        assert (wake.work, wake.taken) == (True, ())
        assert await ann.take_ids(2) == ["soon", "late"]

    @pytest.mark.parametrize(
        "why",
        ["paused", "task paused", "limit", "rate", "own limit", "own rate", "in line", "on offer", "large"],
    )
    async def test_what_may_stand_between_only_wakes(self, bench: Bench, why: str) -> None:
        ann = await idle(bench)
        coming = await self.stand_between(bench, why)
        answer = await asleep(bench, offering(ann, filter=Filter(tasks=frozenset({"work"}))))
        await bench.put(coming)
        assert await bench.state(coming.id) is State.READY
        await bench.edit(Scope("default", "work" if why == "task paused" else None), Resume())
        wake = await answer()
        assert (wake.work, wake.taken) == (True, ())
        assert await ann.take_ids(filter=Filter(tasks=frozenset({"work"}))) == [coming.id]

    @staticmethod
    async def stand_between(bench: Bench, why: str) -> Job:
        match why:
            case "paused":
                await bench.edit(Scope("default"), Pause())
            case "task paused":
                await bench.edit(Scope("default", "work"), Pause())
            case "limit":
                await bench.edit(Scope("default"), SetLimits(max_running=5))
            case "rate":
                await bench.edit(Scope("default", "work"), SetLimits(rate="5/s"))
            case "in line":
                await bench.put(job("unknown", task="new"))
            case "on offer":
                await bench.put(job("slow", task="new", speculate=True))
                await (await bench.worker("bob")).take_one()
                await bench.edit("slow", Speculate())
            case "own limit":
                return job(max_running=5)
            case "own rate":
                return job(rate="5/s")
            case "large":
                return job(payload=bytes(HAND_OVER_MAX + 1))
        return job()

    async def test_a_queue_that_was_not_offered_the_take_only_wakes(self, bench: Bench) -> None:
        ann = await idle(bench, "default", "other")
        interest = Interest(
            queues=("default", "other"), session="ann", next_take=NextTake(ann.request + 1, ("other",))
        )
        answer = await asleep(bench, interest)
        await bench.put(job())
        assert (await answer()).taken == ()
        assert await bench.state("job") is State.READY

    async def test_a_queue_that_never_gave_an_answer_to_the_session_only_wakes(self, bench: Bench) -> None:
        ann = await idle(bench, "other")
        answer = await asleep(bench, offering(ann))
        await bench.put(job())
        assert (await answer()).taken == ()

    async def test_a_number_that_was_used_is_not_answered_again(self, bench: Bench) -> None:
        ann = await idle(bench)
        interest = offering(ann)
        assert await ann.take(5) == []
        answer = await asleep(bench, interest)
        await bench.put(job())
        assert (await answer()).taken == ()
        assert await bench.state("job") is State.READY

    async def test_a_session_past_its_lease_gets_nothing(self, bench: Bench) -> None:
        ann = await idle(bench)
        await ann.beat(lease=1)
        answer = await asleep(bench, offering(ann))
        await bench.put(job())
        assert (await answer()).taken == ()
        assert await bench.state("job") is State.READY

    async def test_two_queues_may_answer_one_number(self, bench: Bench) -> None:
        """The wake brings one of the runs at least; the repeated take brings both."""
        ann = await idle(bench, "a", "b")

        async def act(id: str) -> None:
            await bench.put(job(f"{id}-a", queue="a"), job(f"{id}-b", queue="b"))

        wake = await wake_of(bench, ann, act, "a", "b")
        taken = await ann.take(2, ["a", "b"])
        assert [one.job.queue for one in taken] == ["a", "b"]
        assert all(one in taken for one in wake.taken)
        assert await ann.take_again(2) == taken

    async def test_a_repeated_take_asks_the_other_queues_anew(self, bench: Bench) -> None:
        ann = await idle(bench, "a", "b")
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name, queue="a")), "a", "b")
        await bench.put(job("other", queue="b"), job("more", queue="a"))
        ids = await ann.take_shares(2, ["a", "b"], 1)
        assert ids[1] == "other"
        assert not wake.taken or ids[0] == wake.taken[0].job.id


class TestConfirming(RealTime):
    async def test_a_run_that_is_not_confirmed_is_withdrawn(self, bench: Bench) -> None:
        ann, bob = await idle(bench), await bench.worker("bob")
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name)))
        soon = await bench.broker.sweep(now=bench.clock.after(CONFIRM_WITHIN - SECOND))
        late = await bench.broker.sweep(now=bench.clock.after(CONFIRM_WITHIN))
        assert (soon.withdrawn, late.withdrawn) == (0, len(wake.taken))
        for taken in wake.taken:
            assert await bench.state(taken.job.id) is State.READY
            assert (await ann.beat()).lost == ((taken.job.id, 1),)
            assert (await ann.succeed(taken)).verdict is Verdict.REFUSED
            again = await bob.take_one()
            assert (again.run, again.attempt, again.crashes, again.suspect) == (2, 1, 0, 0)

    async def test_a_sweeper_that_must_not_judge_withdraws_nothing(self, bench: Bench) -> None:
        ann = await idle(bench)
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name)))
        swept = await bench.broker.sweep(lapse=False, now=bench.clock.after(CONFIRM_WITHIN))
        assert swept.withdrawn == 0
        assert all([await bench.state(taken.job.id) is State.RUNNING for taken in wake.taken])

    @pytest.mark.parametrize("how", ["take", "settle"])
    async def test_a_repeated_take_or_the_outcome_confirms_a_run(self, bench: Bench, how: str) -> None:
        ann = await idle(bench)
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name)))
        for taken in wake.taken:
            await (ann.take(5) if how == "take" else ann.retry(taken, at=bench.clock.after(HOUR)))
        assert (await bench.broker.sweep(now=bench.clock.after(CONFIRM_WITHIN))).withdrawn == 0
        for taken in wake.taken:
            expected = State.RUNNING if how == "take" else State.RETRYING
            assert await bench.state(taken.job.id) is expected

    async def test_a_session_that_ends_frees_what_it_was_handed(self, bench: Bench) -> None:
        ann, bob = await idle(bench), await bench.worker("bob")
        wake = await wake_of(bench, ann, lambda name: bench.put(job(name)))
        assert await ann.leave(suspect=False) == len(wake.taken)
        again = await bob.take_one()
        assert (again.run, again.suspect) == (1 + len(wake.taken), 0)
        assert (await bench.broker.sweep(now=bench.clock.after(CONFIRM_WITHIN))).withdrawn == 0

    async def test_a_job_that_was_handed_over_can_be_cancelled(self, bench: Bench) -> None:
        ann = await idle(bench)
        taken = await given(bench, ann)
        await bench.edit(taken.job.id, Cancel())
        assert (await ann.beat()).cancelled == ((taken.job.id, 1),)
        assert (await ann.succeed(taken)).state is State.CANCELLED
