"""Persistent threads for plain functions.

Work lies in one deque that all threads take from. A thread that takes a piece and sees more lying there wakes
one other, and goes on: so a batch of short jobs is done by one thread without a switch, while a job that
blocks keeps nobody waiting. Results come back to the event loop in bursts, one call for each.

Python cannot stop a thread, but it can raise an exception in one between two of its instructions. That is
done only to a run that is past its time (`stop`), and never outside the task's own code: for every interrupt
the thread and the asker go through a gate, where only one of them can be first. A thread that comes second
waits until the exception is there and takes it away before it goes on.
"""

from __future__ import annotations

import asyncio
import ctypes
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
from dray.worker.live import Ended, Interrupted, Live, Why
from dray.worker.run import Judge, leave_if_forked, perform_here, perform_here_traced

Gate = Literal["thread", "asker"]

KEEP_IDLE: Final = 64
log = logging.getLogger("dray.worker")


class Work:
    """One piece: `act` is called in a thread, then `done` on the event loop."""

    ident: int = 0
    """The thread that does it, from when it can be interrupted."""
    result: Any = None
    error: BaseException | None = None
    finished: bool = False
    fired: int = 0
    """How many interrupts were raised so far."""

    def __init__(
        self, live: Live, context: Context, act: Callable[[], Any], done: Callable[[Work], None]
    ) -> None:
        self.live, self.context, self.act, self.done = live, context, act, done
        self.gates: dict[int, Gate] = {}

    def do(self, ident: int) -> None:
        while not self.finished:
            try:
                self._act(ident)
                self._shut(ident)
                self.finished = True
            except Interrupted:  # it came between two lines of ours: nothing is lost by doing them again
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
        """From here on no interrupt can come, and none is on its way."""
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
    """Make it pending in the thread; None takes a pending one away."""
    what = ctypes.py_object(error) if error is not None else ctypes.c_void_p()
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), what)


class Threads:
    """As many threads as there is work at the same time; the caller bounds that."""

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

    def start(self, live: Live, ended: Ended) -> None:
        act: Callable[[], Any] = partial(self._perform, self._judge, live)
        if live.meter is not None:
            act = live.meter.around(act)
        self._hand_over(Work(live, self._context.copy(), act, partial(self._ended, ended)))

    def _ended(self, ended: Ended, work: Work) -> None:
        if work.error is None:
            ended(work.live, work.result)
        else:
            ended(work.live, self._judge.failure(work.live, work.error))

    async def call(self, live: Live, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the task's function in a thread, for a run that is on the loop because of its middleware."""
        future: asyncio.Future[Work] = self._loop.create_future()

        def done(work: Work) -> None:
            if not future.done():
                future.set_result(work)

        context = copy_context()
        context.run(CURRENT.set, live)
        act: Callable[[], Any] = partial(live.task.function, *args, **kwargs)
        self._hand_over(Work(live, context, act if live.meter is None else live.meter.around(act), done))
        work = await self._uncancelled(future)
        if work.error is not None:
            raise work.error
        return work.result

    async def _uncancelled(self, future: asyncio.Future[Work]) -> Work:
        """A thread goes on whatever happens to who waits for it, so the run ends only with the thread."""
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
        work.live.work = work
        self._work.append(work)
        if not self._waking:
            self._wake()

    def stop(self, live: Live) -> None:
        """The task sees `ctx.cancelled`; one that is past its time, or void, is interrupted."""
        if live.work is not None and (live.overdue or live.why is Why.LOST):
            live.work.interrupt()

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
            work.live.work = None
            work.done(work)

    # in any thread

    def _wake(self) -> None:
        with self._lock:
            if self._waking:
                return
            if self._idle:
                self._idle -= 1
                self._waking = True  # before the token: whoever gets that takes it back at once
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
            if work.live.task is not task:
                task = work.live.task
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
        except RuntimeError:  # the loop is closed: nobody wants to know any more
            return False
        return True

    def _rest(self) -> bool:
        """Sleep until there may be work; False if the thread is not needed any more."""
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
