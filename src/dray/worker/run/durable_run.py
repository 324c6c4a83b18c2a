"""The durable part of one run: its log, its outstanding operations, and how it ends by suspension.

A run suspends when every outstanding operation waits. Then the task is unwound: an async task is cancelled,
as by asyncio, and a plain one gets `Suspended` where it waits. What the task does with that does not change
the outcome, unless it goes on to return a value: then the job is dead with a reason that says so.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import cache
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from dray.broker.durable import MemoWrite
from dray.durable.copying import RERUN, RERUN_FROM, entries_before
from dray.durable.entries import Copied, Entry, unpack_entry
from dray.durable.identity import CHANGED
from dray.durable.journal import Journal
from dray.errors import DrayError, InvalidInput, JobStopped, TooLarge, WouldBlock
from dray.job import Error, Outcome, OutcomeKind, Suspension
from dray.worker.run.requests import Recall, Remember, Request, RunLost
from dray.worker.run.run_state import RunState, Suspended

if TYPE_CHECKING:
    from dray.worker.run.outcome import Judge

SHORT: Final = 1.0
"""Seconds: a shorter wait does not end the run."""
GRACE: Final = 0.05
"""Seconds without a new operation before a run suspends whose task awaits several at once."""
LOOK_AGAIN: Final = 2.0
"""Seconds between looks for an event or a child while other operations keep the run alive."""
STEP_THREADS: Final = 64

Ask = Callable[[RunState, Request], Awaitable[Any]]


class Waiting(NamedTuple):
    """What an operation waits for."""

    until: int | None = None
    event: tuple[str, int] | None = None
    job: str | None = None
    error: Error | None = None
    """It waits for another try after this error."""
    direct: bool = False
    """The task itself awaits it: nothing else of the run can go on."""


class _Write(NamedTuple):
    entries: tuple[tuple[Entry, bytes], ...]
    children: tuple[str, ...]
    undo: bool | None
    consumed: dict[str, int]
    done: asyncio.Future[None]


class DurableRun:
    """Belongs to the event loop; a plain task calls it from its thread by `block`."""

    def __init__(self, run: RunState, judge: Judge, ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        self.run, self.judge, self.loop, self._ask = run, judge, loop, ask
        self.app, self.job = run.app, run.taken.job
        self.plain = not run.task.is_async
        self.journal = Journal(self.job.id, forget=run.taken.replayed)
        self.finals: list[BaseException] = []
        """Final errors of steps that were raised into the task."""
        self.suspension: Suspension | None = None
        self.lost = self.closed = False
        self._error: Error | None = None
        self._reason: str | None = None
        self._busy = 0
        self._waits: dict[asyncio.Future[None], Waiting] = {}
        self._turn = 0
        self._buffer: list[Entry] = []
        """Values of helpers, written before the next effect."""
        self._writes: list[_Write] = []
        self._writer: asyncio.Task[None] | None = None
        self._idle: asyncio.Future[None] | None = None

    def final(self, error: Exception) -> Exception:
        """An error that makes the job dead at once if it leaves the task."""
        self.finals.append(error)
        return error

    async def ask(self, request: Request) -> Any:
        try:
            return await self._ask(self.run, request)
        except RunLost:
            self.lost = True
            self._unwind()
            raise asyncio.CancelledError from None

    # the log

    async def load(self) -> None:
        """Read the log, before the task begins."""
        entries: list[bytes] = []
        while len(entries) < self.run.taken.memos:
            page = await self.ask(Recall(self.job.id, len(entries)))
            if not page:
                break
            entries += page
        for data in entries:
            self.journal.read(data)
        if RERUN_FROM in self.job.headers:
            await self._copy(self.job.headers[RERUN], self.job.headers[RERUN_FROM])

    async def _copy(self, source: str, step: str) -> None:
        """Begin with the log of another job, up to a step; the rest of it, if a run before came half-way."""
        copied, have = self.journal.copied, self.journal.length
        if (copied is not None and have > copied.count) or (copied is None and have):
            return
        try:
            chosen = entries_before(await self._entries_of(source), step)
        except InvalidInput as error:  # the log of the other job is gone
            raise self.final(error) from None
        entries: list[Entry] = [Copied(at=self.judge.now(), job=source, count=len(chosen)), *chosen]
        for start in range(have, len(entries), 500):
            await self.write(*entries[start : start + 500])
        self.journal.unvisited |= self.journal.memories

    async def _entries_of(self, source: str) -> list[Entry]:
        entries: list[Entry] = []
        while page := await self.ask(Recall(source, len(entries))):
            entries += [unpack_entry(data) for data in page]
        return entries

    async def write(
        self,
        *entries: Entry,
        children: tuple[str, ...] = (),
        undo: bool | None = None,
        consumed: dict[str, int] | None = None,
        reserve: bool = True,
    ) -> None:
        """Append to the log; returns when the entries are there. Writes of one moment travel together."""
        try:
            packed = tuple(
                (entry, self.journal.pack(entry, reserve=reserve)) for entry in (*self._buffer, *entries)
            )
        except TooLarge as error:
            raise self.final(error) from None
        self._buffer.clear()
        done = self.loop.create_future()
        self._writes.append(_Write(packed, children, undo, consumed or {}, done))
        if self._writer is None:
            self._writer = self.loop.create_task(self._write_all())
        await asyncio.shield(done)

    async def _write_all(self) -> None:
        try:
            while self._writes:
                batch, self._writes = self._writes, []
                await self._write_batch(batch)
        finally:
            self._writer = None

    async def _write_batch(self, batch: list[_Write]) -> None:
        packed = [one for write in batch for one in write.entries]
        consumed: dict[str, int] = {}
        for write in batch:
            consumed |= write.consumed
        memo = MemoWrite(
            id=self.job.id,
            run=self.run.taken.run,
            position=self.journal.length,
            entries=tuple(data for _, data in packed),
            children=tuple(child for write in batch for child in write.children),
            undo=next((write.undo for write in batch if write.undo is not None), None),
            consumed=consumed,
        )
        try:
            await self.ask(Remember(memo))
        except BaseException as error:
            for write in batch:
                if not write.done.done():
                    write.done.set_exception(
                        error if isinstance(error, DrayError) else asyncio.CancelledError()
                    )
                    write.done.exception()  # its operation may be gone
            return
        for entry, data in packed:
            self.journal.add(entry, len(data))
        for write in batch:
            if not write.done.done():
                write.done.set_result(None)

    async def flush(self) -> None:
        if self._buffer:
            await self.write()

    def remember_later(self, entry: Entry) -> None:
        self._buffer.append(entry)

    # operations

    async def perform(self, act: Callable[[], Awaitable[Any]], name: str | None) -> Any:
        """An operation from its beginning to its end; `name` is free for the next one then."""
        self.check_alive()
        self._busy += 1
        self._turn += 1
        try:
            return await act()
        finally:
            self._busy -= 1
            if name is not None:
                self.journal.release(name)
            self._consider()

    @property
    def is_direct(self) -> bool:
        return self.plain or asyncio.current_task() is self.run.handle

    def check_alive(self) -> None:
        """No operation begins in a run that ends, or that may not have any."""
        if self.job.speculate:
            allowed = f"task {self.job.task} has steps: a second run at the same time would mix them up"
            raise InvalidInput("speculate", True, allowed)
        if self.suspension is not None or self.lost or self.closed:
            raise Suspended if self.plain else asyncio.CancelledError
        if self.plain and self.run.cancelled:
            self.run.heeded = True
            raise JobStopped(self.job.id, "the job was asked to stop")

    async def wait(self, waiting: Waiting) -> bool:
        """Wait here. True if its moment has come, False if it is time to look again.

        The run may end meanwhile; then this does not return.
        """
        until = waiting.until
        left = math.inf if until is None else (until - self.judge.now()) / 1000
        if left < SHORT:
            await asyncio.sleep(max(0.0, left))
            return True
        seconds = left if waiting.event is None and waiting.job is None else min(left, LOOK_AGAIN)
        over = self.loop.create_future()
        timer = None if math.isinf(seconds) else self.loop.call_later(seconds, _end, over)
        self._waits[over] = waiting
        self._busy -= 1
        self._consider()
        try:
            await over
        finally:
            if timer is not None:
                timer.cancel()
            del self._waits[over]
            self._busy += 1
            self._turn += 1
        return seconds == left

    def aside(self) -> Aside:
        """The caller awaits other operations: it does not count as running before one of them has ended."""
        return Aside(self)

    def count(self, change: int) -> None:
        self._busy += change
        self._turn += 1
        self._consider()

    def _consider(self) -> None:
        """Suspend if everything waits, and still does after a moment."""
        if self._busy == 0 and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        if self._busy or not self._waits or self.suspension is not None:
            return
        self._turn += 1
        if any(waiting.direct for waiting in self._waits.values()):
            self.loop.call_soon(self.loop.call_soon, self._suspend, self._turn)
        else:
            self.loop.call_later(GRACE, self._suspend, self._turn)

    def _suspend(self, turn: int) -> None:
        if (
            turn != self._turn
            or self._busy
            or not self._waits
            or self.closed
            or self.run.stop_reason is not None
        ):
            return
        waits = list(self._waits.values())
        untils = [waiting.until for waiting in waits if waiting.until is not None]
        events: dict[str, int] = dict(waiting.event for waiting in waits if waiting.event is not None)
        jobs = tuple(dict.fromkeys(waiting.job for waiting in waits if waiting.job is not None))
        self.suspension = Suspension(until=min(untils, default=None), events=events, jobs=jobs)
        self._error = next((waiting.error for waiting in waits if waiting.error is not None), None)
        self._unwind()

    def park(self, difference: str) -> None:
        """The code has changed: wait for a person."""
        self.suspension, self._reason = Suspension(parked=True), CHANGED + difference
        self._unwind()
        raise Suspended if self.plain else asyncio.CancelledError

    def postpone(self, until: int, error: Error) -> None:
        """This process cannot go on with the job; another one may, later."""
        self.suspension, self._error = Suspension(until=until), error

    def _unwind(self) -> None:
        if self.plain:
            for over in self._waits:
                _end(over, Suspended())
        elif self.run.handle is not None:
            self.run.handle.cancel()

    def stop(self) -> None:
        """A plain task was asked to stop: it does not wait any longer."""
        for over in self._waits:
            _end(over, JobStopped(self.job.id, "the job was asked to stop"))

    # its end

    @property
    def unwinding(self) -> bool:
        return self.suspension is not None or self.lost

    async def finish(self) -> None:
        """Wait for the steps that still run: their effects are remembered in any case."""
        self.closed = True
        if self._busy and self.run.stop_reason is None and not self.lost:
            self._idle = self.loop.create_future()
            await self._idle
        if self._writer is not None:
            await asyncio.wait((self._writer,))

    def outcome(self) -> Outcome:
        """The outcome of a run that was unwound."""
        taken = self.run.taken
        if self.lost or self.suspension is None:
            return Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.GIVE_BACK)
        return Outcome(
            id=taken.job.id,
            run=taken.run,
            kind=OutcomeKind.SUSPENDED,
            suspend=self.suspension,
            error=self._error,
            reason=self._reason,
        )

    # where functions run

    async def call_function(self, function: Callable[[], Any], is_async: bool, here: Caller | None) -> Any:
        if is_async:
            return await function()
        context = copy_context()
        if here is not None:
            return await here.call(lambda: context.run(function))
        return await self.loop.run_in_executor(_step_threads(), lambda: context.run(function))

    def block(self, make: Callable[[Caller], Coroutine[Any, Any, Any]]) -> Any:
        """Await an operation in the thread of a plain task, which runs the step's function itself."""
        if self.run.blocks_loop():
            raise WouldBlock("a durable operation of a plain task", "an async task")
        here = Caller(self.loop)

        async def guarded() -> tuple[Any, BaseException | None]:
            try:
                return await make(here), None
            except BaseException as error:  # not for the event loop: it is raised in the thread
                return None, error
            finally:
                here.end()

        future = asyncio.run_coroutine_threadsafe(guarded(), self.loop)
        try:
            here.serve()
            value, error = future.result()
        finally:
            future.cancel()
        if error is None:
            return value
        if isinstance(error, asyncio.CancelledError):
            raise Suspended from None
        raise error


class Aside:
    """An operation that waits for others of its run: it runs again as soon as one of them has ended."""

    def __init__(self, durable: DurableRun) -> None:
        self._durable, self._over = durable, False
        durable.count(-1)

    async def until(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await work
        finally:
            self.end()

    def end(self) -> None:
        if not self._over:
            self._over = True
            self._durable.count(1)


class Caller:
    """Runs functions in the thread of a plain task while its operation is awaited on the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._work: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()

    async def call(self, function: Callable[[], Any]) -> Any:
        done = self._loop.create_future()
        self._work.put((function, done))
        value, error = await done
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        self._work.put(None)

    def serve(self) -> None:
        while (work := self._work.get()) is not None:
            function, done = work
            result: tuple[Any, BaseException | None]
            try:
                result = (function(), None)
            except BaseException as error:
                result = (None, error)
            self._loop.call_soon_threadsafe(_settle, done, result)


def _settle(done: asyncio.Future[Any], result: tuple[Any, BaseException | None]) -> None:
    if not done.done():
        done.set_result(result)


def _end(over: asyncio.Future[None], error: BaseException | None = None) -> None:
    if over.done():
        return
    if error is None:
        over.set_result(None)
    else:
        over.set_exception(error)


@cache
def _step_threads() -> ThreadPoolExecutor:
    """Threads for plain functions that are steps of async tasks."""
    return ThreadPoolExecutor(STEP_THREADS, "dray step")
