"""Applies the outcome of a run to its job."""

from __future__ import annotations

from dray.broker.memory.durable import suspend
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore
from dray.broker.rules import after_outcome, settled_end
from dray.job import Move, Outcome, OutcomeKind, State


def conclude(store: JobStore, entry: JobEntry, outcome: Outcome, now: int) -> None:
    """End the run, and make the move that its outcome leads to."""
    entry.error = outcome.error or entry.error
    if outcome.kind is OutcomeKind.CRASHED:
        store.crash(entry, outcome.run, now, together=outcome.together, error=outcome.error)
        return
    how = settled_end(outcome.kind, cancelled=entry.cancel is not None)
    store.end_run(entry, outcome.run, how, now, outcome.error)
    next = after_outcome(
        outcome,
        cancel=entry.cancel,
        other_runs=bool(entry.runs),
        deadline=entry.deadline,
        now=now,
        undo=entry.undo,
    )
    if next.to is State.SUCCEEDED:
        entry.result = outcome.result
    if next.move is Move.SUSPENDED and outcome.suspend is not None:
        suspend(store, entry, outcome, outcome.suspend, now)
        return
    store.after_run(entry, next, outcome.run, now, outcome.at)
