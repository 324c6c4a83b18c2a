"""Changing jobs and queues by hand."""

from __future__ import annotations

from dray.broker.checks import limits_after, read_number, refusal
from dray.broker.sqlite.read import scan_arrived
from dray.broker.sqlite.rows import Kept, decode_limits, encode
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
from dray.broker.verbs import (
    Cancel,
    Delete,
    Edited,
    Event,
    Ids,
    JobAction,
    Limits,
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
from dray.job import FINISHED, Move, Sign, State


def apply(
    step: Step, selection: Ids | Query, action: JobAction, cursor: str | None, limit: int, dry_run: bool
) -> Edited:
    """Change the selected jobs, as far as one step goes."""
    changed, refused = [], []
    if isinstance(selection, Ids):
        start = read_number("cursor", cursor)
        ids = selection.ids[start : start + limit]
        more = str(start + limit) if len(selection.ids) > start + limit else None
    else:
        ids, more = scan_arrived(step, selection, cursor, limit)
    for id in ids:
        kept = step.kept_by_id(id)
        why = "not_found" if kept is None else _refusal(step, kept, action)
        if kept is not None and why is None:
            changed.append(id)
            if not dry_run:
                _change(step, kept, action)
        elif why is not None and isinstance(selection, Ids):
            refused.append((id, why))
    return Edited(tuple(changed), tuple(refused), more)


def _refusal(step: Step, kept: Kept, action: JobAction) -> str | None:
    why = refusal(
        action,
        kept.state,
        stopping=kept.cancel is not None,
        speculate=bool(kept.speculate),
        second_run=bool(kept.offered) or kept.runs > 1,
    )
    if why is None and isinstance(action, Retry) and kept.state in FINISHED:
        holder = _other_key_holder(step, kept)
        return None if holder is None else f"its key is taken by {holder}"
    return why


def _other_key_holder(step: Step, kept: Kept) -> str | None:
    if kept.key is None:
        return None
    row = step.db.execute(SQL["key_holder"], (kept.queue, kept.key, step.now)).fetchone()
    holder = None if row is None or row[0] == kept.seq else step.kept(row[0])
    return None if holder is None else holder.id


def _change(step: Step, kept: Kept, action: JobAction) -> None:
    match action:
        case Cancel(reason=reason):
            if kept.state is not State.RUNNING:
                step.finish(kept, Move.CANCELLED, State.CANCELLED, reason)
            elif kept.cancel is None:
                _ask_to_stop(step, kept, reason)
        case Retry():
            _replay(step, kept)
        case Delete():
            step.note(kept.queue, Move.DELETED, kept.id)
            step.forget(kept)
        case Reschedule(due=due):
            step.line_up(kept, Move.RESCHEDULED, due)
        case Reprioritise(priority=priority):
            step.reprioritise(kept, priority)
        case Speculate():
            kept.offered = 1
            step.save(kept)
            step.db.execute(SQL["insert_offer"], (kept.queue, kept.seq))
            step.stirred.add(kept.queue)
            step.note(kept.queue, Sign.SPECULATED, kept.id, kept.run)


def _ask_to_stop(step: Step, kept: Kept, reason: str) -> None:
    kept.cancel = reason
    step.withdraw_offer(kept)
    step.save(kept)
    step.told |= {row[4] for row in step.db.execute(SQL["runs_of"], (kept.seq,))}
    step.note(kept.queue, Sign.CANCEL_ASKED, kept.id, kept.run)


def _replay(step: Step, kept: Kept) -> None:
    """Run again by hand, with all its retries."""
    if kept.state in FINISHED:
        step.claim_key(kept.queue, kept.key, kept.seq, kept.key_ttl)
    kept.failures = kept.crashes = kept.suspect = 0
    kept.finished = None
    step.db.execute(SQL["delete_end"], (kept.seq,))
    step.db.execute(SQL["drop_result"], (kept.seq,))
    step.line_up(kept, Move.REPLAYED, None)


def set_scope(step: Step, scope: Scope, action: Pause | Resume | SetLimits) -> Edited:
    """Pause, resume or limit a queue, or one task in it."""
    queue = step.make_queue(scope.queue)
    match action:
        case Pause(by=by, reason=reason):
            _set_paused(step, queue.id, scope.task, encode(Pause(by, reason, step.now)))
            sign = Sign.PAUSED
        case Resume():
            _set_paused(step, queue.id, scope.task, None)
            sign = Sign.RESUMED
        case SetLimits():
            _set_limits(step, queue.id, scope.task, queue.limits, action)
            step.unblock("unblock_queue", queue.id)
            sign = Sign.LIMITED
    step.stirred.add(queue.id)
    step.notes.setdefault(queue.id, []).append(Event(sign))
    return Edited()


def _set_paused(step: Step, queue: int, task: str | None, paused: bytes | None) -> None:
    if task is None:
        step.db.execute(SQL["set_paused"], (paused, queue))
        return
    _, limits = step.db.execute(SQL["find_task"], (queue, task)).fetchone() or (None, None)
    step.db.execute(SQL["set_task"], (queue, task, paused, limits))
    step.db.execute(SQL["forget_task"], (queue, task))


def _set_limits(step: Step, queue: int, task: str | None, old: Limits, action: SetLimits) -> None:
    paused = None
    if task is not None:
        paused, packed = step.db.execute(SQL["find_task"], (queue, task)).fetchone() or (None, None)
        old = decode_limits(packed) if packed else Limits()
    limits = limits_after(old, action)
    packed = None if limits == Limits() else encode(limits)
    if task is None:
        step.db.execute(SQL["set_limits"], (packed, queue))
        return
    step.db.execute(SQL["set_task"], (queue, task, paused, packed))
    step.db.execute(SQL["forget_task"], (queue, task))
