"""Upkeep in bounded steps: each kind of work has its own limit, so that none can starve another."""

from __future__ import annotations

from dray.broker.checks import FEED_KEPT, FREE_STEP
from dray.broker.rules import EXPIRED, NEVER, look_again_at, why_too_late
from dray.broker.sqlite.rows import FINISHED_NUMBERS, STATES, JobRow
from dray.broker.sqlite.settle import free_some
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.take import promote
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Swept

CLOCK_SLACK = 1000


def sweep_step(tx: Transaction, limit: int, lapse: bool, forwarded: int, last: int) -> Swept:
    """`last` is when this process swept before: it shows whether the clock went back."""
    db, ns, now = tx.db, tx.ns, tx.now
    db.execute(SQL["mind_the_clock"], (now, ns))
    if now < last - CLOCK_SLACK:
        tx.unblock("unblock_timed", ns, NEVER)
    queues = [row[0] for row in db.execute(SQL["all_queues"], (ns,)).fetchall()]
    promoted = [promote(tx, queue, limit) for queue in queues]
    lapsed, freed_by = _lapse(tx, limit) if lapse else (0, {})
    freed = sum(freed_by.values())
    expired = _expire(tx, limit)
    pruned, looked = _prune(tx, queues, limit)
    full = max([forwarded, lapsed, freed, expired, looked, *promoted]) >= limit
    return Swept(forwarded, sum(promoted), lapsed, freed, expired, pruned, more=full, freed_by=freed_by)


def _lapse(tx: Transaction, limit: int) -> tuple[int, dict[str, int]]:
    """Free what sessions past their lease held; how many sessions ended, how many runs of each are free."""
    lapsed = freed = 0
    freed_by: dict[str, int] = {}
    for session, name in tx.db.execute(SQL["lapsed"], (tx.ns, tx.now, limit)).fetchall():
        done, left = free_some(tx, session, name, max(limit - freed, FREE_STEP))
        freed += done
        lapsed += not left
        if done:
            freed_by[name] = done
        if left or freed >= limit:
            break
    return lapsed, freed_by


def _expire(tx: Transaction, limit: int) -> int:
    """Bury jobs past their ttl or deadline, the longest overdue first. A run that is held goes on."""
    times: dict[int, int] = {}
    for name in ("expired", "overdue"):
        for at, seq in tx.db.execute(SQL[name], (tx.ns, tx.now, limit)):
            times[seq] = min(at, times.get(seq, at))
    late = sorted(times, key=lambda seq: (times[seq], seq))[:limit]
    for seq in late:
        job_row = tx.job_row(seq)
        if job_row is not None:
            tx.bury(job_row, why_too_late(job_row.expires, job_row.deadline_at, tx.now) or EXPIRED)
    return len(late)


def _prune(tx: Transaction, queues: list[int], limit: int) -> tuple[int, int]:
    """Forget finished jobs past their retention, and what has run out: results, documents, keys, rates.

    How many jobs were forgotten, and how many were looked at: those of an owner that lives are kept.
    """
    db, ns, now, pruned, looked = tx.db, tx.ns, tx.now, 0, 0
    for queue in queues:
        left = limit - looked
        old = [
            row
            for state in FINISHED_NUMBERS
            for row in db.execute(SQL["forgettable"], (queue, state, now, left)).fetchall()
        ]
        for _, seq in sorted(old)[:left]:
            looked += 1
            job_row = tx.job_row(seq)
            if job_row is not None and not _postpone(tx, job_row):
                tx.forget(job_row)
                pruned += 1
    db.execute(SQL["drop_results"], (ns, now, limit))
    db.execute(SQL["blank_results"], (ns, now, limit))
    for name in ("drop_docs", "drop_keys", "drop_rates", "drop_mail"):
        looked = max(looked, db.execute(SQL[name], (ns, now, limit)).rowcount)
    _drop_feeds(tx)
    for (sleeper,) in db.execute(SQL["forget_sleepers"], (ns, now)).fetchall():
        db.execute(SQL["forget_sleeper_queues"], (sleeper,))
    return pruned, looked


def _postpone(tx: Transaction, job_row: JobRow) -> bool:
    """Keep a job whose owner has not ended; look again later."""
    if job_row.owner is None:
        return False
    row = tx.db.execute(SQL["state_of"], (tx.ns, job_row.owner)).fetchone()
    if row is None or STATES[row[0]].finished:
        return False
    tx.db.execute(SQL["postpone"], (look_again_at(job_row.finished or 0, tx.now), job_row.seq))
    return True


def _drop_feeds(tx: Transaction) -> None:
    """Drop old feeds of queues without jobs. A reader that comes back finds a gap."""
    for (id,) in tx.db.execute(SQL["idle_feeds"], (tx.ns, tx.now - FEED_KEPT)).fetchall():
        queue = tx.queue_by_id(id)
        tx.db.execute(SQL["trim_entries"], (id, queue.entries))
        queue.used, queue.entries = True, queue.entries + 1  # a number that no reader has seen
