"""Handing out jobs: the order of `dray.broker.memory.take`, walked on indexes.

Only classes and the lanes whose turn it is are looked at. A lane that a limit of its group or key holds back
is marked (`blocked`) and not met again until its time has come or a slot was freed, so that the walk never
wades through what cannot run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dray.broker.rules import NEVER, expires_of, is_overdue, matches, why_too_late
from dray.broker.sqlite.durable import due_wakes, wake, with_log
from dray.broker.sqlite.read import read_job
from dray.broker.sqlite.rows import DUE, JobRow, QueueRow
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import EXPIRE_STEP, PROMOTE_STEP, Filter, Usage
from dray.errors import DecodeError, NewerVersion
from dray.job import Job, Move, RunEnd, State, Taken
from dray.policy import Rate

MANY = 1 << 30


class ClassRow(NamedTuple):
    id: int
    priority: int
    task: str
    version: int
    rate: str | None
    max_running: int | None


class LaneRow(NamedTuple):
    id: int
    group_id: int
    group: str
    rate_key: str
    running_key: str
    rate: str | None
    max_running: int | None
    head: int
    alone: bool
    """It is the only group of its class with a free lane."""


class FreeLane(NamedTuple):
    lane: LaneRow
    room: int
    """Jobs that its limits let start."""
    until: int
    """The number in line at which another lane of its group comes first."""


class Given(NamedTuple):
    seq: int
    taken: Taken


def take_from(tx: Transaction, queue: QueueRow, session: int, filter: Filter, want: int) -> list[Given]:
    """Up to `want` jobs of one queue, started."""
    due, freed, offered = tx.db.execute(SQL["anything_first"], (queue.id, tx.now)).fetchone()
    if due:
        promote(tx, queue.id, PROMOTE_STEP)
    if freed:
        tx.unblock("unblock_due", queue.id, tx.now)
    given = _take_offers(tx, queue, session, filter, want) if offered else []
    walk = _Walk(tx, queue, session, want - len(given))
    for class_ in open_classes(tx, queue, filter):
        if walk.want == 0 or walk.buried == EXPIRE_STEP:
            break
        walk.take_class(class_)
    return given + walk.given


def promote(tx: Transaction, queue: int, limit: int) -> int:
    """Jobs that fell due go to the end of the line, the longest overdue first."""
    due = [JobRow(*row) for state in DUE for row in tx.db.execute(_DUE_JOBS, (queue, state, tx.now, limit))]
    due += due_wakes(tx, queue, limit)
    due.sort(key=lambda job_row: (job_row.pos, job_row.seq))
    del due[limit:]
    if not due:
        return 0
    row, updates = tx.queue_by_id(queue), []
    for job_row in due:
        if job_row.state is State.WAITING:
            wake(tx, job_row)
            continue
        if job_row.durable:
            tx.end_suspension(job_row)
        expires = expires_of(job_row.ttl, job_row.run, Move.PROMOTED, job_row.pos, tx.now)
        line = row.draw()
        updates.append((tx.lane_of(job_row, queue, line), line, line, expires, job_row.seq))
        tx.ready.setdefault(queue, []).append(job_row.class_key())
        tx.note(queue, Move.PROMOTED, job_row.id)
    tx.db.executemany(SQL["promote_job"], updates)
    return len(due)


_DUE_JOBS = where(
    "job_columns", "queue = ? AND state = ? AND lane = 0 AND pos <= ? ORDER BY pos, seq LIMIT ?"
)


def open_classes(tx: Transaction, queue: QueueRow, filter: Filter) -> list[ClassRow]:
    """The classes that `filter` lets run and of which a lane is free, in the order to look at them."""
    if queue.paused:
        return []
    while True:
        found, blocked = [], False
        for row in tx.db.execute(SQL["open_classes"], (queue.id,)).fetchall():
            class_ = ClassRow(*row[:6])
            if not matches(filter, class_.task, class_.priority, class_.version):
                continue
            if class_.task in queue.paused_tasks:
                continue
            lane = LaneRow._make((*row[6:], True))
            room, until = lane_room(tx, queue, lane)
            if not room:
                tx.block_lane(lane.id, lane.group_id, until)
                blocked = True
            found.append(class_)
        if not blocked:
            return found


def _next_lane(tx: Transaction, queue: QueueRow, class_: int) -> FreeLane | None:
    """Of the group whose turn it is the lane with the oldest head, stepping over what a limit holds back."""
    while True:
        rows = tx.db.execute(SQL["next_lanes"], (class_,)).fetchall()
        if not rows:
            return None
        lane = LaneRow(*rows[0])
        room, until = lane_room(tx, queue, lane)
        if room:
            return FreeLane(lane, room, rows[1][7] if len(rows) > 1 else NEVER)
        tx.block_lane(lane.id, lane.group_id, until)


def lane_room(tx: Transaction, queue: QueueRow, lane: LaneRow) -> tuple[int, int]:
    """Jobs that the limits of its group and keys let start now; if none, until when it is held back."""
    room, until = MANY, 0
    if lane.group and queue.limits.group_running is not None:
        room = _slots(tx, "running_group", queue.id, lane.group, queue.limits.group_running)
    if lane.running_key and lane.max_running is not None:
        room = min(room, _slots(tx, "running_key", queue.id, lane.running_key, lane.max_running))
    if room == 0:
        return 0, NEVER
    if lane.rate_key and lane.rate is not None:
        tokens = _tokens(tx, queue.id, "key", lane.rate_key, lane.rate)
        if tokens == 0:
            until = Rate.parse(lane.rate).free_at(_used(tx, queue.id, "key", lane.rate_key), tx.now)
        room = min(room, tokens)
    return room, until


def class_room(tx: Transaction, queue: QueueRow, task: str, rate: str | None, most: int | None) -> int:
    """Jobs that the limits of queue and task let start now; jobs declare `rate` and `most`."""
    rate, most = task_limit(queue, task, rate, most)
    room = MANY
    if queue.limits.max_running is not None:
        running = tx.db.execute(SQL["running_queue"], (queue.id,)).fetchone()[0]
        room = min(room, max(0, queue.limits.max_running - running))
    if most is not None:
        room = min(room, _slots(tx, "running_task", queue.id, task, most))
    if queue.limits.rate is not None:
        room = min(room, _tokens(tx, queue.id, "queue", "", queue.limits.rate))
    if rate is not None:
        room = min(room, _tokens(tx, queue.id, "task", task, rate))
    return room


def task_limit(
    queue: QueueRow, task: str, rate: str | None, most: int | None
) -> tuple[str | None, int | None]:
    """The operator's limits of a task where there are any, else what its jobs declare."""
    limits = queue.task_limits.get(task)
    if limits is None:
        return rate, most
    return (
        rate if limits.rate is None else limits.rate,
        most if limits.max_running is None else limits.max_running,
    )


def _slots(tx: Transaction, statement: str, queue: int, name: str, most: int) -> int:
    running: int = tx.db.execute(SQL[statement], (queue, name)).fetchone()[0]
    return max(0, most - running)


def accepts_in(tx: Transaction, queue: QueueRow) -> int:
    """In how many milliseconds the queue accepts a job; 0 means now."""
    rate = queue.limits.enqueue_rate
    if rate is None or _tokens(tx, queue.id, "put", "", rate):
        return 0
    return max(1, Rate.parse(rate).free_at(_used(tx, queue.id, "put", ""), tx.now) - tx.now)


def spend_accepted(tx: Transaction, queue: QueueRow) -> None:
    """Count one accepted job."""
    _spend(tx, queue.id, "put", "", queue.limits.enqueue_rate, 1)


def usage(tx: Transaction, job: Job) -> Usage:
    """The use of the limits that apply to a job."""
    queue = tx.queue(job.queue)
    id = 0 if queue is None else queue.id
    held = {"queue": "", "task": job.task, "group": job.group, "key": job.running_key}
    rated = {"queue": "", "task": job.task, "key": job.rate_key}
    return Usage(
        tx.now,
        {what: _running(tx, what, id, name) for what, name in held.items() if name is not None},
        {what: _used(tx, id, what, name) for what, name in rated.items() if name is not None},
    )


def _running(tx: Transaction, what: str, queue: int, name: str) -> int:
    row = tx.db.execute(SQL[f"running_{what}"], (queue, name)[: 1 if what == "queue" else 2]).fetchone()
    count: int = row[0]
    return count


def _tokens(tx: Transaction, queue: int, scope: str, name: str, rate: str) -> int:
    return Rate.parse(rate).available(_used(tx, queue, scope, name), tx.now)


def _used(tx: Transaction, queue: int, scope: str, name: str) -> int:
    row = tx.db.execute(SQL["rate_used"], (queue, scope, name)).fetchone()
    return 0 if row is None else row[0]


def _spend(tx: Transaction, queue: int, scope: str, name: str, rate: str | None, count: int) -> None:
    if rate is not None and count:
        tat = Rate.parse(rate).spend(_used(tx, queue, scope, name), tx.now, count)
        tx.db.execute(SQL["use_rate"], (queue, scope, name, tat))
        if scope == "key":
            # To jobs of the same key that declare another rate, what was counted may mean nothing now.
            tx.unblock("unblock_rate", queue, name, rate, NEVER)


class _Walk:
    """One take from one queue: what is wanted still, what was given, what was buried on the way."""

    def __init__(self, tx: Transaction, queue: QueueRow, session: int, want: int) -> None:
        self.tx, self.queue, self.session, self.want = tx, queue, session, want
        self.given: list[Given] = []
        self.buried = 0
        self.undoing = False
        """A job is ready again that was to be buried."""

    def take_class(self, class_: ClassRow) -> None:
        tx, queue = self.tx, self.queue
        room = min(self.want, class_room(tx, queue, class_.task, class_.rate, class_.max_running))
        while room > 0 and self.buried < EXPIRE_STEP:
            free = _next_lane(tx, queue, class_.id)
            if free is None and self.undoing:
                # A job that was too late is ready again, to be undone: its class may be a new one.
                self.undoing = False
                key = (queue.id, class_.priority, class_.task, class_.version)
                found = tx.db.execute(SQL["find_class"], key).fetchone()
                class_ = class_ if found is None else ClassRow(*found)
                continue
            if free is None:
                return
            count = self._take_lane(class_, free, min(room, free.room) if free.lane.alone else 1)
            self._spend(class_, free.lane, count)
            room, self.want = room - count, self.want - count

    def _spend(self, class_: ClassRow, lane: LaneRow, count: int) -> None:
        tx, queue = self.tx, self.queue
        task_rate, _ = task_limit(queue, class_.task, class_.rate, class_.max_running)
        _spend(tx, queue.id, "queue", "", queue.limits.rate, count)
        _spend(tx, queue.id, "task", class_.task, task_rate, count)
        if lane.rate_key:
            _spend(tx, queue.id, "key", lane.rate_key, lane.rate, count)

    def _take_lane(self, class_: ClassRow, free: FreeLane, want: int) -> int:
        """Start the first jobs of a lane, burying those that are too late or cannot be read."""
        tx, db, lane = self.tx, self.tx.db, free.lane
        rows = db.execute(SQL["lane_jobs"], (self.queue.id, lane.id, free.until, want)).fetchall()
        started: list[tuple[object, ...]] = []
        runs: list[tuple[object, ...]] = []
        for row in rows:
            seq, id, run, failures, crashes, suspect, expires, deadline, group, key, envelope, durable = row
            late = why_too_late(expires, deadline, tx.now)
            if late is not None:
                if not self._bury(seq, late):
                    break
                continue
            try:
                job = read_job(envelope, id, class_.priority, class_.version)
            except (DecodeError, NewerVersion) as error:
                if not self._bury(seq, f"undecodable: {error}"):
                    break
                continue
            started.append((tx.now, run + 1, tx.now, seq))
            runs.append((self.session, seq, run + 1, self.queue.id, tx.now, class_.task, group, key))
            taken = Taken(job, run + 1, failures + 1, crashes, suspect, deadline)
            if durable:
                taken = with_log(tx, seq, taken)
            self.given.append(Given(seq, taken))
            tx.note(self.queue.id, Move.TAKEN, id, run + 1)
        db.executemany(SQL["start_job"], started)
        db.executemany(SQL["insert_run"], runs)
        if started and not (lane.alone and db.execute(SQL["only_group"], (class_.id,)).fetchone()[0]):
            db.execute(SQL["take_turn"], (self.queue.draw(), lane.group_id))
        tx.tidy_lane(self.queue.id, lane.id)
        return len(started)

    def _bury(self, seq: int, reason: str) -> bool:
        job_row = self.tx.job_row(seq)
        if job_row is not None:
            self.tx.bury(job_row, reason)
            self.undoing = self.undoing or job_row.state is State.READY
        self.buried += 1
        return self.buried < EXPIRE_STEP


def _take_offers(tx: Transaction, queue: QueueRow, session: int, filter: Filter, want: int) -> list[Given]:
    """Second runs go first: they are late already. Never to a session that runs the job itself."""
    own = {seq for seq, _ in tx.db.execute(SQL["held"], (session,))}
    given: list[Given] = []
    for (seq,) in tx.db.execute(SQL["offers"], (queue.id,)).fetchall():
        job_row = tx.job_row(seq)
        if job_row is None or len(given) == want or seq in own:
            continue
        if not offer_room(tx, queue, seq, filter):
            continue
        try:
            job = read_job(tx.envelope(seq), job_row.id, job_row.priority, job_row.version)
        except (DecodeError, NewerVersion):
            # The run that has it goes on; offered again it would keep every sleeper awake.
            tx.withdraw_offer(job_row)
            tx.save(job_row)
            continue
        declared = job.rate if job.rate_key is None else None
        task_rate, _ = task_limit(queue, job.task, declared, None)
        _spend(tx, queue.id, "queue", "", queue.limits.rate, 1)
        _spend(tx, queue.id, "task", job.task, task_rate, 1)
        if job.rate_key is not None:
            _spend(tx, queue.id, "key", job.rate_key, job.rate, 1)
        run = tx.start_second(job_row, session)
        taken = Taken(job, run, job_row.failures + 1, job_row.crashes, job_row.suspect, job_row.deadline_at)
        taken = with_log(tx, seq, taken) if job_row.durable else taken
        given.append(Given(seq, taken))
    return given


def offer_room(tx: Transaction, queue: QueueRow, seq: int, filter: Filter) -> bool:
    """A second run of the job may start now, by its own limits and the operator's."""
    job_row = tx.job_row(seq)
    if job_row is None or queue.paused or job_row.task in queue.paused_tasks:
        return False
    if is_overdue(job_row.deadline_at, tx.now):
        return False
    if not matches(filter, job_row.task, job_row.priority, job_row.version):
        return False
    keys = (job_row.grp or "", job_row.rate_key or "", job_row.running_key or "")
    lane = LaneRow(0, 0, *keys, job_row.rate, job_row.max_running, 0, True)
    rate = job_row.rate if job_row.rate_key is None else None
    most = job_row.max_running if job_row.running_key is None else None
    return bool(lane_room(tx, queue, lane)[0] and class_room(tx, queue, job_row.task, rate, most))


def retake(tx: Transaction, session: int, reply: Sequence[tuple[int, int]] | None) -> list[Taken]:
    """The last reply again, less what is not held any more; if it cannot be read, all that is held."""
    held = {(row[0], row[1]): row for row in tx.db.execute(SQL["held_jobs"], (session,))}
    taken = []
    for seq, run in held if reply is None else reply:
        row = held.get((seq, run))
        if row is None:
            continue
        try:
            job = read_job(row[5], row[8], row[6], row[7])
        except (DecodeError, NewerVersion) as error:
            job_row = tx.job_row(seq)
            if job_row is not None:
                tx.end_run(job_row, session, run, RunEnd.FAILED)
                tx.bury(job_row, f"undecodable: {error}", run)
            continue
        again = Taken(job, run, row[2] + 1, row[3], row[4], row[9])
        taken.append(with_log(tx, seq, again) if row[10] else again)
    return taken
