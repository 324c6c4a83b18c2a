"""Reads jobs, queues and the feed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from dray.broker.actions import Query
from dray.broker.checks import error_kept, query_matches, read_number, shown_result
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore
from dray.broker.rules import NEVER
from dray.broker.verbs import Entry, Feed, QueueInfo
from dray.job import Record, State
from dray.policy import Retention

SCAN_FACTOR = 10
"""Jobs that a page may read for each one that it may return."""


def record(entry: JobEntry, now: int, retention: Retention) -> Record:
    job = entry.job
    return Record(
        job=job,
        state=entry.state,
        created=entry.created,
        due=entry.due,
        expires=entry.expires,
        deadline=entry.deadline,
        run=entry.run,
        settled=entry.settled,
        failures=entry.failures,
        crashes=entry.crashes,
        suspect=entry.suspect,
        cancel=entry.cancel,
        runs=tuple(entry.runs.values()),
        past=tuple(entry.past),
        waiting=tuple(sorted(entry.waiting)),
        started=entry.started,
        finished=entry.finished,
        reason=entry.reason,
        result=shown_result(job.result_ttl, entry.result, entry.finished, now, retention, job.owner),
        error=entry.error if error_kept(entry.state, entry.finished, now, retention, job.owner) else None,
        memos=len(entry.log),
        replayed=entry.replayed,
        suspended=entry.suspended,
        undo=entry.undo,
        orphaned_by=entry.orphaned_by,
    )


def scan(
    store: JobStore, query: Query, cursor: str | None, limit: int, now: int
) -> tuple[list[JobEntry], str | None]:
    """A page of matching jobs in the order of arrival, which no edit changes, and where to go on."""
    found: list[JobEntry] = []
    previous = after = read_number("cursor", cursor)
    arrived = sorted(store.jobs.values(), key=lambda entry: entry.number)
    for looked, entry in enumerate(entry for entry in arrived if entry.number > after):
        if len(found) == limit or looked == limit * SCAN_FACTOR:
            return found, str(previous)
        if query_matches(query, record(entry, now, store.retention)):
            found.append(entry)
        previous = entry.number
    return found, None


def page(
    store: JobStore, query: Query, cursor: str | None, limit: int, now: int
) -> tuple[list[JobEntry], str | None]:
    """A page of matching jobs by state and queue, and where to go on."""
    found: list[JobEntry] = []
    previous = after = _read_place(cursor)
    places = sorted(
        ((STATES.index(entry.state), entry.job.queue, entry.number), entry.job.id)
        for entry in store.jobs.values()
        if query.state in (None, entry.state) and query.queue in (None, entry.job.queue)
    )
    for looked, (place, id) in enumerate(item for item in places if item[0] > after):
        if len(found) == limit or looked == limit * SCAN_FACTOR:
            return found, ":".join(map(str, previous))
        if query_matches(query, record(store.jobs[id], now, store.retention)):
            found.append(store.jobs[id])
        previous = place
    return found, None


def arrived(
    store: JobStore, query: Query, cursor: str | None, limit: int, now: int
) -> tuple[list[JobEntry], str | None]:
    """A page of matching jobs by arrival, the newest first, and where to go on."""
    found: list[JobEntry] = []
    previous = before = NEVER if cursor is None else read_number("cursor", cursor)
    jobs = sorted(store.jobs.values(), key=lambda entry: -entry.number)
    for looked, entry in enumerate(entry for entry in jobs if entry.number < before):
        if len(found) == limit or looked == limit * SCAN_FACTOR:
            return found, str(previous)
        if query_matches(query, record(entry, now, store.retention)):
            found.append(entry)
        previous = entry.number
    return found, None


STATES = tuple(State)


def _read_place(cursor: str | None) -> tuple[int, str, int]:
    if cursor is None:
        return (-1, "", -1)
    state, _, rest = cursor.partition(":")
    queue, _, number = rest.partition(":")
    return (read_number("cursor", state), queue, read_number("cursor", number))


def tally(store: JobStore, owner: str, queues: Sequence[str]) -> dict[State, int]:
    """The nodes of a flow in these queues, by state."""
    nodes = (entry for entry in store.jobs.values() if entry.job.owner == owner and entry.job.node)
    counts = Counter(entry.state for entry in nodes if entry.job.queue in queues)
    return {state: counts[state] for state in State if counts[state]}


def info(store: JobStore) -> list[QueueInfo]:
    """Every queue that holds a job or a setting."""
    counts = Counter((entry.job.queue, entry.state) for entry in store.jobs.values())
    ready = _ready(store)
    return [
        QueueInfo(
            name=name,
            counts={state: n for state in State if (n := counts[name, state])},
            paused=queue.line.paused,
            limits=queue.line.limits,
            paused_tasks=dict(queue.line.paused_tasks),
            task_limits=dict(queue.line.task_limits),
            next_due=queue.due.first(),
            oldest_ready=min((oldest for _, oldest in ready.get(name, {}).values()), default=None),
            ready=dict(sorted(ready.get(name, {}).items())),
        )
        for name, queue in sorted(store.queues.items())
        if queue.has_settings() or any(of == name for of, _ in counts)
    ]


def _ready(store: JobStore) -> dict[str, dict[int, tuple[int, int]]]:
    """Queue → priority → how many ready jobs, and when the oldest was created."""
    found: dict[str, dict[int, tuple[int, int]]] = {}
    for entry in store.jobs.values():
        if entry.state is State.READY:
            of_queue = found.setdefault(entry.job.queue, {})
            count, oldest = of_queue.get(entry.job.priority, (0, entry.created))
            of_queue[entry.job.priority] = (count + 1, min(oldest, entry.created))
    return found


def read_feed(store: JobStore, cursor: Mapping[str, int] | None, limit: int) -> Feed:
    """New entries of every queue, and where to go on."""
    queues = store.queues
    if cursor is None:
        return Feed([], {name: queue.entries for name, queue in queues.items() if queue.feed})
    entries: list[Entry] = []
    reached, gaps = dict(cursor), []
    for name in sorted(name for name in queues if queues[name].feed):
        queue, after = queues[name], cursor.get(name, 0)
        oldest = queue.feed[0].number
        if name in cursor and (after + 1 < oldest or after > queue.entries):
            gaps.append(name)
            after = min(after, oldest - 1)
        new = [entry for entry in queue.feed if entry.number > after][: limit - len(entries)]
        entries += new
        if new:
            reached[name] = new[-1].number
    return Feed(entries, reached, tuple(gaps))
