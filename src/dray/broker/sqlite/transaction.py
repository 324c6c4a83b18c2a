"""One write transaction: the moves of `dray.broker.memory.store`, on rows.

A `Transaction` collects events (one feed entry per queue, written before the commit) and which sleepers to
wake after the commit.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

import msgspec

from dray.broker.rules import (
    Next,
    after_crash,
    crash_end,
    deadline_of,
    delayed_state,
    expires_of,
    forget_at,
    group_after,
    later,
    must_undo,
)
from dray.broker.sqlite.lanes import Lanes
from dray.broker.sqlite.rows import (
    NUMBER,
    STATES,
    ClassKey,
    DurableRow,
    JobRow,
    QueueRow,
    decode_past,
    decode_suspension,
    decode_undo,
    encode,
)
from dray.broker.sqlite.statements import SQL, where
from dray.broker.verbs import Event
from dray.job import (
    RUNS_KEPT,
    TRANSITIONS,
    Error,
    Move,
    PastRun,
    RunEnd,
    Sign,
    State,
    Undo,
    short_error,
)
from dray.policy import Retention

EVENTS_KEPT: Final = 10_000
"""Entries of the feed that a queue keeps."""

DEPENDENCY, PARENT, REVIVED = 0, 1, 2
"""Kinds of messages in the outbox: see `dray.broker.memory.store.Post`."""
_PARTS: Final = (
    *("delete_job", "delete_body", "delete_end", "delete_past"),
    *("delete_durable", "delete_memos", "delete_messages"),
)
_JOB: Final = where("job_columns", "seq = ?")
_JOB_BY_ID: Final = where("job_columns", "ns = ? AND id = ?")


class Transaction(Lanes):
    """A transaction in progress."""

    def __init__(self, db: sqlite3.Connection, ns: int, now: int, retention: Retention) -> None:
        super().__init__(db)
        self.ns, self.now, self.retention = ns, now, retention
        self.notes: dict[int, list[Event]] = {}
        self.posted = False
        """Something was written to the outbox."""
        self.ready: dict[int, list[ClassKey]] = {}
        """Per queue, the class of each job that became ready: each may wake one sleeper."""
        self.due: dict[int, int] = {}
        """Per queue, the earliest due time that was added: a sleeper may have to get up sooner."""
        self.notified: set[str] = set()
        """Sessions with new notifications."""
        self.mailed: set[str] = set()
        """Watchers that have mail."""
        self._queues: dict[int, QueueRow] = {}

    # rows

    def queue(self, name: str) -> QueueRow | None:
        """The queue, if there is one."""
        for row in self._queues.values():
            if row.name == name:
                return row
        return self._load_queue(self.db.execute(SQL["find_queue"], (self.ns, name)).fetchone())

    def queue_by_id(self, id: int) -> QueueRow:
        known = self._queues.get(id)
        if known is None:
            known = self._load_queue(self.db.execute(SQL["find_queue_by_id"], (id,)).fetchone())
        assert known is not None  # noqa: S101 (a job's queue is there as long as the job)
        return known

    def _load_queue(self, row: tuple[Any, ...] | None) -> QueueRow | None:
        if row is None:
            return None
        tasks = self.db.execute(SQL["task_settings"], (row[0],)).fetchall() if row[6] else []
        self._queues[row[0]] = queue = QueueRow(row, tasks)
        return queue

    def make_queue(self, name: str) -> QueueRow:
        queue = self.queue(name)
        if queue is None:
            id = self.db.execute(SQL["insert_queue"], (self.ns, name)).fetchone()[0]
            queue = self._queues[id] = QueueRow((id, name, None, None, 0, 0), [])
        return queue

    def job_row(self, seq: int) -> JobRow | None:
        row = self.db.execute(_JOB, (seq,)).fetchone()
        return None if row is None else JobRow(*row)

    def job_row_by_id(self, id: str) -> JobRow | None:
        row = self.db.execute(_JOB_BY_ID, (self.ns, id)).fetchone()
        return None if row is None else JobRow(*row)

    def note(self, queue: int, kind: Move | Sign, id: str, run: int = 0) -> None:
        self.notes.setdefault(queue, []).append(Event(kind, id, run))

    def write_notes(self) -> None:
        """The last thing before the commit: one entry per queue, and the numbers that were drawn."""
        for id, events in self.notes.items():
            queue = self.queue_by_id(id)
            queue.used, queue.entries = True, queue.entries + 1
            self.db.execute(SQL["insert_entry"], (id, queue.entries, self.now, encode(events)))
            if queue.entries > EVENTS_KEPT:
                self.db.execute(SQL["trim_entries"], (id, queue.entries - EVENTS_KEPT))
        for queue in self._queues.values():
            if queue.used:
                self.db.execute(SQL["save_queue"], (queue.counter, queue.entries, queue.id))

    # places

    def move(self, job_row: JobRow, move: Move, to: State, run: int = 0) -> None:
        """Leave one place, enter another, in this order: a lane that empties loses its turn."""
        if to not in TRANSITIONS[move].get(job_row.state, ()):
            raise AssertionError(f"{job_row.id} cannot go from {job_row.state} to {to} by {move}")
        left, job_row.state = job_row.state, to
        if left is to is State.READY:
            self.db.execute(SQL["leave_line"], (job_row.seq,))
            self.tidy_lane(job_row.queue, job_row.lane)
        lane, job_row.lane = job_row.lane, 0
        if to is State.READY:
            job_row.lane, job_row.pos = self.lane_of(job_row, job_row.queue, job_row.line), job_row.line
            self.ready.setdefault(job_row.queue, []).append(job_row.class_key())
        elif to in (State.SCHEDULED, State.RETRYING):
            self.due[job_row.queue] = min(job_row.pos, self.due.get(job_row.queue, job_row.pos))
        elif to is State.RUNNING:
            job_row.pos = self.now
        elif to.finished:
            job_row.pos = forget_at(job_row.once, to, self.now, self.retention)
        self.save(job_row)
        if left is State.READY is not to:
            self.tidy_lane(job_row.queue, lane)
        self.note(job_row.queue, move, job_row.id, run)

    def save(self, job_row: JobRow) -> None:
        self.db.execute(
            SQL["save_job"],
            (
                NUMBER[job_row.state],
                job_row.lane,
                job_row.pos,
                job_row.run,
                job_row.settled,
                job_row.failures,
                job_row.crashes,
                job_row.suspect,
                job_row.runs,
                job_row.offered,
                job_row.line,
                job_row.started,
                job_row.finished,
                job_row.expires,
                job_row.cancel,
                job_row.priority,
                job_row.seq,
            ),
        )

    # the life of a job

    def line_up(self, job_row: JobRow, move: Move, due: int | None, run: int = 0) -> None:
        """To the end of the line, or to wait for its due time."""
        if due is not None and due > self.now:
            job_row.pos, job_row.expires = due, None
            state = self._move_sleep(job_row, due) or delayed_state(job_row.failures)
            self.move(job_row, move, state, run)
            return
        self.end_suspension(job_row)
        job_row.expires = expires_of(job_row.ttl, job_row.run, move, due, self.now)
        job_row.line = self.queue_by_id(job_row.queue).draw()
        self.move(job_row, move, State.READY, run)

    def after_run(self, job_row: JobRow, next: Next, run: int, at: int | None = None) -> None:
        """Make the move that follows the end of a run. A job that is handed back keeps its number in line."""
        job_row.failures += next.failed
        if next.move is None:
            self.save(job_row)
            self.note(job_row.queue, Sign.RUN_ENDED, job_row.id, run)
        elif next.to.finished:
            self.finish(job_row, next.move, next.to, next.reason, run)
        elif next.move is Move.RETRIED:
            self.line_up(job_row, next.move, at, run)
        else:
            self.move(job_row, next.move, next.to, run)

    def set_deadline(self, job_row: JobRow, due: int | None = None) -> None:
        """Count the job's deadline anew from now, or from the due time."""
        job_row.deadline_at = deadline_of(job_row.deadline, due, self.now)
        self.db.execute(SQL["set_deadline"], (job_row.deadline_at, job_row.seq))

    def start_second(self, job_row: JobRow, session: int) -> int:
        """Another run of a running job."""
        job_row.run, job_row.runs, job_row.started = job_row.run + 1, job_row.runs + 1, self.now
        self.withdraw_offer(job_row)
        self.move(job_row, Move.TAKEN, State.RUNNING, job_row.run)
        run = (
            session,
            job_row.seq,
            job_row.run,
            job_row.queue,
            self.now,
            job_row.task,
            job_row.grp,
            job_row.running_key,
        )
        self.db.execute(SQL["insert_run"], run)
        return job_row.run

    def withdraw_offer(self, job_row: JobRow) -> None:
        if job_row.offered:
            job_row.offered = 0
            self.db.execute(SQL["delete_offer"], (job_row.seq,))

    def end_run(
        self, job_row: JobRow, session: int, run: int, how: RunEnd, error: Error | None = None
    ) -> None:
        """The run is over and its slot is free, once."""
        ended = self.db.execute(SQL["end_run"], (session, job_row.seq, run)).fetchone()
        if ended is not None:
            job_row.forced = ended[2]
        if ended is not None and (how is not RunEnd.SUCCEEDED or job_row.run > 1):
            since, name, _ = ended
            self.remember(job_row, PastRun(run, name or "", since, self.now, how, short_error(error)))
        job_row.runs -= 1
        if not job_row.runs:
            self.withdraw_offer(job_row)
        self.slot_free(job_row.queue, job_row.task, job_row.max_running, job_row.grp, job_row.running_key)

    def remember(self, job_row: JobRow, run: PastRun) -> None:
        row = self.db.execute(SQL["past_of"], (job_row.seq,)).fetchone()
        past = (*(decode_past(row[0]) if row else ()), run)
        self.db.execute(SQL["save_past"], (job_row.seq, encode(past[-RUNS_KEPT:])))

    def slot_free(
        self, queue: int, task: str, most: int | None, group: str | None, running_key: str | None
    ) -> None:
        """Whatever a limit on running jobs may have held back is looked at again."""
        if running_key is not None:
            self.unblock("unblock_key", queue, running_key)
        if group is not None:
            self.unblock("unblock_group", queue, group)
        if running_key is not None or group is not None or most is not None:
            self.unblocked.add(queue)
            return
        row = self.queue_by_id(queue)
        if row.limits.max_running is not None or task in row.task_limits:
            self.unblocked.add(queue)

    def finish(self, job_row: JobRow, move: Move, to: State, reason: str | None = None, run: int = 0) -> None:
        """End the job: void other runs, free the key or keep it for `once`, notify who waits. Or undo it."""
        if job_row.runs:
            self._void_runs(job_row)
        self.stop_waiting(job_row)
        if job_row.durable and self._begin_undo(job_row, Undo(to, reason or ""), run):
            return
        job_row.finished, job_row.expires, job_row.cancel, job_row.forced = self.now, None, None, 0
        self.move(job_row, move, to, run)
        if to is not State.SUCCEEDED:
            self.save_end(job_row, None, None, reason)
        self.free_key(job_row)
        self.notify(job_row.seq, job_row.id, to)

    def _void_runs(self, job_row: JobRow) -> None:
        forced = job_row.forced
        for session, other, _, _, name in self.db.execute(SQL["runs_of"], (job_row.seq,)).fetchall():
            self.end_run(job_row, session, other, RunEnd.OVERTAKEN)
            self.db.execute(SQL["insert_void"], (session, job_row.id, other))
            self.notified.add(name)
        job_row.forced = job_row.forced or forced

    def stop_waiting(self, job_row: JobRow) -> None:
        """It waits for no job any more; nodes remember it."""
        if job_row.state is State.WAITING:
            self.db.execute(SQL["stop_waiting_for_nodes"], (job_row.seq,))
            self.db.execute(SQL["stop_waiting"], (job_row.seq,))

    def wait_for(self, seq: int, id: str, dependency: str) -> bool:
        """Register a job with one it waits for, unless that succeeded. If it failed, a message is posted."""
        row = self.db.execute(SQL["state_of"], (self.ns, dependency)).fetchone()
        state, node = (State.NOT_FOUND, None) if row is None else (STATES[row[0]], row[1])
        if state is State.SUCCEEDED:
            if node is not None:
                self.db.execute(SQL["remember_dependant"], (self.ns, dependency, id))
            return False
        self.db.execute(SQL["insert_dependency"], (self.ns, dependency, id, seq))
        if state.finished:
            self.post(seq, dependency, state)
        return True

    # durable jobs

    def durable(self, job_row: JobRow) -> DurableRow:
        """What only durable jobs have; an empty row if it has none yet."""
        row = self.db.execute(SQL["durable_row"], (job_row.seq,)).fetchone() if job_row.durable else None
        return DurableRow() if row is None else DurableRow(*row)

    def save_durable(self, job_row: JobRow, row: DurableRow) -> None:
        values = msgspec.structs.astuple(row)
        self.db.execute(SQL["save_durable"], (job_row.seq, job_row.queue, *values))
        if not job_row.durable:
            job_row.durable = 1
            self.db.execute(SQL["mark_durable"], (job_row.seq,))

    def undo_of(self, job_row: JobRow) -> Undo | None:
        """How the job ends when it is undone, if it is being undone."""
        packed = self.durable(job_row).undo if job_row.durable else None
        return None if packed is None else decode_undo(packed)

    def _begin_undo(self, job_row: JobRow, undo: Undo, run: int) -> bool:
        """Before a durable job ends: tell its children, and undo it if there is something to undo.

        Its next runs are undo runs, which have no deadline, and crashes of their own.
        """
        row = self.durable(job_row)
        begins = must_undo(
            undo.state,
            undoable=bool(row.undoable),
            undoing=row.undo is not None,
            forced=bool(job_row.forced),
        )
        self.tell_children(job_row, undo.state)
        self.end_suspension(job_row)
        row = self.durable(job_row)
        row.orphaned_by = None
        if row.undo is not None:
            row.undo, row.undone, row.undoable = None, 1, 0
        if begins:
            row.undo = encode(undo)
            job_row.deadline_at, job_row.crashes, job_row.cancel, job_row.forced = None, 0, None, 0
            self.db.execute(SQL["set_deadline"], (None, job_row.seq))
        self.save_durable(job_row, row)
        if begins:
            self.line_up(job_row, Move.UNDOING, None, run)
        return begins

    def end_suspension(self, job_row: JobRow) -> None:
        """It does not wait for anything any more."""
        row = self.durable(job_row)
        if row.suspended is None:
            return
        if decode_suspension(row.suspended).parked:
            self.db.execute(SQL["clear_reason"], (job_row.seq,))
        self.db.execute(SQL["end_suspension"], (job_row.seq,))

    def _move_sleep(self, job_row: JobRow, until: int) -> State | None:
        """The state of a job whose sleep is moved; None if it does not sleep."""
        row = self.durable(job_row)
        if row.suspended is None:
            return None
        row.suspended = encode(msgspec.structs.replace(decode_suspension(row.suspended), until=until))
        self.save_durable(job_row, row)
        return job_row.state

    def tell_children(self, job_row: JobRow, ended: State) -> None:
        """Post the end of a job to those it calls, so that they are cancelled."""
        if not job_row.durable:
            return
        for _, id in sorted(self.db.execute(SQL["take_children"], (job_row.seq,)).fetchall()):
            row = self.db.execute(SQL["state_of"], (self.ns, id)).fetchone()
            if row is not None:
                self.post(row[2], job_row.id, ended, PARENT, id)

    def tell_revived(self, job_row: JobRow) -> None:
        """Post to all dependants of a node that it is unfinished again."""
        if job_row.node is not None:
            for id, seq in self.db.execute(SQL["remembered"], (self.ns, job_row.id)).fetchall():
                self.post(seq, job_row.id, job_row.state, REVIVED, id)

    def save_end(
        self, job_row: JobRow, result: bytes | None, error: Error | None, reason: str | None
    ) -> None:
        ttl = self.retention.result_ttl if job_row.result_ttl is None else job_row.result_ttl
        expires = None if result is None or job_row.owner is not None else self.now + ttl
        packed = None if error is None else encode(error)
        if result is not None or packed is not None or reason is not None:
            self.db.execute(SQL["save_end"], (job_row.seq, result, packed, reason, self.ns, expires))

    def free_key(self, job_row: JobRow) -> None:
        """`once` takes the key (again, if its `key_ttl` is over) unless another job has it by now."""
        if job_row.key is None:
            return
        if job_row.state is State.SUCCEEDED and job_row.once is not None:
            holder = self.db.execute(SQL["key_holder"], (job_row.queue, job_row.key, self.now)).fetchone()
            if holder is None or holder[0] == job_row.seq:
                self.claim_key(job_row.queue, job_row.key, job_row.seq, job_row.once)
        else:
            self.db.execute(SQL["free_key"], (job_row.queue, job_row.key, job_row.seq))

    def claim_key(self, queue: int, key: str | None, seq: int, ttl: int | None) -> None:
        if key is not None:
            self.db.execute(SQL["claim_key"], (queue, key, seq, later(ttl, self.now)))

    def notify(self, seq: int, id: str, ended: State) -> None:
        """Notify watchers and dependants of the end."""
        for (watcher,) in self.db.execute(SQL["watchers_of"], (seq,)).fetchall():
            self.db.execute(SQL["send_mail"], (self.ns, watcher, id, self.now))
            self.mailed.add(watcher)
        self.notify_dependants(id, ended)

    def notify_dependants(self, id: str, ended: State) -> None:
        for (dependant,) in self.db.execute(SQL["dependants"], (self.ns, id)).fetchall():
            self.post(dependant, id, ended)

    def post(
        self, job: int, sender: str, ended: State, kind: int = DEPENDENCY, target: str | None = None
    ) -> None:
        self.db.execute(SQL["post"], (self.ns, job, sender, NUMBER[ended], kind, target))
        self.posted = True

    def bury(self, job_row: JobRow, reason: str, run: int = 0) -> None:
        self.finish(job_row, Move.DIED, State.DEAD, reason, run)

    def crash(
        self,
        job_row: JobRow,
        session: int,
        run: int,
        *,
        suspect: bool = True,
        together: int = 0,
        error: Error | None = None,
    ) -> None:
        """End a run whose process died with `together` jobs in it (0: its worker). Only alone it counts."""
        self.end_run(job_row, session, run, crash_end(suspect, together), error)
        job_row.crashes += together == 1
        self.after_crash(job_row, suspect, together, run)

    def after_crash(self, job_row: JobRow, suspect: bool, together: int, run: int) -> None:
        if suspect:
            job_row.suspect = group_after(job_row.suspect, together)
        next = after_crash(
            job_row.crashes,
            job_row.max_crashes,
            suspect=suspect,
            cancel=job_row.cancel,
            other_runs=job_row.runs > 0,
            deadline=job_row.deadline_at,
            now=self.now,
            undo=self.undo_of(job_row),
        )
        self.after_run(job_row, next, run)

    def forget(self, job_row: JobRow) -> None:
        """Delete a job that does not run, and notify watchers and dependants."""
        self.remove(job_row)
        self.notify(job_row.seq, job_row.id, State.NOT_FOUND)
        if job_row.node is not None:
            self.db.execute(SQL["forget_dependants"], (self.ns, job_row.id))

    def remove(self, job_row: JobRow) -> None:
        """Delete without notifying: another job takes its place under the same id."""
        self.stop_waiting(job_row)
        self.tell_children(job_row, State.NOT_FOUND)
        for name in _PARTS if job_row.durable else _PARTS[:4]:
            self.db.execute(SQL[name], (job_row.seq,))
        if job_row.state is State.READY:
            self.tidy_lane(job_row.queue, job_row.lane)
        job_row.state = State.NOT_FOUND
        self.free_key(job_row)

    def envelope(self, seq: int) -> bytes:
        row = self.db.execute(SQL["body_of"], (seq,)).fetchone()
        return row[0] if row else b""
