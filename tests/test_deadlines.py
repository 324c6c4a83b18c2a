"""Deadlines in a worker: a run is interrupted at its job's deadline as by a timeout, and the job is dead."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from workshop import at_work, ended, judge_of, live_of, run, until, when, with_children

from dray.app import App
from dray.broker.rules import OVERDUE
from dray.broker.verbs import Broker
from dray.context import Context, Retry
from dray.errors import JobFailed, JobStopped
from dray.job import GROUP_MAX, Job, OutcomeKind, Record, State, Taken
from dray.loading import load_app
from dray.worker.channel import Message, Stuck
from dray.worker.run.run_state import Interrupted, StopReason

LATE = "it was not finished within its deadline of 0.3 s"


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db", concurrency=8)

    @app.task
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @app.task
    def spin() -> None:
        while True:
            time.sleep(0.001)

    return app


async def put(app: App, broker: Broker, name: str, *args: Any, **fields: Any) -> str:
    job: Job = app.job_builder.build(app.tasks[name].call(*args))
    (accepted,) = await broker.put([msgspec.structs.replace(job, **{"deadline": 300, **fields})])
    return accepted.id


def is_missed(record: Record) -> bool:
    error = record.error
    assert error is not None
    assert (record.state, record.reason) == (State.DEAD, OVERDUE)
    assert (error.type, error.message) == ("Timeout", LATE)
    assert record.run == 1
    return True


@pytest.mark.parametrize(("task", "args"), [("sleep", (60.0,)), ("spin", ())])
def test_a_run_is_interrupted_at_its_deadline_and_never_retried(
    app: App, task: str, args: tuple[float, ...]
) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            other = await put(app, broker, "sleep", 0.6, deadline=None)
            before = time.monotonic()
            record = await ended(broker, await put(app, broker, task, *args, retries=5))
            assert time.monotonic() - before < 3
            assert is_missed(record)
            assert record.error is not None
            assert f"in {task}" in record.error.traceback
            assert (await ended(broker, other)).state is State.SUCCEEDED
        await broker.close()

    run(main())


def test_the_earlier_of_timeout_and_deadline_counts(app: App) -> None:
    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            id = await put(app, broker, "sleep", 60.0, timeout=100, deadline=60_000, retries=0)
            record = await ended(broker, id)
            assert record.reason == "failed: Timeout: it ran longer than its timeout of 0.1 s (1 attempt)"
            retried = await put(app, broker, "sleep", 60.0, timeout=100, deadline=60_000, retries=1)
            await when(broker, retried, lambda record: record.state is State.RETRYING)
            assert is_missed(await ended(broker, await put(app, broker, "sleep", 60.0, timeout=50_000)))
        await broker.close()

    run(main())


def test_a_heartbeat_does_not_move_the_deadline(app: App) -> None:
    @app.task(timeout=0.2)
    async def alive(ctx: Context) -> None:
        while True:
            await asyncio.sleep(0.05)
            ctx.heartbeat()

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            assert is_missed(await ended(broker, await put(app, broker, "alive")))
        await broker.close()

    run(main())


def test_a_failure_after_the_deadline_is_dead_too_and_a_success_is_a_success(app: App) -> None:
    @app.task
    async def late(error: str) -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            if error == "retry":
                raise Retry(delay=0) from None
            if error:
                raise ValueError(error) from None
        return "done"

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app):
            for error, type in [("no luck", "ValueError"), ("retry", "Retry")]:
                record = await ended(broker, await put(app, broker, "late", error, retries=5))
                assert (record.state, record.reason, record.run) == (State.DEAD, OVERDUE, 1)
                assert record.error is not None
                assert record.error.type == type
            assert (await ended(broker, await put(app, broker, "late", ""))).state is State.SUCCEEDED
        await broker.close()

    run(main())


def test_a_thread_that_nothing_interrupts_keeps_its_slot_and_is_left_to_the_supervisor(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.worker.executor.deadlines.PATIENCE", 0.3)
    sent: list[Message] = []
    go = threading.Event()

    @app.task
    def blocked() -> None:
        go.wait(30)

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, send=sent.append) as executor:
            id = await put(app, broker, "blocked")
            await until(lambda: any(isinstance(message, Stuck) for message in sent))
            (outcome,) = next(message for message in sent if isinstance(message, Stuck)).outcomes
            assert (outcome.id, outcome.kind, outcome.reason) == (id, OutcomeKind.DEAD, OVERDUE)
            assert (id, 1) in executor._runs
        go.set()
        await broker.close()

    run(main())


@pytest.mark.parametrize("error", [JobStopped("id", "stop"), asyncio.CancelledError(), Interrupted()])
def test_the_task_sees_what_it_sees_of_a_timeout(app: App, error: BaseException) -> None:
    live = live_of(app, "sleep", 1.0, deadline=300)
    live.stop_reason = StopReason.DEADLINE
    for outcome in (judge_of(app).failure(live, error), judge_of(app).stopped(live)):
        assert (outcome.kind, outcome.reason) == (OutcomeKind.DEAD, OVERDUE)
        assert outcome.error is not None
        assert (outcome.error.type, outcome.error.message) == ("Timeout", LATE)


TASKS = """
import asyncio, time
from dray.app import App

app = App("t", broker="sqlite:///{folder}/q.db", concurrency=8)

@app.task(isolate="process")
def alone():
    time.sleep(60)

@app.task
async def sleep():
    await asyncio.sleep(60)

@app.task
def spin():
    while True:
        time.sleep(0.001)

@app.task
async def short():
    await asyncio.sleep(2)
    return "done"
"""


@pytest.fixture
def isolated(tmp_path: Path) -> Iterator[tuple[App, str]]:
    name = f"deadlines_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(TASKS.replace("{folder}", str(tmp_path)), encoding="utf-8")
    yield load_app(f"{name}:app", tmp_path), f"{name}:app"
    sys.path.remove(str(tmp_path))


def test_a_child_process_is_killed_at_the_deadline(isolated: tuple[App, str], tmp_path: Path) -> None:
    app, path = isolated

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, runners=with_children(path, tmp_path, app.settings)):
            record = await ended(broker, await put(app, broker, "alone", deadline=3000, retries=5))
            assert (record.state, record.reason, record.run) == (State.DEAD, OVERDUE, 1)
            assert record.error is not None
            assert record.error.message == "it was not finished within its deadline of 3 s"
            # One that is still starting its process is not waited for.
            assert is_missed(await ended(broker, await put(app, broker, "alone", deadline=300)))
        await broker.close()

    run(main())


class Suspicious:
    """A broker whose jobs are all suspects."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    async def take(self, *args: Any, **named: Any) -> list[Taken]:
        taken = await self._broker.take(*args, **named)
        return [msgspec.structs.replace(one, suspect=GROUP_MAX) for one in taken]


def test_a_suspect_is_stopped_at_its_deadline_and_its_neighbours_go_on(
    isolated: tuple[App, str], tmp_path: Path
) -> None:
    app, path = isolated

    async def main() -> None:
        broker = await app.connect()
        suspicious: Any = Suspicious(broker)
        ids = [await put(app, broker, task, deadline=3000) for task in ("sleep", "spin")]
        other = await put(app, broker, "short", deadline=None)
        async with at_work(app, suspicious, runners=with_children(path, tmp_path, app.settings)):
            for id in ids:
                record = await ended(broker, id)
                assert (record.state, record.reason) == (State.DEAD, OVERDUE)
            record = await ended(broker, other)
            assert (record.state, record.run) == (State.SUCCEEDED, 1)
        await broker.close()

    run(main())


def test_a_job_that_failed_and_then_missed_its_deadline_says_so() -> None:
    app = App("shop", broker="memory://")

    @app.task(deadline="10s", retries=5, backoff="fixed:60s")
    def fails() -> None:
        raise ValueError("boom")

    with app.testing() as t:
        job = fails.enqueue()
        t.advance("2m")
        with pytest.raises(JobFailed, match="not finished in time") as caught:
            job.get(timeout=0)
    assert caught.value.type == "deadline"
