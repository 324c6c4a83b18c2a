"""Leadership: a document that one worker holds for a term at a time.

It is written again while the holder lives, deleted on an orderly stop, and runs out one lease after the
holder died; then any other worker takes it. The term is the document's version, which is never used twice. A
holder that was frozen past its term may not know yet that it is not the only one: whatever is done under a
hold must be harmless when two do it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from dray.broker.verbs import Doc
from dray.errors import BrokerError
from dray.roster import HOLD, Holder, encode_holder, read_holder
from dray.worker.lifeline import Lifeline

LOOK_EVERY: Final = 1.0
"""Seconds between looks of those who wait for their turn."""


class Hold:
    """One worker's part: try to get it, keep it, let it go."""

    look_every = LOOK_EVERY

    def __init__(self, line: Lifeline, worker: str, *, lease: int, stands_in: bool = False) -> None:
        self._line, self._lease = line, lease
        self._me = Holder(worker, stands_in)
        self._term = 0
        """The version of the document while it is ours, else 0."""
        self._valid_until = 0.0
        self._gained = asyncio.Event()
        self._leaving = False
        self._one_at_a_time = asyncio.Lock()

    @property
    def held(self) -> bool:
        """Whether it is ours, by our own clock. Nobody else can have taken it while this is true, unless we
        stand in, or were frozen since it was asked."""
        return self._term > 0 and self._line.monotonic() < self._valid_until

    async def wait(self) -> None:
        """Sleep until it is ours."""
        while not self.held:
            self._gained.clear()
            await self._gained.wait()

    async def keep(self, every: float) -> None:
        """Seek it and keep it for ever; `every` is the longest pause in seconds."""
        pause = min(every, self.look_every, self._lease / 3000)
        while True:
            with contextlib.suppress(BrokerError, OSError):  # the line has logged it
                await self.seek()
            await asyncio.sleep(pause)

    async def seek(self) -> bool:
        """Get it or keep it. It is written again only when a third of its term has passed."""
        async with self._one_at_a_time:
            return not self._leaving and await self._seek()

    async def give_up(self) -> None:
        """Let another worker take over at once; this one does not seek it again."""
        self._leaving, self._term = True, 0
        async with self._one_at_a_time:
            self._term = 0
            with contextlib.suppress(BrokerError, OSError):
                doc = await self._read()
                if doc is not None and self._is_ours(doc):
                    version = doc.version
                    await self._line.ask(lambda broker: broker.doc(*HOLD, None, expect_version=version))

    async def _seek(self) -> bool:
        now = self._line.monotonic()
        if self._term and now < self._valid_until - self._lease * 2 / 3000:
            return True
        if self._term and await self._write(self._term, now):
            return True
        doc = await self._read()
        if doc is None:
            return await self._write(0, now)
        if self._is_ours(doc):  # the reply to the write was lost
            return await self._write(doc.version, now)
        holder = read_holder(doc)
        if holder is not None and holder.stands_in and not self._me.stands_in:
            return await self._write(doc.version, now)
        return False

    def _is_ours(self, doc: Doc) -> bool:
        holder = read_holder(doc)
        return holder is not None and holder.worker == self._me.worker

    async def _read(self) -> Doc | None:
        return (await self._line.ask(lambda broker: broker.doc(*HOLD))).doc

    async def _write(self, expected: int, now: float) -> bool:
        self._term = 0
        value = encode_holder(self._me)
        reply = await self._line.ask(
            lambda broker: broker.doc(*HOLD, value, expect_version=expected, ttl=self._lease)
        )
        if not reply.written or reply.doc is None:
            return False
        self._term, self._valid_until = reply.doc.version, now + self._lease / 1000
        self._gained.set()
        return True
