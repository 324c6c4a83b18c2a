"""Handles: results and how they fail, states, everything known, cancel and retry, waiting for many."""

from __future__ import annotations

import asyncio
import copy
import pickle
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from by_hand import Hand, Say, ids, in_thread

import dray
from dray import (
    App,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobHandle,
    JobNotFound,
    JobTimeout,
    NoResult,
    ResultGone,
    State,
    WouldBlock,
    aas_completed,
    as_completed,
    gather,
)
from dray.broker.verbs import Beat, ProgressReport, run_blocking
from dray.context import CURRENT, _Detached
from dray.job import Progress

pytest_plugins = ["shop"]


@pytest.fixture
def add(app: App) -> Any:
    @app.task(tags=["sum"], timeout=30, description="Adds.")
    def add(a: int, b: int = 0) -> int:
        return a + b

    return add


def finish(app: App, session: str = "later") -> None:
    with Hand(app, session) as hand:
        hand.work()


# results


def test_a_result_is_waited_for(app: App, add: Any, say: Say) -> None:
    job = say(add.enqueue, 1, 2)
    thread = in_thread(lambda: finish(app), after=0.05)
    assert say(job.get, timeout=20) == 3
    assert say(job.get) == 3, "and again"
    thread.join()


def test_a_job_can_be_awaited_itself(app: App, add: Any) -> None:
    async def main() -> int:
        job = await add.aenqueue(1, 2)
        thread = in_thread(lambda: finish(app), after=0.05)
        result: int = await job
        thread.join()
        return result

    assert asyncio.run(main()) == 3


def test_none_is_a_result_like_any_other(app: App, say: Say, hand: Hand) -> None:
    job = say(app.task(name="nothing")(lambda: None).enqueue)
    hand.succeed(hand.one(), None)
    assert say(job.get, timeout=1) is None


def test_a_dead_job_raises_with_type_message_and_traceback_of_the_remote_error(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    job = say(add.enqueue, 1)
    hand.die(hand.one(), "ZeroDivisionError", "by zero", reason="retries used up")
    with pytest.raises(JobFailed, match=f"{job.id} failed: ZeroDivisionError: by zero") as failed:
        say(job.get, timeout=1)
    error = failed.value
    assert (error.type, error.message, error.job_id) == ("ZeroDivisionError", "by zero", job.id)
    assert error.traceback.startswith("Traceback")
    assert error.reason == "retries used up"


def test_a_job_that_did_not_fail_itself_says_what_killed_it(app: App, add: Any, say: Say, hand: Hand) -> None:
    job = say(add.enqueue, 1)
    hand.retry(hand.one())
    for _ in range(3):
        hand.settle(hand.one(), "crashed")
    with pytest.raises(JobFailed, match="poison: it crashed 3 times") as failed:
        say(job.get, timeout=1)
    assert failed.value.type == "poison", "not the OSError of the attempt before"
    expired = say(add.using(ttl=0.001).enqueue, 2)
    time.sleep(0.01)
    assert hand.take() == []
    with pytest.raises(JobFailed, match="expired: it was not started within its ttl"):
        say(expired.get, timeout=1)


def test_a_cancelled_job_raises_with_its_reason(app: App, add: Any, say: Say) -> None:
    job = say(add.enqueue, 1)
    assert say(job.cancel, "not needed") is True
    with pytest.raises(JobCancelled, match="not needed"):
        say(job.get, timeout=1)


@pytest.mark.parametrize("timeout", [0, 0.02, "20ms", timedelta(milliseconds=20)])
def test_a_job_that_is_not_over_in_time_raises_and_goes_on(
    app: App, add: Any, say: Say, hand: Hand, timeout: Any
) -> None:
    job = say(add.enqueue, 1)
    taken = hand.one()
    with pytest.raises(JobTimeout, match=f"{job.id} was still running after (0s|20ms); it goes on"):
        say(job.get, timeout=timeout)
    hand.succeed(taken, 1)
    assert say(job.get, timeout=timeout) == 1


@pytest.mark.parametrize("timeout", [-1, "soon", True, float("nan"), [1]])
def test_a_timeout_that_is_none_is_refused(app: App, add: Any, say: Say, timeout: Any) -> None:
    job = say(add.enqueue, 1)
    for wait in (lambda: say(job.get, timeout=timeout), lambda: say(gather, [job], timeout=timeout)):
        with pytest.raises(InvalidInput, match=r"^timeout="):
            wait()
    with pytest.raises(InvalidInput, match=r"^timeout="):
        as_completed([job], timeout=timeout)


def test_an_unknown_id_is_not_found_never_pending(app: App, say: Say) -> None:
    job = app.job("nobody")
    assert say(job.status) is State.NOT_FOUND
    assert say(job.status) == "not_found"
    for call in (job.get, job.info, job.cancel, job.retry):
        with pytest.raises(JobNotFound, match="nobody") as unknown:
            say(call)
        assert unknown.value.job_id == "nobody"
    assert say(job.why).code == "not_found"


def test_a_job_deleted_while_somebody_waits_is_not_found(app: App, add: Any, say: Say) -> None:
    job = say(add.enqueue, 1)
    thread = in_thread(lambda: app.jobs.delete(job), after=0.1)
    with pytest.raises(JobNotFound):
        say(job.get, timeout=20)
    thread.join()


def test_a_result_past_its_time_is_gone_and_one_that_was_turned_off_never_was(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    kept = say(add.using(result_ttl=0.001).enqueue, 1)
    off = say(add.using(result_ttl=0).enqueue, 1)
    hand.work()
    time.sleep(0.02)
    with pytest.raises(ResultGone, match="its result is not kept any more: its result_ttl of 1ms") as caught:
        say(kept.get, timeout=1)
    assert not isinstance(caught.value, NoResult)
    broker_time = app.clock
    app.clock = lambda: broker_time() - 1_000  # the clock known here may be late
    with pytest.raises(ResultGone) as caught:
        say(kept.get, timeout=1)
    assert not isinstance(caught.value, NoResult)
    with pytest.raises(NoResult, match=r"results are off \(result_ttl=0 of this job\)") as caught:
        say(off.get, timeout=1)
    assert caught.value.job_id == off.id
    assert say(kept.status) == say(off.status) == "succeeded"
    assert list(as_completed([off], timeout=5)) == [off]
    with pytest.raises(NoResult):
        say(gather, [off], timeout=5)
    (error,) = say(gather, [off], timeout=5, return_exceptions=True)
    assert isinstance(error, NoResult)


def test_a_task_that_returns_none_has_a_result(app: App, say: Say, hand: Hand) -> None:
    @app.task
    def log(text: str) -> None: ...

    job = say(log.enqueue, "x")
    hand.work()
    assert say(job.get, timeout=5) is None


def test_results_that_are_off_for_a_task_or_an_app_or_where_it_ran_are_told_apart(url: str, say: Say) -> None:
    reader, worker = App("shop", broker=url), App("shop", broker=url, result_ttl=0)
    for app in (reader, worker):

        @app.task(name="quiet", result_ttl=0)
        def quiet() -> int:
            return 1

        @app.task(name="loud")
        def loud() -> int:
            return 1

    if url == "memory://":
        worker.client = reader.client
    first, second = say(reader.enqueue, "quiet"), say(reader.enqueue, "loud")
    with Hand(reader) as hand:
        for taken in hand.take():
            hand.settle(taken, "succeeded")  # as a worker whose results are off
    with pytest.raises(NoResult, match="result_ttl=0 of this job"):
        say(first.get, timeout=5)
    with pytest.raises(NoResult, match=r"results are off \(result_ttl=0\) where it ran"):
        say(second.get, timeout=5)
    with pytest.raises(NoResult, match="result_ttl=0 of this app"):
        say(worker.job(second.id).get, timeout=5)
    reader.close()
    worker.close()


def test_a_result_that_does_not_fit_the_annotation_is_an_error_that_says_so(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    job = say(add.enqueue, 1)
    hand.succeed(hand.one(), "three")
    with pytest.raises(dray.DecodeError, match=r"not what task add is annotated to return.*Expected `int`"):
        say(job.get, timeout=1)
    assert say(job.info).result == "three"


# everything known


def test_states_along_a_life(app: App, add: Any, say: Say, hand: Hand) -> None:
    job = say(add.using(retries=1).enqueue, 1)
    assert say(job.status) is State.READY
    hand.retry(hand.one(), at=app.now() + 3_600_000)
    assert say(job.status) == "retrying"
    assert say(job.retry) is True, "a delayed one now"
    assert say(job.status) == "ready"
    assert say(job.retry) is False, "it waits already"
    taken = hand.one()
    assert say(job.status) == "running"
    hand.succeed(taken, 1)
    assert say(job.status) == "succeeded"
    assert say(job.cancel) is False, "it is over"
    assert say(job.retry) is True
    assert say(job.status) == "ready"


def test_info_tells_everything(app: App, add: Any, say: Say, hand: Hand) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    options: Any = {"key": "k", "group": "g", "priority": "high", "retries": 2, "tags": ["more"], "id": "x"}
    job = say(add.using(**options).enqueue, 1, b=2)
    info = say(job.info)
    assert (info.id, info.task, info.queue, info.priority) == ("x", "add", "default", 1)
    assert (info.status, info.attempt, info.args, info.kwargs) == ("ready", 0, (1,), {"b": 2})
    assert (info.key, info.group, info.tags, info.retries) == ("k", "g", ("sum", "more"), 2)
    assert (info.description, info.timeout, info.result, info.error) == ("Adds.", 30.0, None, None)
    assert before < info.created_at < datetime.now(UTC) + timedelta(seconds=1)
    assert (info.started_at, info.finished_at, info.worker, info.progress) == (None,) * 4
    hand.retry(hand.one())
    taken = hand.one()
    report = ProgressReport("x", taken.run, Progress(1, 4, "quarter"))
    run_blocking(hand.broker.renew([Beat(hand.session, 60_000, (report,))]))
    info = say(job.info)
    assert (info.status, info.attempt, info.runs, info.failures) == ("running", 2, 2, 1)
    assert (info.worker, info.progress) == (hand.session, Progress(1, 4, "quarter"))
    assert info.error is not None
    assert (info.error.type, info.error.message) == ("OSError", "line is down")
    assert info.started_at is not None
    assert not info.cancelling
    say(job.cancel, "enough")
    assert say(job.info).cancelling
    hand.succeed(taken, 3)
    info = say(job.info)
    assert (info.status, info.reason, info.cancelling) == ("cancelled", "enough", False)
    assert info.finished_at is not None


def test_info_has_the_result_and_survives_bytes_that_cannot_be_read(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    job = say(add.enqueue, 1, 2)
    hand.work()
    assert say(job.info).result == 3
    broken = app.job_builder.build(add.call(1))
    run_blocking(hand.broker.put([type(broken)(id="broken", task="add", payload=b"\x01\xc1")]))
    info = say(app.job("broken").info)
    assert (info.args, info.kwargs) == (None, None)


# cancel and retry


def test_a_running_job_is_told_to_stop_and_never_retried(app: App, add: Any, say: Say, hand: Hand) -> None:
    job = say(add.enqueue, 1)
    taken = hand.one()
    assert say(job.cancel) is True
    assert say(job.status) == "running"
    (heard,) = run_blocking(hand.broker.renew([Beat(hand.session, 60_000)]))
    assert heard.cancelled == ((job.id, taken.run),)
    hand.retry(taken)
    assert say(job.status) == "cancelled"
    assert hand.take() == []


def test_retrying_a_dead_job_gives_it_all_its_retries_and_its_waiters_the_new_result(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    job = say(add.enqueue, 1, 2)
    hand.die(hand.one())
    assert say(job.retry) is True
    info = say(job.info)
    assert (info.status, info.failures, info.attempt) == ("ready", 0, 0)
    hand.work()
    assert say(job.get, timeout=1) == 3


def test_retry_in_the_moment_of_the_end_makes_waiters_wait_on_without_a_storm_of_reads(
    memory_app: App,
) -> None:
    app = memory_app
    job = app.task(name="t")(lambda: None).enqueue()
    counting = Counting(app)

    async def main() -> list[Any]:
        waiters = [asyncio.create_task(job.aget()) for _ in range(3)]
        await asyncio.sleep(0.02)
        with Hand(app) as hand:
            hand.die(hand.one())
            job.retry()  # before any waiter has had a turn of the loop
            await asyncio.sleep(0.1)
            assert not any(waiter.done() for waiter in waiters)
            calls = sum(counting.calls.values())
            await asyncio.sleep(0.1)
            assert sum(counting.calls.values()) == calls, "quiet while nothing happens"
            hand.succeed(hand.one(), 7)
        return await asyncio.gather(*waiters)

    assert asyncio.run(main()) == [7, 7, 7]


# many


def test_gather_keeps_the_order_of_the_jobs_whatever_the_order_of_their_ends(
    app: App, add: Any, say: Say
) -> None:
    jobs = say(app.enqueue_many, [add.call(n) for n in range(30)])

    def scrambled() -> None:
        with Hand(app) as hand:
            taken = hand.take()
            random.Random(5).shuffle(taken)
            for one in taken:
                hand.succeed(one, hand.call(one))

    thread = in_thread(scrambled, after=0.05)
    assert say(gather, jobs, timeout=20) == list(range(30))
    assert say(gather, iter([jobs[3], jobs[1], jobs[3]])) == [3, 1, 3], (
        "twice in the list, twice in the answer"
    )
    thread.join()


def test_gather_of_nothing_is_nothing(app: App, say: Say) -> None:
    assert say(gather, []) == []
    assert list(as_completed([])) == []
    assert asyncio.run(collected(aas_completed([]))) == []


def test_gather_raises_the_first_failure_in_order_or_returns_them(
    app: App, add: Any, say: Say, hand: Hand
) -> None:
    good, dead, cancelled = say(app.enqueue_many, [add.call(n) for n in range(3)])
    unknown = app.job("nobody")
    say(cancelled.cancel)
    hand.succeed(hand.one(), 0)
    hand.die(hand.one())
    jobs = [good, dead, cancelled, unknown]
    with pytest.raises(JobFailed):
        say(gather, jobs, timeout=1)
    with pytest.raises(JobCancelled):
        say(gather, [good, cancelled, dead], timeout=1)
    results = say(gather, jobs, timeout=1, return_exceptions=True)
    assert results[0] == 0
    assert [type(one) for one in results[1:]] == [JobFailed, JobCancelled, JobNotFound]


def test_gather_out_of_time_names_a_job_and_counts_the_rest(app: App, add: Any, say: Say, hand: Hand) -> None:
    jobs = say(app.enqueue_many, [add.call(n) for n in range(4)])
    hand.succeed(hand.one(), 0)
    with pytest.raises(JobTimeout, match=r"\(and 2 more\) was still ready after 30ms") as late:
        say(gather, jobs, timeout=0.03)
    assert late.value.job_id in ids(jobs[1:])


def test_jobs_of_two_apps_cannot_be_waited_for_together(app: App, add: Any, say: Say) -> None:
    other = App("other", broker="memory://")
    theirs = other.task(name="t")(lambda: None).enqueue()
    with pytest.raises(InvalidInput, match=r"other, shop.*one app"):
        say(gather, [add.enqueue(1), theirs])
    with pytest.raises(InvalidInput, match="one app"):
        as_completed([add.enqueue(1), theirs])


async def collected(jobs: AsyncIterator[JobHandle[Any]]) -> list[JobHandle[Any]]:
    return [job async for job in jobs]


def completed(say: Say, jobs: list[JobHandle[Any]], timeout: Any = None) -> list[JobHandle[Any]]:
    if say.runner is None:
        return list(as_completed(jobs, timeout=timeout))
    return say.runner.run(collected(aas_completed(jobs, timeout=timeout)))


def test_as_completed_yields_each_job_when_it_is_over_however_it_ended(app: App, add: Any, say: Say) -> None:
    jobs = say(app.enqueue_many, [add.call(n) for n in range(6)])
    say(jobs[5].cancel)

    def one_by_one() -> None:
        with Hand(app) as hand:
            taken = {one.job.id: one for one in hand.take()}
            for place in (3, 1, 0, 4):
                hand.succeed(taken[jobs[place].id], place)
                time.sleep(0.1)
            hand.die(taken[jobs[2].id])

    thread = in_thread(one_by_one, after=0.5)
    over = completed(say, [*jobs, jobs[0]], timeout=20)
    assert over == [jobs[place] for place in (5, 3, 1, 0, 4, 2)]
    assert all(job in jobs for job in over)
    thread.join()


def test_as_completed_out_of_time_raises_after_what_is_over(app: App, add: Any, say: Say, hand: Hand) -> None:
    jobs = say(app.enqueue_many, [add.call(n) for n in range(3)])
    hand.succeed(hand.one(), 0)
    seen: list[JobHandle[Any]] = []
    if say.runner is None:
        with pytest.raises(JobTimeout, match="2 jobs"):
            seen.extend(as_completed(jobs, timeout=0.03))
    else:
        seen = [jobs[0]]
        with pytest.raises(JobTimeout, match="2 jobs"):
            completed(say, jobs, timeout=0.03)
    assert seen == jobs[:1]


def test_results_can_be_got_while_going_through_as_completed(app: App, add: Any, hand: Hand) -> None:
    jobs = app.enqueue_many([add.call(n) for n in range(5)])
    thread = in_thread(lambda: finish(app), after=0.05)
    seen = []
    for job in as_completed(jobs, timeout=20):
        seen.append(job.get(timeout=0))
        gather(jobs, timeout=20)  # another wait for the same jobs in between
    assert sorted(seen) == [0, 1, 2, 3, 4]
    thread.join()


def test_leaving_as_completed_early_leaves_nothing_behind(memory_app: App) -> None:
    app = memory_app
    task = app.task(name="t")(lambda: None)
    jobs = app.enqueue_many([task.call() for _ in range(3)])
    with Hand(app) as hand:
        hand.succeed(hand.one())
    for _job in as_completed(jobs):
        break
    link = app.client.thread_link()
    assert link.waiters.by_job == {}

    async def main() -> None:
        over = aas_completed(jobs)
        async for _job in over:
            break
        await over.aclose()  # type: ignore[attr-defined]
        link = await app.client.loop_link()
        assert link.waiters.by_job == {}
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_many_jobs_are_waited_for_in_time_that_grows_with_their_number_only(memory_app: App) -> None:
    app = memory_app
    task = app.task(name="t")(lambda: None)

    def end_one_by_one(session: str) -> None:
        with Hand(app, session) as hand:
            while batch := hand.take(200):
                for taken in batch:
                    hand.succeed(taken, 1)

    jobs = app.enqueue_many([task.call() for _ in range(3000)])
    thread = in_thread(lambda: end_one_by_one("a"), after=0.05)
    assert len(list(as_completed(jobs, timeout=60))) == 3000
    thread.join()

    async def main() -> list[Any]:
        jobs = await app.aenqueue_many([task.call() for _ in range(3000)])
        waits = [asyncio.create_task(job.aget()) for job in jobs]
        await asyncio.sleep(0)
        thread = in_thread(lambda: end_one_by_one("b"), after=0.05)
        results = await asyncio.gather(*waits)
        thread.join()
        return results

    assert asyncio.run(main()) == [1] * 3000


def test_an_end_that_is_heard_before_the_first_reading_comes_back_is_not_lost(memory_app: App) -> None:
    app = memory_app
    task = app.task(name="t")(lambda: 1)
    inner = app.client.open

    async def open(blocking: bool) -> Any:
        broker: Any = await inner(blocking)
        get = broker.get

        async def slowly(ids: Any, **options: Any) -> Any:
            records = await get(ids, **options)
            if options:
                await asyncio.sleep(0.05)
            return records

        broker.get = broker.get if blocking else slowly
        return broker

    app.client.open = open

    async def main() -> tuple[Any, ...]:
        first, second = await app.aenqueue_many([task.call(), task.call()])
        waits = [asyncio.create_task(first.aget(timeout=20))]
        await asyncio.sleep(0.08)  # somebody listens
        waits.append(asyncio.create_task(second.aget(timeout=20)))
        await asyncio.sleep(0.01)  # read, but the answer is still on its way
        finish(app)
        return tuple(await asyncio.gather(*waits))

    assert asyncio.run(main()) == (1, 1)


# no polling, one connection


class Counting:
    """Counts the calls that an app makes of its brokers, and the brokers that it opens."""

    def __init__(self, app: App) -> None:
        self.calls: Counter[str] = Counter()
        self.opened = 0
        inner = app.client.open

        async def open(blocking: bool) -> Any:
            self.opened += 1
            return _Counted(await inner(blocking), self.calls)

        app.client.open = open


class _Counted:
    def __init__(self, broker: Any, calls: Counter[str]) -> None:
        self._broker, self._calls = broker, calls

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and callable(getattr(self._broker, name)):
            self._calls[name] += 1
        return getattr(self._broker, name)


def test_waiting_never_polls_and_one_connection_serves_all_who_wait(app: App, add: Any) -> None:
    counting = Counting(app)

    async def main() -> tuple[Counter[str], Counter[str]]:
        jobs = await app.aenqueue_many([add.call(n) for n in range(40)])
        counting.calls.clear()
        waits = [asyncio.create_task(job.aget(timeout=30)) for job in jobs]
        await asyncio.sleep(0.05)
        asleep = Counter(counting.calls)
        await asyncio.sleep(0.3)
        quiet = Counter(counting.calls)
        thread = in_thread(lambda: finish(app))
        assert await asyncio.gather(*waits) == list(range(40))
        thread.join()
        return asleep, quiet

    asleep, quiet = asyncio.run(main())
    assert asleep == quiet == {"get": 40, "wait": 1}
    assert counting.calls["get"] <= 80
    assert counting.calls["wait"] <= 42
    assert counting.opened == 2, "that of the loop, and that of the hand in the other thread"


def test_a_blocking_wait_does_not_poll_either(app: App, add: Any) -> None:
    counting = Counting(app)
    jobs = app.enqueue_many([add.call(n) for n in range(5)])
    counting.calls.clear()
    thread = in_thread(lambda: finish(app), after=0.4)
    assert gather(jobs, timeout=30) == [0, 1, 2, 3, 4]
    thread.join()
    assert counting.calls["get"] <= 6
    assert counting.calls["wait"] <= 6


def test_a_waiter_learns_of_the_end_quickly(app: App, add: Any, say: Say) -> None:
    delays = []
    for round in range(3):
        job = say(add.enqueue, 1)
        ended: list[float] = []

        def end(session: str, ended: list[float] = ended) -> None:
            finish(app, session)
            ended.append(time.perf_counter())

        thread = in_thread(lambda session=f"s{round}": end(session), after=0.05)  # type: ignore[misc]
        say(job.get, timeout=20)
        heard = time.perf_counter()
        thread.join()
        delays.append(heard - ended[0])
    assert min(delays) < 0.25


# inside a job


class OnLoop(_Detached):
    waits = 0

    def waiting(self) -> Any:
        self.waits += 1
        return super().waiting()

    def blocks_loop(self) -> bool:
        return True


def test_inside_a_job_the_awaited_form_gives_the_slot_back_and_the_blocking_one_is_refused(
    memory_app: App,
) -> None:
    app = memory_app
    task = app.task(name="t")(lambda: None)
    running = OnLoop(app, "outer")

    async def job() -> None:
        CURRENT.set(running)
        jobs = await app.aenqueue_many([task.call(), task.call()])
        for call, twin in (
            (lambda: jobs[0].get(), "await job.aget"),
            (lambda: gather(jobs), "await dray.agather"),
            (lambda: as_completed(jobs), "async for job in dray.aas_completed"),
        ):
            with pytest.raises(WouldBlock, match=twin):
                call()
        assert running.waits == 0
        thread = in_thread(lambda: finish(app), after=0.02)
        await jobs[0].aget()
        await jobs[1]
        await dray.agather(jobs)
        await collected(aas_completed(jobs))
        thread.join()

    asyncio.run(job())
    assert running.waits >= 1  # there is nothing to wait for in a job that is over


# handles and errors as values


def test_handles_of_one_job_are_equal_and_say_what_they_are(app: App, add: Any) -> None:
    job = add.enqueue(1)
    assert job == app.job(job.id)
    assert len({job, app.job(job.id)}) == 1
    assert job != app.job("other")
    assert job != job.id
    assert repr(job) == f"<Job {job.id} of add>"
    assert repr(app.job("x")) == "<Job x>"


def test_errors_survive_pickle_and_copy(app: App) -> None:
    failed = JobFailed("x", "ValueError", "no", "Traceback", "failed")
    full = dray.QueueFull("q", 5)
    for error in (
        failed,
        full,
        dray.DuplicateJob("x"),
        JobTimeout("x", "late"),
        InvalidInput("queue", "a b", "names are allowed"),
        dray.UnknownTask("x", ["y"], ["y", "z"]),
        WouldBlock("a", "b"),
        dray.SessionLost("s"),
        dray.Retry("later", delay=5),
        dray.Reject("bad"),
        dray.UnknownDependency("waits_for", "x", "no"),
    ):
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(again) is type(error)
            assert str(again) == str(error)
            assert vars(again) == vars(error)


def test_threads_wait_side_by_side(app: App, add: Any) -> None:
    jobs = app.enqueue_many([add.call(n) for n in range(12)])
    results: dict[int, int] = {}

    def wait(place: int) -> None:
        results[place] = jobs[place].get(timeout=30)

    threads = [threading.Thread(target=wait, args=(place,)) for place in range(12)]
    for thread in threads:
        thread.start()
    finish(app)
    for thread in threads:
        thread.join()
    assert results == {n: n for n in range(12)}
