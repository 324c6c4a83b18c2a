"""The facts of a job: what is put, what is known, what can happen to it.

Times are whole milliseconds since the epoch; lengths of time are whole milliseconds. Nothing here does I/O.

     put ─┬─ waiting ──(dependencies done)──┐
          ├─ scheduled ──(due)──────────────┤
          └──────────────► ready ◄──────────┘
                             │ take
                             ▼
                          running ──► succeeded
                             │  ├───► retrying ──(due)──► ready
                             │  └───► dead
     any unfinished state ───┴──────► cancelled
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final, Literal

import msgspec

from dray.errors import InvalidInput

ENVELOPE_VERSION: Final = 1
"""The newest stored form of a job that this code can read."""

PRIORITIES: Final = {"high": 1, "normal": 5, "low": 9}
BANDS: Final = {"high": range(4), "normal": range(4, 7), "low": range(7, 10)}
"""What a name means where jobs are chosen by priority."""


class State(StrEnum):
    """What a user sees. Each state belongs to one `Place`."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    READY = "ready"
    RUNNING = "running"
    RETRYING = "retrying"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    NOT_FOUND = "not_found"

    @property
    def finished(self) -> bool:
        return self in FINISHED


class Place(StrEnum):
    """Where a broker keeps a job. A job is in exactly one place; moving it is one atomic step."""

    WAITING = "waiting"
    DUE = "due"
    READY = "ready"
    HELD = "held"
    DEAD = "dead"
    DONE = "done"


FINISHED: Final = frozenset({State.SUCCEEDED, State.DEAD, State.CANCELLED})

PLACES: Final = {
    State.WAITING: Place.WAITING,
    State.SCHEDULED: Place.DUE,
    State.RETRYING: Place.DUE,
    State.READY: Place.READY,
    State.RUNNING: Place.HELD,
    State.DEAD: Place.DEAD,
    State.SUCCEEDED: Place.DONE,
    State.CANCELLED: Place.DONE,
}


class Move(StrEnum):
    """Every way a job changes its state: the columns of the transition table, and the kinds of event."""

    PUT = "put"
    RELEASED = "released"  # its last dependency is done
    PROMOTED = "promoted"  # its due time has come
    TAKEN = "taken"
    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    DIED = "died"
    CANCELLED = "cancelled"
    GIVEN_BACK = "given_back"
    CRASHED = "crashed"  # whoever ran it is gone
    RESCHEDULED = "rescheduled"
    REPLAYED = "replayed"  # retried by hand
    DELETED = "deleted"


class Sign(StrEnum):
    """Events that leave the state as it is."""

    PROGRESS = "progress"
    CANCEL_ASKED = "cancel_asked"
    SPECULATED = "speculated"
    RUN_ENDED = "run_ended"  # one of two runs ended; the other goes on
    REPRIORITISED = "reprioritised"
    PAUSED = "paused"
    RESUMED = "resumed"
    LIMITED = "limited"


_W, _S, _R, _H = State.WAITING, State.SCHEDULED, State.READY, State.RUNNING
_T, _D, _OK, _C = State.RETRYING, State.DEAD, State.SUCCEEDED, State.CANCELLED
_NONE = State.NOT_FOUND

TRANSITIONS: Final[dict[Move, dict[State, frozenset[State]]]] = {
    move: {before: frozenset(after) for before, after in table.items()}
    for move, table in {
        Move.PUT: {_NONE: {_W, _S, _R}},
        Move.RELEASED: {_W: {_S, _R}},
        Move.PROMOTED: {_S: {_R}, _T: {_R}},
        Move.TAKEN: {_R: {_H}, _H: {_H}},
        Move.SUCCEEDED: {_H: {_OK}},
        Move.RETRIED: {_H: {_T, _R}},
        Move.DIED: {_R: {_D}, _H: {_D}},
        Move.CANCELLED: {_W: {_C}, _S: {_C}, _R: {_C}, _H: {_C}, _T: {_C}},
        Move.GIVEN_BACK: {_H: {_R}},
        Move.CRASHED: {_H: {_R}},
        Move.RESCHEDULED: {_S: {_S, _R}, _T: {_T, _R}, _R: {_S, _T, _R}},
        Move.REPLAYED: {_D: {_R}, _C: {_R}, _OK: {_R}, _S: {_R}, _T: {_R}},
        Move.DELETED: {state: {_NONE} for state in (_W, _S, _R, _H, _T, _D, _OK, _C)},
    }.items()
}
"""The only changes there are: `TRANSITIONS[move][before]` is the set of states that may follow."""


OnDuplicate = Literal["return", "raise", "replace"]
Overflow = Literal["raise", "wait", "drop-oldest"]
Orphan = Literal["cancel", "run", "wait"]


class Job(msgspec.Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One call of a task, as put by a producer. It never changes while it waits, except by `edit`.

    The order of the fields is the stored form (see `codec.pack`): new ones go to the end, with a default.
    """

    version: int = ENVELOPE_VERSION
    id: str
    task: str
    queue: str = "default"
    payload: bytes = b""
    priority: int = 5
    created: int = 0
    """When the producer made it; 0 lets the broker's clock say."""
    due: int | None = None
    ttl: int | None = None
    """How long it may wait to be started, counted from when it could first start."""
    key: str | None = None
    key_ttl: int | None = None
    once: int | None = None
    on_duplicate: OnDuplicate = "return"
    group: str | None = None
    rate: str | None = None
    rate_key: str | None = None
    max_running: int | None = None
    running_key: str | None = None
    max_ready: int | None = None
    overflow: Overflow = "raise"
    waits_for: tuple[str, ...] = ()
    orphan: Orphan = "cancel"
    """What becomes of it when a job it waits for ends without success."""
    parent: str | None = None
    tags: tuple[str, ...] = ()
    description: str = ""
    retries: int = 3
    backoff: str | None = None
    timeout: int | None = None
    max_crashes: int = 3
    result_ttl: int | None = None
    isolate: str | None = None
    speculate: bool = False
    headers: dict[str, str] = {}
    """Carried along untouched: trace context and the like."""


class Error(msgspec.Struct, frozen=True, array_like=True):
    """What a failed run left behind, as text: no class of the worker is needed to read it."""

    type: str
    message: str
    traceback: str = ""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """How far a run has come."""

    done: float
    total: float | None = None
    note: str = ""


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One start of a job: which number, by whom, since when."""

    number: int
    session: str
    since: int
    progress: Progress | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker knows of a job."""

    job: Job
    state: State
    created: int
    due: int | None = None
    """When it becomes ready, while it is scheduled or retrying."""
    expires: int | None = None
    """When it dies unstarted, while it is ready and has a ttl."""
    run: int = 0
    """The number of its newest run; 0 before the first."""
    settled: int = 0
    """The newest run whose outcome was accepted."""
    failures: int = 0
    crashes: int = 0
    suspect: bool = False
    """A worker died while holding it: the next run is alone, in a child process."""
    cancel: str | None = None
    """Why it was asked to stop, while it runs."""
    runs: tuple[Run, ...] = ()
    waiting: tuple[str, ...] = ()
    """The dependencies that are not done yet."""
    started: int | None = None
    finished: int | None = None
    reason: str | None = None
    """Why it is dead or cancelled."""
    result: bytes | None = None
    error: Error | None = None

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def attempt(self) -> int:
        """The attempt that runs or ran last, from 1; 0 before the first. A crash does not use one up."""
        started = self.state is State.RUNNING or (self.state in FINISHED and self.run > 0)
        return self.failures + 1 if started else self.failures


class Taken(msgspec.Struct, frozen=True):
    """A job handed to a session. Every later write names its run."""

    job: Job
    run: int
    attempt: int = 1
    crashes: int = 0
    suspect: bool = False


class Verdict(StrEnum):
    """The broker's answer to an outcome."""

    ACCEPTED = "accepted"
    ALREADY = "already"  # this very run was settled before: a repeated call
    REFUSED = "refused"  # the run is not valid any more


class Settled(msgspec.Struct, frozen=True):
    verdict: Verdict
    state: State
    """Where the job stands now: a success may be recorded as cancelled."""


class OutcomeKind(StrEnum):
    SUCCEEDED = "succeeded"
    RETRY = "retry"
    DEAD = "dead"
    CANCELLED = "cancelled"
    GIVE_BACK = "give_back"  # not run after all: same place in line, no retry used
    CRASHED = "crashed"  # it killed the child it ran in


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    id: str
    run: int
    kind: OutcomeKind
    at: int | None = None
    """For `retry`: when it is due again; None or past means at once."""
    result: bytes | None = None
    error: Error | None = None
    reason: str | None = None


NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_GENERATED = re.compile(r"([A-Za-z0-9_.-]{1,128}):[0-9a-f]{32}")
_WORD_MAX = 256


def check_name(field: str, value: object) -> str:
    """Queue, task, schedule and namespace names."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidInput(field, value, "1-128 characters of A-Z a-z 0-9 _ . - are allowed")
    return value


def check_word(field: str, value: object) -> str:
    """Ids, keys, groups and tags."""
    if not isinstance(value, str) or not 1 <= len(value) <= _WORD_MAX or not value.isprintable():
        raise InvalidInput(field, value, "1-256 printable characters are allowed")
    return value


def parse_priority(value: object) -> int:
    """`"high"`, `"normal"`, `"low"` or an integer from 0 to 9 (0 runs first)."""
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 9:
        return value
    raise InvalidInput("priority", value, "high, normal, low or an integer from 0 to 9 is allowed")


def queue_of(job_id: str) -> str | None:
    """The queue a generated id names; None for an id a client made up."""
    match = _GENERATED.fullmatch(job_id)
    return match[1] if match else None
