"""The entries of a durable job's log, as MessagePack. The first element of each is the number of its form.

A form never changes once it was released: new fields go to the end with a default, other changes need a
new number.
"""

from __future__ import annotations

from typing import Final

import msgspec

from dray.errors import DecodeError, NewerVersion
from dray.job import Error


class UndoCall(msgspec.Struct, frozen=True, array_like=True):
    """The function that undoes a step: a task by its name, or `module:function`."""

    function: str
    is_task: bool
    retries: int
    backoff: str | None = None


class _Operation(msgspec.Struct, frozen=True, array_like=True):
    """What every operation of `ctx` leaves: its identity, its number among the calls of the run, the time."""

    id: str
    call: int
    at: int


class Value(_Operation, frozen=True, tag=1):
    """A step returned, a child succeeded, a helper like `ctx.now()` gave a value; an undo has run."""

    value: bytes
    digest: str = ""
    shown: str = ""
    """The arguments as short text."""
    undo: UndoCall | None = None
    child: str = ""
    """The value is the result of this job, which is too large for a copy here."""


class Failure(_Operation, frozen=True, tag=2):
    """The last try of a step failed, or its child did. `raised` rebuilds the exception, where that works."""

    run: int
    error: Error
    raised: bytes = b""
    digest: str = ""
    shown: str = ""


class Try(_Operation, frozen=True, tag=3):
    """A try of a step failed; the next one is due."""

    run: int
    tries: int
    due: int
    error: Error
    digest: str = ""
    shown: str = ""


class Sleep(_Operation, frozen=True, tag=4):
    """A sleep has begun."""

    until: int


class Wait(_Operation, frozen=True, tag=5):
    """The job waits for an event."""

    name: str
    until: int | None = None


class Mail(_Operation, frozen=True, tag=6):
    """An event arrived: the message is the job's now."""

    name: str
    number: int
    message: str
    body: bytes


class Expired(_Operation, frozen=True, tag=7):
    """An event did not arrive in time."""

    run: int


class Child(_Operation, frozen=True, tag=8):
    """A child job was called."""

    job: str
    digest: str = ""
    shown: str = ""


class Winner(_Operation, frozen=True, tag=9):
    """The first of several operations to end."""

    index: int


class Intent(_Operation, frozen=True, tag=10):
    """A step with `at_most_once` is about to run."""

    run: int
    digest: str = ""
    shown: str = ""


class Marker(_Operation, frozen=True, tag=11):
    """The answer of `ctx.changed`."""

    new: bool


class Accepted(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """A person accepted this difference: entries before this one are not compared any more."""

    at: int
    difference: str


class Copied(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """The next `count` entries were copied from the log of another job."""

    at: int
    job: str
    count: int


Operation = Value | Failure | Try | Sleep | Wait | Mail | Expired | Child | Winner | Intent | Marker
Entry = Operation | Accepted | Copied

_NEWEST: Final = 13
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode
_decode_tag = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
_decode_number = msgspec.msgpack.Decoder(int).decode


def pack_entry(entry: Entry) -> bytes:
    return _encode(entry)


def unpack_entry(data: bytes) -> Entry:
    """NewerVersion for a form of a newer dray; DecodeError if it is broken."""
    try:
        entry: Entry = _decode(data)
    except msgspec.MsgspecError as error:
        if _number_of(data) > _NEWEST:
            raise NewerVersion(
                "its log was written by a newer dray: it goes on where the workers are as new"
            ) from error
        raise DecodeError(f"an entry of its log cannot be read: {error}") from error
    return entry


def _number_of(data: bytes) -> int:
    try:
        return _decode_number(_decode_tag(data)[0])
    except (msgspec.MsgspecError, IndexError):
        return 0
