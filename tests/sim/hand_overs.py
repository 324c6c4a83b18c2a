"""Checks hand-overs: who may be given a job in advance, that it is confirmed, and that it is withdrawn."""

from __future__ import annotations

from dataclasses import dataclass, field

from dray.broker.interest import CONFIRM_WITHIN
from dray.broker.rules import matches
from dray.broker.verbs import Filter, Interest, Ref
from sim.lives import Life, Violation
from sim.transport import Call


@dataclass
class Offer:
    """A take that a session offered, while its wait is at the broker."""

    request: int
    queues: tuple[str, ...]
    filter: Filter
    answered: dict[str, Ref] = field(default_factory=dict)


class HandOvers:
    """The hand-overs of one simulation, as seen from outside the broker."""

    def __init__(self) -> None:
        self._offers: dict[str, Offer] = {}
        """By session: its last offer."""
        self._asked: dict[tuple[str, str], int] = {}
        """By session and queue: the last request that the queue answered."""
        self._open: dict[Ref, tuple[str, int]] = {}
        """Runs that are not confirmed: their session, and since when."""
        self.given = 0
        """How many jobs were handed over."""

    def offered(self, call: Call) -> None:
        """A wait has arrived at the broker."""
        interest: Interest = call.args[0]
        take, session = interest.next_take, interest.session or ""
        if take is None:
            return
        before = self._offers.get(session)
        answered = before.answered if before is not None and before.request == take.request else {}
        self._offers[session] = Offer(take.request, take.queues, interest.filter, answered)

    def give(self, session: str, request: int, life: Life, run: int, others: list[Life], now: int) -> None:
        """A job was handed over. `others` are the ready jobs of its queue."""
        offer, job = self._offers.get(session), life.job
        if offer is None or offer.request != request or job.queue not in offer.queues:
            raise Violation("hand_over", f"handed to {session}, which offered {offer}", life.id)
        if not matches(offer.filter, job.task, job.priority, job.version):
            raise Violation("hand_over", f"handed to {session}, which cannot run it", life.id)
        if not 0 < self._asked.get((session, job.queue), 0) < request:
            last = self._asked.get((session, job.queue), 0)
            raise Violation("hand_over", f"handed to {session} as {request}, after {last}", life.id)
        if others:
            raise Violation("hand_over", f"handed over before {others[0].id}, which is ready", life.id)
        offer.answered[job.queue] = (life.id, run)
        self._asked[session, job.queue] = request
        self._open[life.id, run] = (session, now)
        self.given += 1

    def asked(self, session: str, request: int, queues: tuple[str, ...]) -> list[Ref]:
        """The first take with a number: the runs that the asked queues gave for it in advance."""
        offer = self._offers.get(session)
        answered = offer.answered if offer is not None and offer.request == request else {}
        refs = [answered[queue] for queue in dict.fromkeys(queues) if queue in answered]
        for queue in queues:
            self._asked[session, queue] = max(request, self._asked.get((session, queue), 0))
        for ref in refs:
            self._open.pop(ref, None)
        return refs

    def ended(self, ref: Ref) -> None:
        """A run ended, by its outcome or with its session."""
        self._open.pop(ref, None)

    def may_withdraw(self, ref: Ref, now: int) -> bool:
        return ref in self._open and now >= self._open[ref][1] + CONFIRM_WITHIN

    def check_withdrawn(self, now: int) -> None:
        """After a sweep: no run is left that was not confirmed in time."""
        for ref in self._open:
            if self.may_withdraw(ref, now):
                raise Violation("hand_over", f"run {ref[1]} is not confirmed, and was not withdrawn", ref[0])
