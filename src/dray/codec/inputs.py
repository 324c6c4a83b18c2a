"""A call whose arguments are filled with the results of the jobs that it waits for.

Its payload has header 14 and wraps the payload of the call, in which `None` stands where a result belongs.
Each `Slot` says where that is, and names jobs by their place in the job's `waits_for`. The executor reads
these jobs when the run starts and puts their results into the slots: the wrapped call then carries all that
it needs, also into a thread or a child process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

import msgspec

from dray.errors import DecodeError

NUMBER: Final = 14
HEADER: Final = bytes((NUMBER,))
INPUTS_MAX: Final = 64 * 1024 * 1024
"""Bytes that the inputs of one run may have together."""

RESULT_MAX: Final = 16 * 1024 * 1024
"""Bytes that the result of a map or of a flow may have, whatever `max_result` is: it holds those of
others."""

When = Literal["success", "done", "failed", "any"]
"""When a node of a flow runs: all inputs succeeded; all ended; all ended and one failed; one succeeded."""


class Given(msgspec.Struct, frozen=True, array_like=True):
    """One input of a run: a result, a failure (of which the task gets a `JobFailed`), or nothing."""

    kind: Literal["value", "failed", "none"]
    body: bytes = b""


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """One place in the arguments that is filled."""

    path: list[int | str]
    """The position or name of the argument, then positions and keys inside it."""
    at: list[int] = []
    """Places in `waits_for`, as `start, count, start, count …`; empty: the item of a map."""
    many: bool = False
    """It is filled with the list of these inputs."""
    values: list[Given] | None = None
    """The inputs, once they are known."""


class Filled(msgspec.Struct, frozen=True, array_like=True):
    """A call with slots."""

    payload: bytes
    when: When = "success"
    slots: list[Slot] = []


class Reference(msgspec.Struct, frozen=True):
    """Stands in the arguments of a job that has not started, where the results of other jobs belong."""

    result_of: str | list[str]


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a failed input."""

    id: str
    type: str
    message: str
    traceback: str
    reason: str


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Filled).decode
unpack_failed = msgspec.msgpack.Decoder(Failed).decode


def write(filled: Filled) -> bytes:
    return HEADER + _pack(filled)


def read(data: bytes) -> Filled:
    try:
        return _unpack(memoryview(data)[1:])
    except msgspec.MsgspecError as error:
        raise DecodeError(f"the inputs of the call cannot be read: {error}") from error


def failed(value: Failed) -> Given:
    return Given("failed", _pack(value))


def runs_of(places: Iterable[int]) -> list[int]:
    """Whole numbers as runs: `[0, 1, 2, 7]` is `[0, 3, 7, 1]`."""
    runs: list[int] = []
    for place in places:
        if runs and runs[-2] + runs[-1] == place:
            runs[-1] += 1
        else:
            runs += (place, 1)
    return runs


def places_of(runs: list[int]) -> Iterator[int]:
    for start, count in zip(runs[::2], runs[1::2], strict=True):
        yield from range(start, start + count)


def put_at(args: list[Any], kwargs: dict[str, Any], path: list[int | str], value: Any) -> None:
    """Set the value at a path of the arguments."""
    holder: Any = args if isinstance(path[0], int) else kwargs
    for step in path[:-1]:
        holder = holder[step]
    holder[path[-1]] = value
