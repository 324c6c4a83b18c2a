"""Statistics and errors: their shapes, and what the broker alone can say of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from dray.broker.actions import Query
from dray.broker.verbs import PAGE_MAX, Broker
from dray.duration import HOUR
from dray.history.fingerprint import fingerprint
from dray.history.search import Scope
from dray.info import moment
from dray.job import Error, Record, State
from dray.stats.task_stats import read_stats

SPARK_HOURS: Final = 24
"""Hours that the counts of an error group cover."""
SCAN_MAX: Final = 5000
"""Jobs of each state that are read for error groups."""
Source = Literal["history", "broker"]
NO_HISTORY: Final = "history_url is not set: this is what the broker keeps"


class ErrorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Failed runs with the same fingerprint."""

    fingerprint: str
    task: str
    queues: list[str]
    type: str
    message: str
    """Of the newest."""
    count: int
    first_seen: datetime
    last_seen: datetime
    last_job: str
    versions: list[str] = []
    """Versions of the workers it happened on, where they are known."""
    hours: list[int] = []
    """Counts of the last 24 hours, the current one last."""


class ErrorList(list[ErrorGroup]):
    """Error groups, the one seen last first."""

    source: Source = "history"
    note: str = ""
    """What is missing, if the source is the broker."""


class StatsPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that ended within one step of time."""

    at: datetime
    succeeded: int = 0
    failed: int = 0
    other: int = 0
    took_p50: float = 0.0
    """Seconds that half of the succeeded runs did not exceed."""
    took_p95: float = 0.0
    waited_p95: float = 0.0


class TaskSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one task within the window."""

    task: str
    succeeded: int = 0
    failed: int = 0
    other: int = 0
    took_p50: float = 0.0
    took_p95: float = 0.0
    waited_p95: float = 0.0


class HistoryStats(msgspec.Struct, frozen=True, kw_only=True):
    """Runs over time and by task."""

    source: Source
    note: str = ""
    since: datetime | None = None
    step: float = 0.0
    """Seconds between two points."""
    points: list[StatsPoint] = []
    """Without those in which nothing ended."""
    tasks: list[TaskSummary] = []


async def stats_of_broker(broker: Broker, scope: Scope) -> HistoryStats:
    """The counts of the workers since they are counted; the broker does not know when each run ended."""
    stats = await read_stats(broker)
    tasks = [
        TaskSummary(
            task=name,
            succeeded=one.runs - one.failed,
            failed=one.failed,
            took_p50=one.duration.p50,
            took_p95=one.duration.p95,
            waited_p95=one.wait.p95,
        )
        for name, one in stats.tasks.items()
        if scope.queues is None and scope.sees("", name)
    ]
    return HistoryStats(
        source="broker", note=f"{NO_HISTORY}, counted since the workers' first run", tasks=tasks
    )


async def errors_of_broker(broker: Broker, scope: Scope, since: int, now: int, limit: int) -> ErrorList:
    """Errors of the dead and retrying jobs that the broker keeps, each job with its last one."""
    groups: dict[str, list[Record]] = {}
    async for record in _failed(broker):
        job, error = record.job, record.error
        if error is None or not scope.sees(job.queue, job.task) or seen_at(record) < since:
            continue
        groups.setdefault(fingerprint(job.task, error.type, error.message), []).append(record)
    found = ErrorList(_group(print, records, now) for print, records in groups.items())
    found.sort(key=lambda group: group.last_seen, reverse=True)
    del found[limit:]
    found.source = "broker"
    found.note = f"{NO_HISTORY}: the last error of dead and retrying jobs, at most {SCAN_MAX} of each"
    return found


async def _failed(broker: Broker) -> AsyncIterator[Record]:
    for state in (State.DEAD, State.RETRYING):
        cursor, read = None, 0
        while read < SCAN_MAX:
            page = await broker.find(Query(state=state), cursor=cursor, limit=PAGE_MAX, newest=True)
            for record in page.records:
                yield record
            cursor, read = page.cursor, read + PAGE_MAX
            if cursor is None:
                break


def seen_at(record: Record) -> int:
    return record.finished or max((run.ended for run in record.past), default=record.created)


def _group(print: str, records: list[Record], now: int) -> ErrorGroup:
    newest = max(records, key=seen_at)
    error = newest.error or Error("", "")
    times = sorted(map(seen_at, records))
    return ErrorGroup(
        fingerprint=print,
        task=newest.job.task,
        queues=sorted({record.job.queue for record in records}),
        type=error.type,
        message=error.message,
        count=len(records),
        first_seen=moment(times[0]),
        last_seen=moment(times[-1]),
        last_job=newest.id,
        hours=spark(((at // HOUR * HOUR, 1) for at in times), now),
    )


def spark(counts: Iterable[tuple[int, int]], now: int) -> list[int]:
    """Counts by the hour's begin as a list of the last hours."""
    last, hours = now // HOUR, [0] * SPARK_HOURS
    for begin, count in counts:
        age = last - begin // HOUR
        if 0 <= age < SPARK_HOURS:
            hours[-1 - age] += count
    return hours
