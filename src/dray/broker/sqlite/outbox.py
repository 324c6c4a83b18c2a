"""Delivers messages between jobs: `dray.broker.memory.outbox`, on rows. Also cancels and revives."""

from __future__ import annotations

from dray.broker.rules import is_first, is_released_by, orphaned, parent_ended, undo_ends
from dray.broker.sqlite.durable import wake
from dray.broker.sqlite.read import read_job
from dray.broker.sqlite.rows import STATES, JobRow, decode_suspension
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.transaction import DEPENDENCY, PARENT, Transaction
from dray.errors import CodecError
from dray.job import FINISHED, Move, Sign, State, lone_run


def deliver(tx: Transaction, limit: int) -> int:
    """Deliver messages of the outbox. Delivering twice changes nothing."""
    for sent in range(limit):
        row = tx.db.execute(SQL["posted"], (tx.ns,)).fetchone()
        if row is None:
            return sent
        seq, job, sender, state, kind, target = row
        job_row = tx.job_row(job)
        # The number of a deleted job may belong to another one by now.
        if job_row is not None and target in (None, job_row.id):
            _deliver(tx, job_row, kind, sender, STATES[state])
        tx.db.execute(SQL["delivered"], (seq,))
    return limit


def _deliver(tx: Transaction, job_row: JobRow, kind: int, sender: str, state: State) -> None:
    if kind == PARENT:
        cancel(tx, job_row, parent_ended(sender, state), False)
    elif kind != DEPENDENCY:
        _revive(tx, job_row, sender)
    elif job_row.state is State.WAITING:
        _dependency_ended(tx, job_row, sender, state)


def _dependency_ended(tx: Transaction, job_row: JobRow, dependency: str, state: State) -> None:
    suspended = tx.durable(job_row).suspended if job_row.durable else None
    if suspended is None and not is_released_by(state, job_row.orphan):
        if job_row.orphan == "cancel" and _waits_for(tx, job_row, dependency):
            tx.finish(job_row, Move.CANCELLED, State.CANCELLED, orphaned(dependency, state))
            _note_orphan(tx, job_row, dependency)
        return
    done = (tx.ns, dependency, job_row.seq)
    if not (tx.db.execute(SQL["dependency_done"], done).rowcount or _node_done(tx, done)):
        return
    left = tx.db.execute(SQL["dependencies"], (job_row.seq,)).fetchone() is not None
    if suspended is not None:
        if not left or not decode_suspension(suspended).all_jobs:
            wake(tx, job_row)
    elif not left or is_first(state, job_row.orphan):
        tx.stop_waiting(job_row)
        tx.line_up(job_row, Move.RELEASED, job_row.due)


def _node_done(tx: Transaction, done: tuple[int, str, int]) -> int:
    return tx.db.execute(SQL["node_done"], done).rowcount


def _waits_for(tx: Transaction, job_row: JobRow, dependency: str) -> bool:
    return (dependency,) in tx.db.execute(SQL["dependencies"], (job_row.seq,)).fetchall()


def _note_orphan(tx: Transaction, job_row: JobRow, dependency: str) -> None:
    if job_row.state.finished:
        row = tx.durable(job_row)
        row.orphaned_by = dependency
        tx.save_durable(job_row, row)


def cancel(tx: Transaction, job_row: JobRow, reason: str, force: bool) -> None:
    """A job that runs is asked to stop; any other ends, or is undone. `force` skips the undo."""
    undo = tx.undo_of(job_row)
    if job_row.state.finished or (undo is not None and not force):
        return
    if job_row.state is State.RUNNING:
        if job_row.cancel is None or (force and not _is_forced(tx, job_row)):
            _ask_to_stop(tx, job_row, reason, force)
        return
    job_row.forced = int(force)
    if undo is not None:
        tx.after_run(job_row, undo_ends(undo, reason), 0)
    else:
        tx.finish(job_row, Move.CANCELLED, State.CANCELLED, reason)


def _is_forced(tx: Transaction, job_row: JobRow) -> bool:
    return bool(tx.db.execute(SQL["is_forced"], (job_row.seq,)).fetchone()[0])


def _ask_to_stop(tx: Transaction, job_row: JobRow, reason: str, force: bool) -> None:
    job_row.cancel = job_row.cancel or reason
    tx.withdraw_offer(job_row)
    tx.save(job_row)
    if force:
        tx.db.execute(SQL["force_runs"], (job_row.seq,))
    tx.notified |= {row[4] for row in tx.db.execute(SQL["runs_of"], (job_row.seq,))}
    tx.note(job_row.queue, Sign.CANCEL_ASKED, job_row.id, job_row.run)


def other_key_holder(tx: Transaction, job_row: JobRow) -> str | None:
    """The job that has the key this one would need."""
    if job_row.key is None:
        return None
    row = tx.db.execute(SQL["key_holder"], (job_row.queue, job_row.key, tx.now)).fetchone()
    holder = None if row is None or row[0] == job_row.seq else tx.job_row(row[0])
    return None if holder is None else holder.id


def replay(tx: Transaction, job_row: JobRow) -> None:
    """Run again by hand, with all its retries."""
    finished = job_row.state in FINISHED
    if finished:
        tx.claim_key(job_row.queue, job_row.key, job_row.seq, job_row.key_ttl)
    _begin_again(tx, job_row)
    tx.line_up(job_row, Move.REPLAYED, None)
    if finished:
        tx.tell_revived(job_row)


def _begin_again(tx: Transaction, job_row: JobRow) -> None:
    """Forget failures, and of a finished job its end; a durable one goes on with its log."""
    if job_row.state is State.SUCCEEDED and job_row.run == 1:
        tx.remember(job_row, lone_run(job_row.started, job_row.finished))
    job_row.failures = job_row.crashes = job_row.suspect = 0
    tx.db.execute(SQL["delete_end"], (job_row.seq,))
    tx.db.execute(SQL["drop_result"], (job_row.seq,))
    row = tx.durable(job_row)
    if row.undo is None:
        tx.set_deadline(job_row)
    if job_row.state in FINISHED:
        job_row.finished = None
        row.replayed, row.orphaned_by = job_row.run, None
        if row.undone:
            row.memos = row.size = row.undone = 0
            tx.db.execute(SQL["delete_memos"], (job_row.seq,))
        if job_row.run or job_row.durable:
            tx.save_durable(job_row, row)


def _revive(tx: Transaction, job_row: JobRow, dependency: str) -> None:
    """Let a finished job wait again: it was cancelled because of the dependency, or it follows it."""
    if job_row.state not in FINISHED:
        return
    follows = job_row.orphan == "follow"
    orphan = job_row.state is State.CANCELLED and tx.durable(job_row).orphaned_by == dependency
    if not (orphan or follows) or other_key_holder(tx, job_row) is not None:
        return
    tx.claim_key(job_row.queue, job_row.key, job_row.seq, job_row.key_ttl)
    _begin_again(tx, job_row)
    depends = (dependency,) if follows else _dependencies(tx, job_row, dependency)
    waiting = [_wait_again(tx, job_row, id) for id in depends]
    job_row.pos = 0
    tx.move(job_row, Move.REVIVED, State.WAITING)
    tx.tell_revived(job_row)
    if not any(waiting):
        tx.line_up(job_row, Move.RELEASED, job_row.due)


def _dependencies(tx: Transaction, job_row: JobRow, dependency: str) -> tuple[str, ...]:
    """All jobs it waited for; only the one that ended it, if its envelope cannot be read here."""
    try:
        job = read_job(tx.envelope(job_row.seq), job_row.id, job_row.priority, job_row.version)
    except CodecError:
        return (dependency,)
    return job.waits_for


def _wait_again(tx: Transaction, job_row: JobRow, dependency: str) -> bool:
    if tx.db.execute(SQL["state_of"], (tx.ns, dependency)).fetchone() is None:
        tx.post(job_row.seq, dependency, State.NOT_FOUND)
    return tx.wait_for(job_row.seq, job_row.id, dependency)
