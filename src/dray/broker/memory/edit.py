"""Changes jobs and queues by hand."""

from __future__ import annotations

from dray.broker.actions import (
    Cancel,
    Continue,
    Delete,
    Edited,
    Ids,
    JobAction,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
    Speculate,
)
from dray.broker.checks import read_number
from dray.broker.memory.durable import wake
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.outbox import cancel
from dray.broker.memory.read import scan
from dray.broker.memory.store import JobStore
from dray.broker.rules import limits_after, refusal
from dray.broker.verbs import Event, Limits
from dray.job import FINISHED, Move, Sign


def apply(
    store: JobStore,
    selection: Ids | Query,
    action: JobAction,
    cursor: str | None,
    limit: int,
    dry_run: bool,
    now: int,
) -> Edited:
    """Change the selected jobs, as far as one step goes."""
    changed, refused = [], []
    if isinstance(selection, Ids):
        start = read_number("cursor", cursor)
        ids = selection.ids[start : start + limit]
        more = str(start + limit) if len(selection.ids) > start + limit else None
    else:
        found, more = scan(store, selection, cursor, limit, now)
        ids = tuple(entry.job.id for entry in found)
    for id in ids:
        entry = store.jobs.get(id)
        why = "not_found" if entry is None else _refusal(entry, action, store, now)
        if entry is not None and why is None:
            changed.append(id)
            if not dry_run:
                change(store, entry, action, now)
        elif why is not None and isinstance(selection, Ids):
            refused.append((id, why))
    return Edited(tuple(changed), tuple(refused), more)


def _refusal(entry: JobEntry, action: JobAction, store: JobStore, now: int) -> str | None:
    why = refusal(
        action,
        entry.state,
        run=entry.run,
        stopping=entry.cancel is not None,
        speculate=entry.job.speculate,
        second_run=entry.offered or len(entry.runs) > 1,
        parked=entry.suspended is not None and entry.suspended.parked,
        undoing=entry.undo is not None,
    )
    if why is None and isinstance(action, Retry) and entry.state in FINISHED:
        holder = store.other_key_holder(entry, now)
        return None if holder is None else f"its key is taken by {holder}"
    return why


def change(store: JobStore, entry: JobEntry, action: JobAction, now: int) -> None:
    match action:
        case Cancel(reason=reason, force=force):
            cancel(store, entry, reason, force, now)
        case Retry():
            store.replay(entry, now)
        case Delete():
            store.delete(entry, now)
        case Reschedule(due=due):
            store.line_up(entry, Move.RESCHEDULED, due, now)
        case Reprioritise(priority=priority):
            store.reprioritise(entry, priority)
        case Speculate():
            store.offer(entry)
        case Continue():
            wake(store, entry, now)


def set_scope(store: JobStore, scope: Scope, action: Pause | Resume | SetLimits, now: int) -> None:
    """Pause, resume or limit a queue, or one task in it."""
    line = store.queue(scope.queue).line
    match action:
        case Pause(by=by, reason=reason):
            paused = Pause(by, reason, now)
            if scope.task is None:
                line.paused = paused
            else:
                line.paused_tasks[scope.task] = paused
            sign = Sign.PAUSED
        case Resume():
            if scope.task is None:
                line.paused = None
            else:
                line.paused_tasks.pop(scope.task, None)
            sign = Sign.RESUMED
        case SetLimits():
            if scope.task is None:
                line.limits = limits_after(line.limits, action)
            else:
                limits = limits_after(line.task_limits.get(scope.task, Limits()), action)
                line.task_limits[scope.task] = limits
                if limits == Limits():
                    del line.task_limits[scope.task]
            sign = Sign.LIMITED
    store.notes.setdefault(scope.queue, []).append(Event(sign))
