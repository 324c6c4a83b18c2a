"""Recording outcomes. Plain successes, the bulk of all work, are written together; the rest one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.broker.checks import forget_at
from dray.broker.sqlite.rows import STATES, Kept, encode
from dray.broker.sqlite.statements import SQL, where
from dray.broker.sqlite.step import Step
from dray.broker.verbs import Ref
from dray.job import Move, Outcome, OutcomeKind, Settled, Sign, State, Verdict

_ACCEPTED = Settled(Verdict.ACCEPTED, State.SUCCEEDED)
SMALL = 256
"""Bytes of a result that is kept in the job's own row, until the job is forgotten."""
_to_json = msgspec.json.Encoder().encode


def settle_runs(step: Step, session: int, outcomes: Sequence[Outcome]) -> list[Settled]:
    """One verdict per outcome, in order, as if they came one after the other."""
    ids = [outcome.id for outcome in outcomes]
    if len(set(ids)) < len(ids):
        return [settled for outcome in outcomes for settled in settle_runs(step, session, [outcome])]
    rows: dict[str, list[tuple[object, ...]]] = {}
    for row in step.db.execute(SQL["settling"], (_to_json(ids).decode(), step.ns, session)):
        rows.setdefault(row[0], []).append(row)
    successes = _Successes(step, session)
    kept = _load(step, [outcome.id for outcome in outcomes if outcome.kind is not OutcomeKind.SUCCEEDED])
    settled = [
        _settle(step, session, outcome, rows.get(outcome.id, []), successes, kept) for outcome in outcomes
    ]
    successes.write()
    return settled


def _load(step: Step, ids: list[str]) -> dict[str, Kept]:
    """The jobs whose outcomes are concluded one by one, read together."""
    if not ids:
        return {}
    rows = step.db.execute(_BY_IDS, (step.ns, _to_json(ids).decode()))
    return {kept.id: kept for kept in map(Kept, rows)}


_BY_IDS = where("job_columns", "ns = ? AND id IN (SELECT value FROM json_each(?))")


def _settle(
    step: Step,
    session: int,
    outcome: Outcome,
    rows: list[tuple[object, ...]],
    successes: _Successes,
    loaded: dict[str, Kept],
) -> Settled:
    if not rows:
        _drop_void(step, session, outcome)
        return Settled(Verdict.REFUSED, State.NOT_FOUND)
    row = next((row for row in rows if row[-1] == outcome.run), None)
    if row is None:
        _drop_void(step, session, outcome)
        state, last = rows[0][3], rows[0][4]
        assert isinstance(state, int)  # noqa: S101 (for the type checker)
        verdict = Verdict.ALREADY if last == outcome.run else Verdict.REFUSED
        return Settled(verdict, STATES[state])
    if outcome.kind is OutcomeKind.SUCCEEDED and successes.take(outcome, row):
        return _ACCEPTED
    kept = loaded.get(outcome.id) or step.kept_by_id(outcome.id)
    assert kept is not None  # noqa: S101 (it was just read in this transaction)
    kept.settled = outcome.run
    _conclude(step, kept, session, outcome)
    return Settled(Verdict.ACCEPTED, kept.state)


def _drop_void(step: Step, session: int, outcome: Outcome) -> None:
    step.db.execute(SQL["delete_void"], (session, outcome.id, outcome.run))


class _Successes:
    """Completions with nothing special about them, written with one statement each kind."""

    def __init__(self, step: Step, session: int) -> None:
        self._step, self._session = step, session
        self._jobs: list[tuple[object, ...]] = []
        self._runs: list[tuple[object, ...]] = []
        self._ends: list[tuple[object, ...]] = []
        self._ids: list[tuple[int, str]] = []

    def take(self, outcome: Outcome, row: tuple[object, ...]) -> bool:
        """Whether this one is plain; if so it is dealt with."""
        _, seq, queue, _, _, runs, cancel, key, once, ttl, offered, most, group, running_key, task, run = row
        if cancel is not None or key is not None or runs != 1 or offered:
            return False
        step = self._step
        assert isinstance(seq, int) and isinstance(queue, int)  # noqa: PT018, S101 (for the type checker)
        assert isinstance(once, int | None) and isinstance(ttl, int | None)  # noqa: PT018, S101
        at = forget_at(once, State.SUCCEEDED, step.now, step.retention)
        small = outcome.result is not None and len(outcome.result) <= SMALL
        self._jobs.append((at, run, step.now, outcome.result if small else None, seq))
        self._runs.append((self._session, seq, run))
        if outcome.error is not None or not (small or outcome.result is None):
            keep = step.retention.result_ttl if ttl is None else ttl
            error = None if outcome.error is None else encode(outcome.error)
            result = None if small else outcome.result
            self._ends.append((seq, result, error, None, step.ns, step.now + keep))
        self._ids.append((seq, outcome.id))
        step.slot_free(queue, task, most, group, running_key)  # type: ignore[arg-type]
        step.note(queue, Move.SUCCEEDED, outcome.id, outcome.run)
        return True

    def write(self) -> None:
        if not self._jobs:
            return
        step = self._step
        step.db.executemany(SQL["succeed"], self._jobs)
        step.db.executemany(SQL["delete_run"], self._runs)
        if self._ends:
            step.db.executemany(SQL["save_end"], self._ends)
        if any(step.db.execute(SQL["anyone_told"]).fetchone()):
            for seq, id in self._ids:
                step.tell(seq, id, State.SUCCEEDED)


def _conclude(step: Step, kept: Kept, session: int, outcome: Outcome) -> None:
    run = outcome.run
    if outcome.error is not None:
        step.save_end(kept, None, outcome.error, None)
    if outcome.kind is OutcomeKind.CRASHED:
        return step.crash(kept, session, run, blamed=True)
    step.end_run(kept, session, run)
    if kept.cancel is not None or outcome.kind is OutcomeKind.CANCELLED:
        reason = kept.cancel or outcome.reason or "cancelled"
        step.finish(kept, Move.CANCELLED, State.CANCELLED, reason, run)
    elif outcome.kind is OutcomeKind.SUCCEEDED:
        step.save_end(kept, outcome.result, None, None)
        step.finish(kept, Move.SUCCEEDED, State.SUCCEEDED, None, run)
    elif outcome.kind is OutcomeKind.DEAD:
        step.bury(kept, outcome.reason or "failed", run)
    elif kept.runs:
        step.save(kept)
        step.note(kept.queue, Sign.RUN_ENDED, kept.id, run)
    elif outcome.kind is OutcomeKind.GIVE_BACK:
        step.move(kept, Move.GIVEN_BACK, State.READY, run)
    else:
        kept.failures += 1
        step.line_up(kept, Move.RETRIED, outcome.at, run)
    return None


_HELD_BY = where("job_columns", "seq IN (SELECT job FROM runs WHERE session = ?)")


def release_session(
    step: Step, name: str, *, suspect: bool = True, blamed: frozenset[Ref] = frozenset()
) -> int:
    """Free what a session holds, and forget it."""
    row = step.db.execute(SQL["find_session"], (step.ns, name)).fetchone()
    if row is None:
        return 0
    session = row[0]
    step.told.add(name)
    held = step.db.execute(SQL["held"], (session,)).fetchall()
    jobs = {kept.seq: kept for kept in map(Kept, step.db.execute(_HELD_BY, (session,)).fetchall())}
    for seq, run in held:
        kept = jobs.get(seq)
        if kept is not None:
            step.crash(kept, session, run, suspect=suspect, blamed=(kept.id, run) in blamed)
    step.db.execute(SQL["delete_voids"], (session,))
    step.db.execute(SQL["delete_session"], (session,))
    return len(held)


def free_some(step: Step, session: int, name: str, limit: int) -> tuple[int, bool]:
    """Free up to `limit` runs of a session past its lease; how many, and whether it holds more.

    One that holds more ends in a later step. If it lives after all, it hears what it has lost.
    """
    held = step.db.execute(SQL["held_first"], (session, limit + 1)).fetchall()
    if len(held) <= limit:
        return release_session(step, name), False
    step.told.add(name)
    for seq, run in held[:limit]:
        kept = step.kept(seq)
        if kept is not None:
            step.crash(kept, session, run)
            step.db.execute(SQL["insert_void"], (session, kept.id, run))
    return limit, True
