"""Statistics over time and error groups, read from the sums of the history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from dray.duration import DAY, HOUR, MINUTE
from dray.history.broker_view import (
    SPARK_HOURS,
    ErrorGroup,
    ErrorList,
    HistoryStats,
    StatsPoint,
    TaskSummary,
    spark,
)
from dray.history.database import Row
from dray.history.rollups import UNIT_KEPT, Counts, read_counts
from dray.history.search import Scope
from dray.history.store import Store
from dray.info import moment

POINTS_MAX: Final = 200
"""Points that a window has at most: longer windows have longer steps."""
GROUPS_READ: Final = 10_000


def read_stats(store: Store, scope: Scope, now: int, window: int) -> HistoryStats:
    """Runs that ended within `window` milliseconds before now."""
    unit = _unit(window)
    since = (now - window) // unit * unit
    rows = store.database.fetch(store.database.sql["read_rollups"], (store.ns, unit, since))
    points: dict[int, Counts] = {}
    tasks: dict[str, Counts] = {}
    for start, queue, task, *counts in rows:
        if scope.sees(queue, task):
            more = read_counts(counts)
            points[start] = _sum(points.get(start), more)
            tasks[task] = _sum(tasks.get(task), more)
    return HistoryStats(
        source="history",
        since=moment(since),
        step=unit / 1000,
        points=[StatsPoint(at=moment(at), **_numbers(points[at])) for at in sorted(points)],
        tasks=[TaskSummary(task=task, **_numbers(tasks[task])) for task in sorted(tasks)],
    )


def _unit(window: int) -> int:
    for unit in (MINUTE, HOUR):
        if window <= min(POINTS_MAX * unit, UNIT_KEPT[unit]):
            return unit
    return DAY


def _sum(known: Counts | None, more: Counts) -> Counts:
    if known is None:
        return more
    return Counts(
        known.succeeded + more.succeeded,
        known.failed + more.failed,
        known.other + more.other,
        known.took.beside(more.took),
        known.waited.beside(more.waited),
    )


def _numbers(counts: Counts) -> dict[str, Any]:
    return {
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "other": counts.other,
        "took_p50": counts.took.percentile(50),
        "took_p95": counts.took.percentile(95),
        "waited_p95": counts.waited.percentile(95),
    }


def read_error_groups(store: Store, scope: Scope, since: int, now: int, limit: int) -> ErrorList:
    """Error groups that were seen since a time, the last one first."""
    fetch, sql = store.database.fetch, store.database.sql
    groups: dict[str, list[Row]] = {}
    for row in fetch(sql["read_errors"], (store.ns, since, GROUPS_READ)):
        if scope.sees(row[1], row[2]):
            groups.setdefault(row[0], []).append(row)
    hours: dict[str, list[tuple[int, int]]] = {}
    for print, queue, hour, count in fetch(sql["read_error_hours"], (store.ns, now - SPARK_HOURS * HOUR)):
        if scope.queues is None or queue in scope.queues:
            hours.setdefault(print, []).append((hour, count))
    newest = list(groups.items())[:limit]
    return ErrorList(_group(print, rows, hours.get(print, ()), now) for print, rows in newest)


def _group(print: str, rows: list[Row], hours: Iterable[tuple[int, int]], now: int) -> ErrorGroup:
    """One group of the rows of its queues, of which the first was seen last."""
    _, _, task, type, message, _, _, last, last_job, _ = rows[0]
    versions = (version for row in rows for version in msgspec.json.decode(row[9], type=list[str]))
    return ErrorGroup(
        fingerprint=print,
        task=task,
        queues=sorted(row[1] for row in rows),
        type=type,
        message=message,
        count=sum(row[5] for row in rows),
        first_seen=moment(min(row[6] for row in rows)),
        last_seen=moment(last),
        last_job=last_job,
        versions=list(dict.fromkeys(versions)),
        hours=spark(hours, now),
    )
