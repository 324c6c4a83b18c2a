"""The eye on one executor: what it asks of the broker, what it hears, what its runs do.

The ledger knows what brokers may do; this is what an executor may. It sees the calls as they leave the
executor and the replies that reach it, each run's start and end, and what the supervisor says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from dray.broker.verbs import Beat, Heard, Ref
from dray.context import Context, Reject
from dray.errors import InvalidInput, JobStopped
from dray.job import Outcome, OutcomeKind, Taken
from dray.testing.sim.lives import Violation
from dray.testing.sim.loop import Process
from dray.testing.sim.trace import Trace
from dray.testing.sim.transport import Call
from dray.worker.channel import Lapsed, Message, Retiring, Stop, Told
from dray.worker.live import Interrupted, Live, Why

TURNS = 20
"""Turns of the loop in which an executor has dealt with what it was told."""
Key = tuple[str, Ref]
"""A run of a session."""
_STOPS = (asyncio.CancelledError, JobStopped, Interrupted)


class Sitting:
    """One session, as its executor sees it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.request = 0
        self.unanswered = False
        self.taken: dict[Ref, None] = {}
        self.ended: dict[Ref, Outcome] = {}
        self.answered: dict[Ref, None] = {}
        self.void: dict[Ref, None] = {}
        """Runs that it was told are lost."""
        self.over = False


class Overseer:
    def __init__(
        self,
        process: Process,
        concurrency: int,
        trace: Trace,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[Violation], None],
    ) -> None:
        self.process, self.concurrency = process, concurrency
        self.active: dict[Live, str] = {}
        """Runs under way, and the session that each belongs to."""
        self.bounded = False
        """It may start only so many jobs, and ask for less than it has slots."""
        self.stopping = False
        self._retiring = False
        self._trace, self._loop, self._failed = trace, loop, failed
        self._sittings: dict[str, Sitting] = {}
        self._session = ""
        self._started: dict[Key, None] = {}
        self._waited: dict[Live, None] = {}
        """Those that gave back their slot at some time: when they come back, they are one too many."""
        self._last_end = 0.0
        self._how: dict[Live, tuple[BaseException | None, Why | None]] = {}

    def fail(self, invariant: str, message: str, job: str | None = None) -> None:
        if self.process.alive:
            self._failed(Violation(invariant, f"{self.process.name}: {message}", job))

    def _say(self, what: str, ref: Ref) -> None:
        self._trace.say(self.process.name, f"{what} {ref[0]}/{ref[1]}", [ref[0]])

    # what it asks

    def asks(self, call: Call) -> None:
        match call.verb:
            case "take":
                self._takes(*call.args)
            case "settle":
                self._settles(*call.args)
            case "renew":
                self._renews(*call.args[0])

    def _sitting(self, session: str) -> Sitting:
        sitting = self._sittings.setdefault(session, Sitting())
        if sitting.over:
            self.fail("sessions", f"session {session} is lost, and still used")
        return sitting

    def _takes(self, session: str, request: int, queues: object, filter: object, want: int) -> None:
        sitting = self._sitting(session)
        if request != sitting.request:
            if sitting.unanswered:
                self.fail("repeats", f"take {request} although take {sitting.request} has no answer yet")
            if self.stopping or self._retiring:
                self.fail("stopping", f"take {request} although it is to stop")
            busy = sum(1 for live in self.active if not live.away)
            self._waited.update(dict.fromkeys(live for live in self.active if live.away))
            if want + busy > self.concurrency:
                text = f"asked for {want} jobs with {busy} running, at most {self.concurrency} allowed"
                self.fail("concurrency", text)
            elif want + busy < self.concurrency and not self.bounded and self._settled_down():
                self.fail("slots", f"asked for {want} jobs with {busy} running, {self.concurrency} allowed")
        sitting.request, sitting.unanswered = request, True

    def _settled_down(self) -> bool:
        """No run has ended or begun to wait since it counted its slots, which was just now."""
        return self._loop.time() > self._last_end and not any(live.away for live in self.active)

    def _settles(self, session: str, outcomes: Iterable[Outcome]) -> None:
        sitting = self._sitting(session)
        for outcome in outcomes:
            ref = (outcome.id, outcome.run)
            if any(live.ref == ref and mine == session for live, mine in self.active.items()):
                self.fail("outcomes", f"run {outcome.run} was settled while it runs", outcome.id)
            said = sitting.ended.get(ref)
            if outcome.kind is OutcomeKind.GIVE_BACK and (said is None or ref in sitting.answered):
                continue  # never begun, or said once more because the broker asked
            if ref in sitting.answered:
                self.fail("outcomes", f"run {outcome.run} was settled before", outcome.id)
            elif said is None or said.kind is not outcome.kind:
                came = "nothing" if said is None else said.kind
                self.fail("outcomes", f"settled as {outcome.kind}, but it came to {came}", outcome.id)

    def _renews(self, beat: Beat) -> None:
        sitting = self._sitting(beat.session)
        for report in beat.progress:
            ref = (report.id, report.run)
            if (beat.session, ref) not in self._started or ref in sitting.answered or ref in sitting.void:
                self.fail("progress", f"progress of run {report.run}, which is void", report.id)

    # what it hears

    def hears(self, call: Call, reply: object) -> None:
        match call.verb, reply:
            case "take", list():
                self._is_given(call.args[0], reply)
            case "settle", list():
                sitting = self._sittings[call.args[0]]
                sitting.answered.update(dict.fromkeys((o.id, o.run) for o in call.args[1]))
            case "renew", [Heard() as heard]:
                self._is_heard(call.args[0][0].session, heard)

    def misses(self, call: Call, error: Exception) -> None:
        if call.verb == "take" and isinstance(error, InvalidInput):
            self._lose(call.args[0])

    def _is_given(self, session: str, given: list[Taken]) -> None:
        self._session = session
        sitting = self._sittings[session]
        sitting.unanswered = False
        for one in given:
            ref = (one.job.id, one.run)
            if ref in sitting.answered:
                self._forget(session, ref)
            sitting.taken[ref] = None

    def _forget(self, session: str, ref: Ref) -> None:
        """The job was deleted, and another put under its id."""
        sitting = self._sittings[session]
        for known in (sitting.answered, sitting.ended, sitting.void):
            known.pop(ref, None)
        self._started.pop((session, ref), None)

    def _is_heard(self, session: str, heard: Heard) -> None:
        sitting = self._sittings[session]
        if sitting.epoch and heard.epoch != sitting.epoch:
            return self._lose(session)
        sitting.epoch = heard.epoch
        return self._must_stop(session, heard.lost, heard.cancelled)

    def is_told_by_supervisor(self, message: Message) -> None:
        match message:
            case Stop():
                self.stopping = True
            case Told(session, lost, cancelled) if session in self._sittings:
                self._must_stop(session, lost, cancelled)
            case Lapsed(session) if session in self._sittings:
                self._lose(session)

    def says(self, message: Message) -> None:
        self._retiring = self._retiring or isinstance(message, Retiring)

    def _must_stop(self, session: str, lost: Iterable[Ref], cancelled: Iterable[Ref]) -> None:
        refs = [*lost, *cancelled]
        runs = [live for live, mine in self.active.items() if mine == session and live.ref in refs]
        for ref in lost:
            self._after(TURNS, self._sittings[session].void.setdefault, ref, None)
        if runs:
            self._after(TURNS, self._check_told, runs)

    def _check_told(self, runs: list[Live]) -> None:
        for live in runs:
            if live in self.active and not live.cancelled:
                self.fail("told", f"run {live.ref[1]} is void or cancelled, and goes on", live.ref[0])

    def _lose(self, session: str) -> None:
        self._after(TURNS, self._check_lost, session)

    def _check_lost(self, session: str) -> None:
        self._sittings[session].over = True
        for live, mine in self.active.items():
            if mine == session and live.why is not Why.LOST:
                text = f"session {session} is lost, and run {live.ref[1]} goes on"
                self.fail("sessions", text, live.ref[0])

    def _after(self, turns: int, act: Callable[..., object], *args: object) -> None:
        """In the executor's own process: whatever delays that delays this."""
        if turns:
            self._loop.call_soon(self._after, turns - 1, act, *args, context=self.process.context)
        else:
            act(*args)

    # what its runs do

    def begins(self, live: Live) -> None:
        key = (self._session, live.ref)
        self._say("begins", live.ref)
        if key in self._started:
            self.fail("runs", f"run {live.ref[1]} was begun twice", live.ref[0])
        if live.ref not in self._sittings[self._session].taken:
            self.fail("runs", f"run {live.ref[1]} was begun, but not taken", live.ref[0])
        if self.stopping:
            self.fail("stopping", f"run {live.ref[1]} was begun although it is to stop", live.ref[0])
        self._started[key] = None
        self.active[live] = self._session
        count = len(self.active) - sum(1 for one in self.active if one in self._waited or one.away)
        if count > self.concurrency:
            self.fail("concurrency", f"{count} runs at once, at most {self.concurrency} allowed", live.ref[0])

    def is_told(self, live: Live) -> None:
        self._say(f"told to stop ({live.why})", live.ref)

    def ends(self, live: Live, outcome: Outcome) -> None:
        self._say(f"ends ({outcome.kind})", live.ref)
        session = self.active.pop(live, None)
        self._last_end = self._loop.time()
        if session is None:
            return self.fail("outcomes", f"run {live.ref[1]} ended twice", live.ref[0])
        self._sittings[session].ended[live.ref] = outcome
        error, why = self._how.pop(live, (Interrupted(), live.why))
        expected = _expected(live, error, why)
        if outcome.kind not in expected:
            text = f"run {live.ref[1]}, asked to stop: {why}, ended with {error!r} and is {outcome.kind}"
            self.fail("outcomes", text, live.ref[0])
        return None

    def returned(self, context: Context) -> None:
        self._note(context, None)

    def raised(self, context: Context, error: BaseException) -> None:
        if not isinstance(error, GeneratorExit):
            self._note(context, error)

    def _note(self, context: Context, error: BaseException | None) -> None:
        live = context._running
        if isinstance(live, Live):
            self._how[live] = (error, live.why)
            if live.away:
                self.fail("outcomes", "it ended while it waits", live.ref[0])

    # at a quiet hour

    def complaint(self) -> Violation | None:
        """What is left undone, when everything should be done."""
        for session, sitting in self._sittings.items():
            if sitting.over or session != self._session:
                continue
            for ref in sitting.taken:
                if ref not in sitting.answered and (session, ref) not in self._started:
                    text = f"run {ref[1]} was taken, but neither begun nor given back"
                    return Violation("runs", text, ref[0])
            for ref, outcome in sitting.ended.items():
                if ref not in sitting.answered:
                    text = f"run {ref[1]} came to {outcome.kind}, which was never settled"
                    return Violation("unsettled", text, ref[0])
        return None


def _expected(live: Live, error: BaseException | None, why: Why | None) -> tuple[OutcomeKind, ...]:
    """What a run may have come to: by how its task ended, and why it was asked to stop before."""
    if error is None:
        return (OutcomeKind.SUCCEEDED,)
    if why is Why.CANCELLED:
        return (OutcomeKind.CANCELLED,)
    if why in (Why.LOST, Why.LEAVING):
        return (OutcomeKind.GIVE_BACK,)
    if why is None and isinstance(error, _STOPS):
        return (OutcomeKind.CRASHED,)
    if isinstance(error, Reject):
        return (OutcomeKind.DEAD,)
    used_up = live.taken.attempt > live.taken.job.retries
    return (OutcomeKind.DEAD if used_up else OutcomeKind.RETRY,)
