"""Compares each event of the feed with what may happen to a job."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from dray.broker.actions import Cancel, Delete, Ids, Reprioritise, Reschedule, Retry, Speculate
from dray.broker.verbs import Event
from dray.job import FINISHED, GROUP_MAX, TRANSITIONS, Job, Move, Outcome, OutcomeKind, Sign, State
from dray.worker.duties.speculation import SHARE
from sim.bounds import Bounds
from sim.hand_overs import HandOvers
from sim.lives import Claims, Life, Papers, SessionRecord, Violation
from sim.script import kills, read_script
from sim.transport import Call
from sim.turns import Turns


class Moves:
    """The state of every job, as the events of the feed give it."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.ever: set[str] = set()
        """Ids of all jobs that ever were."""
        self.sessions: dict[str, SessionRecord] = {}
        self.claims = Claims()
        self.papers = Papers()
        self.bounds = Bounds()
        self.turns = Turns()
        self.hand_overs = HandOvers()
        self.dependants: dict[str, dict[str, None]] = {}
        self.lapsed: dict[str, SessionRecord] = {}
        """The sessions that the current step may end."""
        self.runs: Counter[str] = Counter()
        self.helped: dict[tuple[str, int], None] = {}
        self.second_runs: Counter[str] = Counter()
        """By task: all runs, and the second runs that the duty offered."""
        self._numbers = 0
        self._on: dict[str, Callable[[Call, Life, Event, int], None]] = {
            Move.RELEASED: self._released,
            Move.PROMOTED: self._promoted,
            Move.TAKEN: self._taken,
            Move.SUCCEEDED: self._ended,
            Move.RETRIED: self._ended,
            Move.DIED: self._died,
            Move.CANCELLED: self._cancelled,
            Move.GIVEN_BACK: self._ended,
            Move.CRASHED: self._ended,
            Move.RESCHEDULED: self._rescheduled,
            Move.REPLAYED: self._replayed,
            Move.DELETED: self._deleted,
            Sign.PROGRESS: self._progress,
            Sign.CANCEL_ASKED: self._cancel_asked,
            Sign.SPECULATED: self._speculated,
            Sign.RUN_ENDED: self._ended,
            Sign.REPRIORITISED: self._reprioritised,
        }

    def apply(self, call: Call, event: Event, now: int) -> None:
        if event.kind == Move.PUT:
            self._put(call, event, now)
        elif event.id:
            self._apply_to(self.lives.get(event.id), call, event, now)

    def _apply_to(self, life: Life | None, call: Call, event: Event, now: int) -> None:
        if life is None:
            raise Violation("feed", f"{event.kind} of a job that does not exist", event.id)
        if event.kind not in self._on:
            raise Violation("feed", f"an unknown kind of event: {event.kind}", event.id)
        self._on[event.kind](call, life, event, now)

    # Places

    def _move(self, life: Life, move: Move, to: State) -> None:
        if to not in TRANSITIONS[move].get(life.state, ()):
            raise Violation("transitions", f"{move} led from {life.state} to {to}", life.id)
        life.state = to

    def _line_up(self, life: Life, move: Move, due: int | None, now: int) -> None:
        if due is not None and due > now:
            life.due, life.expires = due, None
            return self._move(life, move, State.RETRYING if life.failures else State.SCHEDULED)
        if life.job.ttl is not None and not life.last:
            could_start = due if due is not None and move is Move.PROMOTED else now
            life.expires = could_start + life.job.ttl
        life.due = None
        self._numbers += 1
        life.line = self._numbers
        self._move(life, move, State.READY)
        return None

    def finish(self, life: Life, move: Move, to: State, now: int) -> None:
        life.runs = {}
        life.finished, life.due, life.expires = now, None, None
        life.cancel = life.offered = False
        self._move(life, move, to)
        self._leave_line(life)
        self.claims.end(life.job, to, now)
        self.tell(life.id, to)

    def tell(self, id: str, ended: State) -> None:
        for dependant in self.dependants.get(id, {}):
            if dependant in self.lives and id in self.lives[dependant].heard:
                self.lives[dependant].heard[id].append(ended)

    def forget(self, life: Life, now: int, *, replaced: bool = False) -> None:
        """Its dependants lose it, unless another job takes its place under the same id."""
        self._leave_line(life)
        self.claims.end(life.job, State.NOT_FOUND, now)
        if not replaced:
            self.tell(life.id, State.NOT_FOUND)
        del self.lives[life.id]

    def _leave_line(self, life: Life) -> None:
        for dependency in life.heard:
            self.dependants.get(dependency, {}).pop(life.id, None)

    # Moves

    def _put(self, call: Call, event: Event, now: int) -> None:
        id = event.id
        job = next((job for job in call.args[0] if job.id == id), None) if call.verb == "put" else None
        if job is None:
            raise Violation("feed", "put by a call that does not name it", id)
        if id in self.lives:
            raise Violation("ids", "put although the id is known", id)
        if (holder := self.claims.holder(job, now)) is not None:
            held = self.lives[holder].state if holder in self.lives else State.NOT_FOUND
            raise Violation("keys", f"put although {holder} ({held}) has its key {job.key}", id)
        life = self.lives[id] = Life(job, now)
        self.ever.add(id)
        call.notes.setdefault("created", []).append(id)
        self.claims.claim(job, now)
        for dependency in job.waits_for:
            self._wait_for(life, dependency)
        if all(ends == [State.SUCCEEDED] for ends in life.heard.values()):
            return self._line_up(life, Move.PUT, job.due, now)
        return self._move(life, Move.PUT, State.WAITING)

    def _wait_for(self, life: Life, dependency: str) -> None:
        other = self.lives.get(dependency)
        ends = life.heard[dependency] = []
        if other is not None and other.state in FINISHED:
            ends.append(other.state)
        if ends != [State.SUCCEEDED]:
            self.dependants.setdefault(dependency, {})[life.id] = None

    def _released(self, call: Call, life: Life, event: Event, now: int) -> None:
        if not life.may_start():
            raise Violation("dependencies", f"released while its dependencies stand at {life.heard}", life.id)
        self._line_up(life, Move.RELEASED, life.job.due, now)
        self._leave_line(life)

    def _promoted(self, call: Call, life: Life, event: Event, now: int) -> None:
        if life.due is None or life.due > now:
            raise Violation("due", f"promoted at {now}, due at {life.due}", life.id)
        self._line_up(life, Move.PROMOTED, life.due, now)

    def handed(self, id: str, run: int) -> tuple[str, int] | None:
        """The session that was given this run in advance, and the request that it answers."""
        raise NotImplementedError

    def _taken(self, call: Call, life: Life, event: Event, now: int) -> None:
        session = call.args[0] if call.verb == "take" and not call.forwarding else ""
        handed = self.handed(life.id, event.run)
        if handed is not None:
            session = handed[0]
        record = self.sessions.get(session)
        if record is None or now >= record.expires:
            raise Violation("sessions", f"taken by {session or call.verb}, which has no lease", life.id)
        if event.run <= life.last:
            raise Violation("runs", f"run {event.run} after run {life.last}", life.id)
        if life.state is State.RUNNING and not (life.job.speculate and life.offered):
            raise Violation("runs", f"taken by {session} while {life.runs} is valid", life.id)
        if session in life.runs.values() or len(life.runs) >= 2:
            raise Violation("runs", f"taken by {session} while {life.runs} are valid", life.id)
        if life.cancel:
            raise Violation("cancelled", "started although it was cancelled", life.id)
        if life.expires is not None and now >= life.expires:
            raise Violation("ttl", f"started at {now}, expired at {life.expires}", life.id)
        if not life.may_start():
            raise Violation("dependencies", f"started while they stand at {life.heard}", life.id)
        if handed is not None:
            others = [one for one in self.lives.values() if one.state is State.READY and one is not life]
            mine = [one for one in others if one.job.queue == life.job.queue]
            if self.bounds.limited(life.job):
                raise Violation("hand_over", "handed over past a limit or a pause", life.id)
            self.hand_overs.give(*handed, life, event.run, mine, now)
        call.notes.setdefault("first", {})[life.id] = life.last == 0
        self.runs[life.job.task] += 1
        if life.state is State.RUNNING and life.by_duty:
            self._check_budget(life)
        self._move(life, Move.TAKEN, State.RUNNING)
        life.last, life.runs[event.run] = event.run, session
        life.expires, life.offered = None, False
        if handed is None:
            record.granted.append((life.id, event.run))
        self.bounds.check_start(life, (other for other in self.lives.values() if other.runs), now)

    def _check_budget(self, life: Life) -> None:
        """A run that is offered twice counts once: an offer whose reply was lost is repeated."""
        task, helped = life.job.task, (life.id, min(life.runs))
        if helped in self.helped:
            return
        self.helped[helped] = None
        self.second_runs[task] += 1
        if self.second_runs[task] > SHARE * self.runs[task]:
            text = f"{self.second_runs[task]} second runs of {task} for {self.runs[task]} in all"
            raise Violation("budget", text, life.id)

    # The end of a run

    def _ended(self, call: Call, life: Life, event: Event, now: int) -> None:
        """A run ended: its session settled it, or is gone."""
        if call.verb == "sweep" and self.hand_overs.may_withdraw((life.id, event.run), now):
            return self._withdrawn(call, life, event, now)
        self.hand_overs.ended((life.id, event.run))
        outcome = self._outcome(call, life, event)
        if outcome is None:
            return self._abandoned(call, life, event, now)
        expected = self._expected(life, outcome)
        if event.kind != expected:
            kind = "cancelled" if life.cancel else "outcomes"
            raise Violation(kind, f"{outcome.kind} was recorded as {event.kind}, not {expected}", life.id)
        if outcome.kind is OutcomeKind.CRASHED:
            self._crashed(life, event.run, outcome.together)
        call.notes.setdefault("settled", {})[life.id] = (life, life.replays)
        return self._conclude(life, event, outcome.at, now)

    def _crashed(self, life: Life, run: int, together: int) -> None:
        life.group = min(life.group or GROUP_MAX, math.ceil(together / 2))
        if together > 1:
            return
        life.crashes += 1
        if not kills(read_script(life.job.payload), run, 1):
            raise Violation("blame", f"blamed for a crash, which run {run} cannot have caused alone", life.id)

    def _conclude(self, life: Life, event: Event, at: int | None, now: int) -> None:
        del life.runs[event.run]
        match event.kind:
            case Move.SUCCEEDED:
                self.finish(life, Move.SUCCEEDED, State.SUCCEEDED, now)
            case Move.DIED:
                self.finish(life, Move.DIED, State.DEAD, now)
            case Move.CANCELLED:
                self.finish(life, Move.CANCELLED, State.CANCELLED, now)
            case Move.RETRIED:
                life.failures += 1
                life.offered = False
                self._line_up(life, Move.RETRIED, at, now)
            case Move.GIVEN_BACK | Move.CRASHED:
                life.offered = False
                self._move(life, Move(event.kind), State.READY)
            case _:
                pass

    def _outcome(self, call: Call, life: Life, event: Event) -> Outcome | None:
        if call.verb != "settle" or call.forwarding:
            return None
        outcomes = [o for o in call.args[1] if (o.id, o.run) == (event.id, event.run)]
        if not outcomes:
            raise Violation(
                "fencing", f"{event.kind} of run {event.run} by a call that names no such", life.id
            )
        if life.runs.get(event.run) != call.args[0]:
            who = f"run {event.run} of {call.args[0]}"
            raise Violation("fencing", f"{who} was accepted while {life.runs or 'none'} is valid", life.id)
        found: Outcome = outcomes[0]
        return found

    def _expected(self, life: Life, outcome: Outcome) -> str:
        others = len(life.runs) > 1
        if life.cancel or outcome.kind is OutcomeKind.CANCELLED:
            return Move.CANCELLED
        match outcome.kind:
            case OutcomeKind.SUCCEEDED:
                return Move.SUCCEEDED
            case OutcomeKind.DEAD:
                return Move.DIED
            case OutcomeKind.CRASHED if life.crashes + (outcome.together == 1) >= life.job.max_crashes:
                return Move.DIED
            case _ if others:
                return Sign.RUN_ENDED
            case OutcomeKind.CRASHED:
                return Move.CRASHED
            case OutcomeKind.GIVE_BACK:
                return Move.GIVEN_BACK
            case _:
                return Move.RETRIED

    def _abandoned(self, call: Call, life: Life, event: Event, now: int) -> None:
        """Its session was released, or its lease ran out."""
        session = life.runs.get(event.run, "")
        gone = [call.args[0]] if call.verb == "release" else list(self.lapsed)
        if session not in gone or call.forwarding:
            raise Violation(
                "fencing", f"{event.kind} of run {event.run}, held by {session or 'nobody'}", life.id
            )
        if (event.id, event.run) in call.named.get("blamed", ()):
            self._crashed(life, event.run, 1)
        elif call.named.get("suspect", True):
            life.group = life.group or GROUP_MAX
        kinds = [Move.CRASHED, Move.GIVEN_BACK] if len(life.runs) == 1 else [Sign.RUN_ENDED]
        if life.cancel:
            kinds = [Move.CANCELLED]
        elif life.crashes >= life.job.max_crashes:
            kinds = [Move.DIED]
        if event.kind not in kinds:
            raise Violation("outcomes", f"a lost run was recorded as {event.kind}, not {kinds}", life.id)
        self._conclude(life, event, None, now)

    def _withdrawn(self, call: Call, life: Life, event: Event, now: int) -> None:
        """It was handed over and not confirmed: neither a crash nor a reason to be suspect."""
        self.hand_overs.ended((life.id, event.run))
        expected = Move.CANCELLED if life.cancel else Move.GIVEN_BACK
        if event.kind != expected or not call.named["lapse"]:
            raise Violation("hand_over", f"withdrawn as {event.kind}, not {expected}", life.id)
        self._conclude(life, event, None, now)

    def _died(self, call: Call, life: Life, event: Event, now: int) -> None:
        if event.run:
            return self._ended(call, life, event, now)
        if call.verb == "put":
            above = [job for job in call.args[0] if job.queue == life.job.queue]
            if not any(self.bounds.drops(job) and job.priority <= life.job.priority for job in above):
                raise Violation("bounds", "dropped for less important jobs", life.id)
        elif life.expires is None or now < life.expires:
            raise Violation("ttl", f"died at {now} though it expires at {life.expires}", life.id)
        return self.finish(life, Move.DIED, State.DEAD, now)

    def _cancelled(self, call: Call, life: Life, event: Event, now: int) -> None:
        if event.run:
            return self._ended(call, life, event, now)
        if not self._may_cancel(call, life):
            raise Violation("cancelled", f"cancelled by {call.verb}, for no reason", life.id)
        return self.finish(life, Move.CANCELLED, State.CANCELLED, now)

    def _may_cancel(self, call: Call, life: Life) -> bool:
        if call.forwarding:
            return life.state is State.WAITING and life.must_be_cancelled()
        if call.verb == "put":
            return not life.last and any(_replaces(job, life) for job in call.args[0])
        return not life.runs and _names(call, Cancel, life.id)

    # By hand

    def _rescheduled(self, call: Call, life: Life, event: Event, now: int) -> None:
        _must_name(call, Reschedule, life.id)
        self._line_up(life, Move.RESCHEDULED, call.args[1].due, now)

    def _replayed(self, call: Call, life: Life, event: Event, now: int) -> None:
        _must_name(call, Retry, life.id)
        if life.state in FINISHED:
            if (holder := self.claims.holder(life.job, now)) is not None:
                raise Violation("keys", f"replayed although {holder} has its key", life.id)
            self.claims.claim(life.job, now)
        life.replays += 1
        life.failures = life.crashes = life.group = 0
        life.finished, life.replayed = None, True
        self._line_up(life, Move.REPLAYED, None, now)

    def _deleted(self, call: Call, life: Life, event: Event, now: int) -> None:
        if call.verb != "put":
            _must_name(call, Delete, life.id)
        elif any(job == life.origin for job in call.args[0]):
            raise Violation("repeats", "a repeated put replaced the job it had made", life.id)
        elif life.last or not any(
            job.id == life.id and job.on_duplicate == "replace" for job in call.args[0]
        ):
            raise Violation("ids", "replaced without being asked, or after it had started", life.id)
        if life.runs:
            raise Violation("transitions", "deleted while it was running", life.id)
        self.forget(life, now, replaced=call.verb == "put")

    def _progress(self, call: Call, life: Life, event: Event, now: int) -> None:
        sessions = [beat.session for beat in call.args[0]] if call.verb == "renew" else []
        if life.runs.get(event.run) not in sessions:
            raise Violation("fencing", f"progress of run {event.run}, which is not valid", life.id)

    def _cancel_asked(self, call: Call, life: Life, event: Event, now: int) -> None:
        _must_name(call, Cancel, life.id)
        life.cancel, life.offered = True, False

    def _speculated(self, call: Call, life: Life, event: Event, now: int) -> None:
        _must_name(call, Speculate, life.id)
        life.offered = True
        # One that arrives once more, much later, was not the duty's to decide.
        life.by_duty = call.process.name.startswith("sweeper") and call.delivery == 1

    def _reprioritised(self, call: Call, life: Life, event: Event, now: int) -> None:
        self.turns.forget(life.job.queue)
        _must_name(call, Reprioritise, life.id)
        life.job = replace(life.job, priority=call.args[1].priority)


def _replaces(job: Job, life: Life) -> bool:
    mine = life.job
    return (
        job.on_duplicate == "replace"
        and mine.key is not None
        and job.key == mine.key
        and job.queue == mine.queue
    )


def _names(call: Call, action: type, id: str) -> bool:
    if call.verb != "edit" or call.forwarding or not isinstance(call.args[1], action):
        return False
    return not isinstance(call.args[0], Ids) or id in call.args[0].ids


def _must_name(call: Call, action: type, id: str) -> None:
    if not _names(call, action, id):
        raise Violation("feed", f"changed by {call.verb} as if by {action.__name__}", id)
