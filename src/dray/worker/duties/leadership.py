"""Leadership: a document that one worker holds for a term at a time.

The leader renews it, deletes it on an orderly stop, and loses it one lease after its death; then any other
worker takes it. The term is the document's version, which is never used twice. A leader that was frozen past
its term may not know yet that another one leads: all that a leader does must be harmless when two do it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from dray.broker.verbs import Doc
from dray.documents.worker_registry import LEADERSHIP, Leader, encode_leader, read_leader
from dray.errors import BrokerError
from dray.worker.retrying_broker import RetryingBroker

SEEK_EVERY: Final = 1.0
"""Seconds between tries of a worker that does not lead."""


class Leadership:
    """One worker's part: get the document, keep it, give it up."""

    seek_every = SEEK_EVERY

    def __init__(self, retrying: RetryingBroker, worker: str, *, lease: int, stands_in: bool = False) -> None:
        self._retrying, self._lease = retrying, lease
        self._me = Leader(worker, stands_in)
        self._term = 0
        """The version of the document while this worker leads, else 0."""
        self._valid_until = 0.0
        self._gained = asyncio.Event()
        self._leaving = False
        self._lock = asyncio.Lock()

    @property
    def held(self) -> bool:
        """True while our term lasts, by our own clock. Not exclusive if we are a stand-in or were frozen."""
        return self._term > 0 and self._retrying.monotonic() < self._valid_until

    async def wait(self) -> None:
        """Sleep until this worker leads."""
        while not self.held:
            self._gained.clear()
            await self._gained.wait()

    async def keep(self, every: float) -> None:
        """Get it and keep it, until cancelled; `every` is the longest pause in seconds."""
        pause = min(every, self.seek_every, self._lease / 3000)
        while True:
            with contextlib.suppress(BrokerError, OSError):  # logged by `RetryingBroker`
                await self.seek()
            await asyncio.sleep(pause)

    async def seek(self) -> bool:
        """Get it or keep it. The document is renewed only when a third of its term has passed."""
        async with self._lock:
            return not self._leaving and await self._seek()

    async def give_up(self) -> None:
        """Let another worker lead at once; this one does not seek it again."""
        self._leaving, self._term = True, 0
        async with self._lock:
            self._term = 0
            with contextlib.suppress(BrokerError, OSError):
                doc = await self._read()
                if doc is not None and self._is_ours(doc):
                    version = doc.version
                    await self._retrying.ask(
                        lambda broker: broker.doc(*LEADERSHIP, None, expect_version=version)
                    )

    async def _seek(self) -> bool:
        now = self._retrying.monotonic()
        if self._term and now < self._valid_until - self._lease * 2 / 3000:
            return True
        if self._term and await self._write(self._term, now):
            return True
        doc = await self._read()
        if doc is None:
            return await self._write(0, now)
        if self._is_ours(doc):  # the reply to the write was lost
            return await self._write(doc.version, now)
        leader = read_leader(doc)
        if leader is not None and leader.stands_in and not self._me.stands_in:
            return await self._write(doc.version, now)
        return False

    def _is_ours(self, doc: Doc) -> bool:
        leader = read_leader(doc)
        return leader is not None and leader.worker == self._me.worker

    async def _read(self) -> Doc | None:
        return (await self._retrying.ask(lambda broker: broker.doc(*LEADERSHIP))).doc

    async def _write(self, expected: int, now: float) -> bool:
        self._term = 0
        value = encode_leader(self._me)
        reply = await self._retrying.ask(
            lambda broker: broker.doc(*LEADERSHIP, value, expect_version=expected, ttl=self._lease)
        )
        if not reply.written or reply.doc is None:
            return False
        self._term, self._valid_until = reply.doc.version, now + self._lease / 1000
        self._gained.set()
        return True
