"""Errors as replies: `{"error": {"code", "message", "field"}}`, each with the status that fits it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from dray.errors import (
    BrokerError,
    CodecError,
    DecodeError,
    DuplicateJob,
    EncodeError,
    InvalidInput,
    JobNotFound,
    QueueFull,
    ScheduleExists,
    ScheduleNotFound,
    TooLarge,
    UnknownTask,
)

RETRY_AFTER: Final = 2
"""Seconds after which a client may try a broker again that is away."""
_PLACE = re.compile(r" - at `\$\.?(?:query\.)?([^`]*)`$")
_NAME_PATTERN = "A-Za-z0-9_."
"""In what msgspec says of a name that is none; people are told in other words."""
_MISSING = re.compile(r"(?:missing required|contains unknown) field `([^`]*)`")


class Refused(Exception):
    """A request is answered with an error."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.field = status, code, message, field
        self.headers = dict(headers or {})


def not_found(id: str) -> Refused:
    return Refused(404, "job_not_found", f"no job {id}: it never was, was deleted, or is not kept any more")


def forbidden(message: str, field: str | None = None) -> Refused:
    return Refused(403, "forbidden", message, field)


def try_later(status: int, code: str, message: str, seconds: float) -> Refused:
    return Refused(status, code, message, headers={"Retry-After": str(max(1, math.ceil(seconds)))})


def refusal_of(error: Exception) -> Refused | None:
    """How an error is answered; None if it is nobody's but ours."""
    match error:
        case Refused():
            return error
        case msgspec.ValidationError():
            return _invalid(error)
        case msgspec.DecodeError() | RecursionError() | UnicodeError():
            return Refused(400, "invalid_json", f"the body is not JSON: {error}")
        case UnknownTask():
            return Refused(422, "unknown_task", str(error), "task")
        case InvalidInput():
            return Refused(422, _code(error.field), str(error), error.field)
        case TooLarge():
            return Refused(413, "payload_too_large", str(error), "args")
        case DecodeError() | EncodeError():
            field = getattr(error, "argument", None)
            return Refused(422, "invalid_args", str(error), field or "args")
        case CodecError():
            return Refused(422, "unreadable", str(error))
        case DuplicateJob():
            return Refused(409, "duplicate_job", str(error), "key")
        case ScheduleExists():
            return Refused(409, "schedule_exists", str(error), "name")
        case ScheduleNotFound():
            return Refused(404, "schedule_not_found", str(error), "name")
        case JobNotFound():
            return Refused(404, "job_not_found", str(error))
        case QueueFull():
            return try_later(429, "queue_full", str(error), getattr(error, "retry_after", 1))
        case BrokerError():  # what it says is for the log: it may name machines
            return try_later(503, "broker_away", "the broker cannot do this now; try again", RETRY_AFTER)
        case TimeoutError():
            message = "the broker took too long; whether it took effect is not known: repeat the request"
            return try_later(503, "broker_slow", message, RETRY_AFTER)
    return None


def _invalid(error: msgspec.ValidationError) -> Refused:
    """A value of the wrong kind, named by its place in the request."""
    text = str(error)
    found = _MISSING.search(text) or _PLACE.search(text)
    field = None if found is None else found[1].lstrip(".") or None
    if _NAME_PATTERN in text:
        text = f"{field}: 1-128 characters of A-Z a-z 0-9 _ . - are allowed"
    return Refused(422, _code(field), text, field)


def _code(field: str | None) -> str:
    name = re.sub(r"\W+", "_", (field or "request").partition("[")[0]).strip("_").lower()
    return f"invalid_{name or 'request'}"
