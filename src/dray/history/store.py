"""Writes what the reader of the feed found, and deletes what is old.

A batch is one transaction: rows, sums and the position in the feed. So a reader that dies at any moment goes
on where the last batch ended, and what it reads again changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from dray.duration import HOUR
from dray.history.database import Database, Row
from dray.history.rollups import UNIT_KEPT, add_runs
from dray.history.rows import AttemptRow, EventRow, Gap, JobRow
from dray.history.words import tsvector

SHIFT: Final = 20
"""Bits of `seq` that number the jobs of one millisecond."""
FLOOR: Final = ""
"""The row of `feeds` that holds the time up to which rows were deleted; no queue has this name."""
PRUNE_STEP: Final = 1000
"""Rows of each table that one step of pruning deletes."""


Mark = tuple[int, int]
"""The last entry of a queue's feed that was read: its number and time."""


class Batch(msgspec.Struct):
    """What one step of the reader found."""

    jobs: list[JobRow] = []
    attempts: list[AttemptRow] = []
    events: list[EventRow] = []
    feeds: dict[str, Mark] = {}
    gaps: list[Gap] = []


class OpenGap(msgspec.Struct, frozen=True):
    """A gap whose queue is still to be read anew, and how far that reading has come."""

    queue: str
    at: int
    reading: str


class Position(msgspec.Struct, frozen=True):
    feeds: dict[str, Mark]
    gaps: list[OpenGap]
    floor: int | None
    """Jobs whose newest change was before this were deleted, and are not written again. None: it is new."""


class Store:
    """The rows of one namespace."""

    def __init__(self, database: Database, namespace: str) -> None:
        self.database, self.ns = database, namespace
        self._sql = database.sql

    def position(self) -> Position:
        """How far the feed was read, what is to be read anew, and what is older than the oldest row."""
        feeds = self._feeds()
        floor, _ = feeds.pop(FLOOR, (None, 0))
        open = [OpenGap(queue, at, reading) for queue, _, _, at, reading in self._fetch("open_gaps", self.ns)]
        return Position(feeds, open, floor)

    def gaps(self) -> list[tuple[Gap, int | None]]:
        """All gaps, and when each was mended."""
        return [(Gap(*row[:4]), row[4]) for row in self._fetch("read_gaps", self.ns)]

    def write(self, batch: Batch) -> None:
        with self.database.transaction():
            self._put_jobs(batch.jobs)
            self._put_attempts(batch.attempts)
            write = self.database.write
            write("put_events", batch.events)
            write("put_feeds", [(self.ns, queue, *mark) for queue, mark in batch.feeds.items()])
            write("put_gaps", [(self.ns, *gap) for gap in batch.gaps])

    def note_reading(self, queue: str, reading: str) -> None:
        self._fetch("note_reading", reading, self.ns, queue)

    def mend_gaps(self, queue: str, noticed: int, now: int) -> None:
        """The queue was read anew: gaps that were noticed by `noticed` are closed; later ones begin anew."""
        with self.database.transaction():
            self._fetch("mend_gaps", now, self.ns, queue, noticed)
            self._fetch("note_reading", "", self.ns, queue)

    def prune(self, before: int, now: int, most_bytes: int | None) -> bool:
        """Delete a bounded number of rows that are older, or too many; True if there may be more."""
        with self.database.transaction():
            full = [
                len(self._prune_jobs(before << SHIFT)) >= PRUNE_STEP,
                len(self._fetch("prune_attempts", self.ns, before, PRUNE_STEP)) >= PRUNE_STEP,
                len(self._fetch("prune_events", self.ns, before, PRUNE_STEP)) >= PRUNE_STEP,
            ]
            for unit, kept in UNIT_KEPT.items():
                self._fetch("prune_rollups", self.ns, unit, now - kept)
            self._fetch("prune_errors", self.ns, before)
            self._fetch("prune_error_hours", self.ns, min(before, now - UNIT_KEPT[HOUR]))
            self._fetch("prune_gaps", self.ns, before)
            self._raise_floor(before)
        return any(full) or (most_bytes is not None and self._shrink(most_bytes))

    def _shrink(self, most_bytes: int) -> bool:
        """Delete the oldest jobs, and all that is as old, while the jobs take more bytes than allowed."""
        total, count = self._fetch("bytes_of_jobs", self.ns)[0]
        if total <= most_bytes:
            return False
        too_many = math.ceil((total - most_bytes) * count / total)
        with self.database.transaction():
            gone = self._prune_jobs(1 << 62, min(too_many, PRUNE_STEP))
            until = max(seq for seq, _ in gone) >> SHIFT
            self._fetch("prune_attempts", self.ns, until, 10 * PRUNE_STEP)
            self._fetch("prune_events", self.ns, until, 10 * PRUNE_STEP)
            self._raise_floor(until + 1)
        return True

    def _raise_floor(self, at: int) -> None:
        if at > self._feeds().get(FLOOR, (0, 0))[0]:
            self.database.write("put_feeds", [(self.ns, FLOOR, at, at)])

    def _feeds(self) -> dict[str, Mark]:
        return {queue: (number, at) for queue, number, at in self._fetch("read_feeds", self.ns)}

    def _prune_jobs(self, before_seq: int, most: int = PRUNE_STEP) -> list[Row]:
        gone = self._fetch("prune_jobs", self.ns, before_seq, most)
        self._delete_words(seq for seq, _ in gone)
        return gone

    def _put_jobs(self, rows: Sequence[JobRow]) -> None:
        """Write jobs as they stand now. A row that another reader wrote from a newer record stays."""
        newest = {(row.id, row.created): row for row in rows}
        ids = msgspec.json.encode(list({row.id for row in newest.values()})).decode()
        found = self._fetch("known_jobs", self.ns, ids)
        known = {(id, created): (seq, worker, progress) for id, created, seq, worker, progress in found}
        kept = []
        for key, row in newest.items():
            seq, worker, progress = known.get(key, (0, None, None))
            if row.at >= seq >> SHIFT:  # the end of a job tells neither its worker nor its progress
                kept.append(row._replace(worker=row.worker or worker, progress=row.progress or progress))
        replaced = [known[key][0] for row in kept if (key := (row.id, row.created)) in known]
        self.database.write("delete_jobs", [(seq,) for seq in replaced])
        self._delete_words(replaced)
        numbered = self._numbered(kept)
        if "put_words" not in self._sql:
            self.database.write("put_jobs", [(*row[:-2], tsvector(*row[-2:])) for row in numbered])
            return
        self.database.write("put_jobs", [row[:-2] for row in numbered])
        self.database.write("put_words", [(row[0], *row[-2:]) for row in numbered])

    def _numbered(self, rows: Sequence[JobRow]) -> list[Row]:
        """Rows with their `seq`: the time of the newest change, then a number within that millisecond."""
        times = msgspec.json.encode(sorted({row.at for row in rows})).decode()
        last: dict[int, int | None] = dict(self._fetch("last_in_ms", times))
        found = []
        for row in rows:
            before = last.get(row.at)
            seq = last[row.at] = row.at << SHIFT if before is None else before + 1
            found.append((seq, *row[:3], *row[4:]))
        return found

    def _delete_words(self, seqs: Iterable[int]) -> None:
        if "delete_words" in self._sql:
            self.database.write("delete_words", [(seq,) for seq in seqs])

    def _put_attempts(self, rows: Sequence[AttemptRow]) -> None:
        by_key = {(row.id, row.created, row.run): row for row in rows}
        written = self.database.write("put_attempts", list(by_key.values()))
        ended = [by_key[id, created, run] for id, created, run, end in written if end is not None]
        add_runs(self.database, ended)

    def _fetch(self, name: str, *values: object) -> list[Row]:
        return self.database.fetch(self._sql[name], values)
