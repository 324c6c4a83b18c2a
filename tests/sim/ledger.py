"""The ledger: the simulation's own record of all jobs, compared with what the broker does and answers.

It hears of every step, with the entries of the feed that it wrote, and of every reply. It never asks the
broker what should be, only what is, to compare.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from msgspec import UNSET

from dray.broker.actions import Scope
from dray.broker.verbs import Beat, DocReply, DocWrite, Entry
from dray.errors import DrayError, InvalidInput, SessionLost
from dray.job import FINISHED, Move, State, Taken, Verdict
from dray.policy import Retention
from sim.lives import Life, SessionRecord, Violation
from sim.moves import Moves
from sim.trace import Trace
from sim.transport import Call

READS = frozenset({"get", "find", "queues", "queue_names", "docs", "events", "audit", "wait"})


class Inside(Protocol):
    """The broker's state, read without a call."""

    def facts(self, id: str) -> tuple[State, int, dict[int, str]] | None:
        """State, newest run, valid runs with their sessions."""
        ...

    def handed(self, id: str, run: int) -> tuple[str, int] | None: ...
    def ids(self) -> Iterable[str]: ...
    def has_session(self, name: str) -> bool: ...
    def version(self, kind: str, name: str) -> int | None: ...
    def problems(self) -> list[str]: ...


class Ledger(Moves):
    def __init__(
        self,
        inside: Inside,
        retention: Retention,
        trace: Trace,
        clock: Callable[[], int],
        audit_every: int,
        failed: Callable[[Violation], None],
    ) -> None:
        super().__init__()
        self.failed = failed
        self.inside = inside
        self.retention = retention
        self.trace = trace
        self.audit_every = audit_every
        self.steps = 0
        self.clock = clock
        self.feed: dict[str, list[Entry]] = {}
        self.terms: dict[int, str] = {}
        self.opened: Counter[str] = Counter()

    def handed(self, id: str, run: int) -> tuple[str, int] | None:
        return self.inside.handed(id, run)

    def arrived(self, call: Call) -> None:
        """A call is about to be served."""
        if call.verb == "wait":
            self.hand_overs.offered(call)

    # What the broker does

    def stepped(self, call: Call | None, now: int, entries: list[Entry]) -> None:
        self.steps += 1
        if call is None:
            raise Violation("feed", "a step that belongs to no call")
        if call.verb not in READS:
            self._own_step(call, now, entries)
        elif entries:
            raise Violation("feed", f"{call.verb} changed something")
        if self.steps % self.audit_every == 0:
            self.audit()

    def _own_step(self, call: Call, now: int, entries: list[Entry]) -> None:
        own = not call.forwarding
        if own:
            self._before(call, now)
        events = [event for entry in entries for event in entry.events]
        if events:
            self.trace.step(call, events)
        self._check_entries(entries, now)
        if call.verb == "put":
            # One queue's entry may come before that of another from which the same id was removed.
            events.sort(key=lambda event: event.kind != Move.DELETED)
        for event in events:
            if own:
                call.effects.append((event.kind, event.id, event.run))
            self.apply(call, event, now)
        if own:
            self._after(call, now)
        self._compare(event.id for event in events if event.id)

    def _check_entries(self, entries: list[Entry], now: int) -> None:
        for entry in entries:
            kept = self.feed.setdefault(entry.queue, [])
            if entry.number != len(kept) + 1:
                raise Violation("feed", f"entry {entry.number} of {entry.queue} after {len(kept)}")
            if entry.at != now:
                raise Violation(
                    "feed", f"entry {entry.number} of {entry.queue} is dated {entry.at}, not {now}"
                )
            kept.append(entry)

    def _compare(self, ids: Iterable[str]) -> None:
        for id in dict.fromkeys(ids):
            life, facts = self.lives.get(id), self.inside.facts(id)
            mine = None if life is None else (life.state, life.last, life.runs)
            if mine != facts:
                raise Violation("feed", f"it is {facts}, but by the feed {mine}", id)

    def audit(self) -> None:
        """The expensive checks, over all jobs."""
        known = list(self.inside.ids())
        if len(known) != len(self.lives):
            lost = [id for id in self.lives if self.inside.facts(id) is None]
            what = f"vanished: {lost}" if lost else "jobs that nobody put"
            raise Violation("lost", what, lost[0] if lost else None)
        self._compare(self.lives)
        if problems := self.inside.problems():
            named = next((id for id in self.lives if any(id in text.split() for text in problems)), None)
            raise Violation("audit", "; ".join(problems), named)

    # Before and after a verb's own step

    def _before(self, call: Call, now: int) -> None:
        match call.verb:
            case "renew":
                call.notes["opened"] = [self._beat(beat, now) for beat in call.args[0]]
            case "sweep":
                late = {name: s for name, s in self.sessions.items() if now >= s.expires}
                self.lapsed = late if call.named["lapse"] else {}
            case "put":
                call.notes["ready"] = {q: self._ready_in(q) for q in sorted({j.queue for j in call.args[0]})}
            case "take":
                record = self.sessions.get(call.args[0], SessionRecord())
                call.notes["repeat"] = call.args[1] <= record.request
                if call.args[1] > record.request:
                    record.request = call.args[1]
                    record.granted = self.hand_overs.asked(*call.args[:3])
            case "edit" if isinstance(call.args[0], Scope):
                self.bounds.set(*call.args)
            case _:
                pass

    def _beat(self, beat: Beat, now: int) -> bool:
        opened = beat.session not in self.sessions
        self.opened[beat.session] += opened
        self.sessions.setdefault(beat.session, SessionRecord()).expires = now + beat.lease
        return opened

    def _after(self, call: Call, now: int) -> None:
        match call.verb:
            case "release":
                self._end_session(call.args[0])
            case "sweep":
                self._end_lapsed(call)
                self._prune(now)
                if call.named["lapse"]:
                    self.hand_overs.check_withdrawn(now)
            case "put":
                self._check_put(call, now)
            case "take":
                self._check_take(call, now)
            case _:
                pass

    def _end_lapsed(self, call: Call) -> None:
        """All lapsed sessions must end, unless the sweep reached its limit."""
        gone = [name for name in self.lapsed if not self.inside.has_session(name)]
        freed = sum(1 for _, _, run in call.effects if run)
        if len(gone) < len(self.lapsed) and max(len(gone), freed) < call.args[0]:
            raise Violation("sessions", f"of {list(self.lapsed)}, all past their lease, {gone} were ended")
        for name in gone:
            self._end_session(name)
        self.lapsed = {}

    def _end_session(self, name: str) -> None:
        self.sessions.pop(name, None)
        for life in self.lives.values():
            if name in life.runs.values():
                raise Violation("sessions", f"still held by {name}, which is gone", life.id)

    def _prune(self, now: int) -> None:
        for life in list(self.lives.values()):
            if life.finished is None or self.inside.facts(life.id) is not None:
                continue
            if not self._past_keeping(life, life.finished, now):
                raise Violation("lost", f"forgotten at {now}, finished at {life.finished}", life.id)
            self.forget(life, now)

    def _past_keeping(self, life: Life, finished: int, now: int) -> bool:
        keep, once = self.retention, life.job.once
        if life.state is State.DEAD:
            return keep.dead_ttl is not None and now >= finished + keep.dead_ttl
        kept_by_once = once if life.state is State.SUCCEEDED and once is not None else 0
        return now >= finished + max(keep.done_ttl, kept_by_once)

    def _ready_in(self, queue: str) -> int:
        return sum(1 for life in self.lives.values() if life.state is State.READY and life.job.queue == queue)

    # put

    def _check_put(self, call: Call, now: int) -> None:
        if not self._check_when(call, call.named["when"], now):
            if call.effects:
                raise Violation("documents", "jobs were put though the document had changed")
            return
        created = call.notes.get("created", [])
        replacing = any(job.on_duplicate == "replace" for job in call.args[0])
        for job in call.args[0]:
            if job.id in created or job.id in self.lives or replacing:
                continue
            ready, bound = self._ready_in(job.queue), self.bounds.max_ready(job)
            if self.claims.holder(job, now) is None and (bound is None or ready < bound):
                raise Violation("lost", "put was without effect, for no reason", job.id)
        if not replacing:
            self._check_bound(call, created)
        # Jobs that wait for one that was not accepted are told in the same step that it is not there.
        for job in call.args[0]:
            if job.id not in self.lives:
                self.tell(job.id, State.NOT_FOUND)

    def _check_bound(self, call: Call, created: list[str]) -> None:
        for id in created:
            life = self.lives[id]
            bound = self.bounds.max_ready(life.job)
            if bound is None or life.state is not State.READY:
                continue
            ready = self._ready_in(life.job.queue)
            if ready > max(bound, call.notes["ready"][life.job.queue]):
                raise Violation(
                    "bounds", f"{ready} jobs are ready in {life.job.queue}, max_ready={bound}", id
                )

    def _check_when(self, call: Call, when: DocWrite | None, now: int) -> bool:
        if when is None:
            return True
        before = self.papers.version(when.kind, when.name, now)
        allowed = when.expect_version in (None, before)
        version = self.inside.version(when.kind, when.name)
        if allowed:
            self.papers.written(when.kind, when.name, version, when.ttl, now)
        elif before and version != before:
            raise Violation("documents", f"{when.name} was written over version {before}")
        return allowed

    # take

    def _check_take(self, call: Call, now: int) -> None:
        took = [(id, run) for kind, id, run in call.effects if kind == Move.TAKEN]
        taken = [self.lives[id] for id, run in took if self.handed(id, run) is None]
        if taken and call.notes["repeat"]:
            raise Violation("repeats", f"a repeated take (request {call.args[1]}) gave new jobs", taken[0].id)
        if len(taken) > call.args[4]:
            raise Violation("take", f"{len(taken)} jobs for a take of {call.args[4]}")
        if not taken:
            return
        running = [life for life in self.lives.values() if life.runs]
        ready = [life for life in self.lives.values() if life.state is State.READY]
        for life in taken:
            rivals = [other for other in ready if other.job.queue == life.job.queue]
            if len(life.runs) == 1:
                self._check_order(life, rivals, running, call, now)
        first = [life for life in taken if len(life.runs) == 1]
        self.turns.check(first, ready, lambda other: self.bounds.runnable(other, call.args[3], running, now))

    def _check_order(self, life: Life, rivals: list[Life], running: list[Life], call: Call, now: int) -> None:
        for other in rivals:
            first = other.job.priority < life.job.priority
            if first and self.bounds.runnable(other, call.args[3], running, now):
                text = f"taken at priority {life.job.priority} before {other.id} at {other.job.priority}"
                raise Violation("priority", text, life.id)
            in_line = other.lane == life.lane and other.line < life.line
            if in_line and call.notes["first"][life.id] and not other.last and not _expired(other, now):
                raise Violation("order", f"taken before {other.id}, which came first", life.id)

    # What the broker says

    def replied(self, call: Call, reply: Any) -> None:
        self.trace.reply(call, reply)
        match call.verb:
            case "put":
                for accepted in reply:
                    if accepted.verdict == "created" and (Move.PUT, accepted.id, 0) not in call.effects:
                        raise Violation("lost", "reported as created, but it was not", accepted.id)
            case "take":
                self._check_taken(call, [(taken.job.id, taken.run) for taken in reply])
                self._check_groups(call.args[0], reply)
            case "settle":
                self._check_verdicts(call, reply)
            case "renew":
                if [heard.opened for heard in reply] != call.notes["opened"]:
                    raise Violation("sessions", f"opened should be {call.notes['opened']}: {reply}")
            case "doc":
                self._check_doc(call, reply)
            case "sweep" if reply.repairs or reply.finished:
                raise Violation("audit", f"sweep repaired what was sound: {reply.repairs or reply.finished}")
            case _:
                pass

    def refused(self, call: Call, error: Exception) -> None:
        self.trace.refusal(call, error)
        if not isinstance(error, DrayError):
            text = f"{call.verb} raised {type(error).__name__}: {error}"
            raise (
                error
                if isinstance(error, Violation)
                else Violation("raised", text, _named_in(error, self.lives))
            )
        if call.effects:
            raise Violation("raised", f"{call.verb} was refused ({error}) after it had changed something")
        if call.verb == "take" and isinstance(error, SessionLost):
            record = self.sessions.get(call.args[0])
            if record is not None and self.clock() < record.expires:
                raise Violation("sessions", f"{call.args[0]} was refused within its lease")
        elif not isinstance(error, InvalidInput):
            raise Violation("raised", f"{call.verb} was refused: {error}")

    def _check_taken(self, call: Call, refs: list[tuple[str, int]]) -> None:
        record = self.sessions.get(call.args[0])
        if record is None or record.request != call.args[1]:
            return
        if strange := [ref for ref in refs if ref not in record.granted]:
            raise Violation("repeats", f"{strange} were handed out but not taken", strange[0][0])
        for id, run in record.granted:
            held = id in self.lives and self.lives[id].runs.get(run) == call.args[0]
            if held and (id, run) not in refs:
                raise Violation("repeats", f"run {run} is held by {call.args[0]}, which is not told", id)

    def _check_groups(self, session: str, reply: list[Taken]) -> None:
        """A suspect is always handed out with the size of its group."""
        for taken in reply:
            life = self.lives.get(taken.job.id)
            if life is None or life.runs.get(taken.run) != session or taken.suspect == life.group:
                continue
            raise Violation("groups", f"a suspect for {taken.suspect} together, not {life.group}", life.id)

    def _check_verdicts(self, call: Call, reply: list[Any]) -> None:
        done = {(id, run) for _, id, run in call.effects}
        for outcome, settled in zip(call.args[1], reply, strict=True):
            ref = (outcome.id, outcome.run)
            if (settled.verdict is Verdict.ACCEPTED) != (ref in done):
                raise Violation(
                    "outcomes", f"run {outcome.run} was {settled.verdict}: {call.effects}", outcome.id
                )
            if settled.verdict is Verdict.ACCEPTED and settled.state in FINISHED:
                life, replays = call.notes["settled"][outcome.id]
                if replays in life.completed:
                    raise Violation("completions", "a second completion was accepted", outcome.id)
                life.completed.append(replays)

    def _check_doc(self, call: Call, reply: DocReply) -> None:
        kind, name, value = call.args
        if value is UNSET:
            return
        expect, ttl = call.named["expect_version"], call.named["ttl"]
        allowed = expect in (None, self.papers.version(kind, name, self.clock()))
        if reply.written != allowed:
            raise Violation("documents", f"{kind}/{name}: written={reply.written} against version {expect}")
        if allowed:
            self.papers.written(kind, name, reply.doc.version if reply.doc else None, ttl, self.clock())
            if reply.doc and self.terms.setdefault(reply.doc.version, call.process.name) != call.process.name:
                raise Violation("documents", f"two holders at term {reply.doc.version}")


def _expired(life: Life, now: int) -> bool:
    return life.expires is not None and now >= life.expires


def _named_in(error: BaseException, lives: dict[str, Life]) -> str | None:
    words = str(error).split()
    return next((word for word in words if word in lives), None)
