"""One session at the broker, and the progress that is sent with its renewals.

Takes are numbered, and nothing is given up before it is answered: after a lost reply the same take is
repeated under its number, and the same outcomes are sent again.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from dray.broker.verbs import Beat, Broker, Filter, Heard, NextTake, ProgressReport, Ref
from dray.errors import BrokerError, InvalidInput, SessionLost
from dray.job import Error, Outcome, OutcomeKind, Progress, Settled, Taken

SETTLE_STEP: Final = 1000
PROGRESS_EVERY: Final = 0.5
"""Seconds between reports of progress."""

log = logging.getLogger("dray.worker")


class SessionOver(Exception):
    """The session is gone for good; the executor opens a new one."""


class Session:
    def __init__(self, broker: Broker, name: str, lease: int) -> None:
        self.name, self.lease = name, lease
        self.epoch = 0
        self.unsent: dict[Ref, Outcome] = {}
        """Outcomes that the broker has not confirmed, without those in `sending`."""
        self.sending: dict[Ref, Outcome] = {}
        self.unanswered = 0
        """Jobs asked for in a take that has no answer yet."""
        self.offered: tuple[str, ...] = ()
        """Queues that the next take was offered to: each may have answered it."""
        self._received: dict[Ref, None] = {}
        """Runs that came as an answer to the offered take."""
        self._request = 0
        self._broker = broker

    async def open(self) -> None:
        (heard,) = await self._broker.renew([Beat(self.name, self.lease)])
        self.epoch = heard.epoch

    async def renew(self, progress: Iterable[tuple[Ref, Progress]] = ()) -> Heard:
        """Renew the lease. Raises `SessionOver` if the broker had forgotten the session in between."""
        reports = tuple(ProgressReport(id, run, progress) for (id, run), progress in progress)
        (heard,) = await self._broker.renew([Beat(self.name, self.lease, reports)])
        if heard.epoch != self.epoch:
            raise SessionOver
        return heard

    async def take(
        self, queues: Sequence[str], filter: Filter, want: int, share: int | None = None
    ) -> list[Taken]:
        """Take jobs; a take without an answer is repeated as it was. An offered one asks the same queues."""
        if not self.unanswered:
            self._request += 1
            self.unanswered = want
        taken = await self._take(self._request, queues, filter, self.unanswered, share)
        self.unanswered = 0
        return self._close_offer(taken)

    async def _take(
        self, request: int, queues: Sequence[str], filter: Filter, want: int, share: int | None = None
    ) -> list[Taken]:
        try:
            return await self._broker.take(self.name, request, queues, filter, want, share=share)
        except InvalidInput:
            # Another process used this session's name with a higher number.
            log.exception("take %d of session %s was refused", request, self.name)
            raise SessionOver from None

    # direct hand-over

    def offer(self, queues: tuple[str, ...]) -> NextTake:
        """Offer the next take to these queues; it must be repeated there before a higher number is used."""
        self.offered = queues
        return NextTake(self._request + 1, queues)

    def received(self, taken: Iterable[Taken]) -> None:
        """Note runs that came with a wake-up."""
        self._received.update(((one.job.id, one.run), None) for one in taken)

    async def confirm(self, filter: Filter) -> list[Taken]:
        """Repeat the offered take, for no further job: the runs that did not come with the wake-up."""
        taken = await self._take(self._request + 1, self.offered, filter, 0)
        self._request += 1
        return self._close_offer(taken)

    def _close_offer(self, taken: list[Taken]) -> list[Taken]:
        self.offered = ()
        if self._received:
            taken = [one for one in taken if (one.job.id, one.run) not in self._received]
            self._received.clear()
        return taken

    async def settle(self) -> list[tuple[Outcome, Settled]]:
        """Send the unsent outcomes; those of runs that end meanwhile are for the next call."""
        self.sending, self.unsent = self.unsent, {}
        try:
            outcomes = list(self.sending.values())
            if len(outcomes) > SETTLE_STEP:
                self._put_back(outcomes[SETTLE_STEP:])
                outcomes = outcomes[:SETTLE_STEP]
            try:
                replies = await self._broker.settle(self.name, outcomes)
            except (BrokerError, SessionLost):
                raise
            except Exception:
                log.exception("%d outcomes were refused as a whole: they go one by one", len(outcomes))
                replies = [await self._settle_one(outcome) for outcome in outcomes]
        except BaseException:
            self.unsent = self.sending | self.unsent
            raise
        finally:
            self.sending = {}
        return list(zip(outcomes, replies, strict=True))

    def _put_back(self, outcomes: list[Outcome]) -> None:
        for outcome in outcomes:
            ref = (outcome.id, outcome.run)
            del self.sending[ref]
            self.unsent[ref] = outcome

    async def _settle_one(self, outcome: Outcome) -> Settled:
        """An outcome that the broker cannot store must not hold up the others: its job is dead."""
        try:
            (reply,) = await self._broker.settle(self.name, [outcome])
        except (BrokerError, SessionLost):
            raise
        except Exception as error:
            log.exception("the outcome of %s cannot be settled", outcome.id)
            text = f"what it came to ({outcome.kind}) could not be stored: {error}"[:500]
            dead = Outcome(
                id=outcome.id,
                run=outcome.run,
                kind=OutcomeKind.DEAD,
                error=Error("Unsettled", text),
                reason=text,
            )
            (reply,) = await self._broker.settle(self.name, [dead])
        return reply

    def holds(self, ref: Ref) -> bool:
        return ref in self.unsent or ref in self.sending


class ProgressReports:
    """Progress on its way to the broker: the last report of each run, sent at most twice a second.

    `add` may be called from any thread; the rest belongs to the event loop.
    """

    def __init__(self, due: Callable[[], None]) -> None:
        self._due = due
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._waiting: dict[Ref, Progress] = {}
        self._armed = False
        self._sent_at = -math.inf

    def add(self, ref: Ref, progress: Progress) -> None:
        self._waiting[ref] = progress
        if self._armed:
            return
        self._armed = True
        if threading.get_ident() == self._thread:
            self._arm()
        else:
            self._loop.call_soon_threadsafe(self._arm)

    def _arm(self) -> None:
        self._loop.call_at(max(self._loop.time(), self._sent_at + PROGRESS_EVERY), self._due)

    def of(self, refs: Mapping[Ref, object]) -> bool:
        """True if one of these runs has an unsent report."""
        return bool(self._waiting) and any(ref in refs for ref in list(self._waiting))

    def fetch(self) -> dict[Ref, Progress]:
        self._sent_at = self._loop.time()
        self._armed = False
        fetched: dict[Ref, Progress] = {}
        while self._waiting:
            ref, progress = self._waiting.popitem()
            fetched[ref] = progress
        return dict(reversed(fetched.items()))

    def put_back(self, reports: dict[Ref, Progress]) -> None:
        for ref, progress in reports.items():
            self._waiting.setdefault(ref, progress)

    def drop(self, refs: Iterable[Ref]) -> None:
        """Forget the progress of runs that are settled or lost."""
        if self._waiting:
            for ref in refs:
                self._waiting.pop(ref, None)

    def clear(self) -> None:
        self._waiting.clear()
