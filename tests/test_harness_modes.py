"""`app.testing()`: in and out of it, on which event loop and in which thread jobs run, and live workers."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dray import App, Context, DrayError, InvalidInput, JobFailed, JobNotFound, agather, gather
from dray.context import current
from dray.testing.harness import Harness

app_of_this_module = App("isolated", broker="memory://")


@app_of_this_module.task(isolate="process")
def who_am_i() -> int:
    return os.getpid()


@pytest.fixture
def app() -> App:
    return App("shop", broker="memory://")


@pytest.fixture
def t(app: App) -> Iterator[Harness]:
    with app.testing() as harness:
        yield harness


# jobs that wait for jobs


@pytest.mark.parametrize("awaits", [True, False])
def test_a_job_may_wait_for_others_that_run_in_the_same_drain(app: App, t: Harness, awaits: bool) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def awaiting(depth: int) -> int:
        if depth:
            return await (await awaiting.aenqueue(depth - 1))
        return sum(await agather([await double.aenqueue(n) for n in range(3)]))

    @app.task
    def blocking(depth: int) -> int:
        if depth:
            return blocking.enqueue(depth - 1).get()
        return sum(gather([double.enqueue(n) for n in range(3)]))

    job = (awaiting if awaits else blocking).enqueue(5)
    assert len(t.drain()) == 9
    assert job.get(timeout=0) == 6


def test_a_thread_that_waits_for_a_delayed_job_goes_on_when_that_has_run(app: App, t: Harness) -> None:
    @app.task
    def child() -> str:
        return "done"

    @app.task
    def parent() -> str:
        return child.using(delay=60).enqueue().get()

    job = parent.enqueue()
    assert t.drain() == []
    assert job.status() == "running"
    assert [info.task for info in t.advance(60)] == ["child", "parent"]
    assert job.get(timeout=0) == "done"


def test_several_threads_that_wait_for_delayed_jobs_do_not_keep_a_drain_from_its_end(
    app: App, t: Harness
) -> None:
    @app.task
    def later(number: int) -> int:
        return number

    @app.task
    def wait(number: int) -> int:
        return later.using(delay=60).enqueue(number).get()

    jobs = [wait.enqueue(number) for number in range(3)]
    assert t.drain() == []
    assert [job.status() for job in jobs] == ["running"] * 3
    t.advance(60)
    assert [job.get(timeout=5) for job in jobs] == [0, 1, 2]


def test_plain_jobs_that_wait_give_back_their_slots() -> None:
    app = App("narrow", broker="memory://", concurrency=2)

    @app.task
    def child() -> None: ...

    @app.task
    def parent() -> None:
        child.enqueue().get()

    with app.testing() as t:
        for _ in range(3):
            parent.enqueue()
        assert sorted(info.task for info in t.drain()) == ["child"] * 3 + ["parent"] * 3


def test_jobs_that_still_wait_at_the_end_go_back_and_do_not_keep_the_test(app: App) -> None:
    ended: list[str] = []

    @app.task
    def never() -> None: ...

    @app.task
    async def awaiting() -> None:
        try:
            await (await never.using(delay="1d").aenqueue())
        finally:
            ended.append("awaiting")

    @app.task
    def blocking() -> None:
        try:
            never.using(delay="1d").enqueue().get()
        finally:
            ended.append("blocking")

    begun = time.monotonic()
    with app.testing() as t:
        awaiting.enqueue()
        blocking.enqueue()
        t.drain()
    assert sorted(ended) == ["awaiting", "blocking"]
    assert time.monotonic() - begun < 20


# one job


def test_run_runs_just_one_job(app: App, t: Harness) -> None:
    @app.task(retries=1)
    def work(number: int) -> int:
        if number == 3:
            raise ValueError(number)
        return number

    jobs = [work.enqueue(number) for number in range(4)]
    assert t.run(jobs[2]).result == 2
    assert [job.status() for job in jobs] == ["ready", "ready", "succeeded", "ready"]
    assert t.run(jobs[3].id).status == "retrying"
    t.advance(2)
    with pytest.raises(InvalidInput, match="it succeeded at"):
        t.run(jobs[2])
    job = work.enqueue(3)
    with pytest.raises(ValueError, match="3"):
        t.run(job, raise_errors=True)


def test_run_says_why_a_job_cannot_run_now(app: App, t: Harness) -> None:
    @app.task(rate_limit="1/h")
    def work() -> None: ...

    first, limited, delayed = work.enqueue(), work.enqueue(), work.using(delay=60).enqueue()
    t.run(first)
    with pytest.raises(InvalidInput, match="a limit holds it back"):
        t.run(limited)
    with pytest.raises(InvalidInput, match="it is not due before"):
        t.run(delayed)
    with pytest.raises(InvalidInput, match="no task of this app has its name"):
        t.run(app.enqueue("elsewhere"))
    with pytest.raises(JobNotFound):
        t.run("nonsense")
    app.queues.pause("default")
    with pytest.raises(InvalidInput, match="is paused"):
        t.run(limited)


# in and out


def test_nothing_real_is_touched_and_all_is_as_before_afterwards(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path}/real.db")
    client, clock = app.client, app.clock

    @app.task
    def work() -> int:
        return 1

    with app.testing() as t:
        job = work.enqueue()
        t.advance(60)
        assert app.now() == round(t.now.timestamp() * 1000)
        assert job.get(timeout=0) == 1
    assert (app.client, app.clock) == (client, clock)
    assert list(tmp_path.iterdir()) == []
    assert job.status() == "not_found"
    app.close()


def test_an_error_in_the_test_puts_everything_back_too(app: App) -> None:
    client, t = app.client, app.testing()

    def fail() -> None:
        with t:
            t.drain()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert app.client is client
    with pytest.raises(DrayError, match="not in testing mode"):
        t.drain()
    with pytest.raises(DrayError, match="entered before"):
        t.__enter__()


def test_a_lifespan_that_fails_at_its_end_fails_the_test_and_all_is_put_back(app: App) -> None:
    client, t = app.client, app.testing()

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        yield
        raise OSError("cannot close")

    def use() -> None:
        with t:
            t.drain()

    async def ause() -> None:
        async with app.testing() as u:
            await u.adrain()

    with pytest.raises(OSError, match="cannot close"):
        use()
    assert app.client is client
    with pytest.raises(OSError, match="cannot close"):
        asyncio.run(ause())
    assert app.client is client


def test_testing_inside_testing_starts_from_nothing_and_returns_to_what_was(app: App, t: Harness) -> None:
    @app.task
    def work() -> None: ...

    outer = work.enqueue()
    with app.testing() as inner:
        assert inner.enqueued() == []
        work.enqueue()
        inner.advance("1d")
    assert len(t.enqueued()) == 1
    assert t.now < inner.now
    t.drain()
    assert outer.status() == "succeeded"


def test_two_apps_are_tested_at_once(app: App, t: Harness) -> None:
    other = App("billing", broker="memory://")

    @other.task
    def bill() -> str:
        return "billed"

    @app.task
    def order() -> str:
        return bill.enqueue().id

    with other.testing() as u:
        job = order.enqueue()
        t.drain()
        assert [info.id for info in u.enqueued()] == [job.get(timeout=0)]
        u.drain()
        assert other.job(job.get(timeout=0)).get(timeout=0) == "billed"


def test_a_drain_inside_a_job_is_refused(app: App, t: Harness) -> None:
    @app.task(retries=0)
    def nested() -> None:
        t.drain()

    nested.enqueue()
    with pytest.raises(DrayError, match="under way already"):
        t.drain(raise_errors=True)


# loops and threads


def test_awaited_drains_run_jobs_on_the_loop_of_the_test(app: App) -> None:
    async def main() -> None:
        mine = asyncio.get_running_loop()
        log: list[str] = []
        signal = asyncio.Event()

        @app.lifespan
        async def resources() -> AsyncIterator[str]:
            log.append("open")
            yield "state"
            log.append("close")

        @app.task
        async def work(ctx: Context) -> bool:
            signal.set()
            return asyncio.get_running_loop() is mine and ctx.state == "state"

        async with app.testing() as t:
            job = await work.aenqueue()
            await asyncio.sleep(0.02)
            assert [info.status for info in t.enqueued()] == ["ready"], "not before it is told to"
            assert [info.result for info in await t.adrain()] == [True]
            assert signal.is_set()
            assert await job
            later = await work.using(delay=60).aenqueue()
            assert await t.adrain() == []
            assert len(await t.aadvance(60)) == 1
            assert await later
            assert (await t.arun(await work.aenqueue())).result is True
        assert log == ["open", "close"]
        assert len(asyncio.all_tasks()) == 1, "nothing is left behind"

    asyncio.run(main())


def test_awaited_drains_work_inside_a_plain_with_too(app: App) -> None:
    @app.task
    async def child() -> int:
        return 1

    @app.task
    async def parent() -> int:
        return await (await child.using(delay=10).aenqueue())

    async def main() -> None:
        with app.testing() as t:
            job = await parent.aenqueue()
            assert [info.task for info in await t.aadvance(10)] == ["child", "parent"]
            assert await job == 1
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_blocking_drain_inside_a_running_loop_uses_a_thread_and_one_outside_uses_this_one(app: App) -> None:
    @app.task
    async def where() -> tuple[bool, bool]:
        main = threading.current_thread() is threading.main_thread()
        return main, current().app is app

    def drained(t: Harness) -> tuple[bool, bool]:
        job = where.enqueue()
        t.drain()
        return job.get(timeout=0)

    async def main(t: Harness) -> tuple[bool, bool]:
        return drained(t)

    with app.testing() as t:
        assert drained(t) == (True, True)
        assert asyncio.run(main(t)) == (False, True)
        assert drained(t) == (True, True)


def test_plain_functions_run_in_threads_as_in_a_worker(app: App, t: Harness) -> None:
    @app.task
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    job = where.enqueue()
    t.drain()
    assert job.get(timeout=0) is False


def test_blocking_on_the_loop_is_refused_as_in_a_worker(app: App, t: Harness) -> None:
    @app.task
    def child() -> None: ...

    @app.task(retries=0)
    async def parent() -> None:
        child.enqueue().get()

    job = parent.enqueue()
    t.drain()
    with pytest.raises(JobFailed, match="WouldBlock"):
        job.get(timeout=0)


def test_a_thread_that_cannot_be_stopped_is_an_error_and_not_a_hang(app: App) -> None:
    release = threading.Event()

    @app.task(timeout=0.05, retries=0)
    def stubborn() -> None:
        release.wait(60)

    try:
        with app.testing() as t:
            stubborn.enqueue()
            with pytest.raises(DrayError, match=r"cannot be stopped: .* \(stubborn\)"):
                t.drain()
    finally:
        release.set()


def test_jobs_that_want_a_process_get_one_if_the_test_asks_for_it() -> None:
    with app_of_this_module.testing() as t:
        here = who_am_i.enqueue()
        t.drain()
        assert here.get(timeout=0) == os.getpid()
    with app_of_this_module.testing(isolate=True) as t:
        there = who_am_i.enqueue()
        t.drain(raise_errors=True)
        assert there.get(timeout=0) != os.getpid()


# live workers


def test_a_live_worker_runs_jobs_by_itself_on_the_real_clock(app: App, t: Harness) -> None:
    @app.task(retries=1, backoff="fixed:0.1")
    def flaky(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise OSError
        return ctx.attempt

    with t.worker():
        assert flaky.enqueue().get(timeout=30) == 2
        assert flaky.using(delay=0.1).enqueue().get(timeout=30) == 2
        with pytest.raises(DrayError, match="a worker runs jobs by itself"):
            t.drain()
        with pytest.raises(DrayError, match="runs here already"), t.worker():
            pass

        @app.task
        async def added() -> str:
            return "too"

        assert added.enqueue().get(timeout=30) == "too"
    job = flaky.enqueue()
    t.drain()
    assert job.status() == "retrying", "afterwards the clock stands still again"


def test_a_live_worker_that_cannot_stop_raises_and_names_the_job(app: App, t: Harness) -> None:
    release, running = threading.Event(), threading.Event()

    @app.task
    def stubborn() -> None:
        running.set()
        release.wait(60)

    worker = t.worker()
    worker.__enter__()
    stubborn.enqueue()
    assert running.wait(30)
    try:
        with pytest.raises(DrayError, match="in a thread still runs stubborn"):
            worker.stop(grace=0)
    finally:
        release.set()
    worker.stop()


def test_a_live_worker_whose_lifespan_fails_says_so_at_once(app: App, t: Harness) -> None:
    async def refuse() -> None:
        raise OSError("no database")

    @app.lifespan
    async def resources() -> AsyncIterator[None]:
        await refuse()
        yield

    with pytest.raises(OSError, match="no database"), t.worker():
        pass
    with pytest.raises(OSError, match="no database"):
        t.drain()
