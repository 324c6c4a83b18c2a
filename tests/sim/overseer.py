"""Checks one executor: its calls, the replies it gets, and its runs.

The ledger knows what brokers may do; this is what an executor may. It sees the calls as they leave the
executor and the replies that reach it, each run's start and end, and what the supervisor says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable

from dray.broker.verbs import Beat, Heard, Interest, Ref, Wake
from dray.context import Context, Reject
from dray.errors import InvalidInput, JobStopped
from dray.job import Outcome, OutcomeKind, Taken
from dray.worker.channel import Message, Retiring, SessionLapsed, SessionNews, Stop
from dray.worker.run.run_state import Interrupted, RunState, StopReason
from sim.lives import Violation
from sim.loop import Process
from sim.trace import Trace
from sim.transport import Call

TURNS = 20
"""Turns of the loop in which an executor must have acted on news."""
Key = tuple[str, Ref]
"""A run of a session."""
_STOPS = (asyncio.CancelledError, JobStopped, Interrupted)


class SessionView:
    """One session, as its executor sees it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.request = 0
        self.unanswered = False
        self.taken: dict[Ref, None] = {}
        self.ended: dict[Ref, Outcome] = {}
        self.answered: dict[Ref, None] = {}
        self.void: dict[Ref, None] = {}
        """Runs that the broker called lost."""
        self.over = False
        self.handed: dict[Ref, None] = {}
        """Runs that came with a wake-up."""
        self.offered: tuple[int, dict[str, None]] = (0, {})
        """The take that was offered last, and the queues where it was not repeated yet."""


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
        self.active: dict[RunState, str] = {}
        """Runs under way, and the session that each belongs to."""
        self.bounded = False
        """It may ask for fewer jobs than it has free slots."""
        self.stopping = False
        self._retiring = False
        self._trace, self._loop, self._failed = trace, loop, failed
        self._sessions: dict[str, SessionView] = {}
        self._session = ""
        self._started: dict[Key, None] = {}
        self._waited: dict[RunState, None] = {}
        """Runs that gave back their slot at some time: when they go on, they may be one too many."""
        self._last_end = 0.0
        self._child: dict[RunState, str] = {}
        """The child process of each run that began in one."""
        self._inside: dict[str, dict[RunState, None]] = {}
        self._ever: Counter[str] = Counter()
        """By child process: the runs in it now (or when it died), and how many there ever were."""
        self._how: dict[RunState, tuple[BaseException | None, StopReason | None]] = {}

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
            case "wait":
                self._offers(call.args[0])
            case "settle":
                self._settles(*call.args)
            case "renew":
                self._renews(*call.args[0])

    def _view_of(self, session: str) -> SessionView:
        view = self._sessions.setdefault(session, SessionView())
        if view.over:
            self.fail("sessions", f"session {session} is lost, and still used")
        return view

    def _takes(self, session: str, request: int, queues: object, filter: object, want: int) -> None:
        view = self._view_of(session)
        if request > view.offered[0] and view.offered[1]:
            text = f"take {request}, before {view.offered[0]} was repeated at {list(view.offered[1])}"
            self.fail("hand_over", text)
        if request != view.request and want > 0:
            if view.unanswered:
                self.fail("repeats", f"take {request} although take {view.request} has no answer yet")
            if self.stopping or self._retiring:
                self.fail("stopping", f"take {request} although it is to stop")
            busy = sum(1 for live in self.active if not live.away)
            self._waited.update(dict.fromkeys(live for live in self.active if live.away))
            if want + busy > self.concurrency:
                text = f"asked for {want} jobs with {busy} running, at most {self.concurrency} allowed"
                self.fail("concurrency", text)
            elif want + busy < self.concurrency and not self.bounded and self._settled_down():
                self.fail("slots", f"asked for {want} jobs with {busy} running, {self.concurrency} allowed")
        view.request, view.unanswered = request, True

    def _offers(self, interest: Interest) -> None:
        """Only an idle executor offers a take, to no more queues than it has slots."""
        take = interest.next_take
        if take is None:
            return
        view = self._view_of(interest.session or "")
        number, open_queues = view.offered
        if take.request > number and open_queues:
            self.fail("hand_over", f"offers {take.request}, before {number} was repeated at {open_queues}")
        if take.request <= view.request and not view.unanswered:
            self.fail("hand_over", f"offers {take.request}, after take {view.request}")
        if self.stopping or self._retiring or self.active:
            self.fail("hand_over", f"offers a take with {len(self.active)} runs, or although it is to stop")
        if len(take.queues) > self.concurrency:
            self.fail("hand_over", f"offers a take to {len(take.queues)} queues")
        view.offered = (take.request, {**open_queues, **dict.fromkeys(take.queues)})

    def _settled_down(self) -> bool:
        """No run has ended or begun to wait since it counted its slots."""
        return self._loop.time() > self._last_end and not any(live.away for live in self.active)

    def _settles(self, session: str, outcomes: Iterable[Outcome]) -> None:
        view = self._view_of(session)
        for outcome in outcomes:
            ref = (outcome.id, outcome.run)
            if any(live.ref == ref and mine == session for live, mine in self.active.items()):
                self.fail("outcomes", f"run {outcome.run} was settled while it runs", outcome.id)
            said = view.ended.get(ref)
            if outcome.kind is OutcomeKind.GIVE_BACK and (said is None or ref in view.answered):
                continue  # never begun, or said once more because the broker asked
            if ref in view.answered:
                self.fail("outcomes", f"run {outcome.run} was settled before", outcome.id)
            elif said is None or said.kind is not outcome.kind:
                came = "nothing" if said is None else said.kind
                self.fail("outcomes", f"settled as {outcome.kind}, but it came to {came}", outcome.id)

    def _renews(self, beat: Beat) -> None:
        view = self._view_of(beat.session)
        for report in beat.progress:
            ref = (report.id, report.run)
            if (beat.session, ref) not in self._started or ref in view.answered or ref in view.void:
                self.fail("progress", f"progress of run {report.run}, which is void", report.id)

    # what it hears

    def hears(self, call: Call, reply: object) -> None:
        match call.verb, reply:
            case "take", list():
                self._is_repeated(*call.args[:3])
                self._is_given(call.args[0], reply)
            case "wait", Wake(taken=taken) if taken:
                self._is_handed(call.args[0].session, taken)
            case "settle", list():
                view = self._sessions[call.args[0]]
                view.answered.update(dict.fromkeys((o.id, o.run) for o in call.args[1]))
            case "renew", [Heard() as heard]:
                self._is_heard(call.args[0][0].session, heard)

    def misses(self, call: Call, error: Exception) -> None:
        if call.verb == "take" and isinstance(error, InvalidInput):
            self._lose(call.args[0])

    def _is_repeated(self, session: str, request: int, queues: Iterable[str]) -> None:
        view = self._sessions[session]
        if request != view.offered[0]:
            view.handed.clear()
            return
        for queue in queues:
            view.offered[1].pop(queue, None)

    def _is_given(self, session: str, given: list[Taken]) -> None:
        self._session = session
        view = self._sessions[session]
        view.unanswered = False
        for one in given:
            ref = (one.job.id, one.run)
            if ref in view.handed:
                continue  # it came with the wake-up
            if ref in view.answered:
                self._forget(session, ref)
            view.taken[ref] = None

    def _is_handed(self, session: str, taken: tuple[Taken, ...]) -> None:
        self._session = session
        view = self._sessions[session]
        for ref in ((one.job.id, one.run) for one in taken):
            if ref in view.answered:
                self._forget(session, ref)
            view.handed[ref] = None

    def _forget(self, session: str, ref: Ref) -> None:
        """The job was deleted, and another put under its id."""
        view = self._sessions[session]
        for known in (view.answered, view.ended, view.void):
            known.pop(ref, None)
        self._started.pop((session, ref), None)

    def _is_heard(self, session: str, heard: Heard) -> None:
        view = self._sessions[session]
        if view.epoch and heard.epoch != view.epoch:
            return self._lose(session)
        view.epoch = heard.epoch
        return self._must_stop(session, heard.lost, heard.cancelled)

    def is_told_by_supervisor(self, message: Message) -> None:
        match message:
            case Stop():
                self.stopping = True
            case SessionNews(session, lost, cancelled) if session in self._sessions:
                self._must_stop(session, lost, cancelled)
            case SessionLapsed(session) if session in self._sessions:
                self._lose(session)

    def says(self, message: Message) -> None:
        self._retiring = self._retiring or isinstance(message, Retiring)

    def _must_stop(self, session: str, lost: Iterable[Ref], cancelled: Iterable[Ref]) -> None:
        refs = [*lost, *cancelled]
        runs = [live for live, mine in self.active.items() if mine == session and live.ref in refs]
        for ref in lost:
            self._after(TURNS, self._sessions[session].void.setdefault, ref, None)
        if runs:
            self._after(TURNS, self._check_told, runs)

    def _check_told(self, runs: list[RunState]) -> None:
        for live in runs:
            if live in self.active and not live.cancelled:
                self.fail("told", f"run {live.ref[1]} is void or cancelled, and goes on", live.ref[0])

    def _lose(self, session: str) -> None:
        self._after(TURNS, self._check_lost, session)

    def _check_lost(self, session: str) -> None:
        self._sessions[session].over = True
        for live, mine in self.active.items():
            if mine == session and live.stop_reason is not StopReason.LOST:
                text = f"session {session} is lost, and run {live.ref[1]} goes on"
                self.fail("sessions", text, live.ref[0])

    def _after(self, turns: int, act: Callable[..., object], *args: object) -> None:
        """Call `act` in the executor's process after so many turns, delayed with it."""
        if turns:
            self._loop.call_soon(self._after, turns - 1, act, *args, context=self.process.context)
        else:
            act(*args)

    # what its runs do

    def begins(self, live: RunState) -> None:
        key = (self._session, live.ref)
        self._say("begins", live.ref)
        if key in self._started:
            self.fail("runs", f"run {live.ref[1]} was begun twice", live.ref[0])
        view = self._sessions[self._session]
        if live.ref not in view.taken and live.ref not in view.handed:
            self.fail("runs", f"run {live.ref[1]} was begun, but not taken", live.ref[0])
        if self.stopping:
            self.fail("stopping", f"run {live.ref[1]} was begun although it is to stop", live.ref[0])
        self._started[key] = None
        self.active[live] = self._session
        count = len(self.active) - sum(1 for one in self.active if one in self._waited or one.away)
        if count > self.concurrency:
            self.fail("concurrency", f"{count} runs at once, at most {self.concurrency} allowed", live.ref[0])

    def is_told(self, live: RunState) -> None:
        self._say(f"told to stop ({live.stop_reason})", live.ref)

    def ends(self, live: RunState, outcome: Outcome) -> None:
        self._say(f"ends ({outcome.kind})", live.ref)
        session = self.active.pop(live, None)
        self._last_end = self._loop.time()
        if session is None:
            return self.fail("outcomes", f"run {live.ref[1]} ended twice", live.ref[0])
        self._sessions[session].ended[live.ref] = outcome
        self._check_blame(live, outcome)
        error, why = self._how.pop(live, (Interrupted(), live.stop_reason))
        expected = _expected(live, error, why)
        if outcome.kind not in expected:
            text = f"run {live.ref[1]}, asked to stop: {why}, ended with {error!r} and is {outcome.kind}"
            self.fail("outcomes", text, live.ref[0])
        return None

    def shares(self, live: RunState, process: str) -> None:
        self._child[live] = process
        self._ever[process] += 1
        inside = self._inside.setdefault(process, {})
        inside[live] = None
        suspects = [one.taken.suspect for one in inside]
        if len(inside) > 1 and len(inside) > min(suspects):
            self.fail("groups", f"{len(inside)} jobs in {process}, which allow {suspects}", live.ref[0])

    def shares_no_more(self, live: RunState) -> None:
        self._inside[self._child[live]].pop(live, None)

    def _check_blame(self, live: RunState, outcome: Outcome) -> None:
        """A run alone in its process is blamed; others carry the number that died together."""
        process = self._child.pop(live, None)
        if outcome.kind is not OutcomeKind.CRASHED or process is None:
            return
        expected = 1 if self._ever[process] == 1 else max(2, len(self._inside[process]))
        if outcome.together != expected:
            text = f"run {live.ref[1]} crashed as one of {outcome.together} jobs in {process}, not {expected}"
            self.fail("blame" if outcome.together == 1 else "groups", text, live.ref[0])

    def returned(self, context: Context) -> None:
        self._note(context, None)

    def raised(self, context: Context, error: BaseException) -> None:
        if not isinstance(error, GeneratorExit):
            self._note(context, error)

    def _note(self, context: Context, error: BaseException | None) -> None:
        live = context._running
        if isinstance(live, RunState):
            self._how[live] = (error, live.stop_reason)
            if live.away:
                self.fail("outcomes", "it ended while it waits", live.ref[0])

    # at a quiet hour

    def complaint(self) -> Violation | None:
        """The first thing left undone at a time when everything should be done."""
        for session, view in self._sessions.items():
            if view.over or session != self._session:
                continue
            for ref in view.taken:
                if ref not in view.answered and (session, ref) not in self._started:
                    text = f"run {ref[1]} was taken, but neither begun nor given back"
                    return Violation("runs", text, ref[0])
            for ref, outcome in view.ended.items():
                if ref not in view.answered:
                    text = f"run {ref[1]} came to {outcome.kind}, which was never settled"
                    return Violation("unsettled", text, ref[0])
        return None


def _expected(live: RunState, error: BaseException | None, why: StopReason | None) -> tuple[OutcomeKind, ...]:
    """The allowed outcomes of a run, by how its task ended and why it was asked to stop."""
    if error is None:
        return (OutcomeKind.SUCCEEDED,)
    if why is StopReason.CANCELLED:
        return (OutcomeKind.CANCELLED,)
    if why in (StopReason.LOST, StopReason.LEAVING):
        return (OutcomeKind.GIVE_BACK,)
    if why is None and isinstance(error, _STOPS):
        return (OutcomeKind.CRASHED,)
    if isinstance(error, Reject) or why is StopReason.DEADLINE:
        return (OutcomeKind.DEAD,)
    used_up = live.taken.attempt > live.taken.job.retries
    return (OutcomeKind.DEAD if used_up else OutcomeKind.RETRY,)
