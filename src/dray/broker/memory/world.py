"""What the reference broker keeps, and the few moves everything is made of.

A job is kept once, in `World.jobs`, and stands in exactly one place:

    waiting   `waiting` names the dependencies that are not done
    due       the queue's `due`, by time
    ready     the queue's `line`
    held      `runs` names the sessions that hold it
    dead      the queue's `ended`, by the time it may be forgotten
    done      the same

Only `World.move` changes the place, and only along `TRANSITIONS`.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from dray.broker.checks import forget_at
from dray.broker.memory.line import Line, Sorted
from dray.broker.verbs import Doc, DocWrite, Entry, Event, Limits, Ref
from dray.job import (
    FINISHED,
    PLACES,
    TRANSITIONS,
    Error,
    Job,
    Move,
    Place,
    Run,
    Sign,
    State,
)
from dray.policy import Retention

EVENTS_KEPT: Final = 10_000
"""How many entries of the feed a queue keeps."""
MAIL_KEPT: Final = 24 * 3600 * 1000


class Kept:
    """All that is known of one job."""

    def __init__(self, job: Job, number: int, created: int) -> None:
        self.job = job
        self.as_put = job
        """What the producer said, whatever was edited since: tells a repeated put from a new one."""
        self.number = number
        """The order of arrival: decides where everything else is equal."""
        self.state = State.NOT_FOUND
        self.created = created
        self.due: int | None = None
        self.expires: int | None = None
        self.line = 0
        """Its number in line: drawn when it becomes ready, kept when it is handed back."""
        self.run = 0
        self.settled = 0
        self.failures = 0
        self.crashes = 0
        self.suspect = False
        self.cancel: str | None = None
        self.runs: dict[int, Run] = {}
        self.offered = False
        self.waiting: dict[str, None] = {}
        self.started: int | None = None
        self.finished: int | None = None
        self.reason: str | None = None
        self.result: bytes | None = None
        self.error: Error | None = None


class Session:
    """One executor process: a lease, and what it holds under it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.lease = 0
        self.expires = 0
        self.request = 0
        self.reply: list[Ref] = []
        self.holds: dict[Ref, None] = {}
        self.void: dict[Ref, None] = {}
        """Runs that lost their validity; told with every beat until the session settles them."""
        self.heard: set[Ref] = set()
        """What the last beat was told of: no reason to wake the session again."""


class Queue:
    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self.due = Sorted()
        self.line = line
        self.ended = Sorted()
        self.offers: dict[str, None] = {}
        """Running jobs that another session may run as well."""
        self.feed: deque[Entry] = deque(maxlen=EVENTS_KEPT)
        self.entries = 0

    def has_settings(self) -> bool:
        line = self.line
        return bool(line.paused or line.paused_tasks or line.task_limits or line.limits != Limits())


class World:
    """The whole state of a namespace."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, Kept] = {}
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[str, Session] = {}
        self.keys: dict[tuple[str, str], tuple[str, int | None]] = {}
        """(queue, key) → the job that has it, and until when (None: until it ends)."""
        self.dependants: dict[str, dict[str, None]] = {}
        self.outbox: deque[tuple[str, str, State]] = deque()
        """Word for a waiting job: (its id, the dependency that ended, how)."""
        self.docs: dict[tuple[str, str], Doc] = {}
        self.watchers: dict[str, dict[str, None]] = {}
        self.mail: dict[str, dict[str, int]] = {}
        self.notes: dict[str, list[Event]] = {}
        self.opened = 0
        """How many sessions were ever opened."""
        self._numbers = 0
        self._versions = 0

    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            line = Line(lambda what, value: self.running(name, what, value))
            self.queues[name] = Queue(name, line)
        return self.queues[name]

    def running(self, queue: str, what: str, value: str) -> int:
        """The runs held now by a queue, a task, a group or a running key."""

        def counts(job: Job) -> bool:
            mine = {"queue": "", "task": job.task, "group": job.group, "key": job.running_key}[what]
            return job.queue == queue and mine == value

        jobs = (self.jobs[id].job for session in self.sessions.values() for id, _ in session.holds)
        return sum(1 for job in jobs if counts(job))

    def note(self, kept: Kept, kind: Move | Sign, run: int = 0) -> None:
        self.notes.setdefault(kept.job.queue, []).append(Event(kind, kept.job.id, run))

    # Places

    def move(self, kept: Kept, move: Move, to: State, run: int = 0) -> None:
        if to not in TRANSITIONS[move].get(kept.state, ()):
            raise AssertionError(f"{kept.job.id} cannot go from {kept.state} to {to} by {move}")
        self._leave(kept)
        kept.state = to
        self.enter(kept)
        self.note(kept, move, run)

    def _leave(self, kept: Kept) -> None:
        queue = self.queue(kept.job.queue)
        match PLACES.get(kept.state):
            case Place.DUE:
                queue.due.remove(kept.job.id)
            case Place.READY:
                queue.line.leave(kept.job)
            case Place.DEAD | Place.DONE:
                queue.ended.remove(kept.job.id)
            case _:
                pass

    def enter(self, kept: Kept) -> None:
        queue = self.queue(kept.job.queue)
        match PLACES.get(kept.state):
            case Place.DUE:
                queue.due.add(kept.due or 0, kept.number, kept.job.id)
            case Place.READY:
                queue.line.join(kept.job, kept.line)
            case Place.DEAD | Place.DONE:
                at = forget_at(kept.job.once, kept.state, kept.finished or 0, self.retention)
                queue.ended.add(at, kept.number, kept.job.id)
            case _:
                pass

    # The life of a job

    def create(self, job: Job, now: int) -> Kept:
        self._numbers += 1
        kept = self.jobs[job.id] = Kept(job, self._numbers, job.created or now)
        self._claim_key(kept, now)
        for dependency in job.waits_for:
            self._wait_for(kept, dependency)
        if kept.waiting:
            self.move(kept, Move.PUT, State.WAITING)
        else:
            self.line_up(kept, Move.PUT, job.due, now)
        return kept

    def _claim_key(self, kept: Kept, now: int) -> None:
        job = kept.job
        if job.key is not None:
            self.keys[job.queue, job.key] = (job.id, None if job.key_ttl is None else now + job.key_ttl)

    def _wait_for(self, kept: Kept, dependency: str) -> None:
        other = self.jobs.get(dependency)
        if other is not None and other.state is State.SUCCEEDED:
            return
        kept.waiting[dependency] = None
        self.dependants.setdefault(dependency, {})[kept.job.id] = None
        if other is not None and other.state in FINISHED:
            self.outbox.append((kept.job.id, dependency, other.state))

    def line_up(self, kept: Kept, move: Move, due: int | None, now: int, run: int = 0) -> None:
        """To the end of the line, or to wait for its time."""
        if due is not None and due > now:
            kept.due, kept.expires = due, None
            self.move(kept, move, State.RETRYING if kept.failures else State.SCHEDULED, run)
            return
        if kept.job.ttl is not None and not kept.run:
            could_start = due if due is not None and move is Move.PROMOTED else now
            kept.expires = could_start + kept.job.ttl
        kept.due = None
        kept.line = self.queue(kept.job.queue).line.number()
        self.move(kept, move, State.READY, run)

    def back_in_line(self, kept: Kept, move: Move, run: int) -> None:
        """Where it stood before it was taken: whoever waited longest goes first again."""
        self.move(kept, move, State.READY, run)

    def start(self, kept: Kept, session: str, now: int) -> int:
        """A new run. Its number fences off every earlier one."""
        kept.run += 1
        kept.started, kept.expires = now, None
        if kept.offered:
            self._withdraw_offer(kept)
        self.move(kept, Move.TAKEN, State.RUNNING, kept.run)
        kept.runs[kept.run] = Run(kept.run, session, now)
        self.sessions[session].holds[kept.job.id, kept.run] = None
        return kept.run

    def end_run(self, kept: Kept, run: int) -> None:
        """The run is over and its slot is free, once."""
        session = self.sessions[kept.runs.pop(run).session]
        del session.holds[kept.job.id, run]
        if kept.offered and not kept.runs:
            self._withdraw_offer(kept)

    def held(self, session: Session) -> list[Ref]:
        """What a session holds, in the order of arrival."""
        return sorted(session.holds, key=lambda ref: (self.jobs[ref[0]].number, ref[1]))

    def offer(self, kept: Kept) -> None:
        kept.offered = True
        self.queue(kept.job.queue).offers[kept.job.id] = None
        self.note(kept, Sign.SPECULATED, kept.run)

    def _withdraw_offer(self, kept: Kept) -> None:
        kept.offered = False
        del self.queue(kept.job.queue).offers[kept.job.id]

    def finish(
        self, kept: Kept, move: Move, to: State, now: int, reason: str | None = None, run: int = 0
    ) -> None:
        """The end: other runs are void, the key is free or stays taken for `once`, who waits is told."""
        for other in list(kept.runs):
            ref = (kept.job.id, other)
            session = self.sessions[kept.runs[other].session]
            self.end_run(kept, other)
            session.void[ref] = None
        self.stop_waiting(kept)
        kept.finished, kept.reason, kept.due, kept.expires, kept.cancel = now, reason, None, None, None
        self.move(kept, move, to, run)
        self._free_key(kept, now)
        self._tell(kept, to, now)

    def _free_key(self, kept: Kept, now: int) -> None:
        """`once` takes the key (again, if its `key_ttl` is over) unless another job has it by now."""
        job = kept.job
        if job.key is None or self.other_key_holder(kept, now) is not None:
            return
        if kept.state is State.SUCCEEDED and job.once is not None:
            self.keys[job.queue, job.key] = (job.id, now + job.once)
        elif self.keys.get((job.queue, job.key), ("", 0))[0] == job.id:
            del self.keys[job.queue, job.key]

    def stop_waiting(self, kept: Kept) -> None:
        for dependency in kept.waiting:
            self.forget_dependant(dependency, kept.job.id)
        kept.waiting = {}

    def forget_dependant(self, dependency: str, dependant: str) -> None:
        dependants = self.dependants.get(dependency, {})
        dependants.pop(dependant, None)
        if not dependants:
            self.dependants.pop(dependency, None)

    def dependency_ended(self, dependant: str, dependency: str, state: State, now: int) -> None:
        """Deliver one message of the outbox. Delivering it twice changes nothing."""
        kept = self.jobs.get(dependant)
        if kept is None or dependency not in kept.waiting:
            return
        if state is State.SUCCEEDED or kept.job.orphan == "run":
            del kept.waiting[dependency]
            self.forget_dependant(dependency, dependant)
            if not kept.waiting:
                self.line_up(kept, Move.RELEASED, kept.job.due, now)
        elif kept.job.orphan == "cancel":
            self.finish(
                kept, Move.CANCELLED, State.CANCELLED, now, f"{dependency}, which it waits for, is {state}"
            )

    def bury(self, kept: Kept, now: int, reason: str, run: int = 0) -> None:
        self.finish(kept, Move.DIED, State.DEAD, now, reason, run)

    def crash(self, kept: Kept, run: int, now: int, *, suspect: bool = True, blamed: bool = False) -> None:
        """Whoever ran it is gone. Only a crash alone in a child counts against the job itself."""
        self.end_run(kept, run)
        kept.suspect = kept.suspect or suspect or blamed
        kept.crashes += blamed
        if kept.cancel is not None:
            self.finish(kept, Move.CANCELLED, State.CANCELLED, now, kept.cancel, run)
        elif kept.crashes >= kept.job.max_crashes:
            self.bury(kept, now, poison(kept.crashes), run)
        elif kept.runs:
            self.note(kept, Sign.RUN_ENDED, run)
        else:
            self.back_in_line(kept, Move.CRASHED if suspect or blamed else Move.GIVEN_BACK, run)

    def delete(self, kept: Kept, now: int) -> None:
        """Forget a job that does not run, and tell those that wait for it."""
        self.note(kept, Move.DELETED)
        self.forget(kept, now)

    def forget(self, kept: Kept, now: int) -> None:
        """The same without a word in the feed: for records past their retention."""
        self.remove(kept, now)
        self._tell(kept, State.NOT_FOUND, now)

    def remove(self, kept: Kept, now: int) -> None:
        """The same without telling anybody: another job takes its place under the same id."""
        self.stop_waiting(kept)
        self._leave(kept)
        kept.state = State.NOT_FOUND
        self._free_key(kept, now)
        del self.jobs[kept.job.id]

    def _tell(self, kept: Kept, ended: State, now: int) -> None:
        """Word for those who watch the job, and for the jobs that wait for it."""
        for watcher in self.watchers.pop(kept.job.id, {}):
            self.mail.setdefault(watcher, {})[kept.job.id] = now
        self.tell_dependants(kept.job.id, ended)

    def tell_dependants(self, id: str, ended: State) -> None:
        for dependant in self.dependants.get(id, {}):
            self.outbox.append((dependant, id, ended))

    def drop_mail(self, now: int) -> None:
        """What nobody fetched for a day: its watcher is gone."""
        for watcher, mail in list(self.mail.items()):
            self.mail[watcher] = {id: at for id, at in mail.items() if now < at + MAIL_KEPT}
            if not self.mail[watcher]:
                del self.mail[watcher]

    def ask_to_stop(self, kept: Kept, reason: str) -> None:
        kept.cancel = reason
        if kept.offered:
            self._withdraw_offer(kept)
        self.note(kept, Sign.CANCEL_ASKED, kept.run)

    def other_key_holder(self, kept: Kept, now: int) -> str | None:
        """The job that has the key this one would need."""
        if kept.job.key is None:
            return None
        holder, until = self.keys.get((kept.job.queue, kept.job.key), (kept.job.id, None))
        taken = holder != kept.job.id and (until is None or now < until)
        return holder if taken else None

    def replay(self, kept: Kept, now: int) -> None:
        """Run again by hand, with all its retries."""
        if kept.state in FINISHED:
            self._claim_key(kept, now)
        kept.failures = kept.crashes = 0
        kept.suspect = False
        kept.finished = kept.reason = kept.result = kept.error = None
        self.line_up(kept, Move.REPLAYED, None, now)

    def reprioritise(self, kept: Kept, priority: int) -> None:
        self._leave(kept)
        kept.job = msgspec.structs.replace(kept.job, priority=priority)
        self.enter(kept)
        self.note(kept, Sign.REPRIORITISED)

    # Documents

    def live_doc(self, kind: str, name: str, now: int) -> Doc | None:
        doc = self.docs.get((kind, name))
        return doc if doc is not None and (doc.expires is None or now < doc.expires) else None

    def write_doc(self, write: DocWrite, now: int) -> bool:
        doc = self.live_doc(write.kind, write.name, now)
        version = 0 if doc is None else doc.version
        if write.expect_version is not None and write.expect_version != version:
            return False
        self._versions += 1
        if write.value is None:
            self.docs.pop((write.kind, write.name), None)
        else:
            expires = None if write.ttl is None else now + write.ttl
            self.docs[write.kind, write.name] = Doc(
                write.kind, write.name, write.value, self._versions, expires
            )
        return True


def poison(crashes: int) -> str:
    return f"poison: it crashed {crashes} times while running alone"
