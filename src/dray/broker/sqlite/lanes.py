"""The lanes of a transaction: where ready jobs stand, and what limits hold back."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod

from dray.broker.sqlite.rows import JobRow, QueueRow
from dray.broker.sqlite.statements import SQL
from dray.job import Job

LaneKey = tuple[int, int, str, int, str | None, str | None, str | None, str | None, int | None]


class Lanes(ABC):
    """The part of a transaction that makes, joins, blocks and removes lanes."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.unblocked: set[int] = set()
        """Queues in which anything may be possible now: all their sleepers look."""
        self._lanes: dict[LaneKey, tuple[int, int]] = {}

    @abstractmethod
    def queue_by_id(self, id: int) -> QueueRow: ...

    def lane_of(self, job: JobRow | Job, queue: int, line: int) -> int:
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
        self.unblocked.add(queue)
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
