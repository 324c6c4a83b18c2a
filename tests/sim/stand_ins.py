"""Runners of simulated jobs: programs on the virtual loop in place of threads and child processes.

A thread cannot be cancelled: it stops when it looks for itself, or when it is interrupted between two of its
steps, and one that is deaf goes on whatever is done. A child is a process of its own, with one run or
many: it can crash, and it can be killed. Which run goes to which child is up to the real program.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Any, Final, Protocol

from dray.context import CURRENT
from dray.job import Outcome
from dray.worker.channel import Message
from dray.worker.run.child_main import (
    ChildReady,
    FromChild,
    LoopAnswered,
    RunBegun,
    RunEnded,
    RunJob,
    StopRun,
)
from dray.worker.run.child_pool import Child
from dray.worker.run.child_process import ChildListener
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import Runner, Runners, perform
from dray.worker.run.run_state import Ended, RunState, StopReason
from sim.loop import Process
from sim.parts import Parts
from sim.script import THREAD, Thread

LAST_WORDS: Final = 0.25


class Threads:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._busy: dict[RunState, Thread] = {}
        self._loop = asyncio.get_running_loop()

    def start(self, live: RunState, ended: Ended) -> None:
        thread = self._busy[live] = Thread()
        self._loop.create_task(self._serve(live, thread, ended))

    async def _serve(self, live: RunState, thread: Thread, ended: Ended) -> None:
        outcome = await self._perform(live, thread)
        self._busy.pop(live, None)
        ended(live, outcome)

    async def _perform(self, live: RunState, thread: Thread) -> Outcome:
        judge = self._judge
        if live.stop_reason is not None:
            return judge.stopped(live)
        CURRENT.set(live)
        call = judge.arguments(live)
        if isinstance(call, Outcome):
            return call
        args, kwargs = call
        THREAD.set(thread)
        try:
            return judge.success(live, await live.task.function(*args, **kwargs))
        except GeneratorExit:
            raise
        except BaseException as error:
            return judge.failure(live, error)

    async def call(self, live: RunState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The function alone, for a run that is on the loop because of its middleware."""
        thread = self._busy[live] = Thread()
        live.work = thread  # type: ignore[assignment]  # all that is asked of it is whether there is one
        context = copy_context()
        context.run(THREAD.set, thread)
        task = self._loop.create_task(live.task.function(*args, **kwargs), context=context)
        cancelled = False
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                cancelled = True
        self._busy.pop(live, None)
        live.work = None
        if cancelled:
            task.exception()
            raise asyncio.CancelledError
        return task.result()

    def stop(self, live: RunState) -> None:
        if live in self._busy and (live.overdue or live.stop_reason is StopReason.LOST):
            self._busy[live].interrupted = True

    def close(self) -> None:
        """Busy ones end with their process."""


class ChildStandIn:
    """A child process with its runs. Messages in both directions arrive in order."""

    def __init__(
        self, child: Child, parent: Process, name: str, judge: Judge, observer: RunObserver, wait: float
    ):
        self.pid = 0
        self._child, self._parent, self._judge, self._observer, self._wait = (
            child,
            parent,
            judge,
            observer,
            wait,
        )
        self._process = Process(name, parent.loop)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._heard: deque[Callable[[], object]] = deque()
        self._said: deque[Callable[[], object]] = deque()
        self._process.on_kill.append(self._killed)
        parent.on_kill.append(self._process.kill)

    async def start(self) -> None:
        self._process.start(self._get_ready())

    async def _get_ready(self) -> None:
        await asyncio.sleep(self._wait)
        self._say(ChildReady())

    def send(self, word: Message) -> None:
        match word:
            case RunJob():
                act = partial(self._do, word, self._child.runs[word.number].run)
                self._pass(self._process, self._heard, act)
            case StopRun():
                self._pass(self._process, self._heard, partial(self._halt, word.number))

    def kill(self) -> None:
        self._process.kill()

    def _do(self, order: RunJob, live: RunState) -> None:
        self._say(RunBegun(order.number))
        self._observer.shares(live, self._process.name)
        task = self._tasks[order.number] = self._process.start(self._serve(order.number, live))
        task.add_done_callback(partial(self._never_began, order.number, live), context=self._process.context)

    async def _serve(self, number: int, live: RunState) -> None:
        self._ended(number, live, await perform(self._judge, live, _call_plain))

    def _never_began(self, number: int, live: RunState, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._ended(number, live, self._judge.stopped(live))

    def _ended(self, number: int, live: RunState, outcome: Outcome) -> None:
        self._observer.shares_no_more(live)
        self._say(RunEnded(number, outcome, 0.0, 0.0, 0))

    def _halt(self, number: int) -> None:
        if number in self._tasks:
            self._tasks[number].cancel()
        self._say(LoopAnswered())

    def _killed(self) -> None:
        self._pass(self._parent, self._said, partial(self._child.gone, -9), LAST_WORDS)

    def _say(self, word: FromChild) -> None:
        self._pass(self._parent, self._said, partial(self._child.hear, word))

    @staticmethod
    def _pass(
        to: Process, words: deque[Callable[[], object]], act: Callable[[], object], delay: float = 0.001
    ) -> None:
        words.append(act)
        to.call(lambda: words.popleft()(), delay=delay)


async def _call_plain(live: RunState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a plain function in a child, where a thread would make no difference."""
    return await live.task.function(*args, **kwargs)


class RunObserver(Protocol):
    """Sees every run begin, be asked to stop and end, and which of them share a child process."""

    def begins(self, live: RunState) -> None: ...
    def is_told(self, live: RunState) -> None: ...
    def ends(self, live: RunState, outcome: Outcome) -> None: ...
    def shares(self, live: RunState, process: str) -> None: ...
    def shares_no_more(self, live: RunState) -> None: ...


class ObservedRunner:
    """A runner whose runs are reported to an observer."""

    def __init__(self, runner: Runner, observer: RunObserver) -> None:
        self._runner, self._observer = runner, observer

    def start(self, live: RunState, ended: Ended) -> None:
        def tell(live: RunState, outcome: Outcome) -> None:
            self._observer.ends(live, outcome)
            ended(live, outcome)

        self._observer.begins(live)
        self._runner.start(live, tell)

    def stop(self, live: RunState) -> None:
        self._observer.is_told(live)
        self._runner.stop(live)

    def close(self) -> None:
        self._runner.close()


def runners(
    judge: Judge, process: Process, observer: RunObserver, dice: random.Random, parts: Parts
) -> Runners:
    threads, names = Threads(judge), count(1)

    def spawn(child: ChildListener) -> ChildStandIn:
        assert isinstance(child, Child)
        name = f"{process.name}/{next(names)}"
        return ChildStandIn(child, process, name, judge, observer, dice.uniform(0.01, 0.5))

    return Runners(
        ObservedRunner(parts.on_loop(judge, threads.call, threads), observer),
        ObservedRunner(threads, observer),
        ObservedRunner(parts.children(judge, spawn), observer),
    )
