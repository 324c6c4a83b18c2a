"""The client of an app: one link per thread for blocking calls, one per event loop for awaited calls.

Every operation is written once, as a coroutine function whose first argument is a `Link`. `Client.block` runs
it to its end in the calling thread, `Client.run` awaits it. Threads share a broker object where it allows
that, and wait for results together. A forked child never uses its parent's links.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from dray.broker import Broker, connect
from dray.broker.blocking import run_blocking, suspended
from dray.client.link import Link, LoopLink, SharedBroker, ThreadLink
from dray.client.waiters import ThreadWaiters
from dray.errors import BrokerAway, DrayError, InvalidInput
from dray.policy import ConnectionSettings, Retention
from dray.stats.arrivals import Arrivals, opened_later

P = ParamSpec("P")
T = TypeVar("T")

_process = object()
"""Replaced in a forked child: cheaper to compare than `os.getpid()`."""


def _forked() -> None:
    global _process
    _process = object()


os.register_at_fork(after_in_child=_forked)

Opener = Callable[[bool], Coroutine[Any, Any, Broker]]
"""Opens a broker object; the argument says whether it must never suspend."""


def opener(
    url: str,
    namespace: str,
    retention: Retention,
    clock: Callable[[], int] | None = None,
    *,
    access: ConnectionSettings | None = None,
) -> Opener:
    """How an app opens its broker. In memory there is one store per app; its brokers are views of it."""
    if not url.startswith("memory:"):
        return lambda blocking: connect(
            url, namespace, retention=retention, access=access, blocking=blocking, clock=clock
        )
    if url != "memory://":
        raise InvalidInput("broker_url", url, "memory:// takes no path and no options")
    from dray.broker.memory import MemoryBroker

    store = MemoryBroker(namespace, retention=retention, clock=clock)

    async def view(blocking: bool) -> Broker:
        return store.view(blocking=blocking)

    return view


class _Threads:
    """The waiters, and if possible the broker object, that all threads of a process share."""

    def __init__(self) -> None:
        self.process = _process
        self.waiters = ThreadWaiters()
        self._broker_per_thread = False
        self._opened: SharedBroker | None = None
        self._opening = threading.Lock()
        self._failed: tuple[float, BrokerAway | None] = (0.0, None)

    def open(self, open: Opener) -> SharedBroker:
        if self._broker_per_thread:
            return SharedBroker(run_blocking(open(True)))
        asked = time.monotonic()
        with self._opening:
            if self._opened is not None and self._opened.close.alive:
                return self._opened
            at, failure = self._failed
            if failure is not None and at > asked:  # it failed while this thread waited for the lock
                raise BrokerAway(str(failure)) from failure
            try:
                opened = SharedBroker(run_blocking(open(True)))
            except BrokerAway as error:
                self._failed = (time.monotonic(), error)
                raise
            self._broker_per_thread = not getattr(opened.broker, "threadsafe", False)
            self._opened = None if self._broker_per_thread else opened
            return opened


class Client:
    """All links of one app. Cheap to make; nothing is opened before it is needed."""

    def __init__(self, open: Opener, url: str = "", *, wait_together: bool = True) -> None:
        self.open, self._wait_together = open, wait_together
        """`wait_together`: one thread listens for all waiting threads. Tests may switch it off."""
        self.arrivals = Arrivals(opened_later(open, url))
        """Counts accepted jobs. Without a URL they are not written in the background."""
        self._local, self._threads = threading.local(), _Threads()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLink] = (
            weakref.WeakKeyDictionary()
        )
        self._clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def clock(self) -> int:
        """The broker's time, as the newest link knows it; the machine's time before there is a link."""
        return self._clock()

    def block(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run an operation to its end in the calling thread."""
        link = self.thread_link()  # held meanwhile: a `close` in another thread drops the client's reference
        running = operation(link, *args, **kwargs)
        try:
            running.send(None)
        except StopIteration as end:
            result: T = end.value
            return result
        raise suspended(running)

    async def run(
        self,
        operation: Callable[Concatenate[Link, P], Coroutine[Any, Any, T]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Await an operation on the running loop."""
        link = await self.loop_link()
        return await operation(link, *args, **kwargs)

    def thread_link(self) -> ThreadLink:
        """The link of the calling thread."""
        link: ThreadLink | None = getattr(self._local, "link", None)
        if link is None or link.process is not _process or not link.close.alive:
            if link is not None:  # inherited through a fork, or closed at the end of the program
                link.close()  # the parent's own connection stays open
            threads = self._threads
            if threads.process is not _process:  # the parent's locks and names are not ours
                threads = self._threads = _Threads()
            waiters = threads.waiters if self._wait_together else ThreadWaiters()
            link = self._local.link = ThreadLink(threads.open(self.open), waiters, _process)
            self._clock = link.broker.clock
        return link

    async def loop_link(self) -> LoopLink:
        """The link of the running loop."""
        loop, process = asyncio.get_running_loop(), _process
        link = self._loops.get(loop)
        if link is None or link.process is not process:
            for old, unused in list(self._loops.items()):
                if old.is_closed() or unused.process is not process:
                    del self._loops[old]
                    unused.close()
            broker = await self.open(False)
            raced = self._loops.get(loop)  # another task may have opened one meanwhile
            if raced is not None and raced.process is process:
                await broker.close()
                return raced
            link = self._loops[loop] = LoopLink(broker, process)
            self._clock = broker.clock
        return link

    def close(self) -> None:
        """Drop every connection, whichever thread opened it; the next call opens a new one.

        A connection that another thread is using is closed after that call.
        """
        if self.arrivals.unwritten and getattr(self._local, "link", None) is not None:
            with contextlib.suppress(DrayError, OSError):
                self.block(lambda link: self.arrivals.write(link.broker))
        self._local, self._threads = threading.local(), _Threads()
        self._loops = weakref.WeakKeyDictionary()
