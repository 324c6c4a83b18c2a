"""The identity of an operation: its name, and a key or the count of earlier calls; digests of arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec

from dray.errors import InvalidInput
from dray.job import check_name, check_word

SHOWN_MAX: Final = 120
"""Characters of the arguments that the log keeps for people."""
RESERVED: Final = "dray."
"""Names of events that begin like this are dray's own."""
ACCEPT: Final = f"{RESERVED}accepted"
"""The event by which a person accepts a difference, which is its body."""
CHANGED: Final = "changed: "
"""The beginning of the reason for which a job is parked; the difference follows."""


def name_of(function: Callable[..., object], name: str | None) -> str:
    """The name of a step: `name=`, or the function's own."""
    if name is not None:
        return check_name("name", name)
    target: Any = function
    while isinstance(target, functools.partial):
        target = target.func
    found = getattr(target, "name", None) or getattr(target, "__name__", "")
    if not isinstance(found, str) or not found or found == "<lambda>":
        raise InvalidInput("name", function, "this function has no name: give the step one with name=")
    return check_name("name", found)


def key_text(key: str | int | None) -> str | None:
    return None if key is None else check_word("key", str(key))


def check_event(name: str) -> str:
    if check_name("event", name).startswith(RESERVED):
        raise InvalidInput("event", name, f"names that do not begin with {RESERVED} are allowed")
    return name


def digest_of(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """The same text for equal arguments in every process; empty if they cannot be compared."""
    try:
        data = _encode((args, dict(kwargs)))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return ""
    return blake2b(data, digest_size=8).hexdigest()


def _lower(value: object) -> object:
    """A pydantic model as its fields; anything else has no digest."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError
    return dump()


_encode = msgspec.msgpack.Encoder(order="sorted", enc_hook=_lower).encode


def show(args: tuple[object, ...], kwargs: Mapping[str, object]) -> str:
    """The arguments as short text."""
    try:
        parts = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    except Exception:  # a __repr__ of the user's
        return "(…)"
    text = ", ".join(parts)
    text = f"({text})" if len(text) <= SHOWN_MAX - 2 else f"({text[: SHOWN_MAX - 3]}…)"
    return text.encode(errors="backslashreplace").decode()


def difference_of(reason: str | None) -> str:
    """The difference for which a job is parked; empty if it is not."""
    return reason[len(CHANGED) :] if reason is not None and reason.startswith(CHANGED) else ""


def child_id(parent: str, operation: str, queue: str) -> str:
    """The id of the job that an operation calls: the same one whenever it is repeated."""
    digest = blake2b(f"{parent}\n{operation}".encode(), digest_size=16).hexdigest()
    return f"{queue}:{digest}"
