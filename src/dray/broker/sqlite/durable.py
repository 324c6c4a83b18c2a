"""The log, the mailbox and the suspension of durable jobs: `dray.broker.memory.durable`, on rows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.broker.checks import check_log_size
from dray.broker.durable import MAILBOX_MAX, MESSAGE_IDS_MAX, RECALL_BYTES, MemoWrite, Message, Sent
from dray.broker.rules import suspended_state
from dray.broker.sqlite.rows import STATES, DurableRow, JobRow, decode_suspension, decode_undo, encode
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.transaction import Transaction
from dray.job import Move, Outcome, State, Suspension, Taken, Verdict

_to_json = msgspec.json.Encoder().encode


def write_memos(tx: Transaction, session: int, writes: Sequence[MemoWrite]) -> list[Verdict]:
    """Raises TooLarge before the transaction is committed, so that nothing of the call is kept."""
    return [_write_memo(tx, session, write) for write in writes]


def _write_memo(tx: Transaction, session: int, write: MemoWrite) -> Verdict:
    job_row = tx.job_row_by_id(write.id)
    if (
        job_row is None
        or tx.db.execute(SQL["holds_run"], (session, job_row.seq, write.run)).fetchone() is None
    ):
        return Verdict.REFUSED
    row = tx.durable(job_row)
    if write.position != row.memos:
        there = tx.db.execute(SQL["memos_from"], (job_row.seq, write.position)).fetchall()
        same = bool(there) and tuple(entry for (entry,) in there) == write.entries
        return Verdict.ALREADY if same else Verdict.REFUSED
    row.size += sum(map(len, write.entries))
    check_log_size(write.id, row.memos + len(write.entries), row.size)
    _append(tx, job_row, row, write)
    return Verdict.ACCEPTED


def _append(tx: Transaction, job_row: JobRow, row: DurableRow, write: MemoWrite) -> None:
    seq = job_row.seq
    tx.db.executemany(
        SQL["insert_memo"], [(seq, row.memos + n, entry) for n, entry in enumerate(write.entries)]
    )
    row.memos += len(write.entries)
    if write.undo is not None:
        row.undoable = int(write.undo)
    tx.save_durable(job_row, row)
    tx.db.executemany(SQL["insert_child"], [(seq, child) for child in write.children])
    for name, number in write.consumed.items():
        tx.db.execute(SQL["drop_messages"], (seq, name, number))


def read_log(tx: Transaction, id: str, position: int, limit: int) -> list[bytes]:
    """A page of the log: at least one entry, if there is one."""
    page, size = list[bytes](), 0
    for (entry,) in tx.db.execute(SQL["read_memos"], (tx.ns, id, position, limit)):
        page.append(entry)
        size += len(entry)
        if size >= RECALL_BYTES:
            break
    return page


def send(tx: Transaction, id: str, name: str, message: str, body: bytes) -> Sent:
    """Keep the message, and wake the job if it waits for one."""
    job_row = tx.job_row_by_id(id)
    if job_row is None:
        return Sent("not_found", State.NOT_FOUND)
    newest, held, known = tx.db.execute(SQL["mailbox"], (job_row.seq, name, message)).fetchone()
    if known:
        return Sent("already", job_row.state)
    if job_row.state.finished:
        return Sent("finished", job_row.state)
    if held >= MAILBOX_MAX:
        return Sent("full", job_row.state)
    tx.db.execute(SQL["insert_message"], (job_row.seq, name, newest + 1, message, body))
    tx.db.execute(SQL["trim_messages"], (job_row.seq, name, newest + 1 - MESSAGE_IDS_MAX))
    if not job_row.durable:
        tx.save_durable(job_row, DurableRow())
    suspended = tx.durable(job_row).suspended
    if suspended is not None and decode_suspension(suspended).events.get(name, newest + 1) <= newest:
        wake(tx, job_row)
    return Sent("accepted", job_row.state)


def read_mailbox(tx: Transaction, id: str, name: str, after: int, limit: int) -> list[Message]:
    rows = tx.db.execute(SQL["read_messages"], (tx.ns, id, name, after, limit))
    return [Message(*row) for row in rows]


def suspend(tx: Transaction, job_row: JobRow, outcome: Outcome, suspended: Suspension) -> None:
    """Its run has ended: look whether what it waits for is there, or register; then wait or go on."""
    job_row.suspect = 0
    missing = _look_at_jobs(tx, job_row, suspended.jobs)
    enough = len(missing) < len(suspended.jobs) if not suspended.all_jobs else not missing
    come = _has_news(tx, job_row, suspended) or (bool(suspended.jobs) and enough)
    state = suspended_state(outcome, suspended, come, tx.now)
    if state is State.READY:
        tx.line_up(job_row, Move.SUSPENDED, None, outcome.run)
        return
    row = tx.durable(job_row)
    row.suspended, job_row.pos = encode(suspended), suspended.until or 0
    row.open = int(state is State.WAITING and bool(suspended.events or suspended.parked))
    if state is State.WAITING:
        row.wake, job_row.pos = suspended.until, 0
        rows = [(tx.ns, id, job_row.id, job_row.seq) for id in missing]
        tx.db.executemany(SQL["insert_dependency"], rows)
        if suspended.parked:
            tx.save_end(job_row, None, None, outcome.reason)
    if row.wake is not None:
        tx.due[job_row.queue] = min(row.wake, tx.due.get(job_row.queue, row.wake))
    tx.save_durable(job_row, row)
    tx.move(job_row, Move.SUSPENDED, state, outcome.run)


def _look_at_jobs(tx: Transaction, job_row: JobRow, ids: tuple[str, ...]) -> list[str]:
    """Those that have not ended. One that is gone counts as ended; nodes that have ended remember the job."""
    if not ids:
        return []
    unfinished = set()
    for id, state, node in tx.db.execute(SQL["states_of"], (tx.ns, _to_json(ids).decode())).fetchall():
        if not STATES[state].finished:
            unfinished.add(id)
        elif node is not None:
            tx.db.execute(SQL["remember_dependant"], (tx.ns, id, job_row.id))
    return [id for id in ids if id in unfinished]


def _has_news(tx: Transaction, job_row: JobRow, suspended: Suspension) -> bool:
    """A message has come that the run had not seen."""
    for name, seen in suspended.events.items():
        newest = tx.db.execute(SQL["newest_message"], (job_row.seq, name)).fetchone()[0]
        if newest is not None and newest > seen:
            return True
    return False


def wake(tx: Transaction, job_row: JobRow) -> None:
    """What a suspended job waits for has come, or is not waited for any longer."""
    tx.stop_waiting(job_row)
    tx.line_up(job_row, Move.WOKEN, None)


def is_parked(tx: Transaction, job_row: JobRow) -> bool:
    suspended = tx.durable(job_row).suspended if job_row.durable else None
    return suspended is not None and decode_suspension(suspended).parked


def due_wakes(tx: Transaction, queue: int, limit: int) -> list[JobRow]:
    """Waiting jobs whose time has come; their place in the order of due times is in `pos`."""
    found = []
    for seq, at in tx.db.execute(SQL["due_wakes"], (queue, tx.now, limit)).fetchall():
        row = tx.db.execute(_WAITING, (seq,)).fetchone()
        if row is not None:
            found.append(JobRow(*row))
            found[-1].pos = at
    return found


_WAITING = where("job_columns", "seq = ? AND state = 0")


def with_log(tx: Transaction, seq: int, taken: Taken) -> Taken:
    """Beside a job that is handed out: how long its log is, since when errors count, and its undo."""
    row = DurableRow(*(tx.db.execute(SQL["durable_row"], (seq,)).fetchone() or ()))
    undo = None if row.undo is None else decode_undo(row.undo)
    return msgspec.structs.replace(taken, memos=row.memos, replayed=row.replayed, undo=undo)


def tally(tx: Transaction, owner: str, queues: Sequence[str]) -> dict[State, int]:
    """The nodes of a flow in these queues, by state."""
    counts: dict[State, int] = {}
    for queue in dict.fromkeys(queues):
        for state, count in tx.db.execute(SQL["tally"], (owner, tx.ns, queue)):
            counts[STATES[state]] = counts.get(STATES[state], 0) + count
    return {state: counts[state] for state in State if state in counts}
