"""The facts of a job: what producers put, what brokers know, and how its state changes.

Times are whole milliseconds since the epoch; lengths of time are whole milliseconds. Nothing here does I/O.

     put ─┬─ waiting ──(dependencies done)──┐
          ├─ scheduled ──(due)──────────────┤
          └──────────────► ready ◄──────────┘
                             │ take
                             ▼
                          running ──► succeeded
                             │  ├───► retrying ──(due)──► ready
                             │  ├───► scheduled or waiting (suspended) ──(woken)──► ready
                             │  └───► dead
     any unfinished state ───┴──────► cancelled

A job with something to undo becomes ready once more before it is dead or cancelled. A finished job is ready
again after a replay by hand, and waiting again when a job it depends on is replayed (`Job.orphan`).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from dray.errors import InvalidInput

ENVELOPE_VERSION: Final = 1
"""The newest stored form of a job that this code can read."""

PRIORITIES: Final = {"high": 1, "normal": 5, "low": 9}
BANDS: Final = {"high": range(4), "normal": range(4, 7), "low": range(7, 10)}
"""The priorities that a name means in filters."""


class State(StrEnum):
    """The state of a job, as users see it. Each state belongs to one `Place`."""

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
    CRASHED = "crashed"  # its worker or child process died
    RESCHEDULED = "rescheduled"
    REPLAYED = "replayed"  # retried by hand
    DELETED = "deleted"
    SUSPENDED = "suspended"  # its run ended to sleep, or to wait for an event or a job
    WOKEN = "woken"  # what it waited for has come, or is not waited for any longer
    UNDOING = "undoing"  # it ends, but its undos run first
    REVIVED = "revived"  # the job whose end had ended it is replayed


class Sign(StrEnum):
    """Events that leave the state as it is."""

    PROGRESS = "progress"
    CANCEL_ASKED = "cancel_asked"
    SPECULATED = "speculated"
    RUN_ENDED = "run_ended"  # one of two runs ended; the other continues
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
        Move.DIED: {_W: {_D}, _S: {_D}, _R: {_D}, _H: {_D}, _T: {_D}},
        Move.CANCELLED: {_W: {_C}, _S: {_C}, _R: {_C}, _H: {_C}, _T: {_C}},
        Move.GIVEN_BACK: {_H: {_R}},
        Move.CRASHED: {_H: {_R}},
        Move.RESCHEDULED: {_S: {_S, _R}, _T: {_T, _R}, _R: {_S, _T, _R}},
        Move.REPLAYED: {_D: {_R}, _C: {_R}, _OK: {_R}, _S: {_R}, _T: {_R}},
        Move.DELETED: {state: {_NONE} for state in (_W, _S, _R, _H, _T, _D, _OK, _C)},
        Move.SUSPENDED: {_H: {_S, _T, _W, _R}},
        Move.WOKEN: {_W: {_R}},
        Move.UNDOING: {state: {_R} for state in (_W, _S, _R, _H, _T)},
        Move.REVIVED: {state: {_W} for state in (_D, _OK, _C)},
    }.items()
}
"""All changes of state: `TRANSITIONS[move][before]` is the set of states that may follow."""


GROUP_MAX: Final = 1000
"""Suspects that share a child process at most: as many jobs as an executor may run."""

OnDuplicate = Literal["return", "raise", "replace"]
Overflow = Literal["raise", "wait", "drop-oldest"]
Orphan = Literal["cancel", "run", "wait", "first", "follow"]
"""What happens to a waiting job when a dependency ends without success: `cancel` cancels it, `run` counts the
dependency as done, `wait` waits for a replay. `first` is released by the first success, or when all have
ended. `follow` is `run`, and when a dependency that is a node (`Job.node`) is replayed, the finished job goes
back to waiting: the job of a flow."""


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
    """When the producer made it; 0: the broker sets it."""
    due: int | None = None
    ttl: int | None = None
    """The longest wait for its first start, counted from when it could first start."""
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
    """The effect on it when a job it waits for ends without success."""
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
    """Passed on unchanged: trace context and the like."""
    deadline: int | None = None
    """The longest time until its end, counted from `put` or `due`, whichever is later. Then it is dead: it is
    not retried, and a run is interrupted as by a timeout."""
    owner: str | None = None
    """The job that this one works for: the job of its flow, or the durable job that calls it. Its record and
    result are kept until the owner has ended."""
    node: str = ""
    """Its name in the flow `owner`; empty for a job that is in no flow. A node counts in `tally`, is exempt
    from `max_ready` and `enqueue_rate`, is never dropped or replaced, and its dependants can be revived."""


class Error(msgspec.Struct, frozen=True, array_like=True):
    """The error of a failed run, as text: reading it needs no class of the worker."""

    type: str
    message: str
    traceback: str = ""


class Progress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a run."""

    done: float
    total: float | None = None
    note: str = ""
    data: dict[str, Any] = {}
    """More data from the task, in JSON types."""


PROGRESS_DATA_MAX: Final = 4096
"""Bytes that the data of a progress report may have as JSON."""


def check_progress_data(data: object) -> dict[str, Any]:
    """The data in JSON types; other types and too much data are refused."""
    if data is None or data == {}:
        return {}
    try:
        text = msgspec.json.encode(data)
        plain = msgspec.json.decode(text, type=dict[str, Any])
        msgspec.msgpack.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        wrong = f"a dict of what JSON can hold is allowed ({error})"
        raise InvalidInput("data", data, wrong) from None
    if len(text) > PROGRESS_DATA_MAX:
        raise InvalidInput(
            "data", f"{len(text)} bytes", f"at most {PROGRESS_DATA_MAX} bytes as JSON are allowed"
        )
    return plain


class Run(msgspec.Struct, frozen=True, array_like=True):
    """One start of a job: its number, session and start time."""

    number: int
    session: str
    since: int
    progress: Progress | None = None


class RunEnd(StrEnum):
    """How a run ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CRASHED = "crashed"  # it killed the child it ran in
    LOST = "lost"  # its worker is gone
    GIVEN_BACK = "given_back"  # its worker stopped in good order
    OVERTAKEN = "overtaken"  # the job's other run finished first
    SUSPENDED = "suspended"  # it ended to sleep or to wait


class PastRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that has ended: its session, start, end, outcome and shortened error."""

    number: int
    session: str
    """Empty if it is not known."""
    since: int
    ended: int
    how: RunEnd
    error: str = ""


RUNS_KEPT: Final = 20
"""The newest past runs that a job keeps."""
RUN_ERROR_MAX: Final = 200
"""Bytes of the error that a past run keeps."""


def lone_run(started: int | None, finished: int | None) -> PastRun:
    """The only run of a job that succeeded, made from its record. Its session was not stored."""
    return PastRun(1, "", started or 0, finished or 0, RunEnd.SUCCEEDED)


def short_error(error: Error | None) -> str:
    """The error that a past run keeps."""
    if error is None:
        return ""
    return f"{error.type}: {error.message}".encode()[:RUN_ERROR_MAX].decode(errors="ignore")


class Suspension(msgspec.Struct, frozen=True, kw_only=True):
    """What a suspended job waits for. The first of these to come wakes it."""

    until: int | None = None
    """The moment at which it is woken in any case: the end of a sleep, or the time-out of an event."""
    events: dict[str, int] = {}
    """Names of events, and how many messages of each the run has seen: one more wakes the job."""
    jobs: tuple[str, ...] = ()
    """Jobs whose end wakes it: the end of any one, or of the last one if `all_jobs`."""
    all_jobs: bool = False
    parked: bool = False
    """Nothing but `Continue` wakes it: its code has changed."""


class Undo(msgspec.Struct, frozen=True, array_like=True):
    """How a job ends when its undos have run."""

    state: State
    """Dead or cancelled."""
    reason: str


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a broker knows about a job."""

    job: Job
    state: State
    created: int
    due: int | None = None
    """When it becomes ready, while it is scheduled or retrying."""
    expires: int | None = None
    """When it dies unstarted, while it is ready and has a ttl."""
    deadline: int | None = None
    """When it dies unfinished, if the job has a deadline."""
    run: int = 0
    """The number of its newest run; 0 before the first."""
    settled: int = 0
    """The newest run whose outcome was accepted."""
    failures: int = 0
    """Runs that failed since it was put or replayed; of a dead job the last one is included."""
    crashes: int = 0
    suspect: int = 0
    """Its process died: the next run shares a child with at most so many suspects; 0: not suspect."""
    cancel: str | None = None
    """Why it was asked to stop, while it runs."""
    runs: tuple[Run, ...] = ()
    past: tuple[PastRun, ...] = ()
    """The newest runs that have ended. Empty if its only run succeeded: the record says it all."""
    waiting: tuple[str, ...] = ()
    """The dependencies that are not done yet."""
    started: int | None = None
    finished: int | None = None
    reason: str | None = None
    """Why it is dead, cancelled or parked."""
    result: bytes | None = None
    error: Error | None = None
    memos: int = 0
    """Entries of its log (see `Broker.memo`); 0 for a job without durable steps."""
    replayed: int = 0
    """The newest run at its last replay by hand: errors remembered by earlier runs do not count any more."""
    suspended: Suspension | None = None
    """What it waits for, while it is suspended."""
    undo: Undo | None = None
    """It is being undone: its next or current run is an undo run, and then it ends like this."""
    orphaned_by: str | None = None
    """The dependency whose end cancelled it: replaying that one revives it."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def attempt(self) -> int:
        """The current or last attempt, from 1; 0 before the first. A crash does not use one up."""
        if self.state is State.DEAD:
            return self.failures + (self.crashes >= self.job.max_crashes)
        started = self.state is State.RUNNING or (self.state in FINISHED and self.run > 0)
        return self.failures + 1 if started else self.failures


class Taken(msgspec.Struct, frozen=True):
    """A job handed to a session. Every later write names its run."""

    job: Job
    run: int
    attempt: int = 1
    crashes: int = 0
    suspect: int = 0
    deadline: int | None = None
    """As in `Record`."""
    memos: int = 0
    replayed: int = 0
    undo: Undo | None = None


class Verdict(StrEnum):
    """The broker's answer to an outcome."""

    ACCEPTED = "accepted"
    ALREADY = "already"  # this run was settled before: a repeated call
    REFUSED = "refused"  # the run is not valid any more


class Settled(msgspec.Struct, frozen=True):
    verdict: Verdict
    state: State
    """The state of the job now: a success may be recorded as cancelled."""


class OutcomeKind(StrEnum):
    SUCCEEDED = "succeeded"
    RETRY = "retry"
    DEAD = "dead"
    CANCELLED = "cancelled"
    GIVE_BACK = "give_back"  # it did not run: same place in line, no retry used
    CRASHED = "crashed"  # the child it ran in is gone
    SUSPENDED = "suspended"  # it sleeps or waits; no attempt, no crash


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    id: str
    run: int
    kind: OutcomeKind
    at: int | None = None
    """For `retry`: when it is due again; None or past means at once."""
    result: bytes | None = None
    error: Error | None = None
    reason: str | None = None
    together: int = 1
    """For `crashed`: the number of jobs in the process that died. Only a crash alone (1) counts."""
    suspend: Suspension | None = None
    """For `suspended`: what it waits for. With an `error` it is `retrying`: a step is tried again."""


NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
GENERATED = re.compile(r"([A-Za-z0-9_.-]{1,128}):[0-9a-f]{32}")
_WORD_MAX = 256


def check_name(field: str, value: object) -> str:
    """Queue, task, schedule and namespace names."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        allowed = "1-128 characters of A-Z a-z 0-9 _ . - are allowed"
        if isinstance(value, str) and ":" in value and NAME.fullmatch(near := value.replace(":", ".")):
            allowed += f", no colon: {near} would do"
        raise InvalidInput(field, value, allowed)
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
    """The queue that a generated id names; None for an id given by a client."""
    match = GENERATED.fullmatch(job_id)
    return match[1] if match else None
