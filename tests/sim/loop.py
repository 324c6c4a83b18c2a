"""An event loop on virtual time, and the processes that live on it.

Time stands still while anything is ready and jumps to the next timer when nothing is. What is ready runs in
an order drawn from the seed. Every task and timer belongs to the process whose code made it (asyncio carries
the context along), so a whole process can be killed or frozen between any two of its steps without the
program on it being written for that.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
MANY = 10_000
"""Tasks to remember before those that have ended are forgotten."""
SPIN_LIMIT = 20_000
"""Turns of the loop in which no time passes before this counts as a program that spins."""


class Deadlock(Exception):
    """Nothing is ready and no timer is set, or time does not pass: nothing will ever happen again."""


class Process:
    """All tasks and timers started by `start`, directly or not: they die or freeze together."""

    def __init__(self, name: str, loop: VirtualLoop) -> None:
        self.name = name
        self.alive = True
        self.cut_until = 0.0
        """Out of contact with the broker until then."""
        self.on_kill: list[Callable[[], object]] = []
        self.troubled = 0.0
        """When something last went wrong on its way to the broker, or with itself."""
        self.guests = 0
        """Runs of jobs under way in it."""
        self.context = Context()
        self.context.run(PROCESS.set, self)
        self.loop = self._loop = loop
        self._frozen: list[asyncio.Handle] | None = None

    @property
    def frozen(self) -> bool:
        return self._frozen is not None

    def start(self, main: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        context = copy_context()
        context.run(PROCESS.set, self)
        return self._loop.create_task(main, name=self.name, context=context)

    def call(self, act: Callable[..., object], *args: object, delay: float = 0.0) -> None:
        """Call `act` in this process; never if it is dead by then, later if it is frozen."""
        self._loop.call_later(delay, act, *args, context=self.context)

    def trouble(self, lasts: float = 0.0) -> None:
        self.troubled = max(self.troubled, self._loop.time() + lasts)

    def kill(self) -> None:
        """No task of it ever resumes; nothing is cleaned up."""
        if self.alive:
            self.alive = False
            self._frozen = None
            for hook in self.on_kill:
                hook()

    def freeze(self, seconds: float) -> None:
        """Like SIGSTOP, and SIGCONT later: it goes on with what it knew."""
        if self.alive and self._frozen is None:
            self._frozen = []
            self._loop.call_later(seconds, self.thaw, context=Context())

    def thaw(self) -> None:
        held, self._frozen = self._frozen, None
        self.trouble()
        self._loop.make_ready(held or [])

    def admits(self, handle: asyncio.Handle) -> bool:
        if self._frozen is not None:
            self._frozen.append(handle)
        return self.alive and self._frozen is None


class _Future(asyncio.Future[Any]):
    """Hashed by number, not by address: iterating over a set of them is the same in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        # Before the rest, which puts it into a set.
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs any asyncio program that uses timers, tasks and futures. Threads and sockets are refused."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, seed: int | str = 0) -> None:
        super().__init__()
        self._virtual = 0.0
        self._dice = random.Random(f"loop:{seed}")
        self._made = 0
        self._spun = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._many = MANY
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self._virtual

    def make_ready(self, handles: list[asyncio.Handle]) -> None:
        self._ready.extend(handles)

    def create_future(self) -> asyncio.Future[Any]:
        self._made += 1
        future = _Future(loop=self)
        future.number = self._made
        return future

    def run_in_executor(self, *_: object) -> NoReturn:
        raise NotImplementedError("threads are not simulated: run this part on the loop")

    def bury(self) -> None:
        """Close what never ended, so that nothing of this run is left to the garbage collector."""
        for task in self._tasks:
            if not _is_over(task):
                # asyncio would complain about the loss, which is the point of killing a process.
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    coroutine = task.get_coro()
                    if coroutine is not None:
                        coroutine.close()
        self._tasks.clear()
        self._ready.clear()
        self._scheduled.clear()
        self.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, /, **options: Any) -> asyncio.Task[Any]:
        self._made += 1
        options["name"] = options.get("name") or f"task {self._made}"
        process, context = PROCESS.get(), options.get("context")
        if process is not None and context is not None and PROCESS not in context:
            context.run(PROCESS.set, process)  # a context of its own does not make it outlive its process
        task = _Task(self._made, coro, loop=loop, **options)
        self._tasks.append(task)
        if len(self._tasks) > self._many:
            self._tasks = [one for one in self._tasks if not _is_over(one)]
            self._many = max(MANY, 2 * len(self._tasks))
        return task

    def _run_once(self) -> None:
        self._pass_time()
        batch = list(self._ready)
        self._ready.clear()
        if len(batch) > 1:
            self._dice.shuffle(batch)
        for handle in batch:
            if handle._cancelled:
                continue
            process = handle._context.get(PROCESS)  # type: ignore[attr-defined]
            if process is None or process.admits(handle):
                handle._run()

    def _pass_time(self) -> None:
        timers = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        if self._ready or self._stopping:
            self._spun += 1
            if self._spun > SPIN_LIMIT:
                raise Deadlock(f"no time passes at {self._virtual:.3f} s: {self._pending()}")
        elif timers:
            self._spun = 0
            self._virtual = max(self._virtual, timers[0].when())
        else:
            raise Deadlock(f"nothing will ever happen after {self._virtual:.3f} s: {self._pending()}")
        while timers and timers[0].when() <= self._virtual:
            timer = heapq.heappop(timers)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(timer)

    def _pending(self) -> str:
        names = [task.get_name() for task in self._tasks if not task.done()]
        return f"{len(names)} tasks wait: {', '.join(names[:20])}" if names else "no task is left"

    def _process_events(self, event_list: object) -> None:
        """There is no selector, so there are no events."""

    def _write_to_self(self) -> None:
        """Only this thread exists, so the loop need not be woken."""


def _is_over(task: asyncio.Task[Any]) -> bool:
    if task.done() and not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not complain
    return task.done()


def run(main: Coroutine[Any, Any, T], seed: int | str = 0) -> T:
    """`asyncio.run` on virtual time."""
    loop = VirtualLoop(seed)
    try:
        return loop.run_until_complete(main)
    finally:
        loop.bury()
