"""What becomes of a job that is put: created, a duplicate, or more than its queue holds."""

from __future__ import annotations

from collections.abc import Sequence

from dray.broker.checks import check_dependency
from dray.broker.memory.world import Kept, World
from dray.broker.verbs import Accepted
from dray.job import Job, Move, State

NOT_STARTED = frozenset({State.WAITING, State.SCHEDULED, State.RETRYING, State.READY})

REFUSED = frozenset({"full", "limited"})


class Accepting:
    """The part of the broker behind `put`."""

    _world: World

    def _check_dependencies(self, jobs: Sequence[Job]) -> None:
        together = {job.id for job in jobs}
        for job in jobs:
            for dependency in job.waits_for:
                check_dependency(job, dependency, dependency in together or dependency in self._world.jobs)

    def _put(self, job: Job, now: int) -> Accepted:
        holders = (self._world.jobs.get(job.id), self._key_holder(job, now))
        others = list(dict.fromkeys(kept for kept in holders if kept is not None))
        for other in others:
            if other.as_put == job:  # the very same again: a repeated call
                return Accepted(job.id, other.state, "duplicate")
            if job.on_duplicate != "replace" or other.run or other.state not in NOT_STARTED:
                return Accepted(other.job.id, other.state, "duplicate")
        leaves_room = any(other.state is State.READY and other.job.queue == job.queue for other in others)
        line = self._world.queue(job.queue).line
        if (wait := line.accepts_in(now)) > 0:
            return Accepted(job.id, State.NOT_FOUND, "limited", retry_after=wait)
        if not leaves_room and (bound := self._full(job, now)) is not None:
            return Accepted(job.id, State.NOT_FOUND, "full", max_ready=bound)
        line.spend_accepted(now)
        for other in others:
            self._replace(other, job, now)
        kept = self._world.create(job, now)
        return Accepted(job.id, kept.state, replaced=others[-1].job.id if others else None)

    def _tell_of_refused(self, jobs: Sequence[Job], accepted: Sequence[Accepted]) -> None:
        """Jobs of the same call that wait for one that was not accepted must not wait for ever."""
        for job, reply in zip(jobs, accepted, strict=False):
            if job.id not in self._world.jobs and (reply.id != job.id or reply.verdict in REFUSED):
                self._world.tell_dependants(job.id, State.NOT_FOUND)

    def _key_holder(self, job: Job, now: int) -> Kept | None:
        if job.key is None:
            return None
        id, until = self._world.keys.get((job.queue, job.key), ("", None))
        return self._world.jobs.get(id) if until is None or now < until else None

    def _full(self, job: Job, now: int) -> int | None:
        """The bound of the queue if the job would go beyond it; makes room where it may drop another."""
        line = self._world.queue(job.queue).line
        bound = job.max_ready if line.limits.max_ready is None else line.limits.max_ready
        overflow = line.limits.overflow or job.overflow
        starts_later = job.waits_for or (job.due is not None and job.due > now)
        if bound is None or starts_later or len(line) < bound:
            return None
        victim = line.oldest_unimportant(job.priority) if overflow == "drop-oldest" else None
        if victim is None:
            return bound
        self._world.bury(self._world.jobs[victim], now, f"dropped: {job.queue} is full (max_ready={bound})")
        return None

    def _replace(self, other: Kept, job: Job, now: int) -> None:
        if other.job.id == job.id:
            self._world.note(other, Move.DELETED)
            self._world.remove(other, now)
        elif other.state in NOT_STARTED:
            self._world.finish(other, Move.CANCELLED, State.CANCELLED, now, f"replaced by {job.id}")
