"""The executor at work: real threads, a real SQLite file, and brokers on a bad line."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sim.loop import run as run_virtually
from workshop import PATIENCE, Flaky, at_work, ended, on_loop_only, run, until, when

from dray.app import App
from dray.broker.actions import Cancel, Ids
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Broker
from dray.context import Context, current
from dray.errors import BrokerAway, BrokerReadOnly, InvalidInput
from dray.job import Job, OutcomeKind, Progress, State
from dray.worker.channel import Message, Retiring, RunCounts, SessionLapsed, SessionNews, Started, Stuck
from dray.worker.executor.executor import Executor
from dray.worker.run.run_state import Interrupted
from dray.worker.shared_memory import SharedHeartbeat


@pytest.fixture
def app(tmp_path: Path) -> App:
    return make_app(tmp_path)


def make_app(folder: Path, **settings: Any) -> App:
    app = App("t", broker=f"sqlite:///{folder}/q.db", **{"concurrency": 8, "lease": "5s", **settings})

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.task
    def triple(x: int) -> int:
        return 3 * x

    @app.task
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    return app


async def put(app: App, broker: Broker, name: str, *args: Any, **fields: Any) -> str:
    job = app.job_builder.build(app.tasks[name].call(*args))
    (accepted,) = await broker.put([msgspec.structs.replace(job, **fields) if fields else job])
    return accepted.id


async def put_many(app: App, broker: Broker, name: str, count: int) -> list[str]:
    jobs = [app.job_builder.build(app.tasks[name].call(n)) for n in range(count)]
    return [accepted.id for accepted in await broker.put(jobs)]


async def result(app: App, broker: Broker, id: str) -> Any:
    record = await ended(broker, id)
    assert record.result is not None, (record.state, record.reason, record.error)
    return app.codecs.decode_value(record.result)


async def running(broker: Broker, id: str) -> None:
    await when(broker, id, lambda record: record.state is State.RUNNING)


# the good days


@pytest.mark.parametrize("name", ["double", "triple"])
def test_jobs_are_run_and_their_results_kept(app: App, name: str) -> None:
    async def main() -> None:
        broker = await app.connect()
        ids = await put_many(app, broker, name, 200)
        async with at_work(app):
            factor = 2 if name == "double" else 3
            for n, id in enumerate(ids):
                assert await result(app, broker, id) == factor * n
        assert await broker.audit() == []
        await broker.close()

    run(main())


def test_a_job_that_comes_while_it_is_idle_is_started_at_once(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            for n in range(5):
                await asyncio.sleep(0.05)
                began = time.monotonic()
                id = await put(app, broker, "double", n)
                assert await result(app, broker, id) == 2 * n
                assert time.monotonic() - began < 5
        await broker.close()

    run(main())


def test_it_takes_only_what_it_can_start_now(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        ids = [await put(app, broker, "sleep", 0.3) for _ in range(20)]
        async with at_work(app):
            await running(broker, ids[0])
            states = [record.state for record in await broker.get(ids) if record is not None]
            assert states.count(State.RUNNING) == 8
            for id in ids:
                await ended(broker, id)
        await broker.close()

    run(main())


def test_only_known_and_chosen_tasks_and_priorities_are_taken(tmp_path: Path) -> None:
    app = make_app(tmp_path, tasks=["double", "sleep"], priorities=["high"])

    async def main() -> None:
        broker = await app.connect()
        unknown = Job(id="u", task="unheard_of", priority=1)
        await broker.put([unknown])
        unchosen = await put(app, broker, "triple", 1, priority=1)
        unimportant = await put(app, broker, "double", 1, priority=5)
        async with at_work(app):
            assert await result(app, broker, await put(app, broker, "double", 4, priority=1)) == 8
            for record in await broker.get(["u", unchosen, unimportant]):
                assert record is not None
                assert (record.state, record.run) == (State.READY, 0)
        await broker.close()

    run(main())


def test_middleware_lifespan_state_and_context_reach_plain_and_async_tasks(tmp_path: Path) -> None:
    app = make_app(tmp_path)
    seen: list[tuple[str, str]] = []

    @app.middleware
    async def note(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
        seen.append((ctx.task, ctx.state))
        return await call_next()

    @app.task
    def plain(ctx: Context) -> list[object]:
        return [ctx.state, threading.current_thread().name]

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, state="the state"):
            assert await result(app, broker, await put(app, broker, "plain")) == ["the state", "dray plain"]
            assert await result(app, broker, await put(app, broker, "double", 2)) == 4
        assert seen == [("plain", "the state"), ("double", "the state")]
        await broker.close()

    run(main())


def test_progress_is_told_and_the_last_word_is_never_lost(app: App) -> None:
    go = threading.Event()

    @app.task(retries=0)
    def steps(ctx: Context) -> None:
        for n in range(1000):
            ctx.progress(n, 1000, "so far")
        go.wait(20)
        ctx.progress(1000, 1000, "all")
        raise ValueError("after all that")

    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        async with at_work(app, flaky):
            id = await put(app, broker, "steps")
            record = await when(broker, id, lambda record: record.runs and record.runs[0].progress)
            assert record.runs[0].progress is not None
            assert record.runs[0].progress.total == 1000.0
            renewed = flaky.calls["renew"]
            go.set()
            await ended(broker, id)
            assert flaky.calls["renew"] > renewed
            assert renewed < 20
        await flaky.close()
        await broker.close()

    run(main())


def test_waiting_for_another_job_gives_the_slot_back(tmp_path: Path) -> None:
    app = make_app(tmp_path, concurrency=1)

    @app.task
    async def parent(x: int) -> int:
        value: int = await (await app.tasks["double"].aenqueue(x)).aget(timeout=20)
        return value + 1

    @app.task
    def plain_parent(ctx: Context, x: int) -> int:
        with ctx._running.waiting():
            value: int = app.tasks["double"].enqueue(x).get(timeout=20)
        return value + 1

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            assert await result(app, broker, await put(app, broker, "parent", 5)) == 11
            assert await result(app, broker, await put(app, broker, "plain_parent", 6)) == 13
        await broker.close()

    run(main())


# failures


def test_a_failed_job_is_tried_again_and_then_dead(app: App) -> None:
    tries: list[int] = []

    @app.task(retries=2, backoff="fixed:10ms,jitter=0")
    async def fail() -> None:
        tries.append(current().attempt)
        raise ValueError("no")

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            record = await ended(broker, await put(app, broker, "fail"))
            assert (record.state, record.reason) == (State.DEAD, "failed: ValueError: no (3 attempts)")
            assert record.error is not None
            assert "in fail" in record.error.traceback
        assert tries == [1, 2, 3]
        await broker.close()

    run(main())


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, Interrupted, RecursionError])
@pytest.mark.parametrize("is_async", [False, True])
def test_no_exception_of_a_job_hurts_its_neighbours(
    app: App, error: type[BaseException], is_async: bool
) -> None:
    if is_async:

        @app.task(retries=0)
        async def leave() -> None:
            raise error
    else:

        @app.task(retries=0, name="leave")
        def leave_plainly() -> None:
            raise error

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            neighbour = await put(app, broker, "sleep", 0.2)
            record = await ended(broker, await put(app, broker, "leave"))
            assert record.state is State.DEAD
            assert record.error is not None
            assert record.error.type.endswith(error.__name__)
            assert await result(app, broker, neighbour) == "slept"
        await broker.close()

    run(main())


def test_a_job_that_allocates_more_than_there_is_only_fails(app: App) -> None:
    @app.task(retries=0)
    def greedy() -> int:
        return len(bytearray(1 << 62))

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            record = await ended(broker, await put(app, broker, "greedy"))
            assert record.error is not None
            assert record.error.type in ("MemoryError", "OverflowError")
        await broker.close()

    run(main())


# timeouts


def test_an_async_job_past_its_timeout_is_stopped_and_fails(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            other = await put(app, broker, "sleep", 0.5)
            record = await ended(broker, await put(app, broker, "sleep", 60.0, timeout=100, retries=0))
            assert record.reason == "failed: Timeout: it ran longer than its timeout of 0.1 s (1 attempt)"
            assert record.error is not None
            assert "in sleep" in record.error.traceback
            assert await result(app, broker, other) == "slept"
        await broker.close()

    run(main())


def test_a_thread_past_its_timeout_is_interrupted(app: App) -> None:
    @app.task
    def spin() -> None:
        while True:
            pass

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            record = await ended(broker, await put(app, broker, "spin", timeout=100, retries=0))
            assert record.error is not None
            assert record.error.type == "Timeout"
            assert await result(app, broker, await put(app, broker, "triple", 3)) == 9
        await broker.close()

    run(main())


def test_a_heartbeat_starts_the_timeout_anew(app: App) -> None:
    @app.task(timeout=0.5)
    async def alive(ctx: Context) -> str:
        for _ in range(20):
            await asyncio.sleep(0.05)
            ctx.heartbeat()
        return "alive"

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            assert await result(app, broker, await put(app, broker, "alive")) == "alive"
        await broker.close()

    run(main())


def test_a_job_that_swallows_its_cancellation_is_cancelled_again(app: App) -> None:
    swallowed: list[float] = []

    @app.task
    async def deaf() -> str:
        while len(swallowed) < 2:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                swallowed.append(time.monotonic())
        await asyncio.sleep(60)
        return "never"

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            record = await ended(broker, await put(app, broker, "deaf", timeout=100, retries=0))
            assert record.error is not None
            assert record.error.type == "Timeout"
        assert len(swallowed) == 2
        assert swallowed[1] - swallowed[0] > 0.5
        await broker.close()

    run(main())


# cancelling


@pytest.mark.parametrize("full", [False, True])
def test_a_running_job_that_is_cancelled_stops_within_a_second(app: App, full: bool) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            others = [await put(app, broker, "sleep", 60.0) for _ in range(7 if full else 0)]
            id = await put(app, broker, "sleep", 60.0)
            await running(broker, id)
            began = time.monotonic()
            await broker.edit(Ids((id,)), Cancel("enough"))
            record = await ended(broker, id)
            assert (record.state, record.reason) == (State.CANCELLED, "enough")
            assert time.monotonic() - began < 5
            await broker.edit(Ids(tuple(others)), Cancel())
            for other in others:
                assert (await ended(broker, other)).state is State.CANCELLED
        await broker.close()

    run(main())


def test_a_cancel_is_heard_while_jobs_rush_through(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        await put_many(app, broker, "double", 3000)
        id = await put(app, broker, "sleep", 60.0, priority=0)
        async with at_work(app):
            await running(broker, id)
            await broker.edit(Ids((id,)), Cancel())
            assert (await ended(broker, id)).state is State.CANCELLED
        await broker.close()

    run(main())


def test_a_cancelled_plain_job_sees_it(app: App) -> None:
    @app.task
    def polite(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        ctx.check()

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            id = await put(app, broker, "polite")
            await running(broker, id)
            await broker.edit(Ids((id,)), Cancel())
            assert (await ended(broker, id)).state is State.CANCELLED
        await broker.close()

    run(main())


def test_a_cancelled_plain_job_that_never_asks_is_interrupted(app: App) -> None:
    @app.task
    def deaf() -> None:
        while True:
            time.sleep(0.005)

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            id = await put(app, broker, "deaf")
            await running(broker, id)
            await broker.edit(Ids((id,)), Cancel("enough"))
            record = await ended(broker, id)
            assert (record.state, record.reason) == (State.CANCELLED, "enough")
        await broker.close()

    run(main())


@pytest.mark.parametrize("force", [False, True])
def test_a_cancelled_plain_job_that_asked_may_clean_up_unless_it_is_forced(app: App, force: bool) -> None:
    cleaned: list[str] = []
    stopping = threading.Event()

    @app.task
    def tidy(ctx: Context) -> None:
        try:
            while True:
                ctx.check()
                time.sleep(0.005)
        finally:
            stopping.set()
            end = time.monotonic() + 2.5  # longer than the patience with one that never asks
            while time.monotonic() < end:
                time.sleep(0.005)
            cleaned.append("all")

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            id = await put(app, broker, "tidy")
            await running(broker, id)
            await broker.edit(Ids((id,)), Cancel())
            await until(stopping.is_set)
            if force:
                await broker.edit(Ids((id,)), Cancel(force=True))
            assert (await ended(broker, id)).state is State.CANCELLED
        await broker.close()

    run(main())
    assert cleaned == ([] if force else ["all"])


def test_a_cancelled_plain_job_that_nothing_interrupts_costs_its_executor(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.worker.executor.deadlines.PATIENCE", 0.3)
    said: list[Message] = []
    go = threading.Event()

    @app.task
    def blocked() -> None:
        go.wait(30)

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=said.append):
            id = await put(app, broker, "blocked")
            await running(broker, id)
            await broker.edit(Ids((id,)), Cancel())
            await until(lambda: any(isinstance(message, Stuck) for message in said))
            (outcome,) = next(message for message in said if isinstance(message, Stuck)).outcomes
            assert (outcome.id, outcome.kind) == (id, OutcomeKind.CANCELLED)
        go.set()
        await broker.close()

    run(main())


def test_a_job_may_be_cancelled_before_its_first_step(app: App) -> None:
    """The take and the cancel arrive in one turn: the asyncio task never begins."""

    async def main() -> None:
        broker = await app.connect()
        id = await put(app, broker, "sleep", 60.0)
        async with at_work(app) as executor:
            start = executor._start

            def start_and_cancel(batch: list[Any]) -> None:
                start(batch)
                refs = tuple((t.job.id, t.run) for t in batch)
                executor.hear(SessionNews(executor._session.name, (), refs))

            executor._start = start_and_cancel  # type: ignore[method-assign]
            assert (await ended(broker, id)).state is State.CANCELLED
        await broker.close()

    run(main())


def test_a_cancel_that_comes_after_the_end_and_before_the_settle_still_counts(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect(), verbs=("settle",))
        async with at_work(app, flaky) as executor:
            flaky.error = BrokerAway("not now")
            id = await put(app, broker, "double", 1)
            await until(lambda: executor._session.unsent)
            await broker.edit(Ids((id,)), Cancel("too late?"))
            flaky.error = None
            record = await ended(broker, id)
            assert (record.state, record.reason) == (State.CANCELLED, "too late?")
        await flaky.close()
        await broker.close()

    run(main())


# stopping


def test_a_stop_lets_runs_finish(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        ids = [await put(app, broker, "sleep", 0.4) for _ in range(20)]
        async with at_work(app, grace=30_000) as executor:
            await running(broker, ids[0])
            executor.stop(30_000)
        states = [record.state for record in await broker.get(ids) if record is not None]
        assert sorted(states) == sorted([State.SUCCEEDED] * 8 + [State.READY] * 12)
        await broker.close()

    run(main())


def test_a_stop_without_grace_gives_back_at_no_cost(app: App) -> None:
    @app.task(retries=0)
    def polite(ctx: Context) -> None:
        while not ctx.cancelled:
            time.sleep(0.005)
        ctx.check()

    async def main() -> None:
        broker = await app.connect()
        ids = [await put(app, broker, "sleep", 60.0, retries=0), await put(app, broker, "polite")]
        began = time.monotonic()
        async with at_work(app):
            for id in ids:
                await running(broker, id)
        assert time.monotonic() - began < 15
        for record in await broker.get(ids):
            assert record is not None
            assert (record.state, record.failures, record.suspect) == (State.READY, 0, False)
        assert await broker.audit() == []
        await broker.close()

    run(main())


def test_a_second_stop_shortens_the_first(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        id = await put(app, broker, "sleep", 60.0)
        async with at_work(app) as executor:
            await running(broker, id)
            executor.stop(60_000)
            await asyncio.sleep(0.05)
            executor.stop(0)
            executor.stop(60_000)
        (record,) = await broker.get([id])
        assert record is not None
        assert record.state is State.READY
        await broker.close()

    run(main())


def test_a_stop_does_not_wait_for_a_thread_that_cannot_be_stopped(app: App) -> None:
    go = threading.Event()

    @app.task
    def blocked() -> None:
        go.wait(30)

    async def main() -> None:
        broker = await app.connect()
        id = await put(app, broker, "blocked")
        began = time.monotonic()
        async with at_work(app):
            await running(broker, id)
        assert time.monotonic() - began < 15
        (record,) = await broker.get([id])
        assert record is not None
        assert record.state is State.RUNNING  # nobody else may start it while it still runs here
        go.set()
        await broker.close()

    run(main())


# bad lines


def test_lost_requests_and_replies_change_nothing(app: App) -> None:
    runs: dict[int, int] = {}

    @app.task
    async def count(n: int) -> int:
        runs[n] = runs.get(n, 0) + 1
        return n

    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        flaky.lose = 0.3
        ids = await put_many(app, broker, "count", 60)
        async with at_work(app, flaky):
            for n, id in enumerate(ids):
                assert await result(app, broker, id) == n
            flaky.lose = 0.0
        assert runs == dict.fromkeys(range(60), 1)
        assert await broker.audit() == []
        await flaky.close()
        await broker.close()

    run(main())


@pytest.mark.parametrize("error", [BrokerAway("nobody answers"), BrokerReadOnly("no permission")])
def test_it_resumes_after_an_outage_and_says_so_once(
    app: App, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        async with at_work(app, flaky):
            finishing = await put(app, broker, "sleep", 0.1)
            await running(broker, finishing)
            flaky.error = error
            await asyncio.sleep(0.5)
            waiting = await put(app, broker, "double", 4)
            flaky.error = None
            assert await result(app, broker, finishing) == "slept"
            assert await result(app, broker, waiting) == 8
        await flaky.close()
        await broker.close()

    with caplog.at_level(logging.WARNING, "dray.worker"):
        run(main())
    assert caplog.text.count("no contact with the broker") == 1
    assert caplog.text.count("the broker is back") == 1


def test_an_idle_executor_resumes_after_an_outage(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        flaky.error = BrokerAway("not yet")
        async with at_work(app, flaky):
            await asyncio.sleep(0.3)
            flaky.error = None
            assert await result(app, broker, await put(app, broker, "double", 1)) == 2
        await flaky.close()
        await broker.close()

    run(main())


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db?timeout=100ms", concurrency=4)

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    async def main() -> None:
        broker = await app.connect()
        ids = await put_many(app, broker, "double", 20)
        lock = sqlite3.connect(tmp_path / "q.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        async with at_work(app):
            await asyncio.sleep(0.5)
            lock.execute("ROLLBACK")
            for n, id in enumerate(ids):
                assert await result(app, broker, id) == 2 * n
        lock.close()
        await broker.close()

    run(main())


def test_a_file_that_is_moved_away_and_back_is_waited_for(tmp_path: Path) -> None:
    app = make_app(tmp_path)

    async def main() -> None:
        broker = await app.connect()
        id = await put(app, broker, "sleep", 0.1)
        async with at_work(app):
            await running(broker, id)
            away = tmp_path / "away"
            away.mkdir()
            await broker.close()
            for file in list(tmp_path.glob("q.db*")):
                if file.is_file():
                    file.rename(away / file.name)
            await asyncio.sleep(0.4)
            for file in away.iterdir():
                file.rename(tmp_path / file.name)
            broker = await app.connect()
            assert await result(app, broker, id) == "slept"
            assert await result(app, broker, await put(app, broker, "double", 3)) == 6
        await broker.close()

    run(main())


def test_an_outcome_that_the_broker_refuses_does_not_hold_up_the_others(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class Picky(Flaky):
        async def _call(self, name: str, verb: Any, args: Any, named: Any) -> Any:
            if name == "settle" and any(
                outcome.kind is OutcomeKind.SUCCEEDED and outcome.id == poison for outcome in args[1]
            ):
                raise InvalidInput("result", b"", "not this one")
            return await super()._call(name, verb, args, named)

    poison = ""

    async def main() -> None:
        nonlocal poison
        broker = await app.connect()
        picky = Picky(await app.connect())
        ids = await put_many(app, broker, "double", 6)
        poison = ids[2]
        async with at_work(app, picky):
            for n, id in enumerate(ids):
                if id != poison:
                    assert await result(app, broker, id) == 2 * n
            record = await ended(broker, poison)
            assert record.state is State.DEAD
            assert "could not be stored" in (record.reason or "")
        await picky.close()
        await broker.close()

    run(main())


# sessions


def test_a_lost_session_drops_what_it_held_and_goes_on_under_a_new_name(app: App) -> None:
    said: list[Message] = []
    stopped: list[str] = []

    @app.task
    async def linger() -> str:
        if current().run > 1:
            return "the second run"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            stopped.append("linger")
            raise
        return "never"

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=said.append):
            id = await put(app, broker, "linger")
            await running(broker, id)
            first = next(message for message in said if isinstance(message, Started))
            assert first.session == "w/1.1"
            assert first.tasks["linger"][0] == __file__
            await broker.release(first.session)
            assert await result(app, broker, id) == "the second run"
            names = [message.session for message in said if isinstance(message, Started)]
            assert names == ["w/1.1", "w/1.2"]
        assert stopped == ["linger"]
        assert await broker.audit() == []
        await broker.close()

    run(main())


def test_a_session_that_is_merely_late_is_kept(tmp_path: Path) -> None:
    app = make_app(tmp_path, lease="300ms")
    said: list[Message] = []

    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        async with at_work(app, flaky, send=said.append):
            id = await put(app, broker, "sleep", 0.2)
            await running(broker, id)
            flaky.error = BrokerAway("for longer than the lease")
            await asyncio.sleep(0.8)
            flaky.error = None
            assert await result(app, broker, id) == "slept"
            (record,) = await broker.get([id])
            assert record is not None
            assert record.run == 1
            assert await result(app, broker, await put(app, broker, "double", 2)) == 4
        assert [type(message) for message in said].count(Started) == 1
        await flaky.close()
        await broker.close()

    run(main())


def test_what_the_supervisor_hears_is_heeded(app: App) -> None:
    said: list[Message] = []

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=said.append, renews=False) as executor:
            ids = [await put(app, broker, "sleep", 60.0) for _ in range(2)]
            for id in ids:
                await running(broker, id)
            session = executor._session.name
            executor.hear(SessionNews("somebody else", (), ((ids[0], 1),)))
            executor.hear(SessionNews(session, ((ids[0], 1),), ((ids[1], 1),)))
            assert (await ended(broker, ids[1])).state is State.CANCELLED
            executor.hear(SessionLapsed("somebody else"))
            assert executor._session.name == session
            executor.hear(SessionLapsed(session))
            await until(lambda: [type(m) for m in said].count(Started) == 2)
        await broker.close()

    run(main())


def test_a_lost_run_is_stopped_and_its_outcome_dropped(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app) as executor:
            id = await put(app, broker, "sleep", 60.0)
            await running(broker, id)
            (taken_over,) = executor._runs.values()
            executor.reported(taken_over, Progress(1.0))
            executor.hear(SessionNews(executor._session.name, ((id, 1), ("unheard-of", 9)), ()))
            assert not executor._reports.of({(id, 1): None})
            # The broker had not really given it to anybody else, so it comes here again.
            await when(broker, id, lambda record: record.run == 2)
            assert taken_over not in executor._runs.values()
            await broker.edit(Ids((id,)), Cancel())
            assert await result(app, broker, await put(app, broker, "double", 1)) == 2
        await broker.close()

    run(main())


# retiring


def test_a_thread_that_nobody_can_stop_makes_it_retire_and_is_told_as_stuck(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.worker.executor.deadlines.PATIENCE", 0.3)
    said: list[Message] = []
    go = threading.Event()

    @app.task
    def blocked() -> None:
        go.wait(30)

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=said.append):
            other = await put(app, broker, "sleep", 1.0)
            id = await put(app, broker, "blocked", timeout=100, retries=0)
            await until(lambda: any(isinstance(message, Stuck) for message in said))
            kinds = [type(message) for message in said if isinstance(message, Retiring | Stuck)]
            assert kinds == [Retiring, Stuck]
            assert await result(app, broker, other) == "slept"
            stuck = next(message for message in said if isinstance(message, Stuck))
            (outcome,) = stuck.outcomes
            assert (outcome.id, outcome.run, outcome.kind) == (id, 1, OutcomeKind.DEAD)
            assert outcome.error is not None
            assert outcome.error.type == "Timeout"
            left_over = await put(app, broker, "double", 1)
            await asyncio.sleep(0.1)
            (record,) = await broker.get([left_over])
            assert record is not None
            assert record.state is State.READY
        go.set()
        await broker.close()

    run(main())


def test_it_retires_after_so_many_jobs(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_jobs_per_process=10, concurrency=4)
    said: list[Message] = []

    async def main() -> None:
        broker = await app.connect()
        ids = await put_many(app, broker, "double", 25)
        async with at_work(app, send=said.append) as executor:
            await until(lambda: any(isinstance(message, Retiring) for message in said))
            await until(lambda: not executor._runs)
        states = [record.state for record in await broker.get(ids) if record is not None]
        assert states.count(State.SUCCEEDED) == 10
        assert states.count(State.READY) == 15
        counted = [message for message in said if isinstance(message, RunCounts)]
        assert counted[-1] == RunCounts(10, 0, 0)
        await broker.close()

    run(main())


def test_it_retires_when_it_uses_too_much_memory(tmp_path: Path) -> None:
    app = make_app(tmp_path, max_memory="16MiB")
    said: list[Message] = []

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=said.append):
            await until(lambda: any(isinstance(message, Retiring) for message in said))
        retiring = next(message for message in said if isinstance(message, Retiring))
        assert "max_memory" in retiring.reason
        await broker.close()

    run(main())


def test_in_a_burst_it_looks_for_work_again_after_each_settle(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        ids = await put_many(app, broker, "double", 30)
        async with at_work(app, broker, burst=True) as executor:
            for id in ids:
                assert (await ended(broker, id)).state is State.SUCCEEDED
            await until(lambda: executor._no_work)
            assert await result(app, broker, await put(app, broker, "double", 30)) == 60
            await until(lambda: executor._no_work and not executor._session.unsent)
        await broker.close()

    run(main())


def test_its_pulse_shows_that_it_lives_and_what_it_runs(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        pulse = SharedHeartbeat.make()
        async with at_work(app, heartbeat=pulse):
            await until(lambda: pulse.read("tried"))
            assert pulse.read("deadline") == 0
            id = await put(app, broker, "sleep", 60.0, timeout=10_000)
            await until(lambda: pulse.read("running") == 1)
            left = (pulse.read("deadline") - time.monotonic_ns()) / 1e9
            assert 5 < left <= 15
            beat = pulse.read("beat")
            await until(lambda: pulse.read("beat") > beat)
            await broker.edit(Ids((id,)), Cancel())
            await until(lambda: pulse.read("running") == 0 and pulse.read("deadline") == 0)
        pulse.close()
        await broker.close()

    run(main())


def test_an_orphan_sends_what_is_finished_and_ends(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, renews=False) as executor:
            done, going = await put(app, broker, "double", 1), await put(app, broker, "sleep", 60.0)
            await ended(broker, done)
            await running(broker, going)
            executor.abandon()
            await asyncio.sleep(0.2)
            (record,) = await broker.get([going])
            assert record is not None
            assert record.state is State.RUNNING
        await broker.close()

    run(main())


# quiet and fast


def test_idle_it_makes_no_calls(app: App) -> None:
    async def main() -> None:
        flaky = Flaky(await app.connect())
        async with at_work(app, flaky):
            await until(lambda: flaky.calls.get("wait"))
            await asyncio.sleep(0.2)
            before = dict(flaky.calls)
            await asyncio.sleep(1.0)
            made = {name: flaky.calls[name] - before.get(name, 0) for name in flaky.calls}
            assert sum(made.values()) <= 2, made
        await flaky.close()

    run(main())


def test_under_load_batches_are_settled_and_taken_together(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        flaky = Flaky(await app.connect())
        ids = await put_many(app, broker, "double", 800)
        async with at_work(app, flaky):
            await ended(broker, ids[-1])
            await until(lambda: flaky.calls["settle"] >= 100)
            assert flaky.calls["take"] <= 130
            assert flaky.calls["settle"] <= 130
            assert flaky.calls["wait"] <= 10
        await flaky.close()
        await broker.close()

    run(main())


def test_it_runs_on_a_virtual_clock_without_threads() -> None:
    app = App("t", broker="memory://")
    runs: list[str] = []

    @app.task(timeout=30, retries=1, backoff="fixed:60s,jitter=0")
    async def slow() -> None:
        runs.append("slow")
        await asyncio.sleep(3600)

    @app.task
    def plain() -> None:
        runs.append("plain")

    async def main() -> float:
        loop = asyncio.get_running_loop()
        start = 1_700_000_000_000
        clock: Callable[[], int] = lambda: start + int(loop.time() * 1000)  # noqa: E731
        broker = MemoryBroker("t", clock=clock)
        executor = Executor(
            app,
            broker,
            settings=app.settings,
            session_name="w/1",
            runners=on_loop_only,
            clock=clock,
            random=lambda: 0.5,
        )
        running = loop.create_task(executor.run())
        jobs = [app.job_builder.build(app.tasks[name].call()) for name in ("slow", "plain")]
        await broker.put(jobs)
        while True:
            (record,) = await broker.get([jobs[0].id])
            if record is not None and record.state.finished:
                break
            await asyncio.sleep(1)
        executor.stop(0)
        await running
        assert record.state is State.DEAD
        return loop.time()

    took = run_virtually(main(), 1)
    assert runs.count("slow") == 2
    assert runs.count("plain") == 1
    assert 120 <= took < 140


def test_a_plain_task_that_waits_for_another_job_gives_back_its_slot(tmp_path: Path) -> None:
    """One slot, and jobs that wait for jobs that wait for jobs: nobody waits for ever."""
    app = App("t", broker=f"sqlite:///{tmp_path / 'jobs.db'}", concurrency=1)

    @app.task
    def depth(n: int) -> int:
        return 0 if n == 0 else 1 + depth.enqueue(n - 1).get(timeout=PATIENCE)

    async def main() -> int:
        async with at_work(app):
            return await depth.enqueue(3).aget(timeout=PATIENCE)

    assert run(main()) == 3
