"""Persistent threads for plain functions.

All threads take work from one deque. A thread that takes a piece and sees more wakes one other thread: a
batch of short jobs is done by one thread without a switch, and a job that blocks delays no other. Results
return to the event loop in bursts, with one call for each burst.

Python cannot stop a thread, but can raise an exception in it between two instructions. Only a run past its
time is interrupted like this (`stop`), and only inside the task's own code: each interrupt has a gate, where
either the thread or the asker comes first. A thread that comes second waits for the exception and removes it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Literal

from dray.context import CURRENT
from dray.worker.run.outcome import Judge
from dray.worker.run.perform import leave_if_forked, perform_here, perform_here_traced
from dray.worker.run.run_state import Ended, Interrupted, RunState, StopReason

Gate = Literal["thread", "asker"]

KEEP_IDLE: Final = 64
log = logging.getLogger("dray.worker")


class Work:
    """One piece: `act` is called in a thread, then `done` on the event loop."""

    ident: int = 0
    """The thread that does it, once it can be interrupted."""
    result: Any = None
    error: BaseException | None = None
    finished: bool = False
    fired: int = 0
    """Interrupts raised so far."""

    def __init__(
        self, run: RunState, context: Context, act: Callable[[], Any], done: Callable[[Work], None]
    ) -> None:
        self.run, self.context, self.act, self.done = run, context, act, done
        self.gates: dict[int, Gate] = {}

    def do(self, ident: int) -> None:
        while not self.finished:
            try:
                self._act(ident)
                self._shut(ident)
                self.finished = True
            except Interrupted:  # raised between two lines of ours, which may be repeated
                continue

    def _act(self, ident: int) -> None:
        if self.ident:
            return
        self.error = Interrupted()
        self.ident = ident
        try:
            self.result = self.context.run(self.act)
            self.error = None
        except BaseException as error:
            self.error = error

    def _shut(self, ident: int) -> None:
        """After this no interrupt can come, and none is pending."""
        number = 0
        while self.gates.setdefault(number, "thread") != "thread":
            while self.fired <= number:
                time.sleep(0.0005)  # the asker is just about to raise it
            _raise_in(ident, None)
            number += 1

    def interrupt(self) -> None:
        """Raise `Interrupted` in the thread, unless the work has ended."""
        if self.ident and self.gates.setdefault(self.fired, "asker") == "asker":
            _raise_in(self.ident, Interrupted)
            self.fired += 1


def _raise_in(ident: int, error: type[BaseException] | None) -> None:
    """Make an exception pending in the thread; None removes a pending one."""
    import ctypes  # large, and few runs are interrupted

    what = ctypes.py_object(error) if error is not None else ctypes.c_void_p()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)


class Threads:
    """As many threads as there are pieces of work at a time, which the caller bounds."""

    def __init__(self, judge: Judge, *, keep: int = KEEP_IDLE) -> None:
        self._judge, self._keep = judge, keep
        tracing = judge.tracing
        self._perform = perform_here if tracing is None else partial(perform_here_traced, tracing)
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._work: deque[Work] = deque()
        self._done: deque[Work] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = self._idle = 0
        self._waking = self._signalled = self._closed = False

    # on the event loop

    def start(self, run: RunState, ended: Ended) -> None:
        act: Callable[[], Any] = partial(self._perform, self._judge, run)
        if run.meter is not None:
            act = run.meter.around(act)
        self._hand_over(Work(run, self._context.copy(), act, partial(self._ended, ended)))

    def _ended(self, ended: Ended, work: Work) -> None:
        if work.error is None:
            ended(work.run, work.result)
        else:
            ended(work.run, self._judge.failure(work.run, work.error))

    async def call(self, run: RunState, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the task's function in a thread, for a run that is on the loop because of its middleware."""
        future: asyncio.Future[Work] = self._loop.create_future()

        def done(work: Work) -> None:
            if not future.done():
                future.set_result(work)

        context = copy_context()
        context.run(CURRENT.set, run)
        act: Callable[[], Any] = partial(run.task.function, *args, **kwargs)
        self._hand_over(Work(run, context, act if run.meter is None else run.meter.around(act), done))
        work = await self._uncancelled(future)
        if work.error is not None:
            raise work.error
        return work.result

    async def _uncancelled(self, future: asyncio.Future[Work]) -> Work:
        """Wait for the thread through cancellations: the run ends only with its thread."""
        cancelled = False
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        return future.result()

    def _hand_over(self, work: Work) -> None:
        work.run.work = work
        self._work.append(work)
        if not self._waking:
            self._wake()

    def stop(self, run: RunState) -> None:
        """The task sees `ctx.cancelled`; a run that is overdue or lost is interrupted."""
        if run.durable is not None:
            run.durable.stop()
        if run.work is not None and (run.overdue or run.stop_reason is StopReason.LOST):
            run.work.interrupt()

    def close(self) -> None:
        """Idle threads end now, busy ones with their work."""
        with self._lock:
            self._closed = True
            for _ in range(self._idle):
                self._tokens.put(False)
            self._idle = 0

    def _collect(self) -> None:
        self._signalled = False
        done = self._done
        while done:
            work = done.popleft()
            work.run.work = None
            work.done(work)

    # in any thread

    def _wake(self) -> None:
        with self._lock:
            if self._waking:
                return
            if self._idle:
                self._idle -= 1
                self._waking = True  # before the token, whose receiver resets it at once
                self._tokens.put(True)
                return
            self._waking = True
            self._count += 1
        try:
            threading.Thread(target=self._serve, name="dray", daemon=True).start()
        except RuntimeError:
            log.exception("no thread can be started: %d run, %d jobs wait", self._count - 1, len(self._work))
            with self._lock:
                self._count -= 1
                self._waking = False
            self._loop.call_soon_threadsafe(self._loop.call_later, 1.0, self._wake)

    # in a thread of the pool

    def _serve(self) -> None:
        ident, thread = threading.get_ident(), threading.current_thread()
        works, done, task = self._work, self._done, None
        self._waking = False
        while True:
            try:
                work = works.popleft()
            except IndexError:
                if not self._rest():
                    return
                continue
            if works and not self._waking:
                self._wake()
            if work.run.task is not task:
                task = work.run.task
                thread.name = f"dray {task.name}"
            work.do(ident)
            leave_if_forked()
            done.append(work)
            del work  # an idle thread must not keep a job's result alive
            if not self._signalled:
                self._signalled = True
                if not self._signal():
                    return

    def _signal(self) -> bool:
        try:
            self._loop.call_soon_threadsafe(self._collect)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _rest(self) -> bool:
        """Sleep until there may be work; False if the thread should end."""
        with self._lock:
            if self._work:
                return True
            if self._closed or self._idle >= self._keep:
                self._count -= 1
                return False
            self._idle += 1
        if not self._tokens.get():
            return False
        self._waking = False
        return True
