"""The log of a job as a list of steps for people: `job.steps()`, `dray jobs show`, the HTTP API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from dray.durable.entries import (
    Accepted,
    Child,
    Copied,
    Expired,
    Failure,
    Intent,
    Mail,
    Marker,
    Sleep,
    Try,
    Value,
    Wait,
    Winner,
    unpack_entry,
)
from dray.job import Error

Status = Literal["done", "failed", "trying", "sleeping", "waiting", "timed out", "began"]


class StepInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a durable job, as its log has it."""

    id: str
    """Its identity, as `--from` wants it: a name, with a key or a count."""
    status: Status
    at: int
    """When this was written, in milliseconds since the epoch."""
    arguments: str = ""
    value: bytes | None = None
    """The payload of its value."""
    tries: int = 0
    """Tries that failed."""
    error: Error | None = None
    until: int | None = None
    """The end of a sleep, the time-out of an event, the next try."""
    job: str | None = None
    """The child."""
    undo: str | None = None
    """The function that undoes it."""


def steps_of(log: Iterable[bytes]) -> list[StepInfo]:
    """The operations of a log, in the order in which they first appear."""
    steps: dict[str, StepInfo] = {}
    for data in log:
        entry = unpack_entry(data)
        if isinstance(entry, Accepted | Copied):
            continue
        before = steps.get(entry.id) or StepInfo(id=entry.id, status="began", at=entry.at)
        steps[entry.id] = msgspec.structs.replace(before, at=entry.at, **_change(entry))
    return list(steps.values())


def _change(entry: object) -> dict[str, Any]:
    match entry:
        case Value():
            undo = None if entry.undo is None else entry.undo.function
            value = None if entry.child else entry.value
            return {"status": "done", "arguments": entry.shown, "value": value, "undo": undo, "until": None}
        case Failure():
            return {"status": "failed", "arguments": entry.shown, "error": entry.error, "until": None}
        case Try():
            tried = {"status": "trying", "arguments": entry.shown, "error": entry.error}
            return tried | {"tries": entry.tries, "until": entry.due}
        case Sleep():
            return {"status": "sleeping", "until": entry.until}
        case Wait():
            return {"status": "waiting", "until": entry.until}
        case Mail():
            return {"status": "done", "value": entry.body, "until": None}
        case Expired():
            return {"status": "timed out"}
        case Child():
            return {"status": "waiting", "arguments": entry.shown, "job": entry.job}
        case Intent():
            return {"status": "began", "arguments": entry.shown}
        case Winner() | Marker():
            return {"status": "done"}
    raise TypeError(entry)
