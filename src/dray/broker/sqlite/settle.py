"""Recording outcomes. Plain successes, the bulk of all work, are written together; the rest one by one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import starmap

import msgspec

from dray.broker.rules import after_outcome, forget_at, later, settled_end
from dray.broker.sqlite.durable import suspend
from dray.broker.sqlite.rows import STATES, JobRow, encode
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Ref
from dray.job import Move, Outcome, OutcomeKind, Settled, State, Verdict

_ACCEPTED = Settled(Verdict.ACCEPTED, State.SUCCEEDED)
SMALL = 256
"""Bytes of a result that is kept in the job's own row, until the job is forgotten."""
_to_json = msgspec.json.Encoder().encode


def settle_runs(tx: Transaction, session: int, outcomes: Sequence[Outcome]) -> list[Settled]:
    """One verdict per outcome, in order, as if they came one after the other."""
    ids = [outcome.id for outcome in outcomes]
    if len(set(ids)) < len(ids):
        return [settled for outcome in outcomes for settled in settle_runs(tx, session, [outcome])]
    rows: dict[str, list[tuple[object, ...]]] = {}
    for row in tx.db.execute(SQL["settling"], (_to_json(ids).decode(), tx.ns, session)):
        rows.setdefault(row[0], []).append(row)
    successes = _Successes(tx, session)
    job_row = _load(tx, [outcome.id for outcome in outcomes if outcome.kind is not OutcomeKind.SUCCEEDED])
    settled = [
        _settle(tx, session, outcome, rows.get(outcome.id, []), successes, job_row) for outcome in outcomes
    ]
    successes.write()
    return settled


def _load(tx: Transaction, ids: list[str]) -> dict[str, JobRow]:
    """The jobs whose outcomes are concluded one by one, read together."""
    if not ids:
        return {}
    rows = tx.db.execute(_BY_IDS, (tx.ns, _to_json(ids).decode()))
    return {job_row.id: job_row for job_row in starmap(JobRow, rows)}


_BY_IDS = where("job_columns", "ns = ? AND id IN (SELECT value FROM json_each(?))")


def _settle(
    tx: Transaction,
    session: int,
    outcome: Outcome,
    rows: list[tuple[object, ...]],
    successes: _Successes,
    loaded: dict[str, JobRow],
) -> Settled:
    if not rows:
        _drop_void(tx, session, outcome)
        return Settled(Verdict.REFUSED, State.NOT_FOUND)
    row = next((row for row in rows if row[-1] == outcome.run), None)
    if row is None:
        _drop_void(tx, session, outcome)
        state, last = rows[0][3], rows[0][4]
        assert isinstance(state, int)  # noqa: S101 (for the type checker)
        verdict = Verdict.ALREADY if last == outcome.run else Verdict.REFUSED
        return Settled(verdict, STATES[state])
    if outcome.kind is OutcomeKind.SUCCEEDED and successes.take(outcome, row):
        return _ACCEPTED
    successes.write()  # so that those who wait for them hear of them first
    job_row = loaded.get(outcome.id) or tx.job_row_by_id(outcome.id)
    assert job_row is not None  # noqa: S101 (it was just read in this transaction)
    job_row.settled = outcome.run
    _conclude(tx, job_row, session, outcome)
    return Settled(Verdict.ACCEPTED, job_row.state)


def _drop_void(tx: Transaction, session: int, outcome: Outcome) -> None:
    tx.db.execute(SQL["delete_void"], (session, outcome.id, outcome.run))


class _Successes:
    """Completions with nothing special about them, written with one statement each kind."""

    def __init__(self, tx: Transaction, session: int) -> None:
        self._tx, self._session = tx, session
        self._jobs: list[tuple[object, ...]] = []
        self._runs: list[tuple[object, ...]] = []
        self._ends: list[tuple[object, ...]] = []
        self._ids: list[tuple[int, str]] = []

    def take(self, outcome: Outcome, row: tuple[object, ...]) -> bool:
        """Collect a plain success, to be written in bulk; False if it needs the full way."""
        _, seq, queue, _, _, runs, newest, cancel, key, once, ttl, offered, durable, *rest = row
        owner, most, group, running_key, task, run = rest
        if cancel is not None or key is not None or runs != 1 or newest != 1 or offered or durable:
            return False
        tx = self._tx
        assert isinstance(seq, int) and isinstance(queue, int)  # noqa: PT018, S101 (for the type checker)
        assert isinstance(once, int | None) and isinstance(ttl, int | None)  # noqa: PT018, S101
        at = forget_at(once, State.SUCCEEDED, tx.now, tx.retention)
        small = outcome.result is not None and len(outcome.result) <= SMALL
        self._jobs.append((at, run, tx.now, outcome.result if small else None, seq))
        self._runs.append((self._session, seq, run))
        if outcome.error is not None or not (small or outcome.result is None):
            keep = None if owner is not None else tx.retention.result_ttl if ttl is None else ttl
            error = None if outcome.error is None else encode(outcome.error)
            result = None if small else outcome.result
            self._ends.append((seq, result, error, None, tx.ns, later(keep, tx.now)))
        self._ids.append((seq, outcome.id))
        tx.slot_free(queue, task, most, group, running_key)  # type: ignore[arg-type]
        tx.note(queue, Move.SUCCEEDED, outcome.id, outcome.run)
        return True

    def write(self) -> None:
        if not self._jobs:
            return
        tx = self._tx
        tx.db.executemany(SQL["succeed"], self._jobs)
        tx.db.executemany(SQL["delete_run"], self._runs)
        if self._ends:
            tx.db.executemany(SQL["save_end"], self._ends)
        if any(tx.db.execute(SQL["any_listener"]).fetchone()):
            for seq, id in self._ids:
                tx.notify(seq, id, State.SUCCEEDED)
        for written in (self._jobs, self._runs, self._ends, self._ids):
            written.clear()


def _conclude(tx: Transaction, job_row: JobRow, session: int, outcome: Outcome) -> None:
    if outcome.error is not None:
        tx.save_end(job_row, None, outcome.error, None)
    if outcome.kind is OutcomeKind.CRASHED:
        tx.crash(job_row, session, outcome.run, together=outcome.together, error=outcome.error)
        return
    how = settled_end(outcome.kind, cancelled=job_row.cancel is not None)
    tx.end_run(job_row, session, outcome.run, how, outcome.error)
    next = after_outcome(
        outcome,
        cancel=job_row.cancel,
        other_runs=job_row.runs > 0,
        deadline=job_row.deadline_at,
        now=tx.now,
        undo=tx.undo_of(job_row),
    )
    if next.to is State.SUCCEEDED:
        tx.save_end(job_row, outcome.result, None, None)
    if next.move is Move.SUSPENDED and outcome.suspend is not None:
        suspend(tx, job_row, outcome, outcome.suspend)
        return
    tx.after_run(job_row, next, outcome.run, outcome.at)


_HELD_BY = where("job_columns", "seq IN (SELECT job FROM runs WHERE session = ?)")


def release_session(
    tx: Transaction, name: str, *, suspect: bool = True, blamed: frozenset[Ref] = frozenset()
) -> int:
    """Free what a session holds, and forget it."""
    row = tx.db.execute(SQL["find_session"], (tx.ns, name)).fetchone()
    if row is None:
        return 0
    session = row[0]
    tx.notified.add(name)
    held = tx.db.execute(SQL["held"], (session,)).fetchall()
    jobs = {
        job_row.seq: job_row for job_row in starmap(JobRow, tx.db.execute(_HELD_BY, (session,)).fetchall())
    }
    for seq, run in held:
        job_row = jobs.get(seq)
        if job_row is not None:
            guilty = (job_row.id, run) in blamed
            tx.crash(job_row, session, run, suspect=suspect or guilty, together=int(guilty))
    tx.db.execute(SQL["delete_voids"], (session,))
    tx.db.execute(SQL["delete_session"], (session,))
    return len(held)


def free_some(tx: Transaction, session: int, name: str, limit: int) -> tuple[int, bool]:
    """Free up to `limit` runs of a session past its lease; how many, and whether it holds more.

    One that holds more ends in a later transaction. If it lives after all, it hears what it has lost.
    """
    held = tx.db.execute(SQL["held_first"], (session, limit + 1)).fetchall()
    if len(held) <= limit:
        return release_session(tx, name), False
    tx.notified.add(name)
    for seq, run in held[:limit]:
        job_row = tx.job_row(seq)
        if job_row is not None:
            tx.crash(job_row, session, run)
            tx.db.execute(SQL["insert_void"], (session, job_row.id, run))
    return limit, True
