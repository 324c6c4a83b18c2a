"""Errors as replies, for HTTP and gRPC: one table gives each its status, code and field."""

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
    HistoryError,
    HistoryOff,
    InvalidInput,
    JobFinished,
    JobNotFound,
    LeaseLost,
    MailboxFull,
    QueueFull,
    ScheduleExists,
    ScheduleNotFound,
    TooLarge,
    UnknownTask,
)

RETRY_AFTER: Final = 2
"""Seconds after which a client may try again when the broker does not answer."""
GRPC_STATUS: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    409: "ALREADY_EXISTS",
    412: "FAILED_PRECONDITION",
    413: "INVALID_ARGUMENT",
    422: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
"""The status over gRPC of what has this status over HTTP."""
_TABLE: Final[tuple[tuple[type[Exception], int, str, str | None], ...]] = (
    (UnknownTask, 422, "unknown_task", "task"),
    (TooLarge, 413, "payload_too_large", "args"),
    (DecodeError, 422, "invalid_args", "args"),
    (EncodeError, 422, "invalid_args", "args"),
    (CodecError, 422, "unreadable", None),
    (DuplicateJob, 409, "duplicate_job", "key"),
    (ScheduleExists, 409, "schedule_exists", "name"),
    (ScheduleNotFound, 404, "schedule_not_found", "name"),
    (JobNotFound, 404, "job_not_found", None),
    (HistoryOff, 409, "history_off", None),
    (LeaseLost, 412, "lease_lost", "token"),
    (JobFinished, 409, "job_finished", None),
    (MailboxFull, 429, "mailbox_full", "name"),
)
"""Errors whose own message is the reply's; the first row that fits counts."""
_PLACE = re.compile(r" - at `\$\.?(?:query\.)?([^`]*)`$")
_MISSING = re.compile(r"(?:missing required|contains unknown) field `([^`]*)`")
_NAME_PATTERN = "A-Za-z0-9_."
"""Part of msgspec's message about an invalid name, which is replaced by a plain one."""


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
    """The reply to an error; None if it is the server's own fault."""
    match error:
        case Refused():
            return error
        case msgspec.ValidationError():
            return _invalid(error)
        case msgspec.DecodeError() | RecursionError() | UnicodeError():
            return Refused(400, "invalid_json", f"the body is not JSON: {error}")
        case InvalidInput():
            return Refused(422, _code(error.field), str(error), error.field)
        case QueueFull():
            return try_later(429, "queue_full", str(error), getattr(error, "retry_after", 1))
        case BrokerError():  # its message is for the log: it may name machines
            return try_later(503, "broker_away", "the broker cannot do this now; try again", RETRY_AFTER)
        case HistoryError() if not isinstance(error, HistoryOff):
            return try_later(503, "history_away", "the history does not answer; try again", RETRY_AFTER)
        case TimeoutError():
            message = "the broker took too long; whether it took effect is not known: repeat the request"
            return try_later(503, "broker_slow", message, RETRY_AFTER)
    for kind, status, code, field in _TABLE:
        if isinstance(error, kind):
            return Refused(status, code, str(error), getattr(error, "argument", None) or field)
    return None


def _invalid(error: msgspec.ValidationError) -> Refused:
    """A value of the wrong type, named by its place in the request."""
    text = str(error)
    found = _MISSING.search(text) or _PLACE.search(text)
    field = None if found is None else found[1].lstrip(".") or None
    if _NAME_PATTERN in text:
        text = f"{field}: 1-128 characters of A-Z a-z 0-9 _ . - are allowed"
    return Refused(422, _code(field), text, field)


def _code(field: str | None) -> str:
    name = re.sub(r"\W+", "_", (field or "request").partition("[")[0]).strip("_").lower()
    return f"invalid_{name or 'request'}"
