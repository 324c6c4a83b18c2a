"""Where simulated jobs run: in place of threads and child processes, programs on the virtual loop.

A thread cannot be cancelled: it stops when it looks for itself, or when it is interrupted between two of its
steps, and one that is deaf goes on whatever is done. A child is a process of its own: it can crash, and it is
killed when it does not stop within a second.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import copy_context
from typing import Any, Final, Protocol

from dray.context import CURRENT
from dray.errors import CodecError
from dray.job import Outcome
from dray.testing.sim.loop import Process
from dray.testing.sim.script import THREAD, Thread
from dray.worker.live import Ended, Live, Why
from dray.worker.run import Judge, perform
from dray.worker.runners import OnLoop, Runner, Runners

KILL_AFTER: Final = 1.0
LAST_WORDS: Final = 0.25


class Threads:
    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._busy: dict[Live, Thread] = {}
        self._loop = asyncio.get_running_loop()

    def start(self, live: Live, ended: Ended) -> None:
        thread = self._busy[live] = Thread()
        self._loop.create_task(self._serve(live, thread, ended))

    async def _serve(self, live: Live, thread: Thread, ended: Ended) -> None:
        outcome = await self._perform(live, thread)
        self._busy.pop(live, None)
        ended(live, outcome)

    async def _perform(self, live: Live, thread: Thread) -> Outcome:
        judge = self._judge
        if live.why is not None:
            return judge.stopped(live)
        CURRENT.set(live)
        try:
            args, kwargs = judge.arguments(live)
        except CodecError as error:
            return judge.undecodable(live, error)
        THREAD.set(thread)
        try:
            return judge.success(live, await live.task.function(*args, **kwargs))
        except GeneratorExit:
            raise
        except BaseException as error:
            return judge.failure(live, error)

    async def call(self, live: Live, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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

    def stop(self, live: Live) -> None:
        if live in self._busy and (live.overdue or live.why is Why.LOST):
            self._busy[live].interrupted = True

    def close(self) -> None:
        """Busy ones end with their process."""


class Children:
    def __init__(self, judge: Judge, parent: Process, loop: asyncio.AbstractEventLoop, dice: random.Random):
        self._judge, self._parent, self._loop, self._dice = judge, parent, loop, dice
        self._busy: dict[Live, _Child] = {}
        self._made = 0

    def start(self, live: Live, ended: Ended) -> None:
        self._made += 1
        process = Process(f"{self._parent.name}/{self._made}", self._loop)  # type: ignore[arg-type]
        child = self._busy[live] = _Child(process, live, ended)
        self._parent.on_kill.append(process.kill)
        process.on_kill.append(lambda: self._gone(child))
        child.task = process.start(self._serve(child))

    async def _serve(self, child: _Child) -> None:
        await asyncio.sleep(self._dice.uniform(0.01, 0.5))
        child.begun = True
        child.outcome = await perform(self._judge, child.live, _call_plain)
        self._parent.call(self._finish, child)

    def _gone(self, child: _Child) -> None:
        self._parent.call(self._finish, child, delay=LAST_WORDS)

    def _outcome(self, child: _Child) -> Outcome:
        if child.outcome is not None:
            return child.outcome
        if child.live.why is not None:
            return self._judge.stopped(child.live)
        return self._judge.crashed(child.live, "the child is gone")

    def _finish(self, child: _Child) -> None:
        if self._busy.pop(child.live, None) is None:
            return
        if child.timer is not None:
            child.timer.cancel()
        child.process.kill()
        child.ended(child.live, self._outcome(child))

    def stop(self, live: Live) -> None:
        child = self._busy.get(live)
        if child is None:
            return
        if not child.begun:
            self._finish(child)
            return
        if child.task is not None and child.process.alive:
            child.task.cancel()
        if child.timer is None:
            patience = 0.0 if live.why is Why.LOST else KILL_AFTER
            child.timer = self._loop.call_later(patience, child.process.kill)

    def close(self) -> None:
        for child in list(self._busy.values()):
            child.process.kill()


class _Child:
    def __init__(self, process: Process, live: Live, ended: Ended) -> None:
        self.process, self.live, self.ended = process, live, ended
        self.task: asyncio.Task[None] | None = None
        self.begun = False
        self.outcome: Outcome | None = None
        self.timer: asyncio.TimerHandle | None = None


async def _call_plain(live: Live, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A plain function in a child: nothing else is in its way, so whether in a thread makes no difference."""
    return await live.task.function(*args, **kwargs)


class Looker(Protocol):
    """Who sees every run begin, be told to stop, and end."""

    def begins(self, live: Live) -> None: ...
    def is_told(self, live: Live) -> None: ...
    def ends(self, live: Live, outcome: Outcome) -> None: ...


class Seen:
    """A runner with somebody who looks on."""

    def __init__(self, runner: Runner, looker: Looker) -> None:
        self._runner, self._looker = runner, looker

    def start(self, live: Live, ended: Ended) -> None:
        def tell(live: Live, outcome: Outcome) -> None:
            self._looker.ends(live, outcome)
            ended(live, outcome)

        self._looker.begins(live)
        self._runner.start(live, tell)

    def stop(self, live: Live) -> None:
        self._looker.is_told(live)
        self._runner.stop(live)

    def close(self) -> None:
        self._runner.close()


def runners(
    judge: Judge, process: Process, looker: Looker, dice: random.Random, on_loop: type[OnLoop]
) -> Runners:
    threads = Threads(judge)
    loop = asyncio.get_running_loop()
    return Runners(
        Seen(on_loop(judge, threads.call, threads), looker),
        Seen(threads, looker),
        Seen(Children(judge, process, loop, dice), looker),
    )
