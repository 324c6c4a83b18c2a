"""Upkeep that any worker can do, and that one at a time suffices for.

Who does it holds a document with a term (`hold`): it is written again while the holder lives, given up on an
orderly stop, and runs out one lease after the holder died; then any other worker takes it. Nothing depends on
there being only one: two that sweep at once do no harm, they only share the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Final

from dray.errors import BrokerError
from dray.worker.lifeline import Lifeline, Pauses

HOLD: Final = "hold"
NAME: Final = "duties"
LONGEST_PAUSE: Final = 60.0
"""Seconds between tries of upkeep that fails for a reason of our own."""

log = logging.getLogger("dray.worker")


class Duties:
    """One worker's part in the duties: try to hold them, and do them while it does."""

    def __init__(self, line: Lifeline, worker: str, *, lease: int, interval: int) -> None:
        self._line, self._worker, self._lease, self._interval = line, worker, lease, interval
        self._term = 0
        """The version of the hold while it is ours, else 0."""
        self._valid_until = 0.0

    @property
    def leader(self) -> bool:
        return self._term > 0 and self._line.monotonic() < self._valid_until

    async def run(self) -> None:
        """Tick for ever. No failure ends it: the next tick may work."""
        interval = self._interval / 1000
        pauses = Pauses(interval, LONGEST_PAUSE)
        while True:
            pause = interval
            try:
                if await self.tick():
                    pause = 0
                pauses = Pauses(interval, LONGEST_PAUSE)
            except (BrokerError, OSError):
                pass  # the line has logged it
            except Exception:
                pause = pauses.next()
                log.exception("upkeep failed; it is tried again in %.1f s", pause)
            await asyncio.sleep(pause)

    async def tick(self) -> bool:
        """One step of upkeep, if they are ours to do; whether there is more to do at once."""
        if not await self._hold():
            return False
        # Whoever lost touch for a lease does not expire others: they may live, and had no way to say so.
        swept = await self._line.ask(lambda broker: broker.sweep(lapse=not self._line.doubtful))
        return swept.more

    async def give_up(self) -> None:
        """Let another worker take over at once."""
        term, self._term = self._term, 0
        if term:
            with contextlib.suppress(BrokerError, OSError):
                await self._line.ask(lambda broker: broker.doc(HOLD, NAME, None, expect_version=term))

    async def _hold(self) -> bool:
        """Get the hold or keep it. It is written again only when a third of its term has passed."""
        now = self._line.monotonic()
        if self._term and now < self._valid_until - self._lease * 2 / 3000:
            return True
        if self._term and await self._write(self._term, now):
            return True
        doc = (await self._line.ask(lambda broker: broker.doc(HOLD, NAME))).doc
        if doc is None:
            return await self._write(0, now)
        if doc.value == self._worker.encode():  # ours, but the reply to the write was lost
            return await self._write(doc.version, now)
        return False

    async def _write(self, expected: int, now: float) -> bool:
        self._term = 0
        value = self._worker.encode()
        reply = await self._line.ask(
            lambda broker: broker.doc(HOLD, NAME, value, expect_version=expected, ttl=self._lease)
        )
        if not reply.written or reply.doc is None:
            return False
        self._term, self._valid_until = reply.doc.version, now + self._lease / 1000
        return True
