"""One write transaction of the embedded broker: the moves of `dray.broker.memory.world`, on rows.

A `Step` lives as long as one transaction. It collects what happened (one feed entry per queue) and whom to
wake, writes the first just before the commit and leaves the second for after it.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Final

from dray.broker.checks import forget_at
from dray.broker.sqlite.rows import NUMBER, STATES, ClassKey, Kept, QueueRow, encode
from dray.broker.sqlite.statements import SQL, where
from dray.broker.verbs import Event
from dray.job import TRANSITIONS, Error, Job, Move, Sign, State
from dray.policy import Retention

EVENTS_KEPT: Final = 10_000
"""How many entries of the feed a queue keeps."""

_JOB: Final = where("job_columns", "seq = ?")
_JOB_BY_ID: Final = where("job_columns", "ns = ? AND id = ?")

LaneKey = tuple[int, int, str, int, str | None, str | None, str | None, str | None, int | None]


class Step:
    """A transaction in progress."""

    def __init__(self, db: sqlite3.Connection, ns: int, now: int, retention: Retention) -> None:
        self.db, self.ns, self.now, self.retention = db, ns, now, retention
        self.notes: dict[int, list[Event]] = {}
        self.posted = False
        """Something was written to the outbox."""
        self.ready: dict[int, list[ClassKey]] = {}
        """Per queue, the class of each job that became ready: each may wake one sleeper."""
        self.due: dict[int, int] = {}
        """Per queue, the earliest due time that was added: a sleeper may have to get up sooner."""
        self.stirred: set[int] = set()
        """Queues in which anything may be possible now: all their sleepers look."""
        self.told: set[str] = set()
        """Sessions there is word for."""
        self.mailed: set[str] = set()
        """Watchers that have mail."""
        self._queues: dict[int, QueueRow] = {}
        self._lanes: dict[LaneKey, tuple[int, int]] = {}

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

    def kept(self, seq: int) -> Kept | None:
        row = self.db.execute(_JOB, (seq,)).fetchone()
        return None if row is None else Kept(row)

    def kept_by_id(self, id: str) -> Kept | None:
        row = self.db.execute(_JOB_BY_ID, (self.ns, id)).fetchone()
        return None if row is None else Kept(row)

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

    def move(self, kept: Kept, move: Move, to: State, run: int = 0) -> None:
        """Leave one place, enter another, in this order: a lane that empties loses its turn."""
        if to not in TRANSITIONS[move].get(kept.state, ()):
            raise AssertionError(f"{kept.id} cannot go from {kept.state} to {to} by {move}")
        left, kept.state = kept.state, to
        if left is to is State.READY:
            self.db.execute(SQL["leave_line"], (kept.seq,))
            self.tidy_lane(kept.queue, kept.lane)
        lane, kept.lane = kept.lane, 0
        if to is State.READY:
            kept.lane, kept.pos = self.lane_of(kept, kept.queue, kept.line), kept.line
            self.ready.setdefault(kept.queue, []).append(kept.class_key())
        elif to in (State.SCHEDULED, State.RETRYING):
            self.due[kept.queue] = min(kept.pos, self.due.get(kept.queue, kept.pos))
        elif to is State.RUNNING:
            kept.pos = self.now
        elif to.finished:
            kept.pos = forget_at(kept.once, to, self.now, self.retention)
        self.save(kept)
        if left is State.READY is not to:
            self.tidy_lane(kept.queue, lane)
        self.note(kept.queue, move, kept.id, run)

    def save(self, kept: Kept) -> None:
        self.db.execute(
            SQL["save_job"],
            (
                NUMBER[kept.state],
                kept.lane,
                kept.pos,
                kept.run,
                kept.settled,
                kept.failures,
                kept.crashes,
                kept.suspect,
                kept.runs,
                kept.offered,
                kept.line,
                kept.started,
                kept.finished,
                kept.expires,
                kept.cancel,
                kept.priority,
                kept.seq,
            ),
        )

    def lane_of(self, job: Kept | Job, queue: int, line: int) -> int:
        """The lane a job joins at this number in line, made if it is the first there."""
        group = job.group if isinstance(job, Job) else job.grp
        key = (
            queue,
            job.priority,
            job.task,
            job.version,
            group,
            job.rate_key,
            job.running_key,
            job.rate,
            job.max_running,
        )
        known = self._lanes.get(key)
        if known is None:
            known = self._lanes[key] = self._join_lane(key, line)
        lane, head = known
        if line < head:
            # Handed back: it stood before those that wait now.
            self.db.execute(SQL["set_head"], (line, lane))
            self._lanes[key] = (lane, line)
        return lane

    def preload_lanes(self, queue: int) -> None:
        """Look up the plain lanes of a queue in one go."""
        for priority, task, version, rate, most, lane, head in self.db.execute(SQL["plain_lanes"], (queue,)):
            key = (queue, priority, task, version, None, None, None, rate, most)
            self._lanes.setdefault(key, (lane, head))

    def _join_lane(self, key: LaneKey, line: int) -> tuple[int, int]:
        """The limits of a class and a lane are those the newest job to join declares."""
        queue, priority, task, version, group, rate_key, running_key, rate, most = key
        class_key, name = (queue, priority, task, version), group or ""
        keys = (rate_key or "", running_key or "")
        of_class = (rate if rate_key is None else None, most if running_key is None else None)
        of_lane = (rate if rate_key is not None else None, most if running_key is not None else None)
        row = self.db.execute(SQL["find_lane"], (name, *keys, *class_key)).fetchone()
        if row is None:
            class_ = self.db.execute(SQL["insert_class"], (*class_key, *of_class)).fetchone()[0]
            row = (class_, *of_class, None, None, None, None, line)
        class_, old_rate, old_most, group_id, lane, *old, head = row
        # A limit by key is the lane's affair and says nothing about the task as a whole.
        wanted = (rate if rate_key is None else old_rate, most if running_key is None else old_most)
        if wanted != (old_rate, old_most):
            self.db.execute(SQL["declare_class"], (*wanted, class_))
            self._limits_changed(queue)
        if lane is None:
            if group_id is None:
                turn = self.queue_by_id(queue).draw()
                group_id = self.db.execute(SQL["insert_group"], (class_, name, turn)).fetchone()[0]
            values = (group_id, queue, name, *keys, *of_lane, line)
            lane, head = self.db.execute(SQL["insert_lane"], values).fetchone()[0], line
            self.db.execute(SQL["lane_freed"], (group_id,))
        elif of_lane != tuple(old):
            self.db.execute(SQL["declare_lane"], (*of_lane, lane))
            self.unblock("unblock_lane", lane)
            self._limits_changed(queue)
        return lane, head

    def _limits_changed(self, queue: int) -> None:
        self.stirred.add(queue)
        self._lanes.clear()

    def block_lane(self, lane: int, group: int, until: int) -> None:
        self.db.execute(SQL["block_lane"], (until, lane))
        self.db.execute(SQL["lane_unfreed"], (group,))

    def unblock(self, statement: str, *which: object) -> None:
        """Lanes that a limit held back are looked at again."""
        for row in self.db.execute(SQL[statement], which).fetchall():
            self.db.execute(SQL["lane_freed"], row)

    def tidy_lane(self, queue: int, lane: int) -> None:
        """After jobs left it: the lane's new head; an empty one goes, with all that is empty then."""
        row = self.db.execute(SQL["lane_head"], (queue, lane)).fetchone()
        self._lanes.clear()
        if row is not None:
            self.db.execute(SQL["set_head"], (row[0], lane))
            return
        for group, blocked in self.db.execute(SQL["delete_lane"], (lane,)).fetchall():
            if not blocked:
                self.db.execute(SQL["lane_unfreed"], (group,))
            for class_ in self.db.execute(SQL["delete_group"], (group,)).fetchall():
                self.db.execute(SQL["delete_class"], class_)

    # the life of a job

    def line_up(self, kept: Kept, move: Move, due: int | None, run: int = 0) -> None:
        """To the end of the line, or to wait for its time."""
        if due is not None and due > self.now:
            kept.pos, kept.expires = due, None
            self.move(kept, move, State.RETRYING if kept.failures else State.SCHEDULED, run)
            return
        if kept.ttl is not None and not kept.run:
            could_start = due if due is not None and move is Move.PROMOTED else self.now
            kept.expires = could_start + kept.ttl
        kept.line = self.queue_by_id(kept.queue).draw()
        self.move(kept, move, State.READY, run)

    def start_second(self, kept: Kept, session: int) -> int:
        """Another run of a running job."""
        kept.run, kept.runs, kept.started = kept.run + 1, kept.runs + 1, self.now
        self.withdraw_offer(kept)
        self.move(kept, Move.TAKEN, State.RUNNING, kept.run)
        run = (session, kept.seq, kept.run, kept.queue, self.now, kept.task, kept.grp, kept.running_key)
        self.db.execute(SQL["insert_run"], run)
        return kept.run

    def withdraw_offer(self, kept: Kept) -> None:
        if kept.offered:
            kept.offered = 0
            self.db.execute(SQL["delete_offer"], (kept.seq,))

    def end_run(self, kept: Kept, session: int, run: int) -> None:
        """The run is over and its slot is free, once."""
        self.db.execute(SQL["delete_run"], (session, kept.seq, run))
        kept.runs -= 1
        if not kept.runs:
            self.withdraw_offer(kept)
        self.slot_free(kept.queue, kept.task, kept.max_running, kept.grp, kept.running_key)

    def slot_free(
        self, queue: int, task: str, most: int | None, group: str | None, running_key: str | None
    ) -> None:
        """Whatever a limit on running jobs may have held back is looked at again."""
        if running_key is not None:
            self.unblock("unblock_key", queue, running_key)
        if group is not None:
            self.unblock("unblock_group", queue, group)
        if running_key is not None or group is not None or most is not None:
            self.stirred.add(queue)
            return
        row = self.queue_by_id(queue)
        if row.limits.max_running is not None or task in row.task_limits:
            self.stirred.add(queue)

    def finish(self, kept: Kept, move: Move, to: State, reason: str | None = None, run: int = 0) -> None:
        """The end: other runs are void, the key is free or stays taken for `once`, who waits is told."""
        if kept.runs:
            for session, other, _, _, name in self.db.execute(SQL["runs_of"], (kept.seq,)).fetchall():
                self.end_run(kept, session, other)
                self.db.execute(SQL["insert_void"], (session, kept.id, other))
                self.told.add(name)
        if kept.state is State.WAITING:
            self.db.execute(SQL["stop_waiting"], (kept.seq,))
        kept.finished, kept.expires, kept.cancel = self.now, None, None
        self.move(kept, move, to, run)
        if to is not State.SUCCEEDED:
            self.save_end(kept, None, None, reason)
        self.free_key(kept)
        self.tell(kept.seq, kept.id, to)

    def save_end(self, kept: Kept, result: bytes | None, error: Error | None, reason: str | None) -> None:
        ttl = self.retention.result_ttl if kept.result_ttl is None else kept.result_ttl
        expires = None if result is None else self.now + ttl
        packed = None if error is None else encode(error)
        if result is not None or packed is not None or reason is not None:
            self.db.execute(SQL["save_end"], (kept.seq, result, packed, reason, self.ns, expires))

    def free_key(self, kept: Kept) -> None:
        """`once` takes the key (again, if its `key_ttl` is over) unless another job has it by now."""
        if kept.key is None:
            return
        if kept.state is State.SUCCEEDED and kept.once is not None:
            holder = self.db.execute(SQL["key_holder"], (kept.queue, kept.key, self.now)).fetchone()
            if holder is None or holder[0] == kept.seq:
                self.claim_key(kept.queue, kept.key, kept.seq, kept.once)
        else:
            self.db.execute(SQL["free_key"], (kept.queue, kept.key, kept.seq))

    def claim_key(self, queue: int, key: str | None, seq: int, ttl: int | None) -> None:
        if key is not None:
            self.db.execute(SQL["claim_key"], (queue, key, seq, None if ttl is None else self.now + ttl))

    def tell(self, seq: int, id: str, ended: State) -> None:
        """Word for those who watch the job, and for the jobs that wait for it."""
        for (watcher,) in self.db.execute(SQL["watchers_of"], (seq,)).fetchall():
            self.db.execute(SQL["send_mail"], (self.ns, watcher, id, self.now))
            self.mailed.add(watcher)
        self.tell_dependants(id, ended)

    def tell_dependants(self, id: str, ended: State) -> None:
        for (dependant,) in self.db.execute(SQL["dependants"], (self.ns, id)).fetchall():
            self.post(dependant, id, ended)

    def post(self, dependant: int, dependency: str, ended: State) -> None:
        self.db.execute(SQL["post"], (self.ns, dependant, dependency, NUMBER[ended]))
        self.posted = True

    def deliver(self, limit: int) -> int:
        """Carry word from the outbox to the jobs that wait. Delivering twice changes nothing."""
        for sent in range(limit):
            row = self.db.execute(SQL["posted"], (self.ns,)).fetchone()
            if row is None:
                return sent
            seq, dependant, dependency, state = row
            self._dependency_ended(dependant, dependency, STATES[state])
            self.db.execute(SQL["delivered"], (seq,))
        return limit

    def _dependency_ended(self, dependant: int, dependency: str, state: State) -> None:
        kept = self.kept(dependant)
        if kept is None or kept.state is not State.WAITING:
            return
        if state is State.SUCCEEDED or kept.orphan == "run":
            done = self.db.execute(SQL["dependency_done"], (self.ns, dependency, kept.seq))
            if done.rowcount and not self.db.execute(SQL["dependencies"], (kept.seq,)).fetchone():
                self.line_up(kept, Move.RELEASED, kept.due)
        elif kept.orphan == "cancel":
            waits_for = self.db.execute(SQL["dependencies"], (kept.seq,)).fetchall()
            if (dependency,) not in waits_for:
                return  # the word was for a job that was deleted, whose number this one got
            reason = f"{dependency}, which it waits for, is {state}"
            self.finish(kept, Move.CANCELLED, State.CANCELLED, reason)

    def bury(self, kept: Kept, reason: str, run: int = 0) -> None:
        self.finish(kept, Move.DIED, State.DEAD, reason, run)

    def crash(
        self, kept: Kept, session: int, run: int, *, suspect: bool = True, blamed: bool = False
    ) -> None:
        """Whoever ran it is gone. Only a crash alone in a child counts against the job itself."""
        self.end_run(kept, session, run)
        kept.suspect = int(kept.suspect or suspect or blamed)
        kept.crashes += blamed
        if kept.cancel is not None:
            self.finish(kept, Move.CANCELLED, State.CANCELLED, kept.cancel, run)
        elif kept.crashes >= kept.max_crashes:
            self.bury(kept, f"poison: it crashed {kept.crashes} times while running alone", run)
        elif kept.runs:
            self.save(kept)
            self.note(kept.queue, Sign.RUN_ENDED, kept.id, run)
        else:
            self.move(kept, Move.CRASHED if suspect or blamed else Move.GIVEN_BACK, State.READY, run)

    def forget(self, kept: Kept) -> None:
        """Remove a job that does not run, and tell those that wait for it."""
        self.remove(kept)
        self.tell(kept.seq, kept.id, State.NOT_FOUND)

    def remove(self, kept: Kept) -> None:
        """The same without telling anybody: another job takes its place under the same id."""
        self.db.execute(SQL["stop_waiting"], (kept.seq,))
        for name in ("delete_job", "delete_body", "delete_end"):
            self.db.execute(SQL[name], (kept.seq,))
        if kept.state is State.READY:
            self.tidy_lane(kept.queue, kept.lane)
        kept.state = State.NOT_FOUND
        self.free_key(kept)

    def envelope(self, seq: int) -> bytes:
        row = self.db.execute(SQL["body_of"], (seq,)).fetchone()
        return row[0] if row else b""

    def reprioritise(self, kept: Kept, priority: int) -> None:
        """Only the row is changed: rewriting an envelope of a newer version would lose what is new in it."""
        was_ready = kept.state is State.READY
        if was_ready:
            self.db.execute(SQL["leave_line"], (kept.seq,))
            self.tidy_lane(kept.queue, kept.lane)
        kept.priority = priority
        if was_ready:
            kept.lane = self.lane_of(kept, kept.queue, kept.line)
            self.ready.setdefault(kept.queue, []).append(kept.class_key())
        self.save(kept)
        self.note(kept.queue, Sign.REPRIORITISED, kept.id)
