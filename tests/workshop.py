"""Where tests run real executors, and single runs outside of any; and a broker on a bad line."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dray.app import App
from dray.broker.verbs import Broker
from dray.errors import BrokerAway
from dray.job import Job, Outcome, Progress, Record, Taken
from dray.worker.channel import Message
from dray.worker.executor.executor import Executor
from dray.worker.run.child_pool import ChildPool
from dray.worker.run.child_process import spawner
from dray.worker.run.operations import RunSteps
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import OnLoop, Runners
from dray.worker.run.requests import Request
from dray.worker.run.run_state import RunState
from dray.worker.run.threads import Threads

T = TypeVar("T")
NOW = 1_700_000_000_000
PATIENCE = 30.0
"""Seconds for what takes a moment on a quiet machine."""


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(main)


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait for a condition that something else brings about."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.005)


class Host:
    """Stands where an executor stands, and notes what runs say."""

    def __init__(self, app: App, state: object = None) -> None:
        self.app, self.state, self.thread = app, state, threading.get_ident()
        self.progress: list[Progress] = []
        self.beats = 0
        self.away: list[bool] = []

    def reported(self, live: RunState, progress: Progress) -> None:
        self.progress.append(progress)

    def beaten(self, live: RunState) -> None:
        self.beats += 1

    def waits(self, live: RunState, begins: bool) -> None:
        self.away.append(begins)

    def open_steps(self, live: RunState) -> RunSteps:
        raise NotImplementedError("these runs have no steps")

    async def ask(self, live: RunState, request: Request) -> object:
        raise NotImplementedError("these runs have no steps")


def judge_of(app: App) -> Judge:
    return Judge(app, app.settings, lambda: NOW, lambda: 0.5)


def live_of(
    app: App, name: str, *args: Any, attempt: int = 1, host: Host | None = None, **fields: Any
) -> RunState:
    """A run of one call, as an executor makes it."""
    job: Job = app.job_builder.build(app.tasks[name].call(*args))
    taken = Taken(msgspec.structs.replace(job, **fields) if fields else job, 1, attempt)
    return RunState(host or Host(app), app.tasks[name], taken, (job.id, 1), 1.5)


class Ends:
    """Collects what runs come to."""

    def __init__(self) -> None:
        self.outcomes: dict[RunState, Outcome] = {}

    def __call__(self, live: RunState, outcome: Outcome) -> None:
        assert live not in self.outcomes, "it ended twice"
        self.outcomes[live] = outcome

    async def of(self, live: RunState, seconds: float = PATIENCE) -> Outcome:
        await until(lambda: live in self.outcomes, seconds)
        return self.outcomes[live]


async def call_here(live: RunState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function on the event loop, without a thread."""
    return live.task.function(*args, **kwargs)


def on_loop_only(judge: Judge) -> Runners:
    """Everything on the event loop, also plain functions."""
    runner = OnLoop(judge, call_here)
    return Runners(runner, runner, runner)


def with_threads(judge: Judge) -> Runners:
    threads = Threads(judge)
    on_loop = OnLoop(judge, threads.call, threads)
    return Runners(on_loop, threads, on_loop)


def with_children(app: str, folder: Path, settings: Any) -> Callable[[Judge], Runners]:
    def make(judge: Judge) -> Runners:
        threads = Threads(judge)
        children = ChildPool(judge, spawner(app, settings, folder))
        return Runners(OnLoop(judge, threads.call, threads), threads, children)

    return make


@asynccontextmanager
async def at_work(
    app: App,
    broker: Broker | None = None,
    *,
    runners: Callable[[Judge], Runners] = with_threads,
    send: Callable[[Message], None] | None = None,
    name: str = "w/1",
    grace: int = 0,
    **options: Any,
) -> AsyncIterator[Executor]:
    """An executor of the app, at work until the block ends."""
    own = broker or await app.connect()
    executor = Executor(
        app,
        own,
        settings=app.settings,
        session_name=name,
        runners=runners,
        clock=lambda: time.time_ns() // 1_000_000,
        random=random.Random(7).random,
        send=send,
        **options,
    )
    running = asyncio.create_task(executor.run())
    try:
        yield executor
    finally:
        if not running.done():
            executor.stop(grace)
        await asyncio.wait_for(running, PATIENCE)
        if isinstance(pool := executor._runners.in_children, ChildPool):
            # A loop that is closed before the end of a killed child is noticed leaks its socket.
            await until(lambda: not pool.children)
        if broker is None:
            await own.close()
        app.close()


async def ended(broker: Broker, id: str, seconds: float = PATIENCE) -> Record:
    """The record of a job once it is finished."""
    return await when(broker, id, lambda record: record.state.finished, seconds)


async def when(
    broker: Broker, id: str, condition: Callable[[Record], object], seconds: float = PATIENCE
) -> Record:
    end = time.monotonic() + seconds
    while True:
        (record,) = await broker.get([id])
        if record is not None and condition(record):
            return record
        assert time.monotonic() < end, f"still {record.state if record else 'not there'}"
        await asyncio.sleep(0.01)


class Flaky:
    """A broker on a bad line: calls fail before or after their effect, some or all of them."""

    def __init__(
        self, broker: Broker, *, verbs: tuple[str, ...] = ("take", "settle", "renew", "wait")
    ) -> None:
        self._broker, self._verbs = broker, verbs
        self.dice = random.Random(3)
        self.lose = 0.0
        """The share of calls whose request or reply is lost."""
        self.error: Exception | None = None
        """Every call fails with this, before it has any effect."""
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._broker, name)
        if name not in self._verbs:
            return verb

        async def call(*args: Any, **named: Any) -> Any:
            return await self._call(name, verb, args, named)

        return call

    async def _call(
        self, name: str, verb: Callable[..., Awaitable[Any]], args: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        luck = self.dice.random()
        if luck < self.lose / 2:
            raise BrokerAway("the request was lost")
        answer = await verb(*args, **named)
        if luck < self.lose:
            raise BrokerAway("the reply was lost")
        return answer
