"""The state of the reference broker, and the moves of a job.

A job is stored once, in `JobStore.jobs`, and stands in exactly one place:

    waiting   `waiting` names the jobs that are not done, or `suspended` what else it waits for
    due       the queue's `due`, by time
    ready     the queue's `line`
    held      `runs` names the sessions that hold it
    dead      the queue's `ended`, by the time it may be forgotten
    done      the same

Only `JobStore.move` changes the place, and only along `TRANSITIONS`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Literal, NamedTuple

import msgspec

from dray.broker.memory.entries import JobEntry, Queue, Session
from dray.broker.memory.take import Line
from dray.broker.rules import (
    Next,
    after_crash,
    crash_end,
    deadline_of,
    delayed_state,
    expires_of,
    forget_at,
    group_after,
    is_first,
    later,
    must_undo,
)
from dray.broker.verbs import Doc, DocWrite, Event, Ref
from dray.job import (
    FINISHED,
    PLACES,
    RUNS_KEPT,
    TRANSITIONS,
    Error,
    Job,
    Move,
    PastRun,
    Place,
    Run,
    RunEnd,
    Sign,
    State,
    Taken,
    Undo,
    lone_run,
    short_error,
)
from dray.policy import Retention

MAIL_KEPT: Final = 24 * 3600 * 1000


class Post(NamedTuple):
    """A message of the outbox: `sender` has ended in `state`."""

    kind: Literal["dependency", "parent", "revived"]
    """To a job that waits for the sender; to a job that the sender calls; `revived`: the sender is unfinished
    again, to a job that once waited for it."""
    id: str
    sender: str
    state: State


class JobStore:
    """The whole state of a namespace."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.jobs: dict[str, JobEntry] = {}
        self.queues: dict[str, Queue] = {}
        self.sessions: dict[str, Session] = {}
        self.keys: dict[tuple[str, str], tuple[str, int | None]] = {}
        """(queue, key) → the job that has it, and until when (None: until it ends)."""
        self.dependants: dict[str, dict[str, bool]] = {}
        """Job → the jobs that wait for it (True); for a node also those that once waited for it (False)."""
        self.outbox: deque[Post] = deque()
        self.docs: dict[tuple[str, str], Doc] = {}
        self.watchers: dict[str, dict[str, None]] = {}
        self.mail: dict[str, dict[str, int]] = {}
        self.notes: dict[str, list[Event]] = {}
        self.seen_notes: dict[str, int] = {}
        """By queue: how many of the notes were looked at for a hand-over."""
        self.opened = 0
        """The newest epoch of a session."""
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

    def note(self, entry: JobEntry, kind: Move | Sign, run: int = 0) -> None:
        self.notes.setdefault(entry.job.queue, []).append(Event(kind, entry.job.id, run))

    # Places

    def move(self, entry: JobEntry, move: Move, to: State, run: int = 0) -> None:
        if to not in TRANSITIONS[move].get(entry.state, ()):
            raise AssertionError(f"{entry.job.id} cannot go from {entry.state} to {to} by {move}")
        self._leave(entry)
        entry.state = to
        self.enter(entry)
        self.note(entry, move, run)

    def _leave(self, entry: JobEntry) -> None:
        queue = self.queue(entry.job.queue)
        match PLACES.get(entry.state):
            case Place.DUE | Place.WAITING:
                if entry.job.id in queue.due:
                    queue.due.remove(entry.job.id)
            case Place.READY:
                queue.line.leave(entry.job)
            case Place.DEAD | Place.DONE:
                queue.ended.remove(entry.job.id)
            case _:
                pass

    def enter(self, entry: JobEntry) -> None:
        queue = self.queue(entry.job.queue)
        match PLACES.get(entry.state):
            case Place.DUE:
                queue.due.add(entry.due or 0, entry.number, entry.job.id)
            case Place.WAITING if entry.suspended is not None and entry.suspended.until is not None:
                queue.due.add(entry.suspended.until, entry.number, entry.job.id)
            case Place.READY:
                queue.line.join(entry.job, entry.line)
            case Place.DEAD | Place.DONE:
                at = forget_at(entry.job.once, entry.state, entry.finished or 0, self.retention)
                queue.ended.add(at, entry.number, entry.job.id)
            case _:
                pass

    # The life of a job

    def create(self, job: Job, now: int) -> JobEntry:
        self._numbers += 1
        entry = self.jobs[job.id] = JobEntry(job, self._numbers, job.created or now)
        entry.deadline = deadline_of(job.deadline, job.due, now)
        self.claim_key(entry, now)
        self.wait_for_all(entry)
        if entry.waiting:
            self.move(entry, Move.PUT, State.WAITING)
        else:
            self.line_up(entry, Move.PUT, job.due, now)
        return entry

    def claim_key(self, entry: JobEntry, now: int) -> None:
        job = entry.job
        if job.key is not None:
            self.keys[job.queue, job.key] = (job.id, later(job.key_ttl, now))

    def wait_for_all(self, entry: JobEntry) -> None:
        """Wait for the dependencies that have not succeeded; for none if the first success is enough."""
        others = [self.jobs.get(id) for id in entry.job.waits_for]
        if any(other is not None and is_first(other.state, entry.job.orphan) for other in others):
            return
        for dependency in entry.job.waits_for:
            self.wait_for(entry, dependency)

    def wait_for(self, entry: JobEntry, dependency: str) -> None:
        other = self.jobs.get(dependency)
        if other is not None and other.state is State.SUCCEEDED:
            self.remember_dependant(other, entry.job.id)
            return
        entry.waiting[dependency] = None
        self.dependants.setdefault(dependency, {})[entry.job.id] = True
        if other is not None and other.state in FINISHED:
            self.outbox.append(Post("dependency", entry.job.id, dependency, other.state))

    def line_up(self, entry: JobEntry, move: Move, due: int | None, now: int, run: int = 0) -> None:
        """To the end of the line, or to wait for its due time."""
        if due is not None and due > now:
            entry.due, entry.expires = due, None
            state = delayed_state(entry.failures)
            if entry.suspended is not None:
                entry.suspended, state = msgspec.structs.replace(entry.suspended, until=due), entry.state
            self.move(entry, move, state, run)
            return
        entry.expires = expires_of(entry.job.ttl, entry.run, move, due, now)
        entry.due = entry.suspended = None
        entry.line = self.queue(entry.job.queue).line.number()
        self.move(entry, move, State.READY, run)

    def after_run(self, entry: JobEntry, next: Next, run: int, now: int, at: int | None = None) -> None:
        """Make the move that follows the end of a run. A job that is handed back keeps its number in line."""
        entry.failures += next.failed
        if next.move is None:
            self.note(entry, Sign.RUN_ENDED, run)
        elif next.to.finished:
            self.finish(entry, next.move, next.to, now, next.reason, run)
        elif next.move is Move.RETRIED:
            self.line_up(entry, next.move, at, now, run)
        else:
            self.move(entry, next.move, next.to, run)

    def start(self, entry: JobEntry, session: str, now: int) -> int:
        """A new run. Its number fences off every earlier one."""
        entry.run += 1
        entry.started, entry.expires = now, None
        if entry.offered:
            self._withdraw_offer(entry)
        self.move(entry, Move.TAKEN, State.RUNNING, entry.run)
        entry.runs[entry.run] = Run(entry.run, session, now)
        self.sessions[session].holds[entry.job.id, entry.run] = None
        return entry.run

    def end_run(self, entry: JobEntry, run: int, how: RunEnd, now: int, error: Error | None = None) -> None:
        """The run is over and its slot is free, once."""
        ended = entry.runs.pop(run)
        session = self.sessions[ended.session]
        del session.holds[entry.job.id, run]
        session.handed.pop((entry.job.id, run), None)
        if how is not RunEnd.SUCCEEDED or entry.run > 1:
            past = PastRun(run, ended.session, ended.since, now, how, short_error(error))
            entry.past = [*entry.past, past][-RUNS_KEPT:]
        if entry.offered and not entry.runs:
            self._withdraw_offer(entry)

    def taken(self, id: str, run: int) -> Taken:
        entry = self.jobs[id]
        return Taken(
            entry.job,
            run,
            entry.failures + 1,
            entry.crashes,
            entry.suspect,
            entry.deadline,
            len(entry.log),
            entry.replayed,
            entry.undo,
        )

    def held(self, session: Session) -> list[Ref]:
        """The runs of a session, in the order in which their jobs arrived."""
        return sorted(session.holds, key=lambda ref: (self.jobs[ref[0]].number, ref[1]))

    def offer(self, entry: JobEntry) -> None:
        entry.offered = True
        self.queue(entry.job.queue).offers[entry.job.id] = None
        self.note(entry, Sign.SPECULATED, entry.run)

    def _withdraw_offer(self, entry: JobEntry) -> None:
        entry.offered = False
        del self.queue(entry.job.queue).offers[entry.job.id]

    def finish(
        self, entry: JobEntry, move: Move, to: State, now: int, reason: str | None = None, run: int = 0
    ) -> None:
        """End the job: void other runs, free the key or keep it for `once`, notify who waits. Or undo it."""
        undo = must_undo(to, undoable=entry.undoable, undoing=entry.undo is not None, forced=entry.forced)
        self._void_runs(entry, now)
        self.stop_waiting(entry)
        self.tell_children(entry, to)
        entry.suspended = entry.cancel = entry.orphaned_by = None
        entry.forced = False
        if undo:
            self._begin_undo(entry, Undo(to, reason or ""), now, run)
            return
        entry.finished, entry.reason, entry.due, entry.expires = now, reason, None, None
        if entry.undo is not None:
            entry.undo, entry.undone, entry.undoable = None, True, False
        self.move(entry, move, to, run)
        self._free_key(entry, now)
        self._notify(entry, to, now)

    def _void_runs(self, entry: JobEntry, now: int) -> None:
        for run in list(entry.runs):
            session = self.sessions[entry.runs[run].session]
            self.end_run(entry, run, RunEnd.OVERTAKEN, now)
            session.void[entry.job.id, run] = None

    def _begin_undo(self, entry: JobEntry, undo: Undo, now: int, run: int) -> None:
        """Its next runs are undo runs, which have no deadline, and crashes of their own."""
        entry.undo, entry.deadline, entry.crashes, entry.reason = undo, None, 0, None
        self.line_up(entry, Move.UNDOING, None, now, run)

    def tell_children(self, entry: JobEntry, ended: State) -> None:
        """Post the end of a job to those it calls, so that they are cancelled."""
        self.outbox += [Post("parent", child, entry.job.id, ended) for child in entry.children]
        entry.children = {}

    def _free_key(self, entry: JobEntry, now: int) -> None:
        """`once` takes the key (again, if its `key_ttl` is over) unless another job has it by now."""
        job = entry.job
        if job.key is None or self.other_key_holder(entry, now) is not None:
            return
        if entry.state is State.SUCCEEDED and job.once is not None:
            self.keys[job.queue, job.key] = (job.id, now + job.once)
        elif self.keys.get((job.queue, job.key), ("", 0))[0] == job.id:
            del self.keys[job.queue, job.key]

    def stop_waiting(self, entry: JobEntry) -> None:
        for dependency in entry.waiting:
            self.forget_dependant(dependency, entry.job.id)
        entry.waiting = {}

    def remember_dependant(self, dependency: JobEntry, dependant: str) -> None:
        """Of a job that need not wait for a node: a replay of the node may revive it."""
        if dependency.job.node:
            self.dependants.setdefault(dependency.job.id, {}).setdefault(dependant, False)

    def forget_dependant(self, dependency: str, dependant: str) -> None:
        """A dependant of a node is remembered: a replay of the node may revive it."""
        dependants, node = self.dependants.get(dependency, {}), self.jobs.get(dependency)
        if dependant in dependants and node is not None and node.job.node:
            dependants[dependant] = False
            return
        dependants.pop(dependant, None)
        if not dependants:
            self.dependants.pop(dependency, None)

    def bury(self, entry: JobEntry, now: int, reason: str, run: int = 0) -> None:
        self.finish(entry, Move.DIED, State.DEAD, now, reason, run)

    def crash(
        self,
        entry: JobEntry,
        run: int,
        now: int,
        *,
        suspect: bool = True,
        together: int = 0,
        error: Error | None = None,
    ) -> None:
        """End a run whose process died with `together` jobs in it (0: its worker). Only alone it counts."""
        self.end_run(entry, run, crash_end(suspect, together), now, error)
        entry.crashes += together == 1
        self.after_crash(entry, suspect, together, run, now)

    def after_crash(self, entry: JobEntry, suspect: bool, together: int, run: int, now: int) -> None:
        if suspect:
            entry.suspect = group_after(entry.suspect, together)
        next = after_crash(
            entry.crashes,
            entry.job.max_crashes,
            suspect=suspect,
            cancel=entry.cancel,
            other_runs=bool(entry.runs),
            deadline=entry.deadline,
            now=now,
            undo=entry.undo,
        )
        self.after_run(entry, next, run, now)

    def delete(self, entry: JobEntry, now: int) -> None:
        """Delete a job that does not run, and notify watchers and dependants."""
        self.note(entry, Move.DELETED)
        self.forget(entry, now)

    def forget(self, entry: JobEntry, now: int) -> None:
        """Delete without an event in the feed: for records past their retention."""
        self.remove(entry, now)
        self.tell_children(entry, State.NOT_FOUND)
        self._notify(entry, State.NOT_FOUND, now)
        for dependant, waits in list(self.dependants.get(entry.job.id, {}).items()):
            if not waits:
                self.forget_dependant(entry.job.id, dependant)

    def remove(self, entry: JobEntry, now: int) -> None:
        """Delete without notifying: another job takes its place under the same id."""
        self.stop_waiting(entry)
        self._leave(entry)
        entry.state = State.NOT_FOUND
        self._free_key(entry, now)
        del self.jobs[entry.job.id]

    def _notify(self, entry: JobEntry, ended: State, now: int) -> None:
        """Notify watchers and dependants of the end."""
        for watcher in self.watchers.pop(entry.job.id, {}):
            self.mail.setdefault(watcher, {})[entry.job.id] = now
        self.notify_dependants(entry.job.id, ended)

    def notify_dependants(self, id: str, ended: State) -> None:
        for dependant, waits in self.dependants.get(id, {}).items():
            if waits:
                self.outbox.append(Post("dependency", dependant, id, ended))

    def tell_revived(self, entry: JobEntry) -> None:
        """Post to all dependants of a node that it is unfinished again."""
        if entry.job.node:
            dependants = self.dependants.get(entry.job.id, {})
            self.outbox += [Post("revived", id, entry.job.id, entry.state) for id in dependants]

    def drop_mail(self, now: int) -> None:
        """Drop mail that was not fetched for a day: its watcher is gone."""
        for watcher, mail in list(self.mail.items()):
            self.mail[watcher] = {id: at for id, at in mail.items() if now < at + MAIL_KEPT}
            if not self.mail[watcher]:
                del self.mail[watcher]

    def ask_to_stop(self, entry: JobEntry, reason: str, force: bool) -> None:
        entry.cancel, entry.forced = entry.cancel or reason, force
        for run in entry.runs.values():
            self.sessions[run.session].heard.discard((entry.job.id, run.number))
        if entry.offered:
            self._withdraw_offer(entry)
        self.note(entry, Sign.CANCEL_ASKED, entry.run)

    def other_key_holder(self, entry: JobEntry, now: int) -> str | None:
        """The job that has the key this one would need."""
        if entry.job.key is None:
            return None
        holder, until = self.keys.get((entry.job.queue, entry.job.key), (entry.job.id, None))
        taken = holder != entry.job.id and (until is None or now < until)
        return holder if taken else None

    def replay(self, entry: JobEntry, now: int) -> None:
        """Run again by hand, with all its retries."""
        finished = entry.state in FINISHED
        if finished:
            self.claim_key(entry, now)
        self.begin_again(entry, now)
        self.line_up(entry, Move.REPLAYED, None, now)
        if finished:
            self.tell_revived(entry)

    def begin_again(self, entry: JobEntry, now: int) -> None:
        """Forget failures, and of a finished job its end; a durable one goes on with its log."""
        if entry.state is State.SUCCEEDED and entry.run == 1:
            entry.past = [lone_run(entry.started, entry.finished)]
        if entry.state in FINISHED:
            entry.replayed = entry.run
        if entry.undone:
            entry.log, entry.undone = [], False
        entry.failures = entry.crashes = entry.suspect = 0
        entry.finished = entry.reason = entry.result = entry.error = entry.orphaned_by = None
        if entry.undo is None:
            entry.deadline = deadline_of(entry.job.deadline, None, now)

    def reprioritise(self, entry: JobEntry, priority: int) -> None:
        self._leave(entry)
        entry.job = msgspec.structs.replace(entry.job, priority=priority)
        self.enter(entry)
        self.note(entry, Sign.REPRIORITISED)

    # Documents

    def live_doc(self, kind: str, name: str, now: int) -> Doc | None:
        doc = self.docs.get((kind, name))
        return doc if doc is not None and (doc.expires is None or now < doc.expires) else None

    def write_doc(self, write: DocWrite, now: int) -> bool:
        doc = self.live_doc(write.kind, write.name, now)
        version = 0 if doc is None else doc.version
        if write.expect_version is not None and write.expect_version != version:
            return False
        self._versions = counted(self._versions, now)
        if write.value is None:
            self.docs.pop((write.kind, write.name), None)
        else:
            expires = later(write.ttl, now)
            self.docs[write.kind, write.name] = Doc(
                write.kind, write.name, write.value, self._versions, expires
            )
        return True


def counted(last: int, now: int) -> int:
    """The next number. The first is the time, so that none is used again after a store lost its data."""
    return last + 1 if last else max(1, now)
