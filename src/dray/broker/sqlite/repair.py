"""What `sweep` puts right in the file: `dray.broker.memory.mending`, on rows.

A sweep looks at the next stretch of each table in a read transaction, which keeps nobody waiting. Only if
something there cannot be as it is, the same stretch is looked at again in a write transaction, and mended.
"""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from dray.broker.repairs import LOOK, found
from dray.broker.sqlite.read import read_job
from dray.broker.sqlite.rows import NUMBER, Kept
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
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
    "look_dependencies": ("", 0),
    "look_offers": (0,),
    "look_bodies": (0,),
    "look_ends": (0,),
    "look_watchers": (0, ""),
    "look_voids": (0, "", 0),
}
"""The tables in the order in which mending one helps the next, and where a round through each begins."""


class Looking:
    """How far the rounds through the tables have come."""

    def __init__(self) -> None:
        self._at: Cursors | None = None

    def ahead(self, db: sqlite3.Connection, ns: int, limit: int) -> Cursors | None:
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


def mend(step: Step, start: Cursors, limit: int) -> dict[str, int]:
    """Put right what is broken in the stretches that begin there; what that was, by kind."""
    mending = _Mending(step, limit)
    for name, at in start.items():
        repair: Callable[..., None] = getattr(mending, name.removeprefix("look_"))
        for row in _stretch(step.db, step.ns, limit, name, at)[1]:
            repair(*row)
    return found(mending.done)


class _Mending:
    def __init__(self, step: Step, limit: int) -> None:
        self.step, self.db, self.limit = step, step.db, limit
        self.done: Counter[str] = Counter()

    # jobs

    def jobs(self, seq: int, *_: object) -> None:
        self._row(seq)
        kept = self.step.kept(seq)
        if kept is None:
            return
        self.step.stirred.add(kept.queue)
        self._held(kept)
        self._place(kept)
        self._offer(kept)
        self._key(kept)
        self._waits(kept)

    def _row(self, seq: int) -> None:
        """A row that other steps could not even load."""
        state, finished, homeless, envelope, *names = self.db.execute(SQL["raw_job"], (seq,)).fetchone()
        if envelope is None:
            # It cannot run: whoever takes it finds that its envelope is unreadable.
            self.done["record"] += 1
            self.db.execute(SQL["insert_body"], (seq, b""))
        if homeless:
            self.done["place"] += 1
            queue = self.step.make_queue(_queue_of(seq, envelope, *names))
            self.db.execute(SQL["set_queue"], (queue.id, seq))
        if not 0 <= state <= NUMBER[State.CANCELLED]:
            self.done["place"] += 1
            to = State.READY if finished is None else State.DEAD
            self.db.execute(SQL["set_state"], (NUMBER[to], seq))

    def _held(self, kept: Kept) -> None:
        """As many runs as sessions hold; one that nobody holds is over."""
        rows = self.db.execute(SQL["runs_in_store"], (kept.seq, kept.run)).fetchall()
        valid = [row for row in rows if row[2] and kept.state is State.RUNNING]
        if kept.runs == len(rows) == len(valid) and (kept.state is State.RUNNING) == bool(valid):
            return
        self.done["run"] += 1
        for session, run, _ in rows:
            if (session, run, 1) not in valid:
                self.db.execute(SQL["delete_run"], (session, kept.seq, run))
        kept.runs = len(valid)
        if kept.state is not State.RUNNING or valid:
            self.step.save(kept)
            return
        kept.suspect = 1
        if kept.cancel is not None:
            self.step.finish(kept, Move.CANCELLED, State.CANCELLED, kept.cancel)
        else:
            self.step.withdraw_offer(kept)
            self.step.move(kept, Move.CRASHED, State.READY)

    def _place(self, kept: Kept) -> None:
        if kept.state is not State.READY:
            if kept.lane == 0 and kept.expires is None:
                return
            kept.lane, kept.expires = 0, None
        elif self.db.execute(SQL["in_its_lane"], (kept.seq,)).fetchone()[0]:
            return
        else:
            kept.lane, kept.pos = self.step.lane_of(kept, kept.queue, kept.line), kept.line
        self.done["place"] += 1
        self.step.save(kept)

    def _offer(self, kept: Kept) -> None:
        listed = self.db.execute(SQL["offered_job"], (kept.seq,)).fetchone()[0]
        wanted = kept.offered and kept.state is State.RUNNING
        if bool(kept.offered) == bool(listed) == bool(wanted):
            return
        self.done["offer"] += 1
        kept.offered = int(bool(wanted))
        self.step.save(kept)
        if wanted:
            self.db.execute(SQL["insert_offer"], (kept.queue, kept.seq))
        else:
            self.db.execute(SQL["delete_offer"], (kept.seq,))

    def _key(self, kept: Kept) -> None:
        if kept.key is None or kept.key_ttl is not None or kept.state.finished:
            return
        if self.db.execute(SQL["key_owner"], (kept.queue, kept.key)).fetchone() is None:
            self.done["key"] += 1
            self.step.claim_key(kept.queue, kept.key, kept.seq, None)

    def _waits(self, kept: Kept) -> None:
        if kept.state is not State.WAITING:
            return
        if self.db.execute(SQL["dependencies"], (kept.seq,)).fetchone() is None:
            self.done["dependency"] += 1
            self.step.line_up(kept, Move.RELEASED, kept.due)

    # what jobs are held by, stand in, own and wait for

    def runs(self, session: int, job: int, run: int) -> None:
        if self.step.kept(job) is None:
            self.done["run"] += 1
            self.db.execute(SQL["delete_run"], (session, job, run))
        else:
            self.jobs(job)

    def lanes(self, lane: int, queue: int) -> None:
        self.done["lane"] += 1
        for (seq,) in self.db.execute(SQL["jobs_of_lane"], (queue, lane, self.limit)).fetchall():
            self.jobs(seq)
        self.step.tidy_lane(queue, lane)

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

    def dependencies(self, dependency: str, job: int, waits: int | None, ended: int | None) -> None:
        self.done["dependency"] += 1
        if waits == NUMBER[State.WAITING] and ended is not None:
            self.step.post(job, dependency, _STATES[ended])
        else:
            self.db.execute(SQL["dependency_done"], (self.step.ns, dependency, job))

    # parts of records without the rest

    def offers(self, seq: int) -> None:
        self._drop("drop_offer", seq)

    def bodies(self, job: int) -> None:
        self._drop("delete_body", job)

    def ends(self, job: int) -> None:
        self._drop("delete_end", job)

    def watchers(self, job: int, watcher: str) -> None:
        self._drop("drop_watcher", job, watcher)

    def voids(self, session: int, id: str, run: int) -> None:
        self._drop("delete_void", session, id, run)

    def _drop(self, statement: str, *which: object) -> None:
        self.done["record"] += 1
        self.db.execute(SQL[statement], which)


_STATES: Final = {number: state for state, number in NUMBER.items()}


def _queue_of(seq: int, envelope: bytes | None, id: str, priority: int, version: int) -> str:
    """The queue that a job was put into, by its own word."""
    try:
        return read_job(envelope, id, priority, version).queue
    except DrayError:
        return f"recovered-{seq}"
