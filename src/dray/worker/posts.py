"""The posts of a worker, each kept filled with one executor, whatever happens to whoever holds it.

An executor that ran and died is replaced at once. One that dies before it has started is tried again after
a growing pause, for ever. One that says it is broken ends the worker, unless others still work.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from dray.stats import Happening
from dray.worker import pulse as clock
from dray.worker.channel import Message, Started, Stuck
from dray.worker.endings import Endings
from dray.worker.executors import Executor, Plan
from dray.worker.lifeline import Lifeline, Pauses

SHORT_LIFE: Final = 5_000_000_000
"""Nanoseconds: one that lived no longer is replaced after a breath, so that deaths in a row cost little."""
BREATH: Final = 0.5
LONGEST_PAUSE: Final = 30.0

log = logging.getLogger("dray.worker")


class Post:
    """A place for one executor."""

    def __init__(self) -> None:
        self.executor: Executor | None = None
        self.predecessor: Executor | None = None
        """Goes on until the one that replaces it has started (a rolling restart)."""
        self.succeeded = asyncio.Event()
        self.wake = asyncio.Event()
        """Ends a pause: there is a reason to try now."""
        self.pauses = _start_pauses()


class Rules(msgspec.Struct, frozen=True):
    """What the worker wants of its posts."""

    grace: int
    """Milliseconds for jobs of an executor that is replaced on request."""
    patient: bool = False
    """Broken code is waited out until `again` (for `--reload`)."""


class Posts:
    """All posts of a worker, and every executor that lives, whether it holds one or is on its way out."""

    def __init__(
        self,
        size: int,
        plan: Plan,
        line: Lifeline,
        endings: Endings,
        rules: Rules,
        *,
        heard: Callable[[Executor, Message], None],
        broken: Callable[[str], None],
        happened: Callable[[Happening], None],
    ) -> None:
        self._plan, self._line, self._endings, self._rules = plan, line, endings, rules
        self._heard, self._broken, self._happened = heard, broken, happened
        self._numbers = itertools.count(1)
        self._posts = [Post() for _ in range(size)]
        self._stopping = asyncio.Event()
        self._keepers: set[asyncio.Task[None]] = set()
        self._errands: set[asyncio.Task[None]] = set()
        """Kills and farewells under way: what must be finished before the worker ends."""
        self._kills: dict[Executor, asyncio.Task[None]] = {}
        self.executors: list[Executor] = []
        self.news = asyncio.Event()
        """Set whenever one of all these has ended."""

    @property
    def alive(self) -> bool:
        return bool(self.executors or self._keepers)

    def fill(self) -> None:
        for post in self._posts:
            self._begin(self._keep(post), self._keepers)

    async def _keep(self, post: Post) -> None:
        while True:
            # Somebody who starts while the embedded broker's file is moved away would make an empty one.
            await _first(self._line.answers, self._stopping)
            if self._stopping.is_set():
                return
            executor = await self._start(post)
            if executor is not None:
                await executor.vacant.wait()
                if executor.ended.is_set():
                    await executor.last_words()
            if self._stopping.is_set():
                return
            if executor is not None and executor.broken is not None:
                self._bear_broken(executor, executor.broken)
            pause = self._pause_after(post, executor)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await post.wake.wait()

    async def _start(self, post: Post) -> Executor | None:
        post.wake.clear()
        try:
            executor = await Executor.start(next(self._numbers), self._plan, self._hear)
        except OSError as error:  # no more processes, files or memory: later there may be
            log.error("an executor could not be started, it is tried again: %s", error)
            return None
        post.executor = executor
        self.executors.append(executor)
        if self._stopping.is_set():
            executor.stop(0)
        self._begin(self._attend(executor), self._errands)
        return executor

    def _pause_after(self, post: Post, executor: Executor | None) -> float | None:
        """Seconds until the post is filled again; None: not before somebody calls for it."""
        if executor is None or not executor.started.is_set():
            broken = executor is not None and executor.broken is not None
            return None if broken and self._rules.patient else post.pauses.next()
        post.pauses = _start_pauses()
        short = executor.ended.is_set() and clock.now() - executor.born < SHORT_LIFE
        return BREATH if short and not executor.stopping else 0

    def _bear_broken(self, executor: Executor, reason: str) -> None:
        at_work = any(one.started.is_set() and not one.ended.is_set() for one in self.executors)
        if self._rules.patient or not at_work:
            self._broken(reason)
        else:
            log.error("executor %d cannot start, it is tried again: %s", executor.number, reason)

    async def _attend(self, executor: Executor) -> None:
        """From its start to the last thing it leaves behind."""
        try:
            await executor.last_words()
        finally:
            self.executors.remove(executor)
        if kill := self._kills.pop(executor, None):
            await asyncio.wait((kill,))  # it still looks at what the dead one held
        if executor.exit_code != 0 and not executor.doomed and executor.broken is None:
            cause = _cause(executor.exit_code)
            log.warning("executor %d (pid %d) died: %s", executor.number, executor.pid, cause)
            self._happened(Happening.EXECUTOR_DIED)
        executor.close()
        await self._endings.settle_up(executor)

    def _hear(self, executor: Executor, message: Message) -> None:
        if isinstance(message, Stuck):
            self.put_down(executor, "runs past their timeout sit in threads that nobody can stop")
        if isinstance(message, Started):
            self._begin(self._endings.free_former(executor), self._errands)
            self._dismiss_predecessor(executor)
        self._heard(executor, message)

    def _dismiss_predecessor(self, executor: Executor) -> None:
        for post in self._posts:
            if post.executor is executor and post.predecessor is not None:
                post.predecessor.stop(self._rules.grace)
                post.predecessor = None
                post.succeeded.set()

    def put_down(self, executor: Executor, why: str) -> None:
        """Kill it, once, and report what it was doing."""
        if not executor.doomed:
            executor.doomed = True
            self._happened(Happening.EXECUTOR_KILLED)
            self._kills[executor] = self._begin(self._endings.put_down(executor, why), self._errands)

    def stop(self, grace: int) -> None:
        """No more replacements; every executor ends within `grace` milliseconds, by its own will."""
        self._stopping.set()
        for post in self._posts:
            post.wake.set()
        for executor in self.executors:
            executor.stop(grace)

    def kill(self, which: Callable[[Executor], bool] = lambda _: True) -> None:
        for executor in filter(which, self.executors):
            if not executor.doomed:
                log.warning("executor %d (pid %d) did not end in time: killed", executor.number, executor.pid)
            executor.kill()

    def again(self, grace: int) -> None:
        """Stop every executor and start anew, with whatever the code is now."""
        for post in self._posts:
            post.pauses = _start_pauses()
            post.wake.set()
        for executor in self.executors:
            if not executor.stopping:
                executor.stop(grace)

    async def roll(self) -> None:
        """Replace executors one by one; each works on until the one after it has started."""
        for post in self._posts:
            old = post.executor
            if self._stopping.is_set() or old is None or old.ended.is_set() or post.predecessor is not None:
                continue
            post.predecessor = old
            post.succeeded.clear()
            old.vacant.set()
            await _first(post.succeeded, old.ended, self._stopping)

    async def rest(self) -> None:
        """Wait for the kills and farewells under way."""
        while self._errands:
            await asyncio.wait(self._errands)

    async def close(self) -> None:
        """Give up whatever is still under way."""
        for task in (*self._keepers, *self._errands):
            task.cancel()
        await asyncio.gather(*self._keepers, *self._errands, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        def done(task: asyncio.Task[None]) -> None:
            among.discard(task)
            self.news.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("looking after an executor failed", exc_info=error)

        task = asyncio.create_task(work)
        among.add(task)
        task.add_done_callback(done)
        return task


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of them is set."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _start_pauses() -> Pauses:
    return Pauses(BREATH, LONGEST_PAUSE)


def _cause(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"
