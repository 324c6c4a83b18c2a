"""Counts and durations of runs per minute, hour and day, and errors by fingerprint.

They are added up in the transaction that records that a run has ended, so that each run counts once, however
often the feed is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from dray.duration import DAY, HOUR, MINUTE
from dray.history.database import Database
from dray.history.rows import FAILED, AttemptRow
from dray.job import RunEnd
from dray.stats.sketch import Sketch

UNITS: Final = (MINUTE, HOUR, DAY)
UNIT_KEPT: Final = {MINUTE: 2 * DAY, HOUR: 62 * DAY, DAY: 800 * DAY}
"""For how long the rows of each unit are kept at most."""
VERSIONS_MAX: Final = 10
_encode = msgspec.msgpack.Encoder().encode
decode_sketch = msgspec.msgpack.Decoder(Sketch).decode
Key = tuple[str, int, int, str, str]


class Counts(msgspec.Struct):
    """Runs that ended in one unit of time."""

    succeeded: int = 0
    failed: int = 0
    other: int = 0
    took: Sketch = msgspec.field(default_factory=Sketch)
    """Seconds that succeeded runs took."""
    waited: Sketch = msgspec.field(default_factory=Sketch)
    """Seconds from when a job could start to its first run."""

    def add(self, runs: Sequence[AttemptRow]) -> None:
        succeeded = [run for run in runs if run.outcome == RunEnd.SUCCEEDED]
        failed = sum(run.outcome in FAILED for run in runs)
        self.succeeded += len(succeeded)
        self.failed += failed
        self.other += len(runs) - len(succeeded) - failed
        self.took.add((_ended(run) - run.started) / 1000 for run in succeeded)
        self.waited.add(run.waited / 1000 for run in runs if run.waited is not None)


def add_runs(database: Database, ended: Sequence[AttemptRow]) -> None:
    """Add runs that have ended to all sums; inside the transaction that records them."""
    _add_rollups(database, ended)
    _add_errors(database, [run for run in ended if run.fingerprint is not None])


def _add_rollups(database: Database, ended: Iterable[AttemptRow]) -> None:
    by_key: dict[Key, list[AttemptRow]] = {}
    for run in ended:
        for unit in UNITS:
            key = (run.ns, unit, _ended(run) // unit * unit, run.queue, run.task)
            by_key.setdefault(key, []).append(run)
    rows = []
    for key, runs in by_key.items():
        known = database.fetch(database.sql["read_rollup"], key)
        counts = Counts() if not known else read_counts(known[0])
        counts.add(runs)
        numbers = (counts.succeeded, counts.failed, counts.other)
        rows.append((*key, *numbers, _encode(counts.took), _encode(counts.waited)))
    database.write("put_rollups", rows)


def read_counts(row: Sequence[Any]) -> Counts:
    """The counts of a row: three numbers and two sketches."""
    succeeded, failed, other, took, waited = row
    return Counts(succeeded, failed, other, decode_sketch(took), decode_sketch(waited))


def _add_errors(database: Database, failed: Sequence[AttemptRow]) -> None:
    groups: dict[tuple[str, str, str], list[AttemptRow]] = {}
    hours: dict[tuple[str, str, str, int], int] = {}
    for run in failed:
        key = (run.ns, run.fingerprint or "", run.queue)
        groups.setdefault(key, []).append(run)
        hour = (*key, _ended(run) // HOUR * HOUR)
        hours[hour] = hours.get(hour, 0) + 1
    database.write("put_errors", [_error_row(database, key, runs) for key, runs in groups.items()])
    database.write("put_error_hours", [(*key, count) for key, count in hours.items()])


def _error_row(
    database: Database, key: tuple[str, str, str], runs: Sequence[AttemptRow]
) -> tuple[object, ...]:
    newest = max(runs, key=_ended)
    count, first, last, last_job, versions = 0, _ended(newest), 0, newest.id, "[]"
    known = database.fetch(database.sql["read_error"], key)
    if known:
        count, first, last, last_job, versions = known[0]
    if _ended(newest) >= last:
        last_job = newest.id
    seen = dict.fromkeys(msgspec.json.decode(versions, type=list[str]))
    seen |= dict.fromkeys(run.version for run in runs if run.version)
    return (
        *key,
        newest.task,
        newest.error_type or "",
        newest.error or "",
        count + len(runs),
        min(first, *map(_ended, runs)),
        max(last, _ended(newest)),
        last_job,
        msgspec.json.encode(list(seen)[-VERSIONS_MAX:]).decode(),
    )


def _ended(run: AttemptRow) -> int:
    return run.ended or 0
