"""Accepting jobs. Plain ones are written in bulk; those with keys, bounds or dependencies one by one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dray.broker.checks import check_dependency
from dray.broker.sqlite.rows import NUMBER, STATES, Kept, QueueRow
from dray.broker.sqlite.statements import SQL
from dray.broker.sqlite.step import Step
from dray.broker.sqlite.take import accepts_in, spend_accepted
from dray.broker.verbs import Accepted
from dray.codec import pack
from dray.job import FINISHED, Job, Move, State

_NOT_STARTED = frozenset({State.WAITING, State.SCHEDULED, State.RETRYING, State.READY})
_REFUSED = frozenset({"full", "limited"})
FEW = 4
"""From how many jobs on it pays to look up all lanes of a queue at once."""
_to_json = msgspec.json.Encoder().encode


def put_jobs(step: Step, jobs: Sequence[Job]) -> list[Accepted]:
    """One reply per job, in order, as if they came one after the other."""
    known = _known_ids(step, jobs)
    accepted: list[Accepted] = []
    plain: list[Job] = []
    for job in jobs:
        if job.id not in known and not job.key and not job.waits_for and not _bounded(step, job):
            known.add(job.id)
            plain.append(job)
            later = job.due is not None and job.due > step.now
            accepted.append(Accepted(job.id, State.SCHEDULED if later else State.READY))
            continue
        _insert(step, plain)
        plain = []
        accepted.append(_put(step, job))
        known.add(job.id)
    _insert(step, plain)
    return accepted


def check_dependencies(step: Step, jobs: Sequence[Job]) -> None:
    """Refuse a list that waits for jobs nobody knows, before any of it is accepted."""
    if not any(job.waits_for for job in jobs):
        return
    together = {job.id for job in jobs}
    for job in jobs:
        for dependency in job.waits_for:
            known = dependency in together or step.kept_by_id(dependency) is not None
            check_dependency(job, dependency, known)


def tell_of_refused(step: Step, jobs: Sequence[Job], accepted: Sequence[Accepted]) -> None:
    """Jobs of the same call that wait for one that was not accepted must not wait for ever."""
    for job, reply in zip(jobs, accepted, strict=False):
        if reply.id == job.id and reply.verdict not in _REFUSED:
            continue
        if step.db.execute(SQL["state_of"], (step.ns, job.id)).fetchone() is None:
            step.tell_dependants(job.id, State.NOT_FOUND)


def _known_ids(step: Step, jobs: Sequence[Job]) -> set[str]:
    if len(jobs) == 1:
        found = step.db.execute(SQL["state_of"], (step.ns, jobs[0].id)).fetchone()
        return set() if found is None else {jobs[0].id}
    ids = _to_json([job.id for job in jobs]).decode()
    return {id for (id,) in step.db.execute(SQL["known_ids"], (step.ns, ids))}


def _bounded(step: Step, job: Job) -> bool:
    if job.max_ready is not None:
        return True
    limits = step.make_queue(job.queue).limits
    return limits.max_ready is not None or limits.enqueue_rate is not None


def _insert(step: Step, jobs: list[Job]) -> None:
    """Write jobs that nothing stands in the way of."""
    if not jobs:
        return
    seq = step.db.execute(SQL["last_seq"]).fetchone()[0]
    rows, bodies = [], []
    if len(jobs) > FEW:
        for name in {job.queue for job in jobs}:
            step.preload_lanes(step.make_queue(name).id)
    for job in jobs:
        seq += 1
        rows.append(_row(step, job, step.make_queue(job.queue), seq))
        bodies.append((seq, pack(job)))
    step.db.executemany(SQL["insert_job"], rows)
    step.db.executemany(SQL["insert_body"], bodies)


def _row(step: Step, job: Job, queue: QueueRow, seq: int, waits: bool = False) -> tuple[object, ...]:
    now, due, line = step.now, job.due, 0
    expires = None
    if waits:
        state, lane, pos = State.WAITING, 0, 0
    elif due is not None and due > now:
        state, lane, pos = State.SCHEDULED, 0, due
        step.due[queue.id] = min(due, step.due.get(queue.id, due))
    else:
        state, line = State.READY, queue.draw()
        lane, pos = step.lane_of(job, queue.id, line), line
        step.ready.setdefault(queue.id, []).append((job.priority, job.task, job.version))
        if job.ttl is not None:
            expires = now + job.ttl
    step.note(queue.id, Move.PUT, job.id)
    return (
        seq,
        step.ns,
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
        job.orphan if job.waits_for else None,
        job.result_ttl,
        job.max_crashes,
        job.speculate,
    )


def _put(step: Step, job: Job) -> Accepted:
    queue = step.make_queue(job.queue)
    others: list[Kept] = []
    for holder in (step.kept_by_id(job.id), _key_holder(step, queue, job)):
        if holder is not None and all(holder.seq != other.seq for other in others):
            others.append(holder)
    for other in others:
        if other.id == job.id and step.envelope(other.seq) == pack(job):
            return Accepted(job.id, other.state, "duplicate")  # the very same again: a repeated call
        if job.on_duplicate != "replace" or other.run or other.state not in _NOT_STARTED:
            return Accepted(other.id, other.state, "duplicate")
    leaves_room = any(other.state is State.READY and other.queue == queue.id for other in others)
    if (wait := accepts_in(step, queue)) > 0:
        return Accepted(job.id, State.NOT_FOUND, "limited", retry_after=wait)
    if not leaves_room and (bound := _full(step, queue, job)) is not None:
        return Accepted(job.id, State.NOT_FOUND, "full", max_ready=bound)
    spend_accepted(step, queue)
    replaced = [other.seq for other in others if _replace(step, other.seq, job)]
    state = _create(step, queue, job, replaced)
    return Accepted(job.id, state, replaced=others[-1].id if others else None)


def _key_holder(step: Step, queue: QueueRow, job: Job) -> Kept | None:
    if job.key is None:
        return None
    row = step.db.execute(SQL["key_holder"], (queue.id, job.key, step.now)).fetchone()
    return None if row is None else step.kept(row[0])


def _full(step: Step, queue: QueueRow, job: Job) -> int | None:
    """The bound of the queue if the job would go beyond it; makes room where it may drop another."""
    bound = job.max_ready if queue.limits.max_ready is None else queue.limits.max_ready
    starts_later = job.waits_for or (job.due is not None and job.due > step.now)
    if bound is None or starts_later:
        return None
    if step.db.execute(SQL["count_ready"], (queue.id,)).fetchone()[0] < bound:
        return None
    if (queue.limits.overflow or job.overflow) != "drop-oldest":
        return bound
    row = step.db.execute(SQL["oldest_unimportant"], (queue.id, job.priority)).fetchone()
    victim = None if row is None else step.kept(row[0])
    if victim is None:
        return bound
    step.bury(victim, f"dropped: {job.queue} is full (max_ready={bound})")
    return None


def _replace(step: Step, seq: int, job: Job) -> bool:
    """Make way for the job; whether what was there had the same id."""
    other = step.kept(seq)
    if other is None:
        return False
    if other.id == job.id:
        step.note(other.queue, Move.DELETED, other.id)
        step.remove(other)
        return True
    if other.state in _NOT_STARTED:
        step.finish(other, Move.CANCELLED, State.CANCELLED, f"replaced by {job.id}")
    return False


def _create(step: Step, queue: QueueRow, job: Job, replaced: list[int]) -> State:
    """Store the job. Whoever watched one of the same id that it replaced watches this one."""
    seq = max([step.db.execute(SQL["last_seq"]).fetchone()[0], *replaced]) + 1
    for old in replaced:
        step.db.execute(SQL["watch_instead"], (seq, old))
    step.claim_key(queue.id, job.key, seq, job.key_ttl)
    waiting = _wait_for(step, job, seq)
    row = _row(step, job, queue, seq, bool(waiting))
    step.db.execute(SQL["insert_job"], row)
    step.db.execute(SQL["insert_body"], (seq, pack(job)))
    state = row[4]
    assert isinstance(state, int)  # noqa: S101 (for the type checker)
    return STATES[state]


def _wait_for(step: Step, job: Job, seq: int) -> list[str]:
    """The dependencies that are not done yet, with word of those that ended badly already."""
    waiting = []
    for dependency in job.waits_for:
        row = step.db.execute(SQL["state_of"], (step.ns, dependency)).fetchone()
        state = State.NOT_FOUND if row is None else STATES[row[0]]
        if state is State.SUCCEEDED:
            continue
        waiting.append(dependency)
        step.db.execute(SQL["insert_dependency"], (step.ns, dependency, seq))
        if state in FINISHED:
            step.post(seq, dependency, state)
    return waiting
