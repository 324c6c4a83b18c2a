"""Reading: records, pages, queues, documents and the feed."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

import msgspec

from dray.broker.actions import Query
from dray.broker.checks import (
    decode_error,
    decode_pause,
    decode_progress,
    error_kept,
    query_matches,
    read_number,
    reader,
    shown_result,
    unreadable,
)
from dray.broker.rules import NEVER, later
from dray.broker.sqlite.rows import (
    DUE,
    NUMBER,
    STATES,
    decode_limits,
    decode_past,
    decode_suspension,
    decode_undo,
    encode,
)
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Doc, DocWrite, Entry, Event, Feed, Limits, QueueInfo
from dray.codec.payload import unpack
from dray.errors import CodecError, DecodeError, InvalidInput
from dray.job import Error, Job, Record, Run, State

SCAN_FACTOR = 10
"""Jobs that a page may read for each one that it may return."""
FEW = 5000
"""Up to so many jobs of a state or queue are sorted by arrival; of more, all arrivals are looked through."""
OLDER = 1000
"""After so many arrivals in a row that are too old, the search for newer ones ends."""

_decode_events: Callable[[bytes], tuple[Event, ...]] = reader(tuple[Event, ...], ())
Stored = int | float | str | bytes | None
"""The types that a column of any kind can hold."""
_read_spot: Callable[[bytes], tuple[Any, Any, Any]] = msgspec.msgpack.Decoder(tuple[Any, Any, Any]).decode
_BEFORE_ALL: Final = (-(2**63), -(2**63), -(2**63))
_NUMBERS: Final = range(len(STATES))
Row = tuple[Any, ...]
"""A row of the statement `record`."""


def to_record(tx: Transaction, row: Row) -> Record:
    """The record; damaged columns make it an `unreadable` one."""
    try:
        return _record(tx, row)
    except Exception as error:
        state = STATES[row[1]] if row[1] in _NUMBERS else State.DEAD
        return unreadable(row[13], row[17], state, error)


@contextlib.contextmanager
def any_text(db: sqlite3.Connection) -> Iterator[None]:
    """Read also text that is no UTF-8."""
    before, db.text_factory = db.text_factory, _lenient
    try:
        yield
    finally:
        db.text_factory = before


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "backslashreplace")


def _record(tx: Transaction, row: Row) -> Record:
    seq, number, pos, created, expires, run, settled, failures, crashes, suspect, cancel = row[:11]
    started, finished = row[11:13]
    deadline, result, error, reason, owner, memos, replayed, suspended, undo, orphaned_by, past = row[20:]
    job, state = _job(row), STATES[number]
    fields = {
        "job": job,
        "state": state,
        "created": created,
        "due": pos if number in DUE else None,
        "expires": expires,
        "deadline": deadline,
        "run": run,
        "settled": settled,
        "failures": failures,
        "crashes": crashes,
        "suspect": suspect,
        "cancel": cancel,
        "runs": _runs(tx.db, seq) if state is State.RUNNING else (),
        "past": decode_past(past) if past else (),
        "waiting": _waiting(tx.db, seq) if state is State.WAITING else (),
        "started": started,
        "finished": finished,
        "reason": reason,
        "result": shown_result(row[18], result, finished, tx.now, tx.retention, owner),
        "error": _error(error) if error_kept(state, finished, tx.now, tx.retention, owner) else None,
        "memos": memos or 0,
        "replayed": replayed or 0,
        "suspended": decode_suspension(suspended) if suspended else None,
        "undo": decode_undo(undo) if undo else None,
        "orphaned_by": orphaned_by,
    }
    return msgspec.convert(fields, Record)  # which checks types, and is as fast as the class itself


def _job(row: Row) -> Job:
    """The job as it stands; one whose bytes cannot be read shows what the row says, and the bytes."""
    id, task, priority, version, queue = row[13:18]
    if not (str is type(id) is type(task) is type(queue) and int is type(priority) is type(version)):
        raise DecodeError("its row holds values of other types than dray writes")
    try:
        return read_job(row[19], id, priority, version)
    except CodecError:
        payload = row[19] if isinstance(row[19], bytes) else b""
        return Job(id=id, task=task, priority=priority, version=version, queue=queue, payload=payload)


def read_job(envelope: bytes | None, id: str, priority: int, version: int) -> Job:
    """A stored job, with the priority of its row, which may have been edited."""
    job = unpack(envelope or b"", version)
    if job.id != id:
        raise DecodeError(f"the bytes are those of {job.id}")
    return job if job.priority == priority else msgspec.structs.replace(job, priority=priority)


def _error(packed: bytes | None) -> Error | None:
    return None if packed is None else decode_error(packed)


def _runs(db: sqlite3.Connection, seq: int) -> tuple[Run, ...]:
    return tuple(
        msgspec.convert((number, session, since, decode_progress(progress) if progress else None), Run)
        for _, number, since, progress, session in db.execute(SQL["runs_of"], (seq,))
    )


def _waiting(db: sqlite3.Connection, seq: int) -> tuple[str, ...]:
    return tuple(name for (name,) in db.execute(SQL["dependencies"], (seq,)))


def get_records(tx: Transaction, ids: Sequence[str]) -> list[Record | None]:
    statement = where("record", "j.ns = ? AND j.id = ?")
    with any_text(tx.db):
        rows = [tx.db.execute(statement, (tx.ns, id)).fetchone() for id in ids]
        return [None if row is None else to_record(tx, row) for row in rows]


def page(tx: Transaction, query: Query, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    """A page of matching jobs by state and queue, and where to go on."""
    with any_text(tx.db):
        return _page(tx, query, cursor, limit)


def _page(tx: Transaction, query: Query, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    queues = [row[:2] for row in tx.db.execute(SQL["all_queues"], (tx.ns,)).fetchall()]
    states = range(len(STATES)) if query.state is None else [NUMBER[query.state]]
    after = _read_cursor(cursor)
    found: list[Record] = []
    looked = 0
    for state, (queue, name) in product(states, queues):
        if (state, name) < after[:2] or query.queue not in (None, name):
            continue
        start = after[2:] if (state, name) == after[:2] else _BEFORE_ALL
        for row in tx.db.execute(_PAGE, (queue, state, *start)):
            if len(found) == limit or looked == limit * SCAN_FACTOR:
                return found, f"{after[0]}:{after[1]}:{encode(after[2:]).hex()}"
            looked += 1
            after = (state, name, row[-1], row[2], row[0])
            record = to_record(tx, row[:-1])
            if query_matches(query, record):
                found.append(record)
    return found, None


_PAGE = (
    SQL["record"].replace("p.runs\n", "p.runs, j.lane\n")
    + " WHERE j.queue = ? AND j.state = ? AND (j.lane, j.pos, j.seq) > (?, ?, ?)"
    + " ORDER BY j.lane, j.pos, j.seq"
)


def newest(tx: Transaction, query: Query, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    """A page of matching jobs by arrival, the newest first, and where to go on."""
    with any_text(tx.db):
        return _newest(tx, query, cursor, limit)


def _newest(tx: Transaction, query: Query, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
    previous = before = NEVER if cursor is None else read_number("cursor", cursor)
    most = limit * SCAN_FACTOR if query.since is None else max(limit * SCAN_FACTOR, OLDER + 1)
    found: list[Record] = []
    older = 0
    for looked, (seq, id, created, *row) in enumerate(_arrivals(tx, query, before, most)):
        if len(found) == limit or looked == most:
            return found, None if older >= OLDER else str(previous)
        old = query.since is not None and isinstance(created, int) and created < query.since
        older = older + 1 if old else 0
        if older <= OLDER and _may_match(query, row):
            found += [one for one in get_records(tx, [id]) if one is not None and query_matches(query, one)]
        previous = seq
    return found, None


def _arrivals(tx: Transaction, query: Query, before: int, most: int) -> Iterator[Row]:
    few = _few(tx, query, before)
    if few is None:
        yield from tx.db.execute(SQL["arrived_before"], (before, tx.ns, most + 1)).fetchall()
    else:
        for seq in few[: most + 1]:
            yield from tx.db.execute(SQL["arrived_as"], (seq,)).fetchall()


def _few(tx: Transaction, query: Query, before: int) -> list[int] | None:
    """The jobs of a state or queue, the newest first; None if there are many, or all are wanted."""
    if query.state is None and query.queue is None:
        return None
    found: list[int] = []
    states = range(len(STATES)) if query.state is None else [NUMBER[query.state]]
    for queue, name, *_ in tx.db.execute(SQL["all_queues"], (tx.ns,)).fetchall():
        for state in states if query.queue in (None, name) else ():
            values = (queue, state, FEW + 1 - len(found))
            found += [seq for (seq,) in tx.db.execute(SQL["seqs_of_state"], values)]
            if len(found) > FEW:
                return None
    return sorted((seq for seq in found if seq < before), reverse=True)


def scan_arrived(
    tx: Transaction, query: Query, cursor: str | None, limit: int
) -> tuple[tuple[str, ...], str | None]:
    """Matching ids in the order of arrival, which no edit changes, and where to go on."""
    previous = read_number("cursor", cursor)
    most = limit * SCAN_FACTOR
    rows = tx.db.execute(SQL["arrived"], (previous, tx.ns, most + 1)).fetchall()
    found: list[str] = []
    for looked, (seq, id, *row) in enumerate(rows):
        if len(found) == limit or looked == most:
            return tuple(found), str(previous)
        if _may_match(query, row) and _matches(tx, query, id):
            found.append(id)
        previous = seq
    return tuple(found), None


def _may_match(query: Query, row: list[Any]) -> bool:
    """The row alone does not rule the job out; saves reading envelopes."""
    state, queue, task, priority, group, key = row
    return (
        query.state in (None, STATES[state] if state in _NUMBERS else State.DEAD)
        and query.queue in (None, queue)
        and query.task in (None, task)
        and (query.priorities is None or priority in query.priorities)
        and query.group in (None, group)
        and query.key in (None, key)
    )


def _matches(tx: Transaction, query: Query, id: str) -> bool:
    if query.tag is None and query.parent is None and query.since is None:
        return True
    (record,) = get_records(tx, [id])
    return record is not None and query_matches(query, record)


def _read_cursor(cursor: str | None) -> tuple[int, str, Stored, Stored, Stored]:
    if cursor is None:
        return (-1, "", *_BEFORE_ALL)
    state, _, rest = cursor.partition(":")
    queue, _, spot = rest.rpartition(":")
    try:
        found = _read_spot(bytes.fromhex(spot))
    except (ValueError, msgspec.DecodeError):
        found = ((), (), ())
    if not all(
        isinstance(one, Stored) and (type(one) is not int or -(2**63) <= one < 2**63) for one in found
    ):
        raise InvalidInput("cursor", cursor, "only a cursor that an earlier page returned is allowed")
    return (read_number("cursor", state), queue, *found)


def queue_infos(db: sqlite3.Connection, ns: int) -> list[QueueInfo]:
    """Every queue that holds a job or a setting."""
    with any_text(db):
        return _queue_infos(db, ns)


def _queue_infos(db: sqlite3.Connection, ns: int) -> list[QueueInfo]:
    infos = []
    for id, name, paused, limits in db.execute(SQL["all_queues"], (ns,)).fetchall():
        counts = {STATES[row[0]]: row[1] for row in db.execute(SQL["counts"], (id,)) if row[0] in _NUMBERS}
        tasks = db.execute(SQL["task_settings"], (id,)).fetchall()
        if not (counts or tasks or paused or limits):
            continue
        rows = db.execute(SQL["ready_by_priority"], (id,))
        ready = {row[0]: (row[1], row[2]) for row in rows if int is type(row[0]) is type(row[2])}
        (due,) = db.execute(SQL["next_due"], (id,)).fetchone()
        infos.append(
            QueueInfo(
                name=name,
                counts={state: counts[state] for state in State if state in counts},
                paused=decode_pause(paused) if paused else None,
                limits=decode_limits(limits) if limits else Limits(),
                paused_tasks={task: decode_pause(stop) for task, stop, _ in tasks if stop},
                task_limits={task: decode_limits(limit) for task, _, limit in tasks if limit},
                next_due=due if isinstance(due, int) else None,
                oldest_ready=min((oldest for _, oldest in ready.values()), default=None),
                ready=ready,
            )
        )
    return infos


def read_doc(tx: Transaction, kind: str, name: str) -> Doc | None:
    row = tx.db.execute(SQL["read_doc"], (tx.ns, kind, name, tx.now)).fetchone()
    return None if row is None else Doc(kind, name, *row)


def write_doc(tx: Transaction, write: DocWrite) -> bool:
    doc = read_doc(tx, write.kind, write.name)
    version = 0 if doc is None else doc.version
    if write.expect_version is not None and write.expect_version != version:
        return False
    number = tx.db.execute(SQL["next_version"], (tx.ns, tx.now)).fetchone()[0]
    if write.value is None:
        tx.db.execute(SQL["delete_doc"], (tx.ns, write.kind, write.name))
    else:
        expires = later(write.ttl, tx.now)
        tx.db.execute(SQL["write_doc"], (tx.ns, write.kind, write.name, write.value, number, expires))
    return True


def read_docs(tx: Transaction, kind: str) -> list[Doc]:
    rows = tx.db.execute(SQL["read_docs"], (tx.ns, kind, tx.now))
    return [Doc(kind, name, value, version, expires) for name, value, version, expires in rows]


def read_feed(db: sqlite3.Connection, ns: int, cursor: Mapping[str, int] | None, limit: int) -> Feed:
    ends = db.execute(SQL["feed_ends"], (ns,)).fetchall()
    if cursor is None:
        return Feed([], {name: entries for _, name, entries, _ in ends})
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
