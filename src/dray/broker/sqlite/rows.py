"""Rows of the embedded broker as objects, and the small values that are stored as msgpack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from dray.broker.actions import Pause
from dray.broker.checks import decode_pause, reader
from dray.broker.verbs import Filter, Limits
from dray.job import PastRun, State, Suspension, Undo

STATES: Final = tuple(State)
NUMBER: Final = {state: number for number, state in enumerate(STATES)}
FINISHED_NUMBERS: Final = tuple(NUMBER[state] for state in STATES if state.finished)
DUE: Final = (NUMBER[State.SCHEDULED], NUMBER[State.RETRYING])

encode: Final = msgspec.msgpack.Encoder().encode
decode_limits: Final = reader(Limits, Limits())
decode_past: Final[Callable[[bytes], tuple[PastRun, ...]]] = reader(tuple[PastRun, ...], ())
decode_filter: Final = reader(Filter, Filter())
decode_suspension: Final = reader(Suspension, Suspension(parked=True))
decode_undo: Final = reader(Undo, Undo(State.DEAD, "the stored undo cannot be read"))

ClassKey = tuple[int, str, int]


class JobRow(msgspec.Struct, eq=False):
    """A row of `jobs`, in the order of the statement `job_columns`. `Transaction.move` writes it back."""

    seq: int
    id: str
    queue: int
    state: State
    lane: int
    pos: int
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
    deadline: int | None
    deadline_at: int | None
    owner: str | None
    node: str | None
    durable: int
    forced: int = 0
    """Its run was to be stopped at once: no column, but read when the run ends."""

    def __post_init__(self) -> None:
        self.state = STATES[cast(int, self.state)]

    def class_key(self) -> ClassKey:
        return self.priority, self.task, self.version


class DurableRow(msgspec.Struct, eq=False):
    """A row of `durables`, in the order of the statement `durable_row`."""

    memos: int = 0
    size: int = 0
    undoable: int = 0
    undone: int = 0
    undo: bytes | None = None
    replayed: int = 0
    orphaned_by: str | None = None
    suspended: bytes | None = None
    open: int = 0
    wake: int | None = None


class QueueRow:
    """A queue, read once per transaction. `write_notes` writes the numbers drawn from it back."""

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
