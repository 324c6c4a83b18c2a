"""A call that is to become a job: which task, which arguments, and what is said about this one call."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from dray.duration import MAX_DURATION, parse_duration
from dray.errors import InvalidInput
from dray.job import Job, OnDuplicate, check_name, check_word, parse_priority
from dray.policy import Backoff, check_description, check_headers

R = TypeVar("R")

Duration = int | float | str | timedelta
Priority = int | Literal["high", "normal", "low"]
Durability = Literal["normal", "full"]


class Using(TypedDict, total=False):
    """What `task.using(...)` takes: options of one call, which win over the task's own."""

    delay: Duration
    """Start no sooner than after this time."""
    at: datetime
    """Start no sooner than then; a time without a zone is local time."""
    queue: str
    priority: Priority
    retries: int
    backoff: str
    timeout: Duration
    """0 means none."""
    key: str
    """One unfinished job per key and queue."""
    key_ttl: Duration
    on_duplicate: OnDuplicate
    once: Duration
    """For how long after success the key (or id) stays taken."""
    id: str
    group: str
    """Groups of a queue (tenants) take turns."""
    ttl: Duration
    """If not started within this time, the job is dead as expired."""
    result_ttl: Duration
    tags: Sequence[str]
    description: str
    durability: Durability
    headers: dict[str, str]


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`Using`, checked and in the units of a job. UNSET: the task, or else the settings, decide."""

    delay: int = 0
    due: int | None = None
    queue: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    retries: int | UnsetType = UNSET
    backoff: str | UnsetType = UNSET
    timeout: int | UnsetType = UNSET
    key: str | None = None
    key_ttl: int | None = None
    on_duplicate: OnDuplicate = "return"
    once: int | UnsetType = UNSET
    id: str | None = None
    group: str | None = None
    ttl: int | UnsetType = UNSET
    result_ttl: int | UnsetType = UNSET
    tags: tuple[str, ...] = ()
    description: str = ""
    durability: Durability | UnsetType = UNSET
    headers: dict[str, str] = {}


PLAIN = CallOptions()
_NAMES = frozenset(Using.__annotations__)


def read_options(given: Using, base: CallOptions = PLAIN) -> CallOptions:
    """Check what a caller said; every wrong value is refused by its name, before anything happens."""
    unknown = sorted(given.keys() - _NAMES)
    if unknown:
        raise InvalidInput("using", unknown[0], f"one of {', '.join(sorted(_NAMES))} is allowed")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            fields |= _READERS[name](value)
    if given.get("delay") is not None and given.get("at") is not None:
        raise InvalidInput("at", given.get("at"), "give either delay or at, not both")
    if "delay" in fields:
        fields.setdefault("due", None)
    return msgspec.structs.replace(base, **fields)


def read_due(delay: Duration | None, at: datetime | None, now: int) -> int:
    """When a job is due that is moved by one of the two, in milliseconds since the epoch."""
    if (delay is None) == (at is None):
        raise InvalidInput("at", at, "give either delay or at")
    if delay is not None:
        return now + parse_duration("delay", delay)
    due: int = _read_at(at)["due"]
    return due


def read_timeout(value: Duration) -> int:
    """Milliseconds; 0 means that there is none."""
    return parse_duration("timeout", value) or MAX_DURATION


def read_retries(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 1_000_000:
        raise InvalidInput("retries", value, "a whole number from 0 is allowed")
    return value


def read_tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidInput("tags", value, "a list of texts is allowed")
    return tuple(check_word("tags", tag) for tag in value)


def _read_at(value: object) -> dict[str, Any]:
    if not isinstance(value, datetime):
        raise InvalidInput("at", value, "a datetime is allowed")
    try:
        moment = value.timestamp()
    except (OverflowError, ValueError, OSError):  # the first and last days of the calendar, in some zones
        moment = -1
    if moment < 0:
        raise InvalidInput("at", value, "a time from 1970 to 9999 is allowed")
    return {"due": round(moment * 1000), "delay": 0}


def _read_one_of(name: str, *allowed: str) -> Any:
    def read(value: object) -> dict[str, Any]:
        if value not in allowed:
            raise InvalidInput(name, value, f"{', '.join(allowed[:-1])} or {allowed[-1]} is allowed")
        return {name: value}

    return read


def _read_length(name: str) -> Any:
    return lambda value: {name: parse_duration(name, value)}


def _read_word(name: str) -> Any:
    return lambda value: {name: check_word(name, value)}


def _read_backoff(value: str) -> dict[str, Any]:
    return {"backoff": str(Backoff.parse(value))}


def _read_headers(value: dict[str, str]) -> dict[str, Any]:
    check_headers(value)
    return {"headers": dict(value)}


def _read_key_ttl(value: Duration) -> dict[str, Any]:
    length = parse_duration("key_ttl", value)
    if length == 0:
        raise InvalidInput("key_ttl", value, "a length of time above 0 is allowed")
    return {"key_ttl": length}


_READERS: dict[str, Any] = {
    "at": _read_at,
    "queue": lambda value: {"queue": check_name("queue", value)},
    "priority": lambda value: {"priority": parse_priority(value)},
    "retries": lambda value: {"retries": read_retries(value)},
    "backoff": _read_backoff,
    "timeout": lambda value: {"timeout": read_timeout(value)},
    "on_duplicate": _read_one_of("on_duplicate", "return", "raise", "replace"),
    "durability": _read_one_of("durability", "normal", "full"),
    "tags": lambda value: {"tags": read_tags(value)},
    "description": lambda value: {"description": check_description(value)},
    "headers": _read_headers,
    "key_ttl": _read_key_ttl,
    **{name: _read_length(name) for name in ("delay", "once", "ttl", "result_ttl")},
    **{name: _read_word(name) for name in ("key", "id", "group")},
}


_SHARED = [field for field in msgspec.structs.fields(Job) if field.name not in ("id", "task", "payload")]


def unusual(job: Job) -> dict[str, Any]:
    """What a job says beyond a job's defaults, except for what is its own."""
    told = {field.name: (getattr(job, field.name), field.default) for field in _SHARED}
    return {name: value for name, (value, default) in told.items() if value != default and value != {}}


class Call(Generic[R]):
    """A call of a task that has not been enqueued yet: for `app.enqueue_many` and flows."""

    __slots__ = ("args", "kwargs", "options", "task")

    def __init__(
        self,
        task: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        options: CallOptions = PLAIN,
    ) -> None:
        self.task, self.args, self.kwargs, self.options = task, args, kwargs or {}, options

    def __repr__(self) -> str:
        parts = [repr(value) for value in self.args]
        parts += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"<Call {self.task}({', '.join(parts)})>"
