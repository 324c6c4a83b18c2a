"""`app.testing()`: jobs run inside a test, by the real executor, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from dray import (
    App,
    Context,
    DrayError,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobInfo,
    JobNotFound,
    JobTimeout,
    Reject,
    Retry,
    UnknownTaskWarning,
    gather,
)
from dray.context import current
from dray.testing.harness import Harness, RunsForEver

Log = list[str]


async def refuse() -> None:
    raise OSError("no database")


@pytest.fixture
def app() -> App:
    return App("shop", broker="memory://")


@pytest.fixture
def t(app: App) -> Iterator[Harness]:
    with app.testing() as harness:
        yield harness


def told(infos: list[JobInfo]) -> list[str]:
    return [f"{info.task} {info.status}" for info in infos]


# drain


def test_drain_runs_what_was_enqueued_and_tells_what_ran_in_order(app: App, t: Harness) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def shout(text: str) -> str:
        return text.upper()

    first, second = double.enqueue(21), shout.enqueue("hey")
    assert [(info.task, info.args) for info in t.enqueued()] == [("double", (21,)), ("shout", ("hey",))]
    ran = t.drain()
    assert told(ran) == ["double succeeded", "shout succeeded"]
    assert [info.result for info in ran] == [42, "HEY"]
    assert (first.get(timeout=0), second.get(timeout=0)) == (42, "HEY")
    assert t.enqueued() == t.drain() == []


def test_nothing_runs_before_it_is_told_to(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    job = work.enqueue()
    with pytest.raises(JobTimeout):
        job.get(timeout=0.05)
    assert job.status() == "ready"


def test_waiting_for_ever_for_what_nobody_runs_is_an_error_and_says_what_to_do(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    with pytest.raises(DrayError, match=r"Call drain\(\) or advance\(\)"):
        work.enqueue().get()


def test_what_jobs_enqueue_runs_in_the_same_drain(app: App, t: Harness) -> None:
    @app.task
    def count_down(number: int) -> None:
        if number:
            count_down.enqueue(number - 1)

    count_down.enqueue(3)
    assert [info.args for info in t.drain()] == [(3,), (2,), (1,), (0,)]


def test_jobs_that_never_stop_making_jobs_end_in_an_error_that_names_the_task(app: App, t: Harness) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    @app.task
    def once() -> None: ...

    app.enqueue_many([once.call() for _ in range(50)])
    again.enqueue()
    with pytest.raises(RunsForEver, match=r"task 'again' has run \d+ times.*limit=") as caught:
        t.drain(limit=100)
    assert caught.value.task == "again"
    assert len(t.enqueued("again")) == 1, "the harness is as usable as before"
    app.jobs.cancel(task="again", state="ready")
    assert t.drain() == []


def test_the_limit_does_not_count_what_was_there_before(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    app.enqueue_many([work.call() for _ in range(30)])
    assert len(t.drain(limit=1)) == 30


def test_ticks_of_a_schedule_do_not_count_towards_the_limit(app: App) -> None:
    @app.every("1s")
    @app.task
    def tick() -> None: ...

    @app.task
    def again() -> None:
        again.using(delay=1).enqueue()

    with app.testing(limit=5) as t:
        assert len(t.advance(60)) == 60
        again.enqueue()
        with pytest.raises(RunsForEver, match="task 'again'"):
            t.advance(600)


def test_ten_thousand_jobs_take_seconds(app: App, t: Harness) -> None:
    @app.task
    def work(number: int) -> int:
        return number

    app.enqueue_many([work.call(number) for number in range(10_000)])
    begun = time.monotonic()
    ran = t.drain()
    assert [info.args for info in ran] == [(number,) for number in range(10_000)]
    assert time.monotonic() - begun < 60, "some 2 s on an idle machine"


def test_every_queue_is_served_and_priorities_count(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    for queue, priority in (("mail", 9), ("mail", 1), ("default", 9), ("default", 0)):
        work.using(queue=queue, priority=priority).enqueue()
    ran = [(info.queue, info.priority) for info in t.drain()]
    assert ran == [("default", 0), ("default", 9), ("mail", 1), ("mail", 9)]


def test_jobs_start_one_after_the_other_but_those_that_need_each_other_meet(app: App, t: Harness) -> None:
    barrier = threading.Barrier(3, timeout=20)

    @app.task
    def meet() -> int:
        return barrier.wait()

    jobs = [meet.enqueue() for _ in range(3)]
    t.drain()
    assert sorted(gather(jobs, timeout=0)) == [0, 1, 2]


def test_a_task_that_nobody_knows_stays_ready(app: App, t: Harness) -> None:
    @app.task
    def known() -> None: ...

    with pytest.warns(UnknownTaskWarning):
        job = app.enqueue("knwon")
    known.enqueue()
    assert told(t.drain()) == ["known succeeded"]
    assert t.advance("1d") == []
    assert job.status() == "ready"


def test_tasks_and_middleware_added_later_are_known_to_the_next_drain(app: App, t: Harness) -> None:
    job = app.enqueue("late")
    t.drain()
    log: Log = []

    @app.middleware
    async def note(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        log.append(ctx.task)
        return await call_next()

    @app.task
    def late() -> int:
        return 1

    t.drain()
    assert (job.get(timeout=0), log) == (1, ["late"])


def test_filters_look_at_task_and_queue(app: App, t: Harness) -> None:
    @app.task
    def a() -> None:
        raise Reject("no")

    @app.task
    def b() -> None: ...

    a.using(queue="mail").enqueue()
    a.enqueue()
    b.using(queue="mail").enqueue()
    assert [(info.task, info.queue) for info in t.enqueued(a)] == [("a", "mail"), ("a", "default")]
    assert [info.task for info in t.enqueued(queue="mail")] == ["a", "b"]
    assert [info.task for info in t.enqueued("a", queue="mail")] == ["a"]
    t.drain()
    assert [info.queue for info in t.dead(task=a)] == ["mail", "default"]
    assert t.dead("b") == []
    assert t.dead(queue="mail")[0].reason == "rejected: no"


# errors


def test_what_a_job_raises_does_not_come_out_of_drain(app: App, t: Harness) -> None:
    @app.task(retries=0)
    def fail() -> None:
        raise ValueError("broken")

    job = fail.enqueue()
    assert told(t.drain()) == ["fail dead"]
    with pytest.raises(JobFailed, match="ValueError: broken"):
        job.get(timeout=0)


@pytest.mark.parametrize("is_async", [False, True])
def test_raise_errors_raises_the_very_first_failure_with_its_traceback(
    app: App, t: Harness, is_async: bool
) -> None:
    def in_the_depths() -> None:
        raise LookupError("here")

    @app.task(name="work")
    def plain() -> None:
        in_the_depths()

    @app.task(name="awork")
    async def coroutine() -> None:
        in_the_depths()

    @app.task
    def good() -> None: ...

    app.enqueue("awork" if is_async else "work")
    good.enqueue()
    with pytest.raises(LookupError, match="here") as caught:
        t.drain(raise_errors=True)
    assert "in_the_depths" in [entry.name for entry in caught.traceback]
    assert t.enqueued("good") == [], "the others ran all the same"
    t.raise_errors = True
    with pytest.raises(LookupError):
        t.advance(2)
    assert told(t.advance(4, raise_errors=False)) == [f"{'awork' if is_async else 'work'} retrying"]


def test_raise_errors_takes_asking_for_a_retry_as_no_error_until_there_are_none_left(
    app: App, t: Harness
) -> None:
    @app.task(retries=1)
    def wait_for_it() -> None:
        raise Retry("not yet", delay=10)

    wait_for_it.enqueue()
    assert told(t.drain(raise_errors=True)) == ["wait_for_it retrying"]
    with pytest.raises(Retry, match="not yet"):
        t.advance(10, raise_errors=True)


def test_raise_errors_tells_of_a_timeout_as_a_failed_job(app: App, t: Harness) -> None:
    @app.task(timeout=0.05, retries=0)
    async def slow() -> None:
        await asyncio.sleep(60)

    slow.enqueue()
    with pytest.raises(JobFailed, match="longer than its timeout"):
        t.drain(raise_errors=True)


# the clock


def test_the_clock_moves_by_advance_only(app: App, t: Harness) -> None:
    begun = t.now
    time.sleep(0.01)
    t.drain()
    assert t.now == begun
    for length in (60, "1m", timedelta(minutes=1), 0.5):
        t.advance(length)
    assert t.now - begun == timedelta(minutes=3, milliseconds=500)
    with pytest.raises(InvalidInput):
        t.advance(-1)
    with pytest.raises(InvalidInput):
        t.advance("soon")


def test_a_retry_runs_exactly_when_it_is_due(app: App, t: Harness) -> None:
    starts: list[timedelta] = []
    begun = t.now

    @app.task(retries=3)
    def flaky(ctx: Context) -> int:
        starts.append(t.now - begun)
        if ctx.attempt < 4:
            raise OSError("away")
        return ctx.attempt

    job = flaky.enqueue()
    assert told(t.drain()) == ["flaky retrying"]
    assert t.advance(1.999) == []
    assert told(t.advance(0.001)) == ["flaky retrying"]
    assert told(t.advance("1h")) == ["flaky retrying", "flaky succeeded"]
    assert starts == [timedelta(seconds=seconds) for seconds in (0, 2, 6, 14)]
    assert job.get(timeout=0) == 4


def test_delayed_jobs_run_at_their_time_and_in_its_order(app: App, t: Harness) -> None:
    starts: list[tuple[str, float]] = []
    begun = t.now

    @app.task
    def note(name: str) -> None:
        starts.append((name, (t.now - begun).total_seconds()))
        if name == "b":
            note.using(delay=5).enqueue("b's child")

    note.using(delay=60).enqueue("c")
    note.using(at=t.now + timedelta(seconds=30)).enqueue("b")
    note.using(delay="10s").enqueue("a")
    assert t.drain() == []
    assert {info.status for info in t.enqueued()} == {"scheduled"}
    t.advance(59)
    assert starts == [("a", 10), ("b", 30), ("b's child", 35)]
    t.advance(1)
    assert starts[3:] == [("c", 60)]


def test_a_job_that_was_not_started_within_its_ttl_is_dead_at_that_very_time(app: App, t: Harness) -> None:
    @app.task(ttl=30)
    def work() -> None: ...

    app.queues.pause("default")
    job, begun = work.enqueue(), t.now
    t.advance(29)
    assert job.status() == "ready"
    t.advance(60)
    [dead] = t.dead()
    assert (dead.reason or "").startswith("expired")
    assert dead.finished_at == begun + timedelta(seconds=30)


def test_keys_and_once_windows_pass(app: App, t: Harness) -> None:
    @app.task(once="1h")
    def welcome(user: int) -> int:
        return user

    first = welcome.using(key="welcome:42").enqueue(42)
    assert welcome.using(key="welcome:42").enqueue(42).duplicate
    t.drain()
    t.advance("59m")
    assert welcome.using(key="welcome:42").enqueue(42) == first
    t.advance("1m")
    second = welcome.using(key="welcome:42").enqueue(42)
    assert not second.duplicate
    assert second != first

    assert not welcome.using(key="k", key_ttl=10).enqueue(1).duplicate
    app.queues.pause("default")
    assert welcome.using(key="k", key_ttl=10).enqueue(1).duplicate
    t.advance(10)
    assert not welcome.using(key="k", key_ttl=10).enqueue(1).duplicate


def test_rate_limits_fill_up_again(app: App, t: Harness) -> None:
    starts: list[float] = []
    begun = t.now

    @app.task(rate_limit="2/m")
    def call() -> None:
        starts.append((t.now - begun).total_seconds())

    app.enqueue_many([call.call() for _ in range(5)])
    assert len(t.drain()) == 1
    assert t.advance(29.999) == []
    assert len(t.advance(0.001)) == 1
    t.advance("2m")
    assert starts == [0, 30, 60, 90, 120]


def test_limits_on_running_jobs_count(app: App, t: Harness) -> None:
    running: list[int] = []
    lock = threading.Lock()

    @app.task(max_running=1)
    def alone() -> None:
        with lock:
            running.append(1)
        time.sleep(0.3)
        most.append(sum(running))
        with lock:
            running.pop()

    most: list[int] = []
    app.enqueue_many([alone.call() for _ in range(3)])
    t.drain()
    assert most == [1, 1, 1]


def test_what_is_finished_is_forgotten_in_time(app: App, t: Harness) -> None:
    @app.task
    def work() -> int:
        return 1

    job = work.enqueue()
    t.drain()
    t.advance("25h")
    assert job.status() == "not_found"


def test_a_timeout_is_a_failure_and_is_tried_again(app: App, t: Harness) -> None:
    @app.task(timeout=0.05, retries=1)
    def slow() -> None:
        for _ in range(2000):
            time.sleep(0.005)

    job = slow.enqueue()
    assert told(t.drain()) == ["slow retrying"]
    assert told(t.advance(2)) == ["slow dead"]
    assert job.info().error == t.dead()[0].error
    assert "Timeout" in (t.dead()[0].reason or "")


def test_a_cancelled_job_never_starts_however_far_the_clock_moves(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    job = work.using(delay=60).enqueue()
    assert job.cancel()
    assert t.advance("1d") == []
    with pytest.raises((JobCancelled, JobNotFound)):
        job.get(timeout=0)


def test_a_running_job_is_told_to_stop_and_counts_as_cancelled(app: App, t: Harness) -> None:
    @app.task
    async def wait() -> None:
        await asyncio.sleep(60)

    @app.task
    async def cancel(id: str) -> None:
        await app.job(id).acancel()

    job = wait.enqueue()
    cancel.enqueue(job.id)
    assert told(t.drain()) == ["cancel succeeded", "wait cancelled"]
    with pytest.raises(JobCancelled):
        job.get(timeout=0)


# what surrounds jobs


def test_middleware_lifespan_and_context_are_those_of_a_worker(app: App, t: Harness) -> None:
    log: Log = []

    @app.lifespan
    async def resources() -> AsyncIterator[dict[str, int]]:
        log.append("open")
        yield {"calls": 0}
        log.append("close")

    @app.middleware
    async def note(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        log.append(f"before {ctx.task}")
        try:
            return await call_next()
        finally:
            log.append(f"after {ctx.task}")

    @app.task
    def count(ctx: Context) -> int:
        ctx.state["calls"] += 1
        assert current().job == ctx.job
        return int(ctx.state["calls"])

    with app.testing() as inner:
        count.enqueue()
        inner.drain()
        job = count.enqueue()
        inner.drain()
        assert job.get(timeout=0) == 2, "one worker, one lifespan, as long as the testing lasts"
    assert log == ["open", *["before count", "after count"] * 2, "close"]


def test_a_lifespan_that_fails_fails_the_test_and_leaves_the_app_as_it_was(app: App) -> None:
    client = app.client

    @app.lifespan
    @asynccontextmanager
    async def resources() -> AsyncIterator[None]:
        await refuse()
        yield

    with pytest.raises(OSError, match="no database"), app.testing() as t:
        t.drain()
    assert app.client is client


def test_progress_is_seen_while_the_job_goes_on(app: App, t: Harness) -> None:
    @app.task
    def child() -> str:
        return "done"

    @app.task
    async def parent(ctx: Context) -> str:
        ctx.progress(1, 2, note="waiting")
        return await (await child.using(delay=60).aenqueue())

    job = parent.enqueue()
    assert t.drain() == []
    info = job.info()
    assert info.status == "running"
    assert info.progress is not None
    assert (info.progress.done, info.progress.total, info.progress.note) == (1, 2, "waiting")
    assert told(t.advance(60)) == ["child succeeded", "parent succeeded"]
    assert job.get(timeout=0) == "done"
