"""Reading: records, pages, queues, documents and the feed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import msgspec

from dray.broker.checks import error_kept, query_matches, read_number, shown_result
from dray.broker.sqlite.rows import DUE, NUMBER, STATES, decode_error, decode_limits, decode_pause, reader
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.step import Step
from dray.broker.verbs import Doc, DocWrite, Entry, Event, Feed, Limits, Query, QueueInfo
from dray.codec import unpack
from dray.errors import CodecError, DecodeError
from dray.job import Error, Job, Progress, Record, Run, State

SCAN_FACTOR = 10
"""How many jobs a page may look at for each one it may return."""

_decode_progress = reader(Progress, Progress(0.0, note="the stored progress cannot be read"))
_decode_events: Callable[[bytes], tuple[Event, ...]] = reader(tuple[Event, ...], ())
Row = tuple[Any, ...]
"""A row of the statement `record`."""


def to_record(step: Step, row: Row) -> Record:
    seq, number, pos, created, expires, run, settled, failures, crashes, suspect, cancel = row[:11]
    started, finished = row[11:13]
    result, error, reason = row[20:]
    job, state = _job(row), STATES[number]
    return Record(
        job=job,
        state=state,
        created=created,
        due=pos if number in DUE else None,
        expires=expires,
        run=run,
        settled=settled,
        failures=failures,
        crashes=crashes,
        suspect=bool(suspect),
        cancel=cancel,
        runs=_runs(step.db, seq) if state is State.RUNNING else (),
        waiting=_waiting(step.db, seq) if state is State.WAITING else (),
        started=started,
        finished=finished,
        reason=reason,
        result=shown_result(row[18], result, finished, step.now, step.retention),
        error=_error(error) if error_kept(state, finished, step.now, step.retention) else None,
    )


def _job(row: Row) -> Job:
    """The job as it stands; one whose bytes cannot be read shows what the row says, and the bytes."""
    id, task, priority, version, queue = row[13:18]
    try:
        return read_job(row[19], id, priority, version)
    except CodecError:
        return Job(id=id, task=task, priority=priority, version=version, queue=queue, payload=row[19] or b"")


def read_job(envelope: bytes | None, id: str, priority: int, version: int) -> Job:
    """A stored job. Its row has the last word on the priority, which may have been edited."""
    job = unpack(envelope or b"", version)
    if job.id != id:
        raise DecodeError(f"the bytes are those of {job.id}")
    return job if job.priority == priority else msgspec.structs.replace(job, priority=priority)


def _error(packed: bytes | None) -> Error | None:
    return None if packed is None else decode_error(packed)


def _runs(db: sqlite3.Connection, seq: int) -> tuple[Run, ...]:
    return tuple(
        Run(number, session, since, _decode_progress(progress) if progress else None)
        for _, number, since, progress, session in db.execute(SQL["runs_of"], (seq,))
    )


def _waiting(db: sqlite3.Connection, seq: int) -> tuple[str, ...]:
    return tuple(name for (name,) in db.execute(SQL["dependencies"], (seq,)))


def get_records(step: Step, ids: Sequence[str]) -> list[Record | None]:
    statement = where("record", "j.ns = ? AND j.id = ?")
    rows = [step.db.execute(statement, (step.ns, id)).fetchone() for id in ids]
    return [None if row is None else to_record(step, row) for row in rows]


def page(step: Step, query: Query, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    """A page of matching jobs by state and queue, and where to go on."""
    queues = [row[:2] for row in step.db.execute(SQL["all_queues"], (step.ns,)).fetchall()]
    states = range(len(STATES)) if query.state is None else [NUMBER[query.state]]
    after = _read_cursor(cursor)
    found: list[Record] = []
    looked = 0
    for state, (queue, name) in product(states, queues):
        if (state, name) < after[:2] or query.queue not in (None, name):
            continue
        start = after[2:] if (state, name) == after[:2] else (-1, -1, -1)
        for row in step.db.execute(_PAGE, (queue, state, *start)):
            if len(found) == limit or looked == limit * SCAN_FACTOR:
                return found, ":".join(map(str, after))
            looked += 1
            after = (state, name, row[-1], row[2], row[0])
            record = to_record(step, row[:-1])
            if query_matches(query, record):
                found.append(record)
    return found, None


_PAGE = (
    SQL["record"].replace("e.reason\n", "e.reason, j.lane\n")
    + " WHERE j.queue = ? AND j.state = ? AND (j.lane, j.pos, j.seq) > (?, ?, ?)"
    + " ORDER BY j.lane, j.pos, j.seq"
)


def scan_arrived(
    step: Step, query: Query, cursor: str | None, limit: int
) -> tuple[tuple[str, ...], str | None]:
    """Matching ids in the order of arrival, which no edit changes, and where to go on."""
    previous = read_number("cursor", cursor)
    most = limit * SCAN_FACTOR
    rows = step.db.execute(SQL["arrived"], (previous, step.ns, most + 1)).fetchall()
    found: list[str] = []
    for looked, (seq, id, *row) in enumerate(rows):
        if len(found) == limit or looked == most:
            return tuple(found), str(previous)
        if _may_match(query, row) and _matches(step, query, id):
            found.append(id)
        previous = seq
    return tuple(found), None


def _may_match(query: Query, row: list[Any]) -> bool:
    """What the row alone can tell, so that few envelopes need be read."""
    state, queue, task, priority, group, key = row
    return (
        query.state in (None, STATES[state])
        and query.queue in (None, queue)
        and query.task in (None, task)
        and (query.priorities is None or priority in query.priorities)
        and query.group in (None, group)
        and query.key in (None, key)
    )


def _matches(step: Step, query: Query, id: str) -> bool:
    if query.tag is None and query.parent is None:
        return True
    (record,) = get_records(step, [id])
    return record is not None and query_matches(query, record)


def _read_cursor(cursor: str | None) -> tuple[int, str, int, int, int]:
    if cursor is None:
        return (-1, "", -1, -1, -1)
    state, queue, *spot = (cursor + "::::").split(":")[:5]
    lane, pos, seq = (read_number("cursor", number) for number in spot)
    return (read_number("cursor", state), queue, lane, pos, seq)


def queue_infos(db: sqlite3.Connection, ns: int) -> list[QueueInfo]:
    """Every queue that holds a job or a setting."""
    infos = []
    for id, name, paused, limits in db.execute(SQL["all_queues"], (ns,)).fetchall():
        counts = {STATES[state]: count for state, count in db.execute(SQL["counts"], (id,))}
        tasks = db.execute(SQL["task_settings"], (id,)).fetchall()
        if not (counts or tasks or paused or limits):
            continue
        ready = {row[0]: (row[1], row[2]) for row in db.execute(SQL["ready_by_priority"], (id,))}
        infos.append(
            QueueInfo(
                name=name,
                counts={state: counts[state] for state in State if state in counts},
                paused=decode_pause(paused) if paused else None,
                limits=decode_limits(limits) if limits else Limits(),
                paused_tasks={task: decode_pause(stop) for task, stop, _ in tasks if stop},
                task_limits={task: decode_limits(limit) for task, _, limit in tasks if limit},
                next_due=db.execute(SQL["next_due"], (id,)).fetchone()[0],
                oldest_ready=min((oldest for _, oldest in ready.values()), default=None),
                ready=ready,
            )
        )
    return infos


def read_doc(step: Step, kind: str, name: str) -> Doc | None:
    row = step.db.execute(SQL["read_doc"], (step.ns, kind, name, step.now)).fetchone()
    return None if row is None else Doc(kind, name, *row)


def write_doc(step: Step, write: DocWrite) -> bool:
    doc = read_doc(step, write.kind, write.name)
    version = 0 if doc is None else doc.version
    if write.expect_version is not None and write.expect_version != version:
        return False
    number = step.db.execute(SQL["next_version"], (step.ns,)).fetchone()[0]
    if write.value is None:
        step.db.execute(SQL["delete_doc"], (step.ns, write.kind, write.name))
    else:
        expires = None if write.ttl is None else step.now + write.ttl
        step.db.execute(SQL["write_doc"], (step.ns, write.kind, write.name, write.value, number, expires))
    return True


def read_docs(step: Step, kind: str) -> list[Doc]:
    rows = step.db.execute(SQL["read_docs"], (step.ns, kind, step.now))
    return [Doc(kind, name, value, version, expires) for name, value, version, expires in rows]


def read_feed(db: sqlite3.Connection, ns: int, cursor: Mapping[str, int] | None, limit: int) -> Feed:
    ends = db.execute(SQL["feed_ends"], (ns,)).fetchall()
    if cursor is None:
        return Feed([], {name: entries for _, name, entries, _ in ends if entries})
    found: list[Entry] = []
    reached, gaps = dict(cursor), []
    for id, name, entries, oldest in ends:
        after = cursor.get(name, 0)
        if name in cursor and (after + 1 < oldest or after > entries):
            gaps.append(name)
            after = min(after, oldest - 1)
        new = [
            Entry(name, number, at, _decode_events(body))
            for number, at, body in db.execute(SQL["read_entries"], (id, after, limit - len(found)))
        ]
        found += new
        if new:
            reached[name] = new[-1].number
    return Feed(found, reached, tuple(gaps))
