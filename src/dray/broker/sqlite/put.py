"""Accepting jobs. Plain ones are written in bulk; those with keys, bounds or dependencies one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.broker.checks import check_dependency
from dray.broker.rules import (
    NOT_STARTED,
    deadline_of,
    dropped,
    drops_oldest,
    duplicate,
    is_first,
    is_refused,
    later,
    max_ready,
)
from dray.broker.sqlite.rows import NUMBER, STATES, JobRow, QueueRow
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.take import accepts_in, spend_accepted
from dray.broker.sqlite.transaction import Transaction
from dray.broker.verbs import Accepted
from dray.codec.payload import pack
from dray.job import Job, Move, State

FEW = 4
"""From how many jobs on it pays to look up all lanes of a queue at once."""
_to_json = msgspec.json.Encoder().encode


def put_jobs(tx: Transaction, jobs: Sequence[Job]) -> list[Accepted]:
    """One reply per job, in order, as if they came one after the other."""
    known = _known_ids(tx, jobs)
    accepted: list[Accepted] = []
    plain: list[Job] = []
    for job in jobs:
        if job.id not in known and not job.key and not job.waits_for and not _bounded(tx, job):
            known.add(job.id)
            plain.append(job)
            later = job.due is not None and job.due > tx.now
            accepted.append(Accepted(job.id, State.SCHEDULED if later else State.READY))
            continue
        _insert(tx, plain)
        plain = []
        accepted.append(_put(tx, job))
        known.add(job.id)
    _insert(tx, plain)
    return accepted


def check_dependencies(tx: Transaction, jobs: Sequence[Job]) -> None:
    """Refuse a list that waits for unknown jobs, before any of it is accepted."""
    if not any(job.waits_for for job in jobs):
        return
    together = {job.id for job in jobs}
    for job in jobs:
        for dependency in job.waits_for:
            known = dependency in together or tx.job_row_by_id(dependency) is not None
            check_dependency(job, dependency, known)


def notify_of_refused(tx: Transaction, jobs: Sequence[Job], accepted: Sequence[Accepted]) -> None:
    """Jobs of the same call that wait for one that was not accepted must not wait for ever."""
    for job, reply in zip(jobs, accepted, strict=False):
        if not is_refused(job, reply):
            continue
        if tx.db.execute(SQL["state_of"], (tx.ns, job.id)).fetchone() is None:
            tx.notify_dependants(job.id, State.NOT_FOUND)


def _known_ids(tx: Transaction, jobs: Sequence[Job]) -> set[str]:
    if len(jobs) == 1:
        found = tx.db.execute(SQL["state_of"], (tx.ns, jobs[0].id)).fetchone()
        return set() if found is None else {jobs[0].id}
    ids = _to_json([job.id for job in jobs]).decode()
    return {id for (id,) in tx.db.execute(SQL["known_ids"], (tx.ns, ids))}


def _bounded(tx: Transaction, job: Job) -> bool:
    if job.node:
        return False
    if job.max_ready is not None:
        return True
    limits = tx.make_queue(job.queue).limits
    return limits.max_ready is not None or limits.enqueue_rate is not None


def _insert(tx: Transaction, jobs: list[Job]) -> None:
    """Write jobs that nothing stands in the way of."""
    if not jobs:
        return
    seq = tx.db.execute(SQL["last_seq"]).fetchone()[0]
    rows, bodies = [], []
    if len(jobs) > FEW:
        for name in {job.queue for job in jobs}:
            tx.preload_lanes(tx.make_queue(name).id)
    for job in jobs:
        seq += 1
        rows.append(_row(tx, job, tx.make_queue(job.queue), seq))
        bodies.append((seq, pack(job)))
    tx.db.executemany(SQL["insert_job"], rows)
    tx.db.executemany(SQL["insert_body"], bodies)


def _row(tx: Transaction, job: Job, queue: QueueRow, seq: int, waits: bool = False) -> tuple[object, ...]:
    now, due, line = tx.now, job.due, 0
    expires = None
    if waits:
        state, lane, pos = State.WAITING, 0, 0
    elif due is not None and due > now:
        state, lane, pos = State.SCHEDULED, 0, due
        tx.due[queue.id] = min(due, tx.due.get(queue.id, due))
    else:
        state, line = State.READY, queue.draw()
        lane, pos = tx.lane_of(job, queue.id, line), line
        tx.ready.setdefault(queue.id, []).append((job.priority, job.task, job.version))
        expires = later(job.ttl, now)
    tx.note(queue.id, Move.PUT, job.id)
    return (
        seq,
        tx.ns,
        job.id,
        queue.id,
        NUMBER[state],
        lane,
        pos,
        line,
        job.created or now,
        expires,
        job.task,
        job.priority,
        job.version,
        job.group,
        job.rate,
        job.rate_key,
        job.max_running,
        job.running_key,
        job.key,
        job.key_ttl,
        job.once,
        job.ttl,
        due,
        job.orphan if job.waits_for or job.orphan == "follow" else None,
        job.result_ttl,
        job.max_crashes,
        job.speculate,
        job.deadline,
        deadline_of(job.deadline, due, now),
        job.owner,
        job.node or None,
    )


def _put(tx: Transaction, job: Job) -> Accepted:
    queue = tx.make_queue(job.queue)
    others: list[JobRow] = []
    for holder in (tx.job_row_by_id(job.id), _key_holder(tx, queue, job)):
        if holder is not None and all(holder.seq != other.seq for other in others):
            others.append(holder)
    for other in others:
        same = other.id == job.id and tx.envelope(other.seq) == pack(job)
        reply = duplicate(job, other.id, other.state, other.run, other.node or "", same)
        if reply is not None:
            return reply
    leaves_room = any(other.state is State.READY and other.queue == queue.id for other in others)
    if not job.node and (wait := accepts_in(tx, queue)) > 0:
        return Accepted(job.id, State.NOT_FOUND, "limited", retry_after=wait)
    if not leaves_room and (bound := _full(tx, queue, job)) is not None:
        return Accepted(job.id, State.NOT_FOUND, "full", max_ready=bound)
    if not job.node:
        spend_accepted(tx, queue)
    replaced = [other.seq for other in others if _replace(tx, other.seq, job)]
    state = _create(tx, queue, job, replaced)
    return Accepted(job.id, state, replaced=others[-1].id if others else None)


def _key_holder(tx: Transaction, queue: QueueRow, job: Job) -> JobRow | None:
    if job.key is None:
        return None
    row = tx.db.execute(SQL["key_holder"], (queue.id, job.key, tx.now)).fetchone()
    return None if row is None else tx.job_row(row[0])


def _full(tx: Transaction, queue: QueueRow, job: Job) -> int | None:
    """The bound of the queue if the job would go beyond it; makes room where it may drop another."""
    bound = max_ready(job, queue.limits, tx.now)
    if bound is None or tx.db.execute(SQL["count_ready"], (queue.id,)).fetchone()[0] < bound:
        return None
    if not drops_oldest(job, queue.limits):
        return bound
    row = tx.db.execute(SQL["oldest_unimportant"], (queue.id, job.priority)).fetchone()
    victim = None if row is None else tx.job_row(row[0])
    if victim is None:
        return bound
    tx.bury(victim, dropped(job.queue, bound))
    return None


def _replace(tx: Transaction, seq: int, job: Job) -> bool:
    """Make way for the job; whether what was there had the same id."""
    other = tx.job_row(seq)
    if other is None:
        return False
    if other.id == job.id:
        tx.note(other.queue, Move.DELETED, other.id)
        tx.remove(other)
        return True
    if other.state in NOT_STARTED:
        tx.finish(other, Move.CANCELLED, State.CANCELLED, f"replaced by {job.id}")
    return False


def _create(tx: Transaction, queue: QueueRow, job: Job, replaced: list[int]) -> State:
    """Store the job. Watchers of a replaced job of the same id watch this one."""
    seq = max([tx.db.execute(SQL["last_seq"]).fetchone()[0], *replaced]) + 1
    for old in replaced:
        tx.db.execute(SQL["watch_instead"], (seq, old))
    tx.claim_key(queue.id, job.key, seq, job.key_ttl)
    waiting = not _has_first(tx, job) and [id for id in job.waits_for if tx.wait_for(seq, job.id, id)]
    row = _row(tx, job, queue, seq, bool(waiting))
    tx.db.execute(SQL["insert_job"], row)
    tx.db.execute(SQL["insert_body"], (seq, pack(job)))
    state = row[4]
    assert isinstance(state, int)  # noqa: S101 (for the type checker)
    return STATES[state]


def _has_first(tx: Transaction, job: Job) -> bool:
    """The first success was enough, and there is one."""
    if job.orphan != "first":
        return False
    rows = tx.db.execute(SQL["states_of"], (tx.ns, _to_json(job.waits_for).decode()))
    return any(is_first(STATES[state], job.orphan) for _, state, _ in rows)
