"""One session at the broker: numbers its takes, repeats what was not answered, keeps what was not accepted.

A reply that got lost is no problem: the same take is asked again under its number, the same outcomes are sent
again. So nothing here is given up before it is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from dray.broker.verbs import Beat, Broker, Filter, Heard, Ref, Report
from dray.errors import BrokerError, InvalidInput, SessionLost
from dray.job import Error, Outcome, OutcomeKind, Progress, Settled, Taken

SETTLE_STEP = 1000
log = logging.getLogger("dray.worker")


class SessionOver(Exception):
    """The session is gone for good; whoever used it goes on under a new name."""


class Session:
    def __init__(self, broker: Broker, name: str, lease: int) -> None:
        self.name, self.lease = name, lease
        self.epoch = 0
        self.unsent: dict[Ref, Outcome] = {}
        """What runs came to and the broker has not confirmed; what is just being sent is not here."""
        self.sending: dict[Ref, Outcome] = {}
        self.unanswered = 0
        """How many jobs were asked for in a take that has no answer yet."""
        self.repeats = False
        """The take at hand was asked before."""
        self._request = 0
        self._broker = broker

    async def open(self) -> None:
        (heard,) = await self._broker.renew([Beat(self.name, self.lease)])
        self.epoch = heard.epoch

    async def renew(self, progress: Iterable[tuple[Ref, Progress]] = ()) -> Heard:
        """Keep it alive. Raises `SessionOver` if the broker had forgotten it in between."""
        reports = tuple(Report(id, run, progress) for (id, run), progress in progress)
        (heard,) = await self._broker.renew([Beat(self.name, self.lease, reports)])
        if heard.epoch != self.epoch:
            raise SessionOver
        return heard

    async def take(self, queues: Sequence[str], filter: Filter, want: int) -> list[Taken]:
        if self.unanswered:
            self.repeats = True
        else:
            self._request += 1
            self.unanswered, self.repeats = want, False
        try:
            taken = await self._broker.take(self.name, self._request, queues, filter, self.unanswered)
        except InvalidInput:
            # Somebody used this name with a higher number: it is not ours alone any more.
            log.exception("take %d of session %s was refused", self._request, self.name)
            raise SessionOver from None
        self.unanswered = 0
        return taken

    async def settle(self) -> list[tuple[Outcome, Settled]]:
        """Send what is unsent; what comes to its end meanwhile is for the next time."""
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
        """One that the broker cannot take must not keep the others from being settled for ever."""
        try:
            (reply,) = await self._broker.settle(self.name, [outcome])
        except (BrokerError, SessionLost):
            raise
        except Exception as error:
            log.exception("the outcome of %s cannot be settled", outcome.id)
            told = Error("Unsettled", f"what it came to ({outcome.kind}) could not be stored: {error}"[:500])
            plain = Outcome(
                id=outcome.id, run=outcome.run, kind=OutcomeKind.DEAD, error=told, reason=told.message
            )
            (reply,) = await self._broker.settle(self.name, [plain])
        return reply

    def holds(self, ref: Ref) -> bool:
        return ref in self.unsent or ref in self.sending
