"""Arrivals: the number of accepted jobs by task, queue and source.

Producers count in their own memory, which costs an enqueue next to nothing. Every few seconds a thread adds
new counts to a document of the broker; it lives only while there are any. The end of the program adds the
rest. A write whose reply got lost is recognised by its token, so nothing counts twice. The last seconds of a
process that is killed are lost.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec

from dray.broker.verbs import Broker, run_blocking
from dray.documents.reading import read_doc
from dray.errors import BrokerBusy, BrokerGone, DrayError
from dray.stats.tallies import KEEP_PAST, MOST_QUEUES, MOST_TASKS, OTHER

KIND: Final = "arrivals"
SOURCES: Final = ("python", "http", "grpc", "cli", "schedule")
SOURCE: ContextVar[str] = ContextVar("dray_source", default="python")
"""The source of jobs that are enqueued in this context."""
EVERY: Final = 5.0
"""Seconds between two writes."""
AT_EXIT: Final = 1.0
"""Seconds that the end of a program waits for a write."""
SHARDS: Final = 8
"""Documents that producers are spread over, so that they seldom write to the same one at once."""
TRIES: Final = 50
TOKENS: Final = 200
"""How many writes a document remembers."""

Key = tuple[str, str, str]
"""Task, queue, source."""
Counts = dict[str, dict[str, dict[str, int]]]
"""Task → queue → source → jobs."""


class Document(msgspec.Struct, frozen=True):
    """The counts of some producers."""

    counts: Counts = {}
    tokens: tuple[str, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Document).decode
_all: weakref.WeakSet[Arrivals] = weakref.WeakSet()


class Arrivals:
    """The counts of one process that are not written yet. `open` is for the thread; None: it has none."""

    def __init__(self, open: Callable[[], Awaitable[Broker]] | None = None) -> None:
        self._open = open
        self._begin_anew()
        _all.add(self)

    def _begin_anew(self) -> None:
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._new: dict[Key, int] = {}
        self._sent: tuple[str, dict[Key, int]] | None = None
        """The counts that are being written, with their token, until the write has surely worked."""
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._shard = str(secrets.randbelow(SHARDS))

    def add(self, task: str, queue: str, source: str | None = None, *, count: int = 1) -> None:
        """Jobs were accepted."""
        key = (task, queue, source or SOURCE.get())
        with self._lock:
            self._new[key] = self._new.get(key, 0) + count
            if self._thread is not None or self._open is None:
                return
            self._thread = threading.Thread(target=self._work, name="dray-arrivals", daemon=True)
        with contextlib.suppress(RuntimeError):  # the program ends: `_at_exit` writes
            self._thread.start()

    @property
    def unwritten(self) -> bool:
        return bool(self._new or self._sent)

    async def write(self, broker: Broker) -> None:
        """Add new counts to the broker's document; if that fails, they are kept for the next time."""
        if not self._writing.acquire(blocking=False):  # the thread does it
            return
        try:
            while (sent := self._next()) is not None:
                await _add(broker, self._shard, *sent)
                self._sent = None
        finally:
            self._writing.release()

    def _next(self) -> tuple[str, dict[Key, int]] | None:
        with self._lock:
            if self._sent is None and self._new:
                self._sent, self._new = (secrets.token_hex(6), self._new), {}
            return self._sent

    def _work(self) -> None:
        while True:
            ending = self._ending.wait(EVERY)
            self._write_now()
            with self._lock:
                if ending or not self.unwritten:
                    self._thread = None
                    return

    def _write_now(self) -> None:
        """Write on a connection of its own. Counts that cannot be written now are kept."""
        if self._open is None or not self.unwritten:
            return
        with contextlib.suppress(DrayError, OSError, RuntimeError):
            broker = run_blocking(_opened(self._open))
            try:
                run_blocking(self.write(broker))
            finally:
                run_blocking(broker.close())


def opened_later(
    open: Callable[[bool], Awaitable[Broker]], url: str
) -> Callable[[], Awaitable[Broker]] | None:
    """A function with which the thread opens the broker. A removed file is not made again."""
    if not url or url.startswith("memory:"):
        return None
    path = Path(unquote(url.partition("?")[0].removeprefix("sqlite:///")))

    async def later() -> Broker:
        if url.startswith("sqlite:") and not path.exists():  # noqa: ASYNC240 (this thread has no other work)
            raise BrokerGone(f"{path} is not there any more")
        return await open(True)

    return later


async def _opened(open: Callable[[], Awaitable[Broker]]) -> Broker:
    return await open()


async def _add(broker: Broker, shard: str, token: str, new: Mapping[Key, int]) -> None:
    for _ in range(TRIES):
        doc = (await broker.doc(KIND, shard)).doc
        before = read_doc(_decode, doc) or Document()
        if token in before.tokens:  # the reply to an earlier try was lost
            return
        after = Document(_sum(before.counts, new), (*before.tokens, token)[-TOKENS:])
        version = 0 if doc is None else doc.version
        written = await broker.doc(KIND, shard, _encode(after), expect_version=version, ttl=KEEP_PAST)
        if written.written:
            return
    raise BrokerBusy("the document of arrivals is written by others all the time; it is tried again later")


def _sum(before: Counts, new: Mapping[Key, int]) -> Counts:
    sums = {task: {queue: dict(found) for queue, found in queues.items()} for task, queues in before.items()}
    for (task, queue, source), count in new.items():
        queues = sums.setdefault(task if task in sums or len(sums) < MOST_TASKS else OTHER, {})
        found = queues.setdefault(queue if queue in queues or len(queues) < MOST_QUEUES else OTHER, {})
        found[source] = found.get(source, 0) + count
    return sums


async def read_arrivals(broker: Broker) -> Counts:
    """All jobs that were ever accepted, as far as producers have written their counts."""
    sums: Counts = {}
    for doc in await broker.docs(KIND):
        flat = {
            (task, queue, source): count
            for task, queues in (read_doc(_decode, doc) or Document()).counts.items()
            for queue, sources in queues.items()
            for source, count in sources.items()
        }
        sums = _sum(sums, flat)
    return sums


def _at_exit() -> None:
    for arrivals in list(_all):
        thread = arrivals._thread
        arrivals._ending.set()
        if thread is not None and thread.is_alive():
            thread.join(AT_EXIT)
        arrivals._write_now()


def _forked() -> None:
    """The counts of the parent are written by the parent."""
    for arrivals in list(_all):
        arrivals._begin_anew()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_forked)
