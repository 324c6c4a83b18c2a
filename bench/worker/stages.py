"""Where a job's CPU time goes in an executor: measured in this process, on the real executor."""

from __future__ import annotations

import asyncio
import cProfile
import io
import pstats
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.worker.drains import PAYLOAD, fill
from bench.worker.plan import Plan
from dray import App
from dray.broker.verbs import Broker
from dray.worker.channel import Message, RunCounts
from dray.worker.executor.executor import Executor
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runners
from dray.worker.run.threads import Threads

TOP = 14


@dataclass(frozen=True)
class Stage:
    """CPU microseconds per job of one kind of task, by part."""

    name: str
    parts: dict[str, float]

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def measure_stages(plan: Plan, folder: Path) -> list[Stage]:
    folder.mkdir()
    return [_stage(plan, folder, "async", "noop"), _stage(plan, folder, "sync", "plain_noop")]


def _stage(plan: Plan, folder: Path, name: str, task: str) -> Stage:
    path = folder / f"{name}.db"
    fill(path, task, plan.jobs)
    app = _app(path)
    spent: dict[str, float] = {"take": 0.0, "settle": 0.0}
    before = time.process_time()
    asyncio.run(_drain(app, spent, plan.jobs))
    whole = (time.process_time() - before) / plan.jobs * 1e6
    take, settle = (spent[verb] / plan.jobs * 1e6 for verb in ("take", "settle"))
    decode = _decoding(app, task, plan.jobs)
    return Stage(
        name,
        {"take": take, "decode": decode, "run": max(0.0, whole - take - settle - decode), "settle": settle},
    )


def profile(plan: Plan, folder: Path) -> str:
    """The functions that an executor spends most time in."""
    folder.mkdir()
    path = folder / "profile.db"
    fill(path, "noop", plan.jobs)
    recorded = cProfile.Profile()
    app = _app(path)
    recorded.enable()
    asyncio.run(_drain(app, {}, plan.jobs))
    recorded.disable()
    text = io.StringIO()
    pstats.Stats(recorded, stream=text).strip_dirs().sort_stats("tottime").print_stats(TOP)
    lines = text.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if "tottime" in line)
    return "```\n" + "\n".join(line for line in lines[first:] if line.strip()) + "\n```\n"


def _app(path: Path) -> App:
    app = App("bench", namespace="dray", broker=f"sqlite:///{path}", concurrency=100)

    @app.task
    async def noop(payload: str) -> None: ...

    @app.task
    def plain_noop(payload: str) -> None: ...

    return app


async def _drain(app: App, spent: dict[str, float], jobs: int) -> None:
    """A bare executor, without supervisor, until all jobs have run."""
    broker = await app.connect()
    for verb in spent:
        setattr(broker, verb, _timed(broker, verb, spent))

    def runners(judge: Judge) -> Runners:
        threads = Threads(judge)
        return Runners(OnLoop(judge, threads.call, threads), threads, threads)

    def hear(message: Message) -> None:
        if isinstance(message, RunCounts) and message.succeeded + message.failed >= jobs:
            executor.stop(0)

    executor = Executor(
        app,
        broker,
        settings=app.settings,
        session_name="bench",
        runners=runners,
        clock=app.clock,
        random=random.random,
        burst=True,
        send=hear,
    )
    await executor.run()
    await broker.close()


def _timed(broker: Broker, verb: str, spent: dict[str, float]) -> Callable[..., Any]:
    call = getattr(broker, verb)

    async def timed(*args: Any, **named: Any) -> Any:
        before = time.thread_time()
        try:
            return await call(*args, **named)
        finally:
            spent[verb] += time.thread_time() - before

    return timed


def _decoding(app: App, task: str, count: int) -> float:
    payload = app.codecs.encode_call((PAYLOAD,), {})
    hints = app.tasks[task].hints
    before = time.process_time()
    for _ in range(count):
        app.codecs.decode_call(payload, hints)
    return (time.process_time() - before) / count * 1e6
