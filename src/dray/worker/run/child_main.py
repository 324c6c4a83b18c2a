"""The main program of an executor's child process, which runs jobs and can be killed.

It runs one job with `isolate="process"` at a time, or a group of suspects (jobs whose worker died). It
imports the app and enters its lifespan like an executor, but talks only to its executor, which numbers the
runs.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from dray.app import App
from dray.context import CURRENT
from dray.errors import TooLarge
from dray.job import Outcome, Progress, Taken
from dray.loading import load_app
from dray.settings import Settings
from dray.worker import logs
from dray.worker.channel import Frames, Message, frame
from dray.worker.config import ChildConfig
from dray.worker.process import die_with, forget_peak, new_event_loop, peak_memory, run_to_end
from dray.worker.run.durable_run import DurableRun
from dray.worker.run.meter import Meter
from dray.worker.run.operations import RunSteps
from dray.worker.run.outcome import Judge, describe
from dray.worker.run.perform import OnLoop, Runner
from dray.worker.run.requests import REPLIES, AnyRequest, Request, RunLost
from dray.worker.run.run_state import RunState, StopReason
from dray.worker.run.threads import Threads

FLUSH: Final = 5.0
"""Seconds that sending a trace span may take."""


# executor → child


class RunJob(Message, frozen=True):
    """Run this job."""

    number: int
    taken: Taken
    timeout: float
    """Seconds. The executor keeps the time; the child names it in errors."""
    now: int
    """The broker's time, which the child cannot ask for."""
    alone: bool
    """No other job runs in the process: its CPU time and memory are the job's."""


class StopRun(Message, frozen=True):
    """Ask a run to stop."""

    number: int
    reason: StopReason
    overdue: bool


class Answer(Message, frozen=True):
    """The reply to a `RunAsks`; `lost`: the run is not valid any more; `refused`: the log has no room."""

    number: int
    reply: bytes
    lost: bool = False
    refused: str = ""


# child → executor


class RunAsks(Message, frozen=True):
    """A durable run asks something of the broker."""

    number: int
    ask: int
    request: AnyRequest


class ChildReady(Message, frozen=True):
    """The app is imported, its lifespan entered."""


class ChildUnfit(Message, frozen=True):
    """The child could not start."""

    reason: str


class RunBegun(Message, frozen=True):
    """The job begins: from now on it may be the cause if the process dies."""

    number: int


class RunEnded(Message, frozen=True):
    """The outcome of a run, and what it used."""

    number: int
    outcome: Outcome
    took: float
    """Seconds, like `cpu`."""
    cpu: float
    memory: int
    """The peak of this process in bytes; 0 if other jobs ran beside it."""
    steps_run: int = 0
    steps_replayed: int = 0


class RunProgress(Message, frozen=True):
    """The task called `ctx.progress()`."""

    number: int
    progress: Progress


class RunHeartbeat(Message, frozen=True):
    """The task called `ctx.heartbeat()`."""

    number: int


class RunWaits(Message, frozen=True):
    """The run begins, or ends, to wait for another job."""

    number: int
    begins: bool


class RunOnLoop(Message, frozen=True):
    """The run that the event loop was inside of when a `StopRun` arrived; 0: none that is known.

    Sent by a thread: if no `LoopAnswered` follows, that run blocks the loop.
    """

    number: int


class LoopAnswered(Message, frozen=True):
    """The event loop has handled a `StopRun`: it is not blocked."""


FromChild = (
    ChildReady
    | ChildUnfit
    | RunBegun
    | RunEnded
    | RunProgress
    | RunHeartbeat
    | RunWaits
    | RunAsks
    | RunOnLoop
    | LoopAnswered
)
ToChild = RunJob | StopRun | Answer

decode_order = msgspec.msgpack.Decoder(ToChild).decode
decode_report = msgspec.msgpack.Decoder(FromChild).decode


class ChildProgram:
    """Runs the jobs that its executor sends, on its event loop or in threads."""

    def __init__(self, app: App, settings: Settings, connection: socket.socket) -> None:
        self.app, self.state, self.thread = app, None, threading.get_ident()
        self._settings, self._connection = settings, connection
        self._sending = threading.Lock()
        self._loop: asyncio.AbstractEventLoop
        self._asked = count(1)
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._runs: dict[int, RunState] = {}
        self._numbers: dict[RunState, int] = {}
        self._ahead = 0
        """Milliseconds by which the broker's clock is ahead of the monotonic one."""
        self._usage: ProcessUsage | None = None
        """Of a run that has this process for itself."""
        self._judge: Judge
        self._on_loop: Runner
        self._threads: Runner

    async def main(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        async with self.app.open_lifespan() as state:
            self.state = state
            dice = random.Random()  # noqa: S311 (jitter)
            judge = self._judge = Judge(self.app, self._settings, self._clock, dice.random)
            threads = self._threads = Threads(judge)
            self._on_loop = OnLoop(judge, threads.call, threads)
            threading.Thread(target=self._read, args=(loop,), name="dray orders", daemon=True).start()
            self.send(ChildReady())
            await loop.create_future()  # until it is killed, or its executor ends

    def _clock(self) -> int:
        return self._ahead + _steady()

    def _do(self, order: RunJob) -> None:
        self._ahead = order.now - _steady()
        taken = order.taken
        task = self.app.all_tasks()[taken.job.task]
        run = RunState(self, task, taken, (taken.job.id, taken.run), order.timeout)
        self._runs[order.number], self._numbers[run] = run, order.number
        run.runner = self._on_loop if task.is_async or self._judge.middleware else self._threads
        self.send(RunBegun(order.number))
        self._usage = ProcessUsage() if order.alone else None
        if not order.alone:
            run.meter = Meter(time.perf_counter, time.thread_time, None)
        run.runner.start(run, self._ended)

    def _ended(self, run: RunState, outcome: Outcome) -> None:
        number = self._numbers.pop(run)
        del self._runs[number]
        steps = (run.steps_run, run.steps_replayed)
        if self._usage is not None:
            self.send(RunEnded(number, outcome, *self._usage.so_far(), *steps))
        elif run.meter is not None:
            self.send(RunEnded(number, outcome, run.meter.end(), run.meter.cpu, 0, *steps))
        if self.app.tracing is not None:  # it will be killed: no span may be left unsent
            asyncio.get_running_loop().run_in_executor(None, self.app.tracing.flush, FLUSH)

    def _halt(self, order: StopRun) -> None:
        run = self._runs.get(order.number)
        if run is not None:
            run.stop_reason, run.cancelled = order.reason, True
            run.overdue = run.overdue or order.overdue
            run.runner.stop(run)
        self.send(LoopAnswered())

    # as a `RunHost`; a task may call these from any thread

    def reported(self, run: RunState, progress: Progress) -> None:
        self._report(run, lambda number: RunProgress(number, progress))

    def beaten(self, run: RunState) -> None:
        self._report(run, RunHeartbeat)

    def waits(self, run: RunState, begins: bool) -> None:
        self._report(run, lambda number: RunWaits(number, begins))

    def open_steps(self, run: RunState) -> RunSteps:
        return RunSteps(DurableRun(run, self._judge, self.ask, self._loop))

    async def ask(self, run: RunState, request: Request) -> Any:
        """Ask the executor, which has the broker."""
        number, ask = self._numbers.get(run), next(self._asked)
        if number is None:
            raise RunLost(run.taken.job.id)
        answered = self._answers[ask] = self._loop.create_future()
        try:
            self.send(RunAsks(number, ask, request))  # type: ignore[arg-type]  # one of the union
            answer = await answered
        finally:
            del self._answers[ask]
        if answer.lost:
            raise RunLost(run.taken.job.id)
        if answer.refused:
            raise TooLarge(answer.refused)
        return msgspec.msgpack.decode(answer.reply, type=REPLIES[type(request)])

    def _answered(self, answer: Answer) -> None:
        future = self._answers.get(answer.number)
        if future is not None and not future.done():
            future.set_result(answer)

    def _report(self, run: RunState, make: Callable[[int], Message]) -> None:
        number = self._numbers.get(run)
        if number is not None:  # else a thread that the run left behind calls after its end
            self.send(make(number))

    def send(self, message: Message) -> None:
        with self._sending:
            self._connection.sendall(frame(message))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Read orders in a thread, which notices the end of the executor even while a job blocks the loop."""
        frames = Frames()
        while data := _receive(self._connection):
            for body in frames.feed(data):
                order = decode_order(body)
                if isinstance(order, RunJob):
                    loop.call_soon_threadsafe(self._do, order)
                elif isinstance(order, Answer):
                    loop.call_soon_threadsafe(self._answered, order)
                else:
                    self.send(RunOnLoop(self._on_loop_now(loop)))
                    loop.call_soon_threadsafe(self._halt, order)
        os._exit(1)

    def _on_loop_now(self, loop: asyncio.AbstractEventLoop) -> int:
        task = asyncio.current_task(loop)
        if task is None:
            return 0
        # A task that a job has started is recognised by its context, which Python shows from 3.12 on.
        context: Any = getattr(task, "get_context", dict)()
        current = context.get(CURRENT)
        runs = list(self._numbers.items())
        return next((number for run, number in runs if run is current or run.handle is task), 0)


class ProcessUsage:
    """What this process uses from now on, with the processes that its job started and waited for."""

    def __init__(self) -> None:
        forget_peak()
        self._began, self._cpu = time.perf_counter(), _cpu_time()

    def so_far(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds, and the most bytes at a time."""
        return time.perf_counter() - self._began, _cpu_time() - self._cpu, peak_memory()


def _cpu_time() -> float:
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in use)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> None:
    config = ChildConfig.from_environ()
    die_with(config.parent)
    signal.signal(signal.SIGINT, lambda *_: None)
    faulthandler.enable()
    connection = socket.socket(fileno=config.channel)
    os.set_inheritable(config.channel, False)
    sys.path[:] = config.path
    try:
        app = load_app(config.app, Path(config.folder))
        app.use(msgspec.structs.replace(app.loaded, settings=config.settings))
        logs.set_up(config.settings)
        run_to_end(new_event_loop(), ChildProgram(app, config.settings, connection).main())
    except BaseException as error:
        text = describe(error)
        connection.sendall(frame(ChildUnfit(f"{text.type}: {text.message}\n{text.traceback}"[-2000:])))
    os._exit(1)


if __name__ == "__main__":
    main()
