"""A job as shown to people: everything known about it, in readable units."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dray.codec.inputs import HEADER, Reference
from dray.codec.values import MAX_DEPTH
from dray.durable.copying import RERUN
from dray.errors import CodecError
from dray.job import Error, Progress, Record, State, Suspension, lone_run

if TYPE_CHECKING:
    from dray.app import App


DEPTH_MAX: Final = MAX_DEPTH + 10
"""Nesting of containers that is shown: as deep as dray writes, and some levels around it."""
_NOT_SUSPENDED: Final = Suspension()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a job."""

    number: int
    outcome: str
    """`running`, or how it ended: `succeeded`, `failed`, `cancelled`, `crashed`, `lost`, `given_back`,
    `overtaken`."""
    started_at: datetime
    ended_at: datetime | None = None
    worker: str | None = None
    """The session that ran it; None if it was not recorded (the only run of a job, which succeeded)."""
    error: str = ""
    """Its error, shortened."""


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stood when it was read."""

    id: str
    task: str
    queue: str
    priority: int
    status: State
    attempt: int
    """The current or last attempt, from 1; 0 before the first."""
    args: tuple[Any, ...] | None
    """None if they cannot be read here."""
    kwargs: dict[str, Any] | None
    created_at: datetime
    updated_at: datetime
    """The newest time known: when it was enqueued, or a run began or ended."""
    due_at: datetime | None = None
    """When it is or was due: its next try while retrying, otherwise the time it was enqueued for."""
    expires_at: datetime | None = None
    deadline: datetime | None = None
    """When it dies unless it is finished by then."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    result: Any = None
    error: Error | None = None
    """Of its last failed run."""
    reason: str | None = None
    """Why it is dead or cancelled."""
    progress: Progress | None = None
    worker: str | None = None
    """The session that runs it."""
    runs: int = 0
    failures: int = 0
    """Runs that failed, the last one of a dead job included."""
    crashes: int = 0
    retries: int = 0
    timeout: float | None = None
    """Seconds; None means the worker's setting."""
    key: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    description: str = ""
    waits_for: tuple[str, ...] = ()
    """Jobs it still waits for."""
    parent: str | None = None
    cancelling: bool = False
    """It is running and was asked to stop."""
    run_history: tuple[RunInfo, ...] = ()
    """Its newest runs, oldest first: 20 that have ended, and the current ones."""
    flow: str | None = None
    """The flow that it belongs to, or the durable job that called it, ..."""
    node: str = ""
    """... and its name in the flow."""
    headers: dict[str, str] = {}
    """Headers that travel with it; a job of a schedule names its `schedule` and `tick`."""
    sleeps_until: datetime | None = None
    """While it is suspended: the end of its sleep, the time-out of an event, the next try of a step."""
    waits_for_events: tuple[str, ...] = ()
    parked: bool = False
    """Its code has changed (`reason` says how): `job.resume()` goes on with it."""
    undoing: bool = False
    """It has failed or was cancelled, and its undos run before that is its state."""
    rerun_of: str | None = None
    """The job that it repeats."""
    log_entries: int = 0
    """Entries of its log: `job.steps()` reads them. 0 for a job without durable steps."""


def describe(record: Record, app: App) -> JobInfo:
    """The description of a record."""
    job = record.job
    newest = record.runs[-1] if record.runs else None
    args, kwargs = _call(record, app)
    suspended = record.suspended or _NOT_SUSPENDED
    return JobInfo(
        id=job.id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        status=record.state,
        attempt=record.attempt,
        args=args,
        kwargs=kwargs,
        created_at=moment(record.created),
        updated_at=moment(_updated(record)),
        due_at=_maybe(job.due if record.due is None else record.due),
        expires_at=_maybe(record.expires),
        deadline=_maybe(record.deadline),
        started_at=_maybe(record.started),
        finished_at=_maybe(record.finished),
        result=_result(record, app),
        error=record.error,
        reason=record.reason,
        progress=None if newest is None else newest.progress,
        worker=None if newest is None else newest.session,
        runs=record.run,
        failures=record.failures,
        crashes=record.crashes,
        retries=job.retries,
        timeout=None if job.timeout is None else job.timeout / 1000,
        key=job.key,
        group=job.group,
        tags=job.tags,
        description=job.description,
        waits_for=record.waiting or suspended.jobs,
        parent=job.parent,
        cancelling=record.cancel is not None,
        run_history=_run_history(record),
        flow=job.owner,
        node=job.node,
        headers=job.headers,
        sleeps_until=_maybe(suspended.until),
        waits_for_events=tuple(suspended.events),
        parked=suspended.parked,
        undoing=record.undo is not None and not record.state.finished,
        rerun_of=job.headers.get(RERUN),
        log_entries=record.memos,
    )


def without_values(info: JobInfo) -> JobInfo:
    """A job without what a task was given and returned, for those who may not see it."""
    error = None if info.error is None else Error(info.error.type, "")
    progress = None if info.progress is None else Progress(info.progress.done, info.progress.total)
    return msgspec.structs.replace(
        info,
        args=None,
        kwargs=None,
        result=None,
        error=error,
        reason=info.reason if error is None else f"failed: {error.type}",
        progress=progress,
        run_history=tuple(msgspec.structs.replace(run, error="") for run in info.run_history),
    )


def _run_history(record: Record) -> tuple[RunInfo, ...]:
    past = record.past
    if not past and record.state is State.SUCCEEDED:
        past = (lone_run(record.started, record.finished),)
    ended = [
        RunInfo(
            number=run.number,
            outcome=run.how,
            started_at=moment(run.since),
            ended_at=moment(run.ended),
            worker=run.session or None,
            error=run.error,
        )
        for run in past
    ]
    going_on = [
        RunInfo(number=run.number, outcome="running", started_at=moment(run.since), worker=run.session)
        for run in record.runs
    ]
    return tuple(sorted([*ended, *going_on], key=lambda run: run.number))


def _updated(record: Record) -> int:
    """Brokers do not store the time of every change, because each step would have to write it."""
    times = (record.created, record.started, record.finished, *(run.ended for run in record.past))
    return max(at for at in times if at is not None)


def moment(ms: int) -> datetime:
    """A broker time as a datetime in UTC; clamped to the first or last of the calendar."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _LAST if ms > 0 else _FIRST


def _maybe(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def _call(record: Record, app: App) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    try:
        args, kwargs = app.codecs.decode_call(record.job.payload, limit=app.settings.max_payload)
    except CodecError:
        return None, None
    if record.job.payload[:1] != HEADER:
        return args, kwargs
    ids = record.job.waits_for
    return tuple(_with_ids(one, ids) for one in args), {
        name: _with_ids(one, ids) for name, one in kwargs.items()
    }


def _with_ids(value: Any, ids: Sequence[str]) -> Any:
    """References to other jobs by id, instead of by place."""
    if isinstance(value, Reference):
        many = isinstance(value.result_of, list)
        found = [ids[int(one)] for one in value.result_of] if many else ids[int(str(value.result_of))]
        return Reference(found)
    if isinstance(value, list):
        return [_with_ids(one, ids) for one in value]
    return {name: _with_ids(one, ids) for name, one in value.items()} if type(value) is dict else value


def _result(record: Record, app: App) -> Any:
    if record.result is None:
        return None
    task = app.tasks.get(record.job.task)
    for kind in (Any,) if task is None else (task.hints.returns, Any):  # Any: if it does not fit
        try:
            return app.codecs.decode_value(record.result, kind, limit=app.settings.max_result)
        except CodecError:
            continue
    return None


def plain(value: object, depth: int = 0) -> Any:
    """Any value of a job in JSON types; a value that cannot be shown becomes a text that says so."""
    try:
        if depth <= DEPTH_MAX:
            return _plain(value, depth + 1)
    except Exception:  # noqa: S110  # users' classes may raise anything
        pass
    return f"(cannot be shown: {type(value).__name__})"


def _plain(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > 64:
            int.__repr__(value)  # ValueError if it has more digits than Python will write
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value, depth)
    if isinstance(value, str):
        return _text(str(value))
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name), depth) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name), depth) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return plain(value.model_dump(), depth)
    if isinstance(value, Mapping):
        return {str(plain(key, depth)): plain(item, depth) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item, depth) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item, depth) for item in value), key=repr)
    return _text(str(value))


def _text(text: str) -> str:
    """Escape half surrogate pairs, which no reply can hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
