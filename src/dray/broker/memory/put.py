"""Decides about a new job: created, duplicate, or refused by its queue."""

from __future__ import annotations

from collections.abc import Sequence

from dray.broker.checks import check_dependency
from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore
from dray.broker.rules import (
    NOT_STARTED,
    dropped,
    drops_oldest,
    duplicate,
    is_refused,
    max_ready,
    may_drop,
)
from dray.broker.verbs import Accepted
from dray.job import Job, Move, State


class Accepting:
    """The part of the broker behind `put`."""

    _store: JobStore

    def _check_dependencies(self, jobs: Sequence[Job]) -> None:
        together = {job.id for job in jobs}
        for job in jobs:
            for dependency in job.waits_for:
                check_dependency(job, dependency, dependency in together or dependency in self._store.jobs)

    def _put_job(self, job: Job, now: int) -> Accepted:
        holders = (self._store.jobs.get(job.id), self._key_holder(job, now))
        others = list(dict.fromkeys(entry for entry in holders if entry is not None))
        for other in others:
            reply = duplicate(job, other.job.id, other.state, other.run, other.job.node, other.as_put == job)
            if reply is not None:
                return reply
        leaves_room = any(other.state is State.READY and other.job.queue == job.queue for other in others)
        line = self._store.queue(job.queue).line
        if not job.node and (wait := line.accepts_in(now)) > 0:
            return Accepted(job.id, State.NOT_FOUND, "limited", retry_after=wait)
        if not leaves_room and (bound := self._full(job, now)) is not None:
            return Accepted(job.id, State.NOT_FOUND, "full", max_ready=bound)
        if not job.node:
            line.spend_accepted(now)
        for other in others:
            self._replace(other, job, now)
        entry = self._store.create(job, now)
        return Accepted(job.id, entry.state, replaced=others[-1].job.id if others else None)

    def _notify_of_refused(self, jobs: Sequence[Job], accepted: Sequence[Accepted]) -> None:
        """Jobs of the same call that wait for one that was not accepted must not wait for ever."""
        for job, reply in zip(jobs, accepted, strict=False):
            if job.id not in self._store.jobs and is_refused(job, reply):
                self._store.notify_dependants(job.id, State.NOT_FOUND)

    def _key_holder(self, job: Job, now: int) -> JobEntry | None:
        if job.key is None:
            return None
        id, until = self._store.keys.get((job.queue, job.key), ("", None))
        return self._store.jobs.get(id) if until is None or now < until else None

    def _full(self, job: Job, now: int) -> int | None:
        """The bound of the queue if the job would go beyond it; makes room where it may drop another."""
        line = self._store.queue(job.queue).line
        bound = max_ready(job, line.limits, now)
        if bound is None or len(line) < bound:
            return None
        victim = line.oldest(job.priority, self._may_drop) if drops_oldest(job, line.limits) else None
        if victim is None:
            return bound
        self._store.bury(self._store.jobs[victim], now, dropped(job.queue, bound))
        return None

    def _may_drop(self, id: str) -> bool:
        return may_drop(self._store.jobs[id].run, self._store.jobs[id].job.node)

    def _replace(self, other: JobEntry, job: Job, now: int) -> None:
        if other.job.id == job.id:
            self._store.note(other, Move.DELETED)
            self._store.remove(other, now)
        elif other.state in NOT_STARTED:
            self._store.finish(other, Move.CANCELLED, State.CANCELLED, now, f"replaced by {job.id}")
