"""Rows of the embedded broker as objects, and the small values that are stored as msgpack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from dray.broker.verbs import Filter, Limits, Pause
from dray.job import Error, State

STATES: Final = tuple(State)
NUMBER: Final = {state: number for number, state in enumerate(STATES)}
FINISHED_NUMBERS: Final = tuple(NUMBER[state] for state in STATES if state.finished)
DUE: Final = (NUMBER[State.SCHEDULED], NUMBER[State.RETRYING])

T = TypeVar("T")


def reader(type: Any, instead: T) -> Callable[[bytes], T]:
    """Reads a small stored value; `instead` stands for one that a stray hand in the file made unreadable.

    None of these is worth stopping a worker for.
    """
    decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(type).decode

    def read(packed: bytes) -> T:
        try:
            return decode(packed)
        except (msgspec.DecodeError, TypeError):  # TypeError: the column holds no bytes at all
            return instead

    return read


encode: Final = msgspec.msgpack.Encoder().encode
decode_error: Final = reader(Error, Error("DecodeError", "the stored error cannot be read"))
# What was paused stays so until somebody resumes it; a limit that nobody can read limits nothing.
decode_pause: Final = reader(Pause, Pause(reason="the stored pause cannot be read"))
decode_limits: Final = reader(Limits, Limits())
decode_filter: Final = reader(Filter, Filter())

ClassKey = tuple[int, str, int]


class Kept:
    """A row of `jobs`, in the order of the statement `job_columns`. `Step.move` writes it back."""

    __slots__ = (
        "cancel",
        "crashes",
        "created",
        "due",
        "expires",
        "failures",
        "finished",
        "grp",
        "id",
        "key",
        "key_ttl",
        "lane",
        "line",
        "max_crashes",
        "max_running",
        "offered",
        "once",
        "orphan",
        "pos",
        "priority",
        "queue",
        "rate",
        "rate_key",
        "result_ttl",
        "run",
        "running_key",
        "runs",
        "seq",
        "settled",
        "speculate",
        "started",
        "state",
        "suspect",
        "task",
        "ttl",
        "version",
    )
    seq: int
    id: str
    queue: int
    lane: int
    pos: int
    state: State
    run: int
    settled: int
    failures: int
    crashes: int
    suspect: int
    runs: int
    offered: int
    line: int
    created: int
    started: int | None
    finished: int | None
    expires: int | None
    cancel: str | None
    task: str
    priority: int
    version: int
    grp: str | None
    rate: str | None
    rate_key: str | None
    max_running: int | None
    running_key: str | None
    key: str | None
    key_ttl: int | None
    once: int | None
    ttl: int | None
    due: int | None
    orphan: str | None
    result_ttl: int | None
    max_crashes: int
    speculate: int

    def __init__(self, row: tuple[Any, ...]) -> None:
        (
            self.seq,
            self.id,
            self.queue,
            self.state,
            self.lane,
            self.pos,
            self.run,
            self.settled,
            self.failures,
            self.crashes,
            self.suspect,
            self.runs,
            self.offered,
            self.line,
            self.created,
            self.started,
            self.finished,
            self.expires,
            self.cancel,
            self.task,
            self.priority,
            self.version,
            self.grp,
            self.rate,
            self.rate_key,
            self.max_running,
            self.running_key,
            self.key,
            self.key_ttl,
            self.once,
            self.ttl,
            self.due,
            self.orphan,
            self.result_ttl,
            self.max_crashes,
            self.speculate,
        ) = row
        self.state = STATES[row[3]]

    def class_key(self) -> ClassKey:
        return self.priority, self.task, self.version


class QueueRow:
    """A queue, read once per step. Numbers drawn from it are written back with the step's last word."""

    __slots__ = (
        "counter",
        "entries",
        "id",
        "limits",
        "name",
        "paused",
        "paused_tasks",
        "task_limits",
        "used",
    )

    def __init__(self, row: tuple[Any, ...], tasks: list[tuple[Any, ...]]) -> None:
        self.id: int = row[0]
        self.name: str = row[1]
        self.paused: Pause | None = decode_pause(row[2]) if row[2] else None
        self.limits: Limits = decode_limits(row[3]) if row[3] else _NO_LIMITS
        self.counter: int = row[4]
        self.entries: int = row[5]
        self.used = False
        self.paused_tasks = frozenset(task for task, paused, _ in tasks if paused)
        self.task_limits = {task: decode_limits(limits) for task, _, limits in tasks if limits}

    def draw(self, count: int = 1) -> int:
        """The last of `count` fresh numbers."""
        self.used = True
        self.counter += count
        return self.counter


_NO_LIMITS: Final = Limits()
