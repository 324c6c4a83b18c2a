"""Direct hand-over: offers the next take while the executor sleeps, and starts the job that a wake-up brings.

The broker may answer an offered take in advance, in each queue for itself. So the offered number is repeated
at every queue that it was offered to, before a higher one is used. This also confirms that the runs arrived:
it is sent before they start, because a job may block the event loop, and beside the work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from dray.broker.verbs import Broker, Filter, NextTake, Wake
from dray.errors import BrokerError, SessionLost
from dray.job import Taken
from dray.worker.executor.session import Session, SessionOver
from dray.worker.executor.turns import Turns

log = logging.getLogger("dray.worker")

FRESH: Final = 1_000
"""Milliseconds after which a job that was handed over is not started without asking: the executor was frozen,
and the run may be withdrawn."""


class HandOver:
    """The hand-over to one executor, on its event loop."""

    def __init__(
        self,
        broker: Broker,
        filter: Filter,
        turns: Turns,
        start: Callable[[Session, list[Taken]], None],
        confirmed: Callable[[], None],
    ) -> None:
        self._broker, self._filter, self._turns = broker, filter, turns
        self._start, self._confirmed = start, confirmed
        self._loop = asyncio.get_running_loop()
        self._confirming: asyncio.Task[None] | None = None

    @property
    def confirming(self) -> bool:
        """The offered number is being repeated: no other may be used yet."""
        return self._confirming is not None

    def offer(self, session: Session, free: int) -> NextTake | None:
        """Offer the next take, with `free` slots; None if no queue is worth it."""
        queues = session.offered or self._turns.offered(free)
        return session.offer(queues) if queues else None

    def receive(self, session: Session, wake: Wake) -> bool:
        """Confirm and start what was handed over; false if it may be too late for that."""
        if self._broker.clock() - wake.handed_at > FRESH:
            return False
        taken = list(wake.taken)
        session.received(taken)
        self._turns.gave(taken[-1].job.queue)
        self._confirming = self._loop.create_task(self._confirm(session))
        # Behind the first step of that task, which sends the confirmation.
        self._loop.call_soon(self._start, session, taken)
        return True

    async def _confirm(self, session: Session) -> None:
        """Repeat the offered take. If that fails the offer stays open, and the next turn repeats it."""
        me = self._confirming
        try:
            self._start(session, await session.confirm(self._filter))
        except (BrokerError, OSError, SessionLost, SessionOver):
            pass
        except Exception:
            log.exception("a hand-over could not be confirmed")
        if self._confirming is me:
            self._confirming = None
            self._confirmed()

    def drop(self) -> None:
        """The session is over: its confirmation does not matter any more."""
        if self._confirming is not None:
            self._confirming.cancel()
            self._confirming = None
