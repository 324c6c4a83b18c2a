"""The way from an app to its broker, for blocking and awaited calls alike.

Every operation is written once, as a coroutine function whose first argument is a `Link`. `Client.block` runs
it to its end in the calling thread (a link whose broker never suspends, one per thread), `Client.run` awaits
it (one link per event loop). Links made before a fork are never used by the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextvars import Context
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from dray.broker import Broker, connect
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import PUT_STEP, Accepted, Interest, run_blocking
from dray.context import CURRENT
from dray.errors import BrokerAway, DrayError, InvalidInput, WouldBlock
from dray.job import Job, Record
from dray.policy import Retention, check_job

P = ParamSpec("P")
T = TypeVar("T")

LOOK_AGAIN = 30.0
"""Seconds after which a waiter reads anew: word that got lost with a broker's memory must not hang it."""

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

    async def put(self, job: Job, durability: Any) -> Accepted: ...

    async def sleep(self, seconds: float) -> None: ...

    def time(self) -> float:
        """Seconds of the clock that its waits go by."""
        ...

    async def watch(self, ids: Sequence[str]) -> list[Record | None]:
        """Read jobs; word of the end of each that is unfinished reaches `ended` until `unwatch`."""
        ...

    async def ended(self, pending: Collection[str], timeout: float | None) -> set[str]:
        """Those of the watched jobs that have ended, as soon as there are any; empty after the timeout."""
        ...

    def unwatch(self, ids: Collection[str]) -> None: ...


class _Watch:
    """Which jobs somebody waits for, and what is known of their ends."""

    def __init__(self) -> None:
        self.name = f"w-{secrets.token_hex(8)}"
        self.wanted: dict[str, int] = {}
        self.over: set[str] = set()

    def want(self, records: Sequence[Record | None], ids: Sequence[str]) -> None:
        for id, record in zip(ids, records, strict=True):
            self.wanted[id] = self.wanted.get(id, 0) + 1
            if record is None or record.state.finished:
                self.over.add(id)

    def forget(self, ids: Collection[str]) -> None:
        for id in ids:
            left = self.wanted.get(id, 0) - 1
            if left > 0:
                self.wanted[id] = left
            else:
                self.wanted.pop(id, None)
                self.over.discard(id)

    def hear(self, ids: Collection[str]) -> None:
        self.over.update(id for id in ids if id in self.wanted)

    def among(self, pending: Collection[str]) -> set[str]:
        return self.over.intersection(pending)


class BlockingLink:
    """For one thread. Nothing here ever suspends."""

    blocking = True

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.process = _process
        self._watch = _Watch()

    async def put(self, job: Job, durability: Any) -> Accepted:
        return (await self.broker.put([job], durability=durability))[0]

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (there is no loop here)

    def time(self) -> float:
        return time.monotonic()

    async def watch(self, ids: Sequence[str]) -> list[Record | None]:
        records = await self.broker.get(ids, watch=self._watch.name)
        self._watch.want(records, ids)
        return records

    async def ended(self, pending: Collection[str], timeout: float | None) -> set[str]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (over := self._watch.among(pending)):
            left = LOOK_AGAIN if deadline is None else min(LOOK_AGAIN, deadline - time.monotonic())
            if left <= 0:
                return over
            wake = await self.broker.wait(Interest(watcher=self._watch.name), left)
            self._watch.hear(wake.finished)
            if not wake.finished and left == LOOK_AGAIN:
                records = await self.broker.get(list(pending), watch=self._watch.name)
                ends = zip(pending, records, strict=True)
                self._watch.hear([id for id, record in ends if record is None or record.state.finished])
        return over

    def unwatch(self, ids: Collection[str]) -> None:
        self._watch.forget(ids)

    def close(self) -> None:
        with contextlib.suppress(DrayError):
            run_blocking(self.broker.close())


class AwaitedLink:
    """For one event loop. Jobs put in one turn of the loop travel together; one waiter waits for all."""

    blocking = False

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop) -> None:
        self.broker = broker
        self.process = _process
        self._loop = loop
        self._watch = _Watch()
        self._pump: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._sending: set[asyncio.Task[None]] = set()
        self._outgoing: dict[Any, list[tuple[Job, asyncio.Future[Accepted]]]] = {}

    async def put(self, job: Job, durability: Any) -> Accepted:
        check_job(job)  # here, so that one wrong job does not fail its neighbours
        if job.waits_for:
            return (await self.broker.put([job], durability=durability))[0]
        waiting = self._outgoing.setdefault(durability, [])
        future: asyncio.Future[Accepted] = self._loop.create_future()
        waiting.append((job, future))
        if len(waiting) == 1:
            self._loop.call_soon(self._dispatch, durability)
        return await future

    def _dispatch(self, durability: Any) -> None:
        waiting = self._outgoing.pop(durability)
        for first in range(0, len(waiting), PUT_STEP):
            task = self._loop.create_task(self._send(waiting[first : first + PUT_STEP], durability))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, batch: list[tuple[Job, asyncio.Future[Accepted]]], durability: Any) -> None:
        try:
            replies = await self.broker.put([job for job, _ in batch], durability=durability)
        except BaseException as error:
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
        return self._loop.time()

    async def watch(self, ids: Sequence[str]) -> list[Record | None]:
        records = await self.broker.get(ids, watch=self._watch.name)
        self._watch.want(records, ids)
        return records

    async def ended(self, pending: Collection[str], timeout: float | None) -> set[str]:
        deadline = None if timeout is None else self._loop.time() + timeout
        while not (over := self._watch.among(pending)):
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return over
            if self._pump is None or self._pump.done():
                # In a context of its own: it serves all who wait, not only the job that asked first.
                self._pump = self._loop.create_task(self._listen(), context=Context())
                self._pump.add_done_callback(self._stopped)
            pump, news = self._pump, self._news
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), left)
            if pump.done() and not pump.cancelled():
                pump.result()  # raises what ended it
        return over

    def _stopped(self, pump: asyncio.Task[None]) -> None:
        if not pump.cancelled():
            pump.exception()
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _listen(self) -> None:
        """One wait for all who wait; ends with the last of them."""
        pause = 0.05
        while self._watch.wanted.keys() - self._watch.over:
            try:
                wake = await self.broker.wait(Interest(watcher=self._watch.name), LOOK_AGAIN)
                ended: Collection[str] = wake.finished or await self._read_again()
                pause = 0.05
            except BrokerAway:
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
                continue
            if ended:
                self._watch.hear(ended)
                self._tell()

    async def _read_again(self) -> list[str]:
        ids = list(self._watch.wanted.keys() - self._watch.over)
        records = await self.broker.get(ids, watch=self._watch.name)
        ends = zip(ids, records, strict=True)
        return [id for id, record in ends if record is None or record.state.finished]

    def unwatch(self, ids: Collection[str]) -> None:
        self._watch.forget(ids)
        if not self._watch.wanted and self._pump is not None:
            self._pump.cancel()
            self._pump = None

    def close(self) -> None:
        if self._pump is not None and not self._loop.is_closed():
            self._pump.cancel()
        with contextlib.suppress(DrayError, RuntimeError):
            run_blocking(self.broker.close())


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
        self._all: weakref.WeakSet[BlockingLink | AwaitedLink] = weakref.WeakSet()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AwaitedLink] = (
            weakref.WeakKeyDictionary()
        )

    def block(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation to its end, here."""
        return run_blocking(operation(self._thread_link(), *args, **kwargs))

    async def run(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await an operation on the running loop."""
        return await operation(await self._loop_link(), *args, **kwargs)

    def _thread_link(self) -> BlockingLink:
        link: BlockingLink | None = getattr(self._local, "link", None)
        if link is None or link.process is not _process:
            if link is not None:
                link.close()  # inherited through fork: let go of it, the parent goes on with its own
            link = self._local.link = BlockingLink(run_blocking(self.open(True)))
            self._all.add(link)
        return link

    async def _loop_link(self) -> AwaitedLink:
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
            link = self._loops[loop] = AwaitedLink(broker, loop)
            self._all.add(link)
        return link

    def close(self) -> None:
        """Let go of every connection, whoever opened it. The next call opens a new one."""
        for link in list(self._all):
            link.close()
        self._all.clear()
        self._loops.clear()
        self._local = threading.local()


def forbid_on_worker_loop(call: str, twin: str) -> None:
    """A blocking wait on the loop that all jobs of an executor share would stop them all."""
    running = CURRENT.get()
    if running is not None and running.blocks_loop():
        raise WouldBlock(call, twin)


async def giving_back_slot(wait: Awaitable[T]) -> T:
    """Await something; a job that does so does not use its worker's slot meanwhile."""
    running = CURRENT.get()
    if running is None:
        return await wait
    with running.waiting():
        return await wait
