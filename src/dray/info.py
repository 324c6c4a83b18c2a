"""What is shown of a job: everything known, in the words and units of people."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from dray.errors import CodecError
from dray.job import Error, Progress, Record, State

if TYPE_CHECKING:
    from dray.app import App


class JobInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it stood when it was read."""

    id: str
    task: str
    queue: str
    priority: int
    status: State
    attempt: int
    """The attempt that runs or ran last, from 1; 0 before the first."""
    args: tuple[Any, ...] | None
    """None if they cannot be read here."""
    kwargs: dict[str, Any] | None
    created_at: datetime
    due_at: datetime | None = None
    expires_at: datetime | None = None
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
    """It runs, and was asked to stop."""
    headers: dict[str, str] = {}
    """What travels with it; a job of a schedule says which one (`schedule`) and which `tick` it is for."""


def describe(record: Record, app: App) -> JobInfo:
    """What a broker knows of a job, for people."""
    job = record.job
    newest = record.runs[-1] if record.runs else None
    args, kwargs = _call(record, app)
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
        due_at=_maybe(record.due),
        expires_at=_maybe(record.expires),
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
        waits_for=record.waiting,
        parent=job.parent,
        cancelling=record.cancel is not None,
        headers=job.headers,
    )


def moment(ms: int) -> datetime:
    """A time of the broker as a datetime in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)


def _maybe(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def _call(record: Record, app: App) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    try:
        return app.codecs.decode_call(record.job.payload, limit=app.settings.max_payload)
    except CodecError:
        return None, None


def _result(record: Record, app: App) -> Any:
    if record.result is None:
        return None
    task = app.tasks.get(record.job.task)
    for kind in (Any,) if task is None else (task.hints.returns, Any):  # if it does not fit, as it is
        try:
            return app.codecs.decode_value(record.result, kind, limit=app.settings.max_result)
        except CodecError:
            continue
    return None


def plain(value: object) -> Any:
    """Anything a job can hold, in the types that JSON has."""
    if value is None or isinstance(value, bool | int) or type(value) is str:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return plain(value.model_dump())
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    return str(value)
