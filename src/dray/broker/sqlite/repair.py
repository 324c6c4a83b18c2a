"""Repairs damage to the file: `dray.broker.memory.repair`, on rows.

A sweep checks the next stretch of each table in a read transaction, which blocks no writer. Only if it finds
damage, the same stretch is checked again in a write transaction, and repaired.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dray.broker.repairs import LOOK, found
from dray.broker.sqlite.durable import wake
from dray.broker.sqlite.read import read_job
from dray.broker.sqlite.rows import NUMBER, DurableRow, JobRow
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.transaction import Transaction
from dray.errors import DrayError
from dray.job import Move, State

Row = tuple[Any, ...]
Cursors = dict[str, Row]

_START: Final[Cursors] = {
    "look_jobs": (0,),
    "look_runs": (0, 0, 0),
    "look_lanes": (0,),
    "look_groups": (0,),
    "look_classes": (0,),
    "look_keys": (0, ""),
    "look_durables": (0,),
    "look_dependencies": (0,),
    "look_memos": (0, 0),
    "look_messages": (0, "", 0),
    "look_children": (0,),
    "look_offers": (0,),
    "look_bodies": (0,),
    "look_ends": (0,),
    "look_past": (0,),
    "look_watchers": (0, ""),
    "look_voids": (0, "", 0),
}
"""The tables in the order in which repairing one helps the next, and where a round through each begins."""


class TableRounds:
    """Positions in the tables, which are checked a stretch at a time, round after round."""

    def __init__(self) -> None:
        self._at: Cursors | None = None

    def check_next(self, db: sqlite3.Connection, ns: int, limit: int) -> Cursors | None:
        """Look at the next stretch of each table; where it began, if anything in it is broken."""
        before = self._at if self._at is not None else _somewhere(db)
        after, broken = dict(before), False
        for name in _START:
            rows, bad = _stretch(db, ns, limit, name, before[name])
            broken = broken or bool(bad)
            after[name] = _last(name, rows) if len(rows) == limit else _START[name]
        self._at = after
        return before if broken else None


def _somewhere(db: sqlite3.Connection) -> Cursors:
    """Jobs from anywhere: else workers that come and go would never see the newest of many."""
    newest = db.execute(SQL["last_seq"]).fetchone()[0]
    start = random.randrange(newest) if newest > LOOK else 0  # noqa: S311 (not a secret)
    return {**_START, "look_jobs": (start,)}


def _last(name: str, rows: list[Row]) -> Row:
    row: Row = rows[-1][1 : 1 + len(_START[name])]
    return row


def _stretch(
    db: sqlite3.Connection, ns: int, limit: int, name: str, start: Row
) -> tuple[list[Row], list[Row]]:
    """The rows of a stretch, and those of them that are broken."""
    rows = db.execute(SQL[name], (ns, limit, *start)).fetchall()
    bad = [row[1:] for row in rows if row[0]]
    if name == "look_jobs" and any(row[2] for row in rows):
        runs = dict(db.execute(SQL["look_job_runs"], (rows[0][1], rows[-1][1])).fetchall())
        bad += [row[1:] for row in rows if row[2] and not row[0] and row[3] != runs.get(row[1], 0)]
    return rows, bad


def repair_rows(tx: Transaction, start: Cursors, limit: int) -> dict[str, int]:
    """Put right what is broken in the stretches that begin there; what that was, by kind."""
    repair = _Repair(tx, limit)
    for name, at in start.items():
        fix: Callable[..., None] = getattr(repair, name.removeprefix("look_"))
        for row in _stretch(tx.db, tx.ns, limit, name, at)[1]:
            fix(*row)
    return found(repair.done)


class _Repair:
    def __init__(self, tx: Transaction, limit: int) -> None:
        self.tx, self.db, self.limit = tx, tx.db, limit
        self.done: Counter[str] = Counter()

    # jobs

    def jobs(self, seq: int, *_: object) -> None:
        self._row(seq)
        job_row = self.tx.job_row(seq)
        if job_row is None:
            return
        self.tx.unblocked.add(job_row.queue)
        self._durable(job_row)
        self._held(job_row)
        self._deadline(job_row)
        self._place(job_row)
        self._offer(job_row)
        self._key(job_row)
        self._waits(job_row)

    def _row(self, seq: int) -> None:
        """A row that other steps could not even load."""
        state, finished, homeless, envelope, *names = self.db.execute(SQL["raw_job"], (seq,)).fetchone()
        if envelope is None:
            # It cannot run: `take` finds that its envelope is unreadable.
            self.done["record"] += 1
            self.db.execute(SQL["insert_body"], (seq, b""))
        if homeless:
            self.done["place"] += 1
            queue = self.tx.make_queue(_queue_of(seq, envelope, *names))
            self.db.execute(SQL["set_queue"], (queue.id, seq))
        if not 0 <= state <= NUMBER[State.CANCELLED]:
            self.done["place"] += 1
            to = State.READY if finished is None else State.DEAD
            self.db.execute(SQL["set_state"], (NUMBER[to], seq))

    def _held(self, job_row: JobRow) -> None:
        """Count the runs that sessions hold; a run without a session is over."""
        rows = self.db.execute(SQL["runs_in_store"], (job_row.seq, job_row.run)).fetchall()
        valid = [row for row in rows if row[2] and job_row.state is State.RUNNING]
        if job_row.runs == len(rows) == len(valid) and (job_row.state is State.RUNNING) == bool(valid):
            return
        self.done["run"] += 1
        for session, run, _ in rows:
            if (session, run, 1) not in valid:
                self.db.execute(SQL["delete_run"], (session, job_row.seq, run))
        job_row.runs = len(valid)
        if job_row.state is not State.RUNNING or valid:
            self.tx.save(job_row)
            return
        self.tx.withdraw_offer(job_row)
        self.tx.after_crash(job_row, True, 0, 0)

    def _place(self, job_row: JobRow) -> None:
        if job_row.state is not State.READY:
            if job_row.lane == 0 and job_row.expires is None:
                return
            job_row.lane, job_row.expires = 0, None
        elif self.db.execute(SQL["in_its_lane"], (job_row.seq,)).fetchone()[0]:
            return
        else:
            job_row.lane, job_row.pos = self.tx.lane_of(job_row, job_row.queue, job_row.line), job_row.line
        self.done["place"] += 1
        self.tx.save(job_row)

    def _deadline(self, job_row: JobRow) -> None:
        if job_row.state.finished or self.tx.undo_of(job_row) is not None:
            return
        if (job_row.deadline is None) != (job_row.deadline_at is None):
            self.done["record"] += 1
            self.tx.set_deadline(job_row, job_row.due)

    def _offer(self, job_row: JobRow) -> None:
        listed = self.db.execute(SQL["offered_job"], (job_row.seq,)).fetchone()[0]
        wanted = job_row.offered and job_row.state is State.RUNNING
        if bool(job_row.offered) == bool(listed) == bool(wanted):
            return
        self.done["offer"] += 1
        job_row.offered = int(bool(wanted))
        self.tx.save(job_row)
        if wanted:
            self.db.execute(SQL["insert_offer"], (job_row.queue, job_row.seq))
        else:
            self.db.execute(SQL["delete_offer"], (job_row.seq,))

    def _key(self, job_row: JobRow) -> None:
        if job_row.key is None or job_row.key_ttl is not None or job_row.state.finished:
            return
        if self.db.execute(SQL["key_owner"], (job_row.queue, job_row.key)).fetchone() is None:
            self.done["key"] += 1
            self.tx.claim_key(job_row.queue, job_row.key, job_row.seq, None)

    def _waits(self, job_row: JobRow) -> None:
        if job_row.state is not State.WAITING:
            return
        row = self.tx.durable(job_row)
        if row.open or self.db.execute(SQL["dependencies"], (job_row.seq,)).fetchone() is not None:
            return
        self.done["dependency"] += 1
        if row.suspended is not None:
            wake(self.tx, job_row)
        else:
            self.tx.line_up(job_row, Move.RELEASED, job_row.due)

    def _durable(self, job_row: JobRow) -> None:
        """A durable job whose row is gone keeps its log, but not what it waited for."""
        if job_row.durable and self.db.execute(SQL["durable_row"], (job_row.seq,)).fetchone() is None:
            self.done["record"] += 1
            self._count_memos(job_row, DurableRow())

    def _count_memos(self, job_row: JobRow, row: DurableRow) -> None:
        row.memos, row.size = self.db.execute(SQL["count_memos"], (job_row.seq,)).fetchone()
        self.tx.save_durable(job_row, row)

    def durables(self, job: int) -> None:
        """A row without a job, or one that does not fit the state of its job."""
        job_row = self.tx.job_row(job)
        self.done["record"] += 1
        if job_row is None:
            self.db.execute(SQL["delete_durable"], (job,))
            return
        if not job_row.durable:
            self.db.execute(SQL["mark_durable"], (job,))
            job_row.durable = 1
        row = self.tx.durable(job_row)
        if row.suspended is None or job_row.state not in _ASLEEP:
            row.suspended, row.open, row.wake = None, 0, None
        elif job_row.state is not State.WAITING:
            row.open, row.wake = 0, None
        if job_row.state is not State.CANCELLED:
            row.orphaned_by = None
        self._count_memos(job_row, row)

    # what jobs are held by, stand in, own and wait for

    def runs(self, session: int, job: int, run: int) -> None:
        if self.tx.job_row(job) is None:
            self.done["run"] += 1
            self.db.execute(SQL["delete_run"], (session, job, run))
        else:
            self.jobs(job)

    def lanes(self, lane: int, queue: int) -> None:
        self.done["lane"] += 1
        for (seq,) in self.db.execute(SQL["jobs_of_lane"], (queue, lane, self.limit)).fetchall():
            self.jobs(seq)
        self.tx.tidy_lane(queue, lane)

    def groups(self, group: int) -> None:
        self.done["lane"] += 1
        if not self.db.execute(SQL["drop_group"], (group,)).rowcount:
            self.db.execute(SQL["count_free_lanes"], (group,))

    def classes(self, class_: int) -> None:
        self.done["lane"] += 1
        self.db.execute(SQL["delete_class"], (class_,))

    def keys(self, queue: int, key: str) -> None:
        self.done["key"] += 1
        self.db.execute(SQL["drop_key"], (queue, key))

    def dependencies(
        self, seq: int, dependency: str, job: int | None, waits: int | None, ended: int | None
    ) -> None:
        self.done["dependency"] += 1
        if job is not None and waits == NUMBER[State.WAITING] and ended is not None:
            self.tx.post(job, dependency, _STATES[ended])
        else:
            self.db.execute(SQL["drop_dependency"], (seq,))

    # parts of records without the rest

    def offers(self, seq: int) -> None:
        self._drop("drop_offer", seq)

    def bodies(self, job: int) -> None:
        self._drop("delete_body", job)

    def ends(self, job: int) -> None:
        self._drop("delete_end", job)

    def past(self, job: int) -> None:
        self._drop("delete_past", job)

    def memos(self, job: int, *_: object) -> None:
        self._drop("delete_memos", job)

    def messages(self, job: int, *_: object) -> None:
        self._drop("delete_messages", job)

    def children(self, seq: int, job: int) -> None:
        self._drop("take_children", job)

    def watchers(self, job: int, watcher: str) -> None:
        self._drop("drop_watcher", job, watcher)

    def voids(self, session: int, id: str, run: int) -> None:
        self._drop("delete_void", session, id, run)

    def _drop(self, statement: str, *which: object) -> None:
        self.done["record"] += 1
        self.db.execute(SQL[statement], which)


_ASLEEP: Final = (State.WAITING, State.SCHEDULED, State.RETRYING)
_STATES: Final = {number: state for state, number in NUMBER.items()}


def _queue_of(seq: int, envelope: bytes | None, id: str, priority: int, version: int) -> str:
    """The queue that the job's envelope names."""
    try:
        return read_job(envelope, id, priority, version).queue
    except DrayError:
        return f"recovered-{seq}"
