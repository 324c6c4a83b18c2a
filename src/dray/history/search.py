"""Searches as SQL, newest first; found jobs, attempts and events as people see them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from dray.errors import InvalidInput
from dray.history.database import Row
from dray.history.language import Terms
from dray.history.store import SHIFT, Store
from dray.history.words import split
from dray.info import moment

COLUMNS: Final = (
    *("id", "task", "queue", "state", "priority", "attempt", "runs", "created", "started", "finished"),
    *("worker", "job_key", "job_group", "parent", "description", "tags", "args", "result", "progress"),
    *("error_type", "error", "traceback", "fingerprint", "reason"),
)
_TIMES: Final = ("created", "started", "finished")
_JSON: Final = ("tags", "args", "result", "progress")
_NAMES: Final = {"job_key": "key", "job_group": "group"}
Condition = tuple[str, tuple[object, ...]]
LOOK_THROUGH: Final = 20_000
"""Newest jobs that are looked through for a word before the index is asked, on PostgreSQL."""


class HistoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the history recorded it last."""

    id: str
    task: str
    queue: str
    state: str
    priority: int
    attempt: int
    runs: int
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    worker: str | None = None
    """The worker of its last run, where it is known."""
    key: str | None = None
    group: str | None = None
    parent: str | None = None
    description: str = ""
    tags: list[str] = []
    args: dict[str, Any] | None = None
    """By name of the parameter, or by place where that is not known; None if they are not recorded."""
    result: Any = None
    progress: list[Any] | None = None
    """Done, total, note and data of its last report."""
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None
    reason: str | None = None


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    run: int
    task: str
    queue: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    """`running`, or how it ended."""
    worker: str | None = None
    version: str | None = None
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None
    fingerprint: str | None = None


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to a job."""

    kind: str
    run: int
    at: datetime


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """All that the history knows of an id, the oldest first. An id that was used again has several jobs."""

    jobs: list[HistoryJob]
    attempts: list[Attempt]
    events: list[HistoryEvent]


def job_without_values(job: HistoryJob) -> HistoryJob:
    """The job without arguments, result and the text of its error, for callers that may not see them."""
    hidden = dict.fromkeys(("args", "result", "progress", "error", "traceback", "reason"))
    return msgspec.structs.replace(job, **hidden)


def without_values(found: JobHistory) -> JobHistory:
    attempts = [msgspec.structs.replace(run, error=None, traceback=None) for run in found.attempts]
    jobs = [job_without_values(job) for job in found.jobs]
    return JobHistory(jobs=jobs, attempts=attempts, events=found.events)


class HistoryPage(list[HistoryJob]):
    """A page of jobs, newest first; `cursor` leads to the next one, None if this was the last."""

    cursor: str | None = None


class Scope(msgspec.Struct, frozen=True):
    """The only queues and tasks that a caller sees; None: all."""

    queues: Collection[str] | None = None
    tasks: Collection[str] | None = None

    def sees(self, queue: str, task: str) -> bool:
        return (self.queues is None or queue in self.queues) and (self.tasks is None or task in self.tasks)


def search(store: Store, terms: Terms, scope: Scope, limit: int, cursor: str | None) -> HistoryPage:
    """The newest `limit` jobs that match, from a cursor on."""
    bounds, conditions = [*_bounds(store, terms, cursor)], [*_conditions(store, terms, scope)]
    phrases = _phrases(terms)
    if not phrases:
        rows = _rows(store, "jobs j", [*bounds, *conditions], limit)
    elif store.database.dialect == "sqlite":
        # In this order: the index of words leads, and is ordered by `seq`, its rowid.
        found = [(sql.replace("j.seq", "w.rowid"), values) for sql, values in bounds]
        source = "job_words w CROSS JOIN jobs j ON j.seq = w.rowid"
        rows = _rows(store, source, [*found, _words(store, phrases), *conditions], limit, "w.rowid")
    else:
        rows = _rows_by_words(store, bounds, [_words(store, phrases), *conditions], limit)
    page = HistoryPage(_job(row[1:]) for row in rows[:limit])
    page.cursor = str(rows[limit - 1][0]) if len(rows) > limit else None
    return page


def _rows(
    store: Store,
    source: str,
    conditions: Sequence[Condition],
    limit: int,
    order: str = "j.seq",
    given: Row = (),
) -> list[Row]:
    """One row more than the page holds tells that there is a next one. `given` are values of the source."""
    columns = ", ".join(f"j.{name}" for name in COLUMNS)
    where = " AND ".join(sql for sql, _ in conditions)
    statement = f"SELECT j.seq, {columns} FROM {source} WHERE {where} ORDER BY {order} DESC LIMIT ?"  # noqa: S608 (names)
    values = [value for _, values in conditions for value in values]
    return store.database.fetch(statement, [*given, *values, limit + 1])


def _rows_by_words(
    store: Store, bounds: Sequence[Condition], conditions: Sequence[Condition], limit: int
) -> list[Row]:
    """PostgreSQL cannot tell how frequent the beginning of a word is, and would read all rows for a rare one.

    So the newest jobs are looked through first; if they do not fill a page, the index finds the few others.
    """
    where = " AND ".join(sql for sql, _ in bounds)
    values = tuple(value for _, values in bounds for value in values)
    newest = f"(SELECT * FROM jobs j WHERE {where} ORDER BY j.seq DESC LIMIT {LOOK_THROUGH}) j"  # noqa: S608
    rows = _rows(store, newest, conditions, limit, given=values)
    if len(rows) > limit:
        return rows
    words, *rest = conditions
    hits = f"(SELECT * FROM jobs j WHERE {words[0]} OFFSET 0) j"  # noqa: S608 (OFFSET 0: planned by itself)
    return _rows(store, hits, [*bounds, *rest], limit, given=words[1])


def _read_cursor(cursor: str | None) -> int | None:
    if cursor is None:
        return None
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 20):
        raise InvalidInput("cursor", cursor, "only a cursor that an earlier page returned is allowed")
    return int(cursor)


def _bounds(store: Store, terms: Terms, cursor: str | None) -> Iterator[Condition]:
    """The part of all rows, ordered by `seq`, that is searched."""
    yield "j.ns = ?", (store.ns,)
    before = _read_cursor(cursor)
    if before is not None:
        yield "j.seq < ?", (before,)
    if terms.after is not None:
        yield "j.seq >= ?", (terms.after << SHIFT,)
    if terms.before is not None:
        yield "j.seq < ?", (terms.before << SHIFT,)


def _conditions(store: Store, terms: Terms, scope: Scope) -> Iterator[Condition]:
    for column, wanted, allowed in (("task", terms.task, scope.tasks), ("queue", terms.queue, scope.queues)):
        if wanted or allowed is not None:
            yield _any_of(column, _names(store, column, wanted, allowed))
    if terms.state:
        yield _any_of("state", terms.state)
    for column, value in terms.exact.items():
        yield f"j.{column} = ?", (value,)
    for tag in terms.tags:
        yield _has_tag(store, tag)
    for path, value in terms.args:
        yield _has_argument(store, path, value)


def _any_of(column: str, names: Sequence[str]) -> Condition:
    if len(names) == 1:
        return f"j.{column} = ?", tuple(names)
    return f"j.{column} IN ({', '.join('?' * len(names))})" if names else "1 = 0", tuple(names)


def _names(store: Store, column: str, wanted: Sequence[str], allowed: Collection[str] | None) -> list[str]:
    """The names that a filter means. Patterns are compared with the names that the sums know."""
    found = {name for name in wanted if not _is_pattern(name)}
    patterns = [name for name in wanted if _is_pattern(name)]
    if patterns:
        statement = f"SELECT DISTINCT {column} FROM rollups WHERE ns = ? AND unit = ?"  # noqa: S608 (two columns)
        known = [name for (name,) in store.database.fetch(statement, (store.ns, 86_400_000))]
        found |= {name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)}
    if allowed is not None:
        found = found & set(allowed) if wanted else set(allowed)
    return sorted(found)


def _is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def _has_tag(store: Store, tag: str) -> Condition:
    if store.database.dialect == "sqlite":
        return "EXISTS (SELECT 1 FROM json_each(j.tags) WHERE value = ?)", (tag,)
    return "j.tags @> ?::jsonb", (json.dumps([tag]),)


def _has_argument(store: Store, path: tuple[str, ...], value: str) -> Condition:
    """A text is compared as it is, and as the number, true, false or null that it may stand for."""
    try:
        other = json.loads(value)
    except ValueError:
        other = value
    wanted = [value] if isinstance(other, str | list | dict) else [value, other]
    if store.database.dialect == "sqlite":
        place = "$" + "".join(f'."{name}"' for name in path if '"' not in name)
        return f"json_extract(j.args, ?) IN ({', '.join('?' * len(wanted))})", (place, *wanted)
    nested = [_nested(path, one) for one in wanted]
    return f"({' OR '.join(['j.args @> ?::jsonb'] * len(nested))})", tuple(map(json.dumps, nested))


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


Phrase = tuple[list[str], str, bool]
"""Words in a row, the column they must be in, and whether the last may be the beginning of a longer one."""


def _phrases(terms: Terms) -> list[Phrase]:
    """The words asked for, and those that narrow a search by tag, key or argument."""
    exact = [split(tag) for tag in terms.tags]
    exact += [[*split(" ".join(path)), *split(value)] for path, value in terms.args]
    exact += [split(terms.exact[name]) for name in ("job_key", "job_group", "parent") if name in terms.exact]
    found: list[Phrase] = [(split(text), "", True) for text in terms.words]
    found += [(words, "", False) for words in exact]
    found += [(split(text), "error_words", True) for text in terms.errors]
    return [phrase for phrase in found if phrase[0]]


def _words(store: Store, phrases: Sequence[Phrase]) -> Condition:
    if store.database.dialect == "postgres":
        return "j.search @@ ?::text::tsquery", (" & ".join(map(_tsquery, phrases)),)
    if store.database.indexed:
        return "job_words MATCH ?", (" AND ".join(map(_fts_query, phrases)),)
    found = [_scan_condition(phrase) for phrase in phrases]
    return " AND ".join(sql for sql, _ in found), tuple(value for _, value in found)


def _scan_condition(phrase: Phrase) -> tuple[str, str]:
    """Without an index, the words are compared as text."""
    words, column, prefix = phrase
    text = f"w.{column}" if column else "w.words || ' ' || w.error_words"
    return f"' ' || {text} || ' ' LIKE ?", f"% {' '.join(words)}{'' if prefix else ' '}%"


def _tsquery(phrase: Phrase) -> str:
    words, column, prefix = phrase
    weight = "B" if column else ""
    *rest, last = [f"'{word}':{weight}" if weight else f"'{word}'" for word in words]
    if prefix:
        last = f"'{words[-1]}':*{weight}"
    return f"({' <-> '.join([*rest, last])})"


def _fts_query(phrase: Phrase) -> str:
    words, column, prefix = phrase
    quoted = f'"{" ".join(words)}"'
    return f"{column + ' : ' if column else ''}{quoted}{' *' if prefix else ''}"


def _job(row: Row) -> HistoryJob:
    fields = dict(zip(COLUMNS, row, strict=True))
    for name in _TIMES:
        value = fields.pop(name)
        fields[f"{name}_at"] = None if value is None else moment(value)
    for name in _JSON:
        fields[name] = None if fields[name] is None else json.loads(fields[name])
    return HistoryJob(**{_NAMES.get(name, name): value for name, value in fields.items()})


def job_history(store: Store, id: str) -> JobHistory:
    """All that is recorded of an id."""
    fetch, sql = store.database.fetch, store.database.sql
    columns = ", ".join(COLUMNS)
    statement = f"SELECT {columns} FROM jobs WHERE ns = ? AND id = ? ORDER BY created"  # noqa: S608 (names)
    return JobHistory(
        jobs=[_job(row) for row in fetch(statement, (store.ns, id))],
        attempts=[_attempt(row) for row in fetch(sql["read_attempts"], (store.ns, id))],
        events=[
            HistoryEvent(kind=kind, run=run, at=moment(at))
            for kind, run, at in fetch(sql["read_events"], (store.ns, id))
        ],
    )


def _attempt(row: Row) -> Attempt:
    run, task, queue, started, ended, outcome, worker, version, *error = row
    kind, message, traceback, fingerprint = error
    return Attempt(
        run=run,
        task=task,
        queue=queue,
        started_at=moment(started),
        ended_at=None if ended is None else moment(ended),
        outcome=outcome,
        worker=worker,
        version=version,
        error_type=kind,
        error=message,
        traceback=traceback,
        fingerprint=fingerprint,
    )
