"""The way from an app to its broker, for blocking and awaited calls alike.

Every operation is written once, as a coroutine function whose first argument is a `Link`. `Client.block` runs
it to its end in the calling thread (a link whose broker never suspends, one per thread), `Client.run` awaits
it (one link per event loop). Links made before a fork are never used by the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dray.broker import Broker, connect
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import PUT_STEP, Accepted, Interest, run_blocking
from dray.call import Durability
from dray.context import CURRENT
from dray.errors import BrokerAway, DrayError, InvalidInput, WouldBlock
from dray.job import Job
from dray.policy import Retention, check_job
from dray.watching import Watches, Watching

P = ParamSpec("P")
T = TypeVar("T")

LOOK_AGAIN = 30.0
"""Seconds after which a waiter reads anew: word that got lost with a broker's memory must not hang it."""
_AWAY_PAUSE = 0.05
"""Seconds a waiter lets pass while the broker cannot be reached: the job itself goes on."""

_process = object()
"""Replaced in a forked child: cheaper to compare than `os.getpid()`."""


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)


class Link(Protocol):
    """A broker, and how to sleep and to wait for the end of jobs beside it."""

    broker: Broker
    blocking: bool
    """Nothing may suspend here: there is no event loop."""

    async def put(self, job: Job, durability: Durability | None) -> Accepted: ...

    async def sleep(self, seconds: float) -> None: ...

    def time(self) -> float:
        """Seconds of the clock that its waits go by."""
        ...

    async def watch(self, watching: Watching, ids: Sequence[str]) -> None:
        """Read jobs into `watching`; from the same step on it is told of the end of each, until `unwatch`."""
        ...

    async def ended(self, watching: Watching, timeout: float | None) -> list[str]:
        """Those of its jobs that have ended, each told once, as soon as there are any; empty in the end."""
        ...

    def unwatch(self, watching: Watching) -> None: ...


class BlockingLink:
    """For one thread. Nothing here ever suspends."""

    blocking = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.process = _process
        self._watches = Watches()
        self.close = weakref.finalize(self, _let_go, broker)
        """Also when the thread ends, and when the program does."""

    async def put(self, job: Job, durability: Durability | None) -> Accepted:
        return (await self.broker.put((job,), durability=durability))[0]

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop here)

    def time(self) -> float:
        return time.monotonic()

    async def watch(self, watching: Watching, ids: Sequence[str]) -> None:
        await _watch(self.broker, self._watches, watching, ids)

    async def ended(self, watching: Watching, timeout: float | None) -> list[str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not watching.over:
            left = LOOK_AGAIN if deadline is None else min(LOOK_AGAIN, deadline - time.monotonic())
            if left <= 0:
                break
            try:
                await _listen(self.broker, self._watches, left)
            except BrokerAway:
                time.sleep(min(left, _AWAY_PAUSE))  # noqa: ASYNC251 (there is no loop here)
        return watching.take()

    def unwatch(self, watching: Watching) -> None:
        self._watches.forget(watching)


class AwaitedLink:
    """For one event loop. Jobs put in one turn of the loop travel together; one waiter waits for all."""

    blocking = False

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.process = _process
        self._watches = Watches()
        self._pump: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._outgoing: dict[Durability | None, list[_Sent]] = {}
        self.close = weakref.finalize(self, _let_go, broker)

    async def put(self, job: Job, durability: Durability | None) -> Accepted:
        """Whoever comes first in a turn waits for the next; if nobody came along, it sends its job itself."""
        if job.waits_for:
            return (await self.broker.put((job,), durability=durability))[0]
        waiting = self._outgoing.get(durability)
        if waiting is None:
            return await self._lead(job, durability)
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        waiting.append((job, future))
        return await future

    async def _lead(self, job: Job, durability: Durability | None) -> Accepted:
        others = self._outgoing[durability] = []
        try:
            await asyncio.sleep(0)
        except BaseException:  # it gave up; the others have not
            self._dispatch(durability)
            raise
        if not others:
            del self._outgoing[durability]
            return (await self.broker.put((job,), durability=durability))[0]
        future: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        others.insert(0, (job, future))
        self._dispatch(durability)
        return await future

    def _dispatch(self, durability: Durability | None) -> None:
        # A caller that gave up before anything was sent wants nothing sent.
        waiting = [sent for sent in self._outgoing.pop(durability) if not sent[1].cancelled()]
        for first in range(0, len(waiting), PUT_STEP):
            batch = waiting[first : first + PUT_STEP]
            task = asyncio.get_running_loop().create_task(self._send(batch, durability))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[_Sent], durability: Durability | None) -> None:
        try:
            replies = await self.broker.put([job for job, _ in batch], durability=durability)
        except BaseException as error:
            if isinstance(error, InvalidInput) and len(right := _right(batch)) < len(batch):
                if right:  # nothing was put: one wrong job must not fail its neighbours
                    await self._send(right, durability)
                return
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def watch(self, watching: Watching, ids: Sequence[str]) -> None:
        await _watch(self.broker, self._watches, watching, ids)

    async def ended(self, watching: Watching, timeout: float | None) -> list[str]:
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while not watching.over and (deadline is None or loop.time() < deadline):
            pump = self._listening(loop)
            woken = loop.create_future()
            watching.woken = functools.partial(_wake, woken)
            timer = None if deadline is None else loop.call_at(deadline, _wake, woken)
            try:
                await woken
            finally:
                watching.woken = None
                if timer is not None:
                    timer.cancel()
            if pump.done() and not pump.cancelled() and not watching.over:
                pump.result()  # raises what ended it
        return watching.take()

    def _listening(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[None]:
        if self._pump is None or self._pump.done():
            # In a context of its own: it serves all who wait, not only the job that asked first.
            self._pump = loop.create_task(self._listen(), context=Context())
            self._pump.add_done_callback(self._stopped)
        return self._pump

    async def _listen(self) -> None:
        """One wait for all who wait; ends with the last of them."""
        pause = _AWAY_PAUSE
        while self._watches.open:
            try:
                await _listen(self.broker, self._watches, LOOK_AGAIN)
                pause = _AWAY_PAUSE
            except BrokerAway:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)

    def _stopped(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled():
            pump.exception()
        self._watches.wake_all()

    def unwatch(self, watching: Watching) -> None:
        self._watches.forget(watching)
        if not self._watches.open and self._pump is not None:
            self._pump.cancel()
            self._pump = None


_Sent = tuple[Job, asyncio.Future[Accepted]]


def _right(batch: list[_Sent]) -> list[_Sent]:
    """Those without a fault; whoever sent another is told which."""
    right = []
    for job, future in batch:
        try:
            check_job(job)
        except InvalidInput as error:
            if not future.done():
                future.set_exception(error)
        else:
            right.append((job, future))
    return right


async def _watch(broker: Broker, watches: Watches, watching: Watching, ids: Sequence[str]) -> None:
    # Expected before they are read: an end may be heard before the reading task goes on.
    watches.expect(watching, ids)
    try:
        watches.note(ids, await broker.get(ids, watch=watches.name))
    except BaseException:
        watches.forget(watching)
        raise


async def _listen(broker: Broker, watches: Watches, seconds: float) -> None:
    """Wait for word of any end."""
    if watches.missed:
        await _look(broker, watches)
        return
    try:
        wake = await broker.wait(Interest(watcher=watches.name), seconds)
    except BrokerAway:
        watches.missed = True
        raise
    watches.hear(wake.finished, wake.records)
    if not wake.finished and seconds == LOOK_AGAIN:
        await _look(broker, watches)


async def _look(broker: Broker, watches: Watches) -> None:
    ids = list(watches.open)
    watches.note(ids, await broker.get(ids, watch=watches.name))
    watches.missed = False


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def _let_go(broker: Broker) -> None:
    with contextlib.suppress(DrayError, RuntimeError):
        run_blocking(broker.close())


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


Opener = Callable[[bool], Coroutine[Any, Any, Broker]]
"""Opens a broker object; the argument says whether it must never suspend."""


def opener(url: str, namespace: str, retention: Retention, clock: Callable[[], int] | None = None) -> Opener:
    """How an app opens its broker. In memory there is one store per app; its brokers are views of it."""
    if not url.startswith("memory:"):
        return lambda blocking: connect(url, namespace, retention=retention, blocking=blocking, clock=clock)
    if url != "memory://":
        raise InvalidInput("broker_url", url, "memory:// takes no path and no options")
    store = MemoryBroker(namespace, retention=retention, clock=clock)

    async def view(blocking: bool) -> Broker:
        return store.view(blocking=blocking)

    return view


class Client:
    """All links of one app. Cheap to make; nothing is opened before it is needed."""

    def __init__(self, open: Opener) -> None:
        self.open = open
        self._local = threading.local()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AwaitedLink] = (
            weakref.WeakKeyDictionary()
        )
        self._clock: Callable[[], int] = _wall_clock

    def clock(self) -> int:
        """The broker's time, as the link opened last knows it; before there is one, the machine's."""
        return self._clock()

    def block(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation to its end, here."""
        return run_blocking(operation(self.thread_link(), *args, **kwargs))

    async def run(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await an operation on the running loop."""
        return await operation(await self.loop_link(), *args, **kwargs)

    def thread_link(self) -> BlockingLink:
        """The link of the calling thread."""
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None or link.process is not _process or not link.close.alive:
            if link is not None:
                # Inherited through fork: let go of it, the parent goes on with its own. Or the program is at
                # its end, which closed it before somebody's last word.
                link.close()
            link = self._local.link = BlockingLink(run_blocking(self.open(True)))
            self._clock = link.broker.clock
        return link

    async def loop_link(self) -> AwaitedLink:
        """The link of the running loop."""
        loop = asyncio.get_running_loop()
        link = self._loops.get(loop)
        if link is None or link.process is not _process:
            for old, gone in list(self._loops.items()):
                if old.is_closed() or gone.process is not _process:
                    del self._loops[old]
                    gone.close()
            broker = await self.open(False)
            raced = self._loops.get(loop)  # another task may have been quicker meanwhile
            if raced is not None and raced.process is _process:
                await broker.close()
                return raced
            link = self._loops[loop] = AwaitedLink(broker)
            self._clock = broker.clock
        return link

    def close(self) -> None:
        """Let go of every connection, whoever opened it; the next call opens a new one.

        They are not closed under the hands of another thread: one that is in use there goes after that.
        """
        self._local = threading.local()
        self._loops = weakref.WeakKeyDictionary()


def forbid_on_worker_loop(call: str, twin: str) -> None:
    """A blocking wait on the loop that all jobs of an executor share would stop them all."""
    running = CURRENT.get()
    if running is not None and running.blocks_loop():
        raise WouldBlock(call, twin)


def while_waiting() -> contextlib.AbstractContextManager[None]:
    """Inside it, a job that waits does not use its worker's slot; elsewhere it means nothing."""
    running = CURRENT.get()
    return contextlib.nullcontext() if running is None else running.waiting()
