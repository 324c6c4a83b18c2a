"""Brokers with one planted bug each. The simulation must find every one of them.

Each is the reference with a small thing done wrong, the kind of wrong that real queues have shipped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from dray.broker.memory import MemoryBroker
from dray.broker.memory.line import ClassKey, Group, Line
from dray.broker.memory.world import Kept, Queue, World
from dray.broker.verbs import Accepted, Filter, Ref, Swept
from dray.job import FINISHED, Job, Move, Outcome, OutcomeKind, Record, Settled, Sign, State, Taken
from dray.policy import Retention

BUGS: dict[type[MemoryBroker], frozenset[str]] = {}
"""Each broken broker, and the invariants by which it may be found."""


def found_by(*invariants: str) -> Callable[[type[MemoryBroker]], type[MemoryBroker]]:
    def register(broker: type[MemoryBroker]) -> type[MemoryBroker]:
        BUGS[broker] = frozenset(invariants)
        return broker

    return register


class _OtherWorld(MemoryBroker):
    """For bugs that lie deeper than the verbs."""

    world_type: type[World] = World

    def __init__(
        self, namespace: str = "dray", *, retention: Retention | None = None, **options: Any
    ) -> None:
        super().__init__(namespace, retention=retention, **options)
        self._world = self.world_type(self.retention)


@found_by("fencing", "outcomes")
class SettlesAnyRun(MemoryBroker):
    """A run that was taken over can still complete the job."""

    def _settle(self, session: str, outcome: Outcome, now: int) -> Settled:
        kept = self._world.jobs.get(outcome.id)
        if kept is not None and kept.runs and outcome.run not in kept.runs:
            newest = kept.runs[max(kept.runs)]
            return super()._settle(newest.session, replace(outcome, run=newest.number), now)
        return super()._settle(session, outcome, now)


class _WorldThatForgivesCrashes(World):
    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.freed: Counter[str] = Counter()

    def crash(self, kept: Kept, *args: Any, **named: Any) -> None:
        super().crash(kept, *args, **named)
        self.freed[kept.job.task] += 1

    def running(self, queue: str, what: str, value: str) -> int:
        return super().running(queue, what, value) - (self.freed[value] if what == "task" else 0)


@found_by("max_running")
class FreesSlotTwice(_OtherWorld):
    """A crash gives its slot back once more."""

    world_type = _WorldThatForgivesCrashes


class _WorldThatCountsFirstRuns(World):
    def running(self, queue: str, what: str, value: str) -> int:
        retried = sum(
            1
            for kept in self.jobs.values()
            if kept.runs and kept.run > 1 and kept.job.queue == queue and what == "task"
            if kept.job.task == value
        )
        return super().running(queue, what, value) - retried


@found_by("max_running")
class RetriesUncounted(_OtherWorld):
    """A job that was started before takes no slot."""

    world_type = _WorldThatCountsFirstRuns


class _WorldThatLeaksSlots(World):
    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.leaked: Counter[tuple[str, str]] = Counter()

    def bury(self, kept: Kept, *args: Any, **named: Any) -> None:
        if kept.run:
            self.leaked[kept.job.queue, kept.job.task] += 1
        super().bury(kept, *args, **named)

    def running(self, queue: str, what: str, value: str) -> int:
        return super().running(queue, what, value) + (self.leaked[queue, value] if what == "task" else 0)


@found_by("slots", "stuck", "priority")
class LeaksSlots(_OtherWorld):
    """A job that dies keeps its slot for ever."""

    world_type = _WorldThatLeaksSlots


@found_by("audit", "raised", "feed", "transitions", "due")
class PromotesTwice(MemoryBroker):
    """A job that fell due is ready, and still due."""

    def _promote(self, queue: Queue, now: int, limit: int) -> int:
        ids = queue.due.until(now, limit)
        done = super()._promote(queue, now, limit)
        for id in ids:
            queue.due.add(now, 0, id)
        return done


@found_by("keys", "audit")
class FreesKeyAtTake(MemoryBroker):
    """The key is free as soon as the job starts."""

    def _start(self, kept: Kept, session: str, now: int) -> None:
        super()._start(kept, session, now)
        if kept.job.key is not None:
            self._world.keys.pop((kept.job.queue, kept.job.key), None)


@found_by("repeats")
class TakesAnew(MemoryBroker):
    """Repeating a take whose reply was lost hands out other jobs; the first ones are lost."""

    async def take(
        self, session: str, request: int, queues: Sequence[str], filter: Filter, want: int, **named: Any
    ) -> list[Taken]:
        if session in self._world.sessions:
            self._world.sessions[session].request = min(request - 1, self._world.sessions[session].request)
        return await super().take(session, request, queues, filter, want, **named)


@found_by("sessions", "stuck")
class NeverLapses(MemoryBroker):
    """Whoever dies keeps what it held."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        return await super().sweep(limit, lapse=False, now=now)


@found_by("sessions", "audit", "stuck", "raised")
class ReleasesOne(MemoryBroker):
    """Only the first of a dead worker's jobs is freed."""

    def _release(self, session: str, now: int, *, suspect: bool = True, blamed: Collection[Ref] = ()) -> int:
        if session in self._world.sessions:
            holds = self._world.sessions[session].holds
            for ref in list(holds)[1:]:
                del holds[ref]
        return super()._release(session, now, suspect=suspect, blamed=blamed)


@found_by("cancelled")
class RetriesCancelled(MemoryBroker):
    """A job that was asked to stop and fails is tried again."""

    def _conclude(self, kept: Kept, outcome: Outcome, now: int) -> None:
        if outcome.kind is OutcomeKind.RETRY:
            kept.cancel = None
        super()._conclude(kept, outcome, now)


@found_by("stuck", "cancelled", "audit")
class DropsOutbox(MemoryBroker):
    """Word for a waiting job is lost unless it is delivered at once."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        self._world.outbox.clear()
        return await super().sweep(limit, lapse=lapse, now=now)


@found_by("keys")
class IgnoresOnce(MemoryBroker):
    """A finished job holds no key, whatever `once` says."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        for key, (id, _) in list(self._world.keys.items()):
            if id in self._world.jobs and self._world.jobs[id].state in FINISHED:
                del self._world.keys[key]
        return await super().put(jobs, **named)


class _BackwardLine(Line):
    def open_classes(self, filter: Filter, now: int) -> list[ClassKey]:
        return sorted(super().open_classes(filter, now), key=lambda key: -key[0])


class _BackwardWorld(World):
    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            line = _BackwardLine(lambda what, value: self.running(name, what, value))
            self.queues[name] = Queue(name, line)
        return super().queue(name)


@found_by("priority")
class InvertsPriority(_OtherWorld):
    """The least important first."""

    world_type = _BackwardWorld


class _LineWithoutTurns(Line):
    def took_turn(self, group: Group) -> None:
        """The group stays the first of the ring."""


class _WorldWithoutTurns(World):
    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            line = _LineWithoutTurns(lambda what, value: self.running(name, what, value))
            self.queues[name] = Queue(name, line)
        return super().queue(name)


@found_by("turns")
class ForgetsTurns(_OtherWorld):
    """A group with many jobs keeps the others waiting."""

    world_type = _WorldWithoutTurns


@found_by("ids", "lost", "feed")
class AcceptsDuplicateId(MemoryBroker):
    """An id is free again as soon as its job has ended."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        for job in jobs:
            other = self._world.jobs.get(job.id)
            if other is not None and other.state in FINISHED:
                self._world.forget(other, self._clock())
        return await super().put(jobs, **named)


@found_by("watch")
class WatchesTooLate(MemoryBroker):
    """Reads first and registers the watcher afterwards: an end in between is never heard of."""

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        records = await super().get(ids, now=now)
        await asyncio.sleep(0.2)
        for record in records:
            if watch is not None and record is not None and not record.state.finished:
                self._world.watchers.setdefault(record.id, {})[watch] = None
        return records


@found_by("fencing", "sessions", "feed")
class SettlesAfterLapse(MemoryBroker):
    """The success of a session that is gone still counts, though the job is back in line."""

    def _settle(self, session: str, outcome: Outcome, now: int) -> Settled:
        kept = self._world.jobs.get(outcome.id)
        late = kept is not None and kept.state is State.READY and kept.run == outcome.run
        if kept is not None and late and (outcome.id, outcome.run) not in self._holds(session):
            kept.run -= 1
            self._world.move(kept, Move.TAKEN, State.RUNNING, outcome.run)
            kept.run += 1
            self._world.finish(kept, Move.SUCCEEDED, State.SUCCEEDED, now, None, outcome.run)
        return super()._settle(session, outcome, now)

    def _holds(self, session: str) -> Collection[Ref]:
        return self._world.sessions[session].holds if session in self._world.sessions else ()


@found_by("rate")
class ForgetsRates(MemoryBroker):
    """Every sweep lets a full burst start again."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        for queue in self._world.queues.values():
            queue.line.rates.clear()
        return await super().sweep(limit, lapse=lapse, now=now)


@found_by("ttl")
class StartsExpired(MemoryBroker):
    """A take does not look at the ttl."""

    def _take(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        for kept in self._world.jobs.values():
            if kept.job.queue == queue.name and kept.state is State.READY:
                kept.expires = None
        super()._take(session, queue, filter, want, now)


class _ImpatientWorld(World):
    def dependency_ended(self, dependant: str, dependency: str, state: State, now: int) -> None:
        kept = self.jobs.get(dependant)
        if kept is not None and dependency in kept.waiting and state is State.SUCCEEDED:
            for other in [other for other in kept.waiting if other != dependency]:
                del kept.waiting[other]
                self.forget_dependant(other, dependant)
        super().dependency_ended(dependant, dependency, state, now)


@found_by("dependencies")
class ReleasesEarly(_OtherWorld):
    """The first dependency that succeeds is enough."""

    world_type = _ImpatientWorld


@found_by("order")
class LastInFirstOut(MemoryBroker):
    """The newest job of a lane goes first."""

    def _take(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        for lanes in queue.line.classes.values():
            for lane in lanes.lanes():
                numbers = sorted((lane.jobs.position(id), id) for id in lane.jobs)
                backward = list(zip([number for number, _ in numbers], reversed(numbers), strict=True))
                for _, (_, id) in backward:
                    lane.jobs.remove(id)
                for number, (_, id) in backward:
                    lane.jobs.add(number, 0, id)
        super()._take(session, queue, filter, want, now)


@found_by("bounds")
class OverfillsQueue(MemoryBroker):
    """The bound is looked at one job too late."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        wider = [replace(job, max_ready=job.max_ready + 1) if job.max_ready else job for job in jobs]
        return await super().put(wider, **named)


class _QuietWorld(World):
    def note(self, kept: Kept, kind: Move | Sign, run: int = 0) -> None:
        if kind is not Move.PUT or kept.state is not State.WAITING:
            super().note(kept, kind, run)


@found_by("feed", "lost")
class LosesEvents(_OtherWorld):
    """A job that is put leaves no word in the feed when it has to wait."""

    world_type = _QuietWorld
