"""Changing jobs and queues by hand."""

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
from dray.broker.rules import limits_after, refusal
from dray.broker.sqlite.durable import is_parked, wake
from dray.broker.sqlite.outbox import cancel, other_key_holder, replay
from dray.broker.sqlite.read import scan_arrived
from dray.broker.sqlite.rows import JobRow, decode_limits, encode
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Event, Limits
from dray.job import FINISHED, Move, Sign, State


def apply(
    tx: Transaction, selection: Ids | Query, action: JobAction, cursor: str | None, limit: int, dry_run: bool
) -> Edited:
    """Change the selected jobs, as far as one transaction goes."""
    changed, refused = [], []
    if isinstance(selection, Ids):
        start = read_number("cursor", cursor)
        ids = selection.ids[start : start + limit]
        more = str(start + limit) if len(selection.ids) > start + limit else None
    else:
        ids, more = scan_arrived(tx, selection, cursor, limit)
    for id in ids:
        job_row = tx.job_row_by_id(id)
        why = "not_found" if job_row is None else _refusal(tx, job_row, action)
        if job_row is not None and why is None:
            changed.append(id)
            if not dry_run:
                _change(tx, job_row, action)
        elif why is not None and isinstance(selection, Ids):
            refused.append((id, why))
    return Edited(tuple(changed), tuple(refused), more)


def _refusal(tx: Transaction, job_row: JobRow, action: JobAction) -> str | None:
    why = refusal(
        action,
        job_row.state,
        run=job_row.run,
        stopping=job_row.cancel is not None,
        speculate=bool(job_row.speculate),
        second_run=bool(job_row.offered) or job_row.runs > 1,
        parked=is_parked(tx, job_row),
        undoing=tx.undo_of(job_row) is not None,
    )
    if why is None and isinstance(action, Retry) and job_row.state in FINISHED:
        holder = other_key_holder(tx, job_row)
        return None if holder is None else f"its key is taken by {holder}"
    return why


def _change(tx: Transaction, job_row: JobRow, action: JobAction) -> None:
    match action:
        case Cancel(reason=reason, force=force):
            cancel(tx, job_row, reason, force)
        case Retry():
            replay(tx, job_row)
        case Delete():
            tx.note(job_row.queue, Move.DELETED, job_row.id)
            tx.forget(job_row)
        case Reschedule(due=due):
            tx.line_up(job_row, Move.RESCHEDULED, due)
        case Reprioritise(priority=priority):
            _reprioritise(tx, job_row, priority)
        case Speculate():
            job_row.offered = 1
            tx.save(job_row)
            tx.db.execute(SQL["insert_offer"], (job_row.queue, job_row.seq))
            tx.unblocked.add(job_row.queue)
            tx.note(job_row.queue, Sign.SPECULATED, job_row.id, job_row.run)
        case Continue():
            wake(tx, job_row)


def _reprioritise(tx: Transaction, job_row: JobRow, priority: int) -> None:
    """Only the row is changed: rewriting an envelope of a newer version would lose what is new in it."""
    was_ready = job_row.state is State.READY
    if was_ready:
        tx.db.execute(SQL["leave_line"], (job_row.seq,))
        tx.tidy_lane(job_row.queue, job_row.lane)
    job_row.priority = priority
    if was_ready:
        job_row.lane = tx.lane_of(job_row, job_row.queue, job_row.line)
        tx.ready.setdefault(job_row.queue, []).append(job_row.class_key())
    tx.save(job_row)
    tx.note(job_row.queue, Sign.REPRIORITISED, job_row.id)


def set_scope(tx: Transaction, scope: Scope, action: Pause | Resume | SetLimits) -> None:
    """Pause, resume or limit a queue, or one task in it."""
    queue = tx.make_queue(scope.queue)
    match action:
        case Pause(by=by, reason=reason):
            _set_paused(tx, queue.id, scope.task, encode(Pause(by, reason, tx.now)))
            sign = Sign.PAUSED
        case Resume():
            _set_paused(tx, queue.id, scope.task, None)
            sign = Sign.RESUMED
        case SetLimits():
            _set_limits(tx, queue.id, scope.task, queue.limits, action)
            tx.unblock("unblock_queue", queue.id)
            sign = Sign.LIMITED
    tx.unblocked.add(queue.id)
    tx.notes.setdefault(queue.id, []).append(Event(sign))


def _set_paused(tx: Transaction, queue: int, task: str | None, paused: bytes | None) -> None:
    if task is None:
        tx.db.execute(SQL["set_paused"], (paused, queue))
        return
    _, limits = tx.db.execute(SQL["find_task"], (queue, task)).fetchone() or (None, None)
    tx.db.execute(SQL["set_task"], (queue, task, paused, limits))
    tx.db.execute(SQL["forget_task"], (queue, task))


def _set_limits(tx: Transaction, queue: int, task: str | None, old: Limits, action: SetLimits) -> None:
    paused = None
    if task is not None:
        paused, packed = tx.db.execute(SQL["find_task"], (queue, task)).fetchone() or (None, None)
        old = decode_limits(packed) if packed else Limits()
    limits = limits_after(old, action)
    packed = None if limits == Limits() else encode(limits)
    if task is None:
        tx.db.execute(SQL["set_limits"], (packed, queue))
        return
    tx.db.execute(SQL["set_task"], (queue, task, paused, packed))
    tx.db.execute(SQL["forget_task"], (queue, task))
