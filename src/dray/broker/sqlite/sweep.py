"""Upkeep in bounded steps: each kind of work has its own limit, so that none can starve another."""

from __future__ import annotations

from dray.broker.checks import FREE_STEP, NEVER
from dray.broker.sqlite.rows import FINISHED_NUMBERS
from dray.broker.sqlite.settle import free_some
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
from dray.broker.sqlite.take import promote
from dray.broker.verbs import Swept

CLOCK_SLACK = 1000


def sweep_step(step: Step, limit: int, lapse: bool, forwarded: int, last: int) -> Swept:
    """`last` is when this process swept before: whether the clock went back since."""
    db, ns, now = step.db, step.ns, step.now
    db.execute(SQL["mind_the_clock"], (now, ns))
    if now < last - CLOCK_SLACK:
        step.unblock("unblock_timed", ns, NEVER)
    queues = [row[0] for row in db.execute(SQL["all_queues"], (ns,)).fetchall()]
    promoted = [promote(step, queue, limit) for queue in queues]
    lapsed, freed = _lapse(step, limit) if lapse else (0, 0)
    expired = _expire(step, limit)
    pruned = _prune(step, queues, limit)
    full = max([forwarded, lapsed, freed, expired, pruned, *promoted]) >= limit
    return Swept(forwarded, sum(promoted), lapsed, freed, expired, pruned, more=full)


def _lapse(step: Step, limit: int) -> tuple[int, int]:
    """Free what sessions past their lease held; how many sessions ended, how many runs were freed."""
    lapsed = freed = 0
    for session, name in step.db.execute(SQL["lapsed"], (step.ns, step.now, limit)).fetchall():
        done, left = free_some(step, session, name, max(limit - freed, FREE_STEP))
        freed += done
        lapsed += not left
        if left or freed >= limit:
            break
    return lapsed, freed


def _expire(step: Step, limit: int) -> int:
    late = step.db.execute(SQL["expired"], (step.ns, step.now, limit)).fetchall()
    for (seq,) in late:
        kept = step.kept(seq)
        if kept is not None:
            step.bury(kept, "expired: it was not started within its ttl")
    return len(late)


def _prune(step: Step, queues: list[int], limit: int) -> int:
    """Forget finished jobs past their retention, and what has run out: results, documents, keys, rates."""
    db, ns, now, pruned = step.db, step.ns, step.now, 0
    for queue in queues:
        left = limit - pruned
        old = [
            row
            for state in FINISHED_NUMBERS
            for row in db.execute(SQL["forgettable"], (queue, state, now, left)).fetchall()
        ]
        for _, seq in sorted(old)[:left]:
            kept = step.kept(seq)
            if kept is not None:
                step.forget(kept)
            pruned += 1
    db.execute(SQL["drop_results"], (ns, now, limit))
    db.execute(SQL["blank_results"], (ns, now, limit))
    for name in ("drop_docs", "drop_keys", "drop_rates", "drop_mail"):
        db.execute(SQL[name], (ns, now, limit))
    for (sleeper,) in db.execute(SQL["forget_sleepers"], (ns, now)).fetchall():
        db.execute(SQL["forget_sleeper_queues"], (sleeper,))
    return pruned
