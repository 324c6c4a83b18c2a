"""Decisions about jobs that memory and SQLite share, as pure functions. The Redis scripts translate them."""

from __future__ import annotations

from typing import Final, NamedTuple, cast

from msgspec import UNSET

from dray.broker.actions import (
    Cancel,
    Continue,
    Delete,
    JobAction,
    Reprioritise,
    Reschedule,
    Retry,
    SetLimits,
    Speculate,
)
from dray.broker.interest import HAND_OVER_MAX
from dray.broker.verbs import Accepted, Filter, Limits
from dray.job import (
    FINISHED,
    GROUP_MAX,
    Job,
    Move,
    Outcome,
    OutcomeKind,
    Overflow,
    RunEnd,
    State,
    Suspension,
    Undo,
)
from dray.policy import Retention

NOT_STARTED: Final = frozenset({State.WAITING, State.SCHEDULED, State.RETRYING, State.READY})
NEVER: Final = 1 << 51
"""Offset of times that mean "never", so that they still sort among themselves."""
EXPIRED: Final = "expired: it was not started within its ttl"
OVERDUE: Final = "deadline: it was not finished in time"
OWNER_PAUSE: Final = 60_000
"""Milliseconds, at least, between two looks at the owner of a finished job that could be forgotten."""

# put


def duplicate(job: Job, id: str, state: State, run: int, node: str, same: bool) -> Accepted | None:
    """The reply if another job has this id or key; None if the new one may replace it.

    `same`: the other was put as the very same job, so this is a repeated call. A node is never replaced.
    """
    if same or job.on_duplicate != "replace" or run or node or state not in NOT_STARTED:
        return Accepted(id, state, "duplicate")
    return None


def max_ready(job: Job, limits: Limits, now: int) -> int | None:
    """The bound on ready jobs that applies to a new job; None if it is a node, starts later, or has none."""
    if job.node or job.waits_for or (job.due is not None and job.due > now):
        return None
    return job.max_ready if limits.max_ready is None else limits.max_ready


def drops_oldest(job: Job, limits: Limits) -> bool:
    return (limits.overflow or job.overflow) == "drop-oldest"


def may_drop(run: int, node: str) -> bool:
    """`drop-oldest` leaves a job that has started, and a node of a flow."""
    return not run and not node


def dropped(queue: str, bound: int) -> str:
    return f"dropped: {queue} is full (max_ready={bound})"


def is_refused(job: Job, reply: Accepted) -> bool:
    """The job itself was not stored: jobs of the same call must not wait for it."""
    return reply.id != job.id or reply.verdict in ("full", "limited")


# handing over

BECOMES_READY: Final = frozenset({Move.PUT, Move.RELEASED, Move.PROMOTED})
"""The moves after which a job may be handed over to a sleeper."""


def can_hand_over(job: Job) -> bool:
    """No limit of its own holds the job back, and a wake-up can carry it."""
    return job.rate is None and job.max_running is None and len(job.payload) <= HAND_OVER_MAX


# times


def later(length: int | None, now: int) -> int | None:
    return None if length is None else now + length


def deadline_of(length: int | None, due: int | None, now: int) -> int | None:
    """The moment of a deadline that counts from `now`, or from the due time if that is later."""
    return None if length is None else max(now, due or 0) + length


def expires_of(ttl: int | None, run: int, move: Move, due: int | None, now: int) -> int | None:
    """The moment at which a job that becomes ready expires. A promoted job could start when it was due."""
    if ttl is None or run:
        return None
    return (due if due is not None and move is Move.PROMOTED else now) + ttl


def is_overdue(deadline: int | None, now: int) -> bool:
    return deadline is not None and now >= deadline


def why_too_late(expires: int | None, deadline: int | None, now: int) -> str | None:
    """The reason why a job that does not run must die now; None if it may still start."""
    if expires is not None and now >= expires:
        return EXPIRED
    return OVERDUE if deadline is not None and now >= deadline else None


def delayed_state(failures: int) -> State:
    return State.RETRYING if failures else State.SCHEDULED


def forget_at(once: int | None, state: State, finished: int, retention: Retention) -> int:
    """When the record of a finished job may go. `once` keeps it for as long as its key is taken."""
    if state is State.DEAD:
        return finished + retention.dead_ttl if retention.dead_ttl is not None else NEVER + finished
    keep = retention.done_ttl
    if state is State.SUCCEEDED and once is not None:
        keep = max(keep, once)
    return finished + keep


def look_again_at(finished: int, now: int) -> int:
    """When to look again whether the owner of a finished job has ended: less often, the older the job is."""
    return now + max(OWNER_PAUSE, (now - finished) // 4)


# the end of a run


class Next(NamedTuple):
    """The next move of a job whose run has ended."""

    move: Move | None
    """None: another run of the job goes on."""
    to: State
    reason: str | None = None
    failed: bool = False
    """The run counts as a failure."""


GOES_ON: Final = Next(None, State.RUNNING)


def after_outcome(
    outcome: Outcome,
    *,
    cancel: str | None,
    other_runs: bool,
    deadline: int | None,
    now: int,
    undo: Undo | None = None,
) -> Next:
    """The next move after any outcome but `crashed`. `cancel`: why the job was asked to stop.

    A run that ends as `suspended` goes to a state that depends on what the job waits for: `suspended_state`.
    """
    kind = outcome.kind
    if undo is not None and (cancel is not None or kind in _ENDS):
        return undo_ends(undo, cancel or (outcome.reason if kind is OutcomeKind.DEAD else None))
    if cancel is not None or kind is OutcomeKind.CANCELLED:
        return Next(Move.CANCELLED, State.CANCELLED, cancel or outcome.reason or "cancelled")
    if kind is OutcomeKind.SUCCEEDED:
        return Next(Move.SUCCEEDED, State.SUCCEEDED)
    if kind is OutcomeKind.DEAD:
        return Next(Move.DIED, State.DEAD, outcome.reason or "failed", failed=True)
    if other_runs:
        return GOES_ON
    failed = kind is OutcomeKind.RETRY
    if is_overdue(deadline, now):
        return Next(Move.DIED, State.DEAD, OVERDUE, failed)
    if kind is OutcomeKind.SUSPENDED:
        return Next(Move.SUSPENDED, State.WAITING)
    return Next(Move.RETRIED if failed else Move.GIVEN_BACK, State.READY, failed=failed)


def after_crash(
    crashes: int,
    max_crashes: int,
    *,
    suspect: bool,
    cancel: str | None,
    other_runs: bool,
    deadline: int | None,
    now: int,
    undo: Undo | None = None,
) -> Next:
    """The next move after a run whose process or session is gone; `crashes` counts this one."""
    if cancel is not None:
        return Next(Move.CANCELLED, State.CANCELLED, cancel) if undo is None else undo_ends(undo, cancel)
    if crashes >= max_crashes:
        poison = f"poison: it crashed {crashes} times while running alone"
        return Next(Move.DIED, State.DEAD, poison if undo is None else joined(undo.reason, poison))
    if other_runs:
        return GOES_ON
    if is_overdue(deadline, now):
        return Next(Move.DIED, State.DEAD, OVERDUE)
    return Next(Move.CRASHED if suspect else Move.GIVEN_BACK, State.READY)


def group_after(before: int, together: int) -> int:
    """How many jobs may share the process of its next run, after one with `together` died (0: the worker)."""
    return min(before or GROUP_MAX, (together + 1) // 2 or GROUP_MAX)


def crash_end(suspect: bool, together: int) -> RunEnd:
    """The end of a run whose session ended, or whose child died with `together` jobs in it."""
    return RunEnd.CRASHED if together == 1 else RunEnd.LOST if suspect else RunEnd.GIVEN_BACK


def settled_end(kind: OutcomeKind, *, cancelled: bool) -> RunEnd:
    if cancelled or kind is OutcomeKind.CANCELLED:
        return RunEnd.CANCELLED
    return _RUN_ENDS.get(kind, RunEnd.FAILED)


_ENDS: Final = (OutcomeKind.SUCCEEDED, OutcomeKind.DEAD, OutcomeKind.CANCELLED)
_RUN_ENDS: Final = {
    OutcomeKind.SUCCEEDED: RunEnd.SUCCEEDED,
    OutcomeKind.GIVE_BACK: RunEnd.GIVEN_BACK,
    OutcomeKind.SUSPENDED: RunEnd.SUSPENDED,
}

# durable jobs


def suspended_state(outcome: Outcome, suspended: Suspension, come: bool, now: int) -> State:
    """The state of a suspended job. `come`: an event or job that it waits for is there already."""
    until = suspended.until
    if come or (until is not None and until <= now):
        return State.READY
    if suspended.events or suspended.jobs or suspended.parked:
        return State.WAITING
    return State.SCHEDULED if outcome.error is None else State.RETRYING


def must_undo(to: State, *, undoable: bool, undoing: bool, forced: bool) -> bool:
    """A job that is about to be dead or cancelled runs its undos first."""
    return undoable and not undoing and not forced and to in (State.DEAD, State.CANCELLED)


def undo_ends(undo: Undo, why: str | None = None) -> Next:
    """The end of a job that was undone; `why` its undo run failed or was stopped."""
    move = Move.DIED if undo.state is State.DEAD else Move.CANCELLED
    return Next(move, undo.state, joined(undo.reason, why))


def joined(reason: str, more: str | None) -> str:
    return reason if more is None else f"{reason}; undo: {more}"


def parent_ended(parent: str, ended: State) -> str:
    return f"{parent}, which called it, is {ended}"


# dependencies


def is_released_by(ended: State, orphan: str | None) -> bool:
    """The end of a dependency lets the waiting job go on, as far as this dependency is concerned."""
    return ended is State.SUCCEEDED or orphan in ("run", "follow", "first")


def is_first(ended: State, orphan: str | None) -> bool:
    """The end of this dependency is all that the job waited for."""
    return ended is State.SUCCEEDED and orphan == "first"


def orphaned(dependency: str, ended: State) -> str:
    return f"{dependency}, which it waits for, is {ended}"


# changes by hand


def refusal(
    action: JobAction,
    state: State,
    *,
    run: int,
    stopping: bool,
    speculate: bool,
    second_run: bool,
    parked: bool = False,
    undoing: bool = False,
) -> str | None:
    """Why an action cannot be done to a job in this state; None if it can, as far as its key allows."""
    match action:
        case Cancel() if state in FINISHED:
            return f"it is {state} already"
        case Cancel(force=False) | Delete() if undoing:
            return "it is being undone"
        case Continue() if not parked:
            return f"it is {state}, not parked"
        case Retry() if state in (State.WAITING, State.READY, State.RUNNING):
            return f"it is {state}"
        case Delete() if state is State.RUNNING:
            return "it is running: cancel it first"
        case Reschedule() if state not in (State.SCHEDULED, State.RETRYING, State.READY):
            return f"it is {state}"
        case Reprioritise() if state in FINISHED or state is State.RUNNING:
            return f"it is {state}"
        case Speculate() if state is not State.RUNNING or stopping:
            return "it is being cancelled" if stopping else f"it is {state}"
        case Speculate() if not speculate:
            return "its task is not marked speculate=True"
        case Speculate() if second_run:
            return "it has a second run already"
        case Speculate(run=meant) if meant not in (None, run):
            return f"its newest run is {run}"
        case _:
            return None


def limits_after(limits: Limits, action: SetLimits) -> Limits:
    """The operator's limits after an edit: what the edit leaves unset stays."""

    def chosen(old: object, new: object) -> object:
        return old if new is UNSET else new

    return Limits(
        rate=cast("str | None", chosen(limits.rate, action.rate)),
        enqueue_rate=cast("str | None", chosen(limits.enqueue_rate, action.enqueue_rate)),
        max_running=cast("int | None", chosen(limits.max_running, action.max_running)),
        max_ready=cast("int | None", chosen(limits.max_ready, action.max_ready)),
        overflow=cast("Overflow | None", chosen(limits.overflow, action.overflow)),
        group_running=cast("int | None", chosen(limits.group_running, action.group_running)),
    )


def matches(filter: Filter, task: str, priority: int, version: int) -> bool:
    """A worker with this filter may run such a job."""
    return (
        version <= filter.version
        and (filter.tasks is None or task in filter.tasks)
        and (filter.priorities is None or priority in filter.priorities)
    )
