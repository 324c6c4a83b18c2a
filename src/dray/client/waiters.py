"""Waiting for the end of jobs: one wait at the broker serves all callers of an event loop, or all threads.

Each caller holds a `Waiter`, which is woken for its own jobs only: one more waiter costs the others nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import Context

from dray.broker.verbs import Broker, Interest
from dray.errors import BrokerAway
from dray.job import Record
from dray.retry_pauses import RetryPauses

LOOK_AGAIN = 30.0
"""Seconds after which all jobs are read again: a broker that restarted may have lost a notification."""
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
"""Seconds between tries while the broker cannot be reached."""


class Waiter:
    """The jobs that one caller waits for."""

    def __init__(self) -> None:
        self.records: dict[str, Record | None] = {}
        """Each job as it was last read."""
        self.finished: dict[str, None] = {}
        """Jobs that finished since the last `take_finished`, in the order of their notifications."""
        self.pending: set[str] = set()
        self.on_wake: Callable[[], None] | None = None

    def take_finished(self) -> list[str]:
        """Jobs that finished since the last call."""
        finished, self.finished = list(self.finished), {}
        return finished

    def finish(self, id: str) -> None:
        self.pending.discard(id)
        self.finished[id] = None
        self.wake()

    def wake(self) -> None:
        if self.on_wake is not None:
            self.on_wake()


class Waiters:
    """All waiters of one link, and the jobs they wait for."""

    def __init__(self) -> None:
        self.name = f"w-{secrets.token_hex(8)}"
        """The watcher's name at the broker."""
        self.by_job: dict[str, dict[Waiter, None]] = {}
        self.missed = False
        """A wait at the broker failed, and its notifications may be lost: the jobs must be read."""
        self._lock: contextlib.AbstractContextManager[object] = contextlib.nullcontext()

    async def watch(self, broker: Broker, waiter: Waiter, ids: Sequence[str]) -> None:
        """Read jobs into `waiter` and register for their end, in one step of the broker."""
        self.expect(waiter, ids)  # first: the notification may come before this task goes on
        try:
            self.update(ids, await broker.get(ids, watch=self.name))
        except BaseException:
            self.forget(waiter)
            raise

    async def wait(self, broker: Broker, waiter: Waiter, timeout: float | None) -> list[str]:
        """Wait until some of the waiter's jobs have finished; empty after the timeout (in seconds)."""
        raise NotImplementedError

    def expect(self, waiter: Waiter, ids: Iterable[str]) -> None:
        with self._lock:
            for id in ids:
                waiter.pending.add(id)
                self.by_job.setdefault(id, {})[waiter] = None

    def update(self, ids: Sequence[str], records: Sequence[Record | None]) -> None:
        """Jobs were read: pass the records on, and wake the waiters of jobs that are finished or gone."""
        with self._lock:
            for id, record in zip(ids, records, strict=True):
                for waiter in self.by_job.get(id, ()):
                    waiter.records[id] = record
                if record is None or record.state.finished:
                    self.finish((id,))

    def finish(self, ids: Collection[str], records: Mapping[str, Record] | None = None) -> None:
        """Jobs have finished; `records` holds some of them."""
        with self._lock:
            for id in ids:
                for waiter in self.by_job.pop(id, ()):
                    if records and id in records:
                        waiter.records[id] = records[id]
                    waiter.finish(id)

    def forget(self, waiter: Waiter) -> None:
        with self._lock:
            for id in waiter.pending:
                others = self.by_job[id]
                del others[waiter]
                if not others:
                    del self.by_job[id]
            waiter.pending = set()

    async def read_all(self, broker: Broker) -> None:
        """Read every job that is waited for."""
        ids = list(self.by_job)
        self.update(ids, await broker.get(ids, watch=self.name))
        self.missed = False


class LoopWaiters(Waiters):
    """The waiters of one event loop. A background task listens at the broker while there are any."""

    def __init__(self) -> None:
        super().__init__()
        self._listener: asyncio.Task[None] | None = None

    async def wait(self, broker: Broker, waiter: Waiter, timeout: float | None) -> list[str]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not waiter.finished and (deadline is None or loop.time() < deadline):
            listener = self._start_listener(loop, broker)
            woken = loop.create_future()
            waiter.on_wake = functools.partial(_wake, woken)
            timer = None if deadline is None else loop.call_at(deadline, _wake, woken)
            try:
                await woken
            finally:
                waiter.on_wake = None
                if timer is not None:
                    timer.cancel()
            if listener.done() and not listener.cancelled() and not waiter.finished:
                listener.result()  # raises the error that ended it
        return waiter.take_finished()

    def forget(self, waiter: Waiter) -> None:
        super().forget(waiter)
        if not self.by_job and self._listener is not None:
            self._listener.cancel()
            self._listener = None

    def _start_listener(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> asyncio.Task[None]:
        if self._listener is None or self._listener.done():
            # An empty context: the listener serves all waiters, not only the job that waited first.
            self._listener = loop.create_task(self._listen(broker), context=Context())
            self._listener.add_done_callback(self._wake_all)
        return self._listener

    async def _listen(self, broker: Broker) -> None:
        pauses = RetryPauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        while self.by_job:
            try:
                await self._listen_once(broker)
                pauses.reset()
            except BrokerAway:
                await asyncio.sleep(pauses.next())

    async def _listen_once(self, broker: Broker) -> None:
        if self.missed:
            await self.read_all(broker)
            return
        try:
            wake = await broker.wait(Interest(watcher=self.name), LOOK_AGAIN)
        except BrokerAway:
            self.missed = True
            raise
        self.finish(wake.finished, wake.records)
        if not wake.finished:
            await self.read_all(broker)

    def _wake_all(self, listener: asyncio.Task[None]) -> None:
        if not listener.cancelled():
            listener.exception()
        for waiter in {one: None for waiting in self.by_job.values() for one in waiting}:
            waiter.wake()


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


class ThreadWaiters(Waiters):
    """All waiting threads. One of them, the leader, listens at the broker for all; the others sleep.

    A leader that stops waiting wakes another thread, which takes its place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._read_at = 0.0
        """When the jobs were last read, or the first of them was expected."""
        self._leader: Waiter | None = None
        self._asleep: dict[Waiter, None] = {}

    def expect(self, waiter: Waiter, ids: Iterable[str]) -> None:
        with self._lock:
            if not self.by_job:
                self._read_at = time.monotonic()
            super().expect(waiter, ids)

    async def wait(self, broker: Broker, waiter: Waiter, timeout: float | None) -> list[str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        pauses = RetryPauses(_FIRST_PAUSE, _LONGEST_PAUSE)
        try:
            while not waiter.finished:
                left = LOOK_AGAIN if deadline is None else min(LOOK_AGAIN, deadline - time.monotonic())
                if left <= 0:
                    break
                if not self._lead_or_sleep(waiter, left):
                    continue
                try:
                    await self._listen_once(broker, left)
                    pauses.reset()
                except BrokerAway:
                    time.sleep(min(left, pauses.next()))  # noqa: ASYNC251 (there is no loop here)
        finally:
            self._leave(waiter)
        with self._lock:
            return waiter.take_finished()

    async def _listen_once(self, broker: Broker, seconds: float) -> None:
        until_read = LOOK_AGAIN - (time.monotonic() - self._read_at)
        try:
            if self.missed or until_read <= 0:
                await self.read_all(broker)
                self._read_at = time.monotonic()
                return
            wake = await broker.wait(Interest(watcher=self.name), min(seconds, until_read))
        except BaseException:  # also KeyboardInterrupt and the like: a notification may be lost
            self.missed = True
            raise
        self.finish(wake.finished, wake.records)

    def _lead_or_sleep(self, waiter: Waiter, seconds: float) -> bool:
        """True if the calling thread leads. Otherwise it slept until a job finished, the leader left, or the
        time was over."""
        with self._lock:
            if waiter.finished:
                return False
            if self._leader is None or self._leader is waiter:
                self._leader = waiter
                return True
            woken = threading.Event()
            waiter.on_wake = woken.set
            self._asleep[waiter] = None
        try:
            woken.wait(seconds)
        finally:
            with self._lock:
                waiter.on_wake = None
                self._asleep.pop(waiter, None)
        return False

    def _leave(self, waiter: Waiter) -> None:
        """The calling thread stops waiting."""
        with self._lock:
            if self._leader is waiter:
                self._leader = None
            if self._leader is None and self._asleep:
                next(iter(self._asleep)).wake()
