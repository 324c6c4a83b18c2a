"""Brokers with one planted bug each. The simulation must find every one of them.

Each is the reference with a small thing done wrong, the kind of wrong that real queues have shipped.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from dray.broker.memory import MemoryBroker, hand_over
from dray.broker.memory.entries import JobEntry, Queue, Session
from dray.broker.memory.store import JobStore, Post
from dray.broker.memory.take import ClassKey, Group, Line
from dray.broker.verbs import Accepted, Filter, Ref, Swept
from dray.job import FINISHED, GROUP_MAX, Job, Move, Outcome, OutcomeKind, Record, Settled, Sign, State, Taken
from dray.policy import Retention

BUGS: dict[type[MemoryBroker], frozenset[str]] = {}
"""Each broken broker, and the invariants by which it may be found."""


def found_by(*invariants: str) -> Callable[[type[MemoryBroker]], type[MemoryBroker]]:
    def register(broker: type[MemoryBroker]) -> type[MemoryBroker]:
        BUGS[broker] = frozenset(invariants)
        return broker

    return register


class _OtherStore(MemoryBroker):
    """For bugs that lie deeper than the verbs."""

    store_type: type[JobStore] = JobStore

    def __init__(
        self, namespace: str = "dray", *, retention: Retention | None = None, **options: Any
    ) -> None:
        super().__init__(namespace, retention=retention, **options)
        self._store = self.store_type(self.retention)


@found_by("fencing", "outcomes")
class SettlesAnyRun(MemoryBroker):
    """A run that was taken over can still complete the job."""

    def _settle_run(self, session: str, outcome: Outcome, now: int) -> Settled:
        entry = self._store.jobs.get(outcome.id)
        if entry is not None and entry.runs and outcome.run not in entry.runs:
            newest = entry.runs[max(entry.runs)]
            return super()._settle_run(newest.session, replace(outcome, run=newest.number), now)
        return super()._settle_run(session, outcome, now)


@found_by("hand_over", "pause", "max_running", "rate")
class HandsOverPastLimits(MemoryBroker):
    """A job that is the only ready one is handed over whatever limits and pauses there are."""

    def _hand_over(self, now: int) -> None:
        queues = list(self._store.queues.values())
        for queue in queues:
            queue.has_settings = lambda: False  # type: ignore[method-assign]
        rules = vars(hand_over)
        rule, rules["can_hand_over"] = rules["can_hand_over"], lambda job: True
        try:
            super()._hand_over(now)
        finally:
            rules["can_hand_over"] = rule
            for queue in queues:
                del queue.has_settings


@found_by("hand_over")
class HandsOverOutOfTurn(MemoryBroker):
    """A job is handed over although another is first in line."""

    def _hand_over(self, now: int) -> None:
        for name, events in list(self._store.notes.items()):
            line = self._store.queue(name).line
            held = line.classes
            mine = {job.job.id for e in events if (job := self._store.jobs.get(e.id))}
            line.classes = {
                key: class_
                for key, class_ in held.items()
                if any(id in mine for lane in class_.lanes() for id in lane.jobs)
            }
            others = {key: class_ for key, class_ in held.items() if key not in line.classes}
            super()._hand_over(now)
            line.classes.update(others)


@found_by("hand_over")
class NeverWithdraws(MemoryBroker):
    """A frozen sleeper keeps the job that it was handed."""

    def _withdraw(self, now: int, limit: int) -> int:
        return 0


@found_by("fencing", "hand_over")
class WithdrawsConfirmedRuns(MemoryBroker):
    """Only the outcome of a run confirms it, not the repeated take."""

    def _ask(self, name: str, session: Session, queue: str, filter: Filter, want: int, now: int) -> None:
        handed = dict(session.handed)
        super()._ask(name, session, queue, filter, want, now)
        session.handed |= {ref: at for ref, at in handed.items() if ref in session.holds}


@found_by("hand_over", "groups")
class SuspectsWithdrawnRuns(_OtherStore):
    """A job that was withdrawn counts as one whose worker died."""

    def _withdraw(self, now: int, limit: int) -> int:
        crash = self._store.crash
        self._store.crash = lambda *args, **named: crash(*args, **named | {"suspect": True})  # type: ignore[method-assign]
        try:
            return super()._withdraw(now, limit)
        finally:
            del self._store.crash


@found_by("repeats")
class ForgetsWhatItHandedOver(MemoryBroker):
    """A repeated take does not return what was handed over."""

    def _ask(self, name: str, session: Session, queue: str, filter: Filter, want: int, now: int) -> None:
        before = list(session.reply)
        in_advance = session.asked.get(queue, 0) == session.request
        super()._ask(name, session, queue, filter, want, now)
        if in_advance:
            session.reply[:] = before


class _StoreThatForgivesCrashes(JobStore):
    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.freed: Counter[str] = Counter()

    def crash(self, entry: JobEntry, *args: Any, **named: Any) -> None:
        super().crash(entry, *args, **named)
        self.freed[entry.job.task] += 1

    def running(self, queue: str, what: str, value: str) -> int:
        return super().running(queue, what, value) - (self.freed[value] if what == "task" else 0)


@found_by("max_running")
class FreesSlotTwice(_OtherStore):
    """A crash gives its slot back once more."""

    store_type = _StoreThatForgivesCrashes


class _StoreThatCountsFirstRuns(JobStore):
    def running(self, queue: str, what: str, value: str) -> int:
        retried = sum(
            1
            for entry in self.jobs.values()
            if entry.runs and entry.run > 1 and entry.job.queue == queue and what == "task"
            if entry.job.task == value
        )
        return super().running(queue, what, value) - retried


@found_by("max_running")
class RetriesUncounted(_OtherStore):
    """A job that was started before takes no slot."""

    store_type = _StoreThatCountsFirstRuns


class _StoreThatLeaksSlots(JobStore):
    def __init__(self, retention: Retention) -> None:
        super().__init__(retention)
        self.leaked: Counter[tuple[str, str]] = Counter()

    def finish(self, entry: JobEntry, move: Move, to: State, *args: Any, **named: Any) -> None:
        if entry.run and to is State.DEAD:
            self.leaked[entry.job.queue, entry.job.task] += 1
        super().finish(entry, move, to, *args, **named)

    def running(self, queue: str, what: str, value: str) -> int:
        return super().running(queue, what, value) + (self.leaked[queue, value] if what == "task" else 0)


@found_by("slots", "stuck", "priority")
class LeaksSlots(_OtherStore):
    """A job that dies keeps its slot for ever."""

    store_type = _StoreThatLeaksSlots


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

    def _start(self, entry: JobEntry, session: str, now: int) -> None:
        super()._start(entry, session, now)
        if entry.job.key is not None:
            self._store.keys.pop((entry.job.queue, entry.job.key), None)


@found_by("repeats")
class TakesAnew(MemoryBroker):
    """Repeating a take whose reply was lost hands out other jobs; the first ones are lost."""

    async def take(
        self, session: str, request: int, queues: Sequence[str], filter: Filter, want: int, **named: Any
    ) -> list[Taken]:
        if session in self._store.sessions:
            self._store.sessions[session].request = min(request - 1, self._store.sessions[session].request)
        return await super().take(session, request, queues, filter, want, **named)


@found_by("sessions", "stuck")
class NeverLapses(MemoryBroker):
    """Whoever dies keeps what it held."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        return await super().sweep(limit, lapse=False, now=now)


@found_by("sessions", "audit", "stuck", "raised")
class ReleasesOne(MemoryBroker):
    """Only the first of a dead worker's jobs is freed."""

    def _release_session(
        self, session: str, now: int, *, suspect: bool = True, blamed: Collection[Ref] = ()
    ) -> int:
        if session in self._store.sessions:
            holds = self._store.sessions[session].holds
            for ref in list(holds)[1:]:
                del holds[ref]
        return super()._release_session(session, now, suspect=suspect, blamed=blamed)


@found_by("cancelled")
class RetriesCancelled(MemoryBroker):
    """A job that was asked to stop and fails is tried again."""

    def _conclude(self, entry: JobEntry, outcome: Outcome, now: int) -> None:
        if outcome.kind is OutcomeKind.RETRY:
            entry.cancel = None
        super()._conclude(entry, outcome, now)


@found_by("groups")
class ForgetsGroups(MemoryBroker):
    """A suspect whose process died with others in it runs with as many of them again."""

    def _conclude(self, entry: JobEntry, outcome: Outcome, now: int) -> None:
        super()._conclude(entry, outcome, now)
        if outcome.kind is OutcomeKind.CRASHED and outcome.together > 1:
            entry.suspect = GROUP_MAX


@found_by("blame", "groups", "outcomes")
class BlamesNeighboursInStore(MemoryBroker):
    """A crash in company counts against each that was there."""

    def _conclude(self, entry: JobEntry, outcome: Outcome, now: int) -> None:
        super()._conclude(entry, replace(outcome, together=1), now)


@found_by("stuck", "cancelled", "audit")
class DropsOutbox(MemoryBroker):
    """Word for a waiting job is lost unless it is delivered at once."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        self._store.outbox.clear()
        return await super().sweep(limit, lapse=lapse, now=now)


@found_by("keys")
class IgnoresOnce(MemoryBroker):
    """A finished job holds no key, whatever `once` says."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        for key, (id, _) in list(self._store.keys.items()):
            if id in self._store.jobs and self._store.jobs[id].state in FINISHED:
                del self._store.keys[key]
        return await super().put(jobs, **named)


class _BackwardLine(Line):
    def open_classes(self, filter: Filter, now: int) -> list[ClassKey]:
        return sorted(super().open_classes(filter, now), key=lambda key: -key[0])


class _BackwardStore(JobStore):
    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            line = _BackwardLine(lambda what, value: self.running(name, what, value))
            self.queues[name] = Queue(name, line)
        return super().queue(name)


@found_by("priority")
class InvertsPriority(_OtherStore):
    """The least important first."""

    store_type = _BackwardStore


class _LineWithoutTurns(Line):
    def took_turn(self, group: Group) -> None:
        """The group stays the first of the ring."""


class _StoreWithoutTurns(JobStore):
    def queue(self, name: str) -> Queue:
        if name not in self.queues:
            line = _LineWithoutTurns(lambda what, value: self.running(name, what, value))
            self.queues[name] = Queue(name, line)
        return super().queue(name)


@found_by("turns")
class ForgetsTurns(_OtherStore):
    """A group with many jobs keeps the others waiting."""

    store_type = _StoreWithoutTurns


@found_by("ids", "lost", "feed")
class AcceptsDuplicateId(MemoryBroker):
    """An id is free again as soon as its job has ended."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        for job in jobs:
            other = self._store.jobs.get(job.id)
            if other is not None and other.state in FINISHED:
                self._store.forget(other, self._clock())
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
                self._store.watchers.setdefault(record.id, {})[watch] = None
        return records


@found_by("fencing", "sessions", "feed")
class SettlesAfterLapse(MemoryBroker):
    """The success of a session that is gone still counts, though the job is back in line."""

    def _settle_run(self, session: str, outcome: Outcome, now: int) -> Settled:
        entry = self._store.jobs.get(outcome.id)
        late = entry is not None and entry.state is State.READY and entry.run == outcome.run
        if entry is not None and late and (outcome.id, outcome.run) not in self._holds(session):
            entry.run -= 1
            self._store.move(entry, Move.TAKEN, State.RUNNING, outcome.run)
            entry.run += 1
            self._store.finish(entry, Move.SUCCEEDED, State.SUCCEEDED, now, None, outcome.run)
        return super()._settle_run(session, outcome, now)

    def _holds(self, session: str) -> Collection[Ref]:
        return self._store.sessions[session].holds if session in self._store.sessions else ()


@found_by("rate")
class ForgetsRates(MemoryBroker):
    """Every sweep lets a full burst start again."""

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        for queue in self._store.queues.values():
            queue.line.rates.clear()
        return await super().sweep(limit, lapse=lapse, now=now)


@found_by("ttl")
class StartsExpired(MemoryBroker):
    """A take does not look at the ttl."""

    def _take_from(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        for entry in self._store.jobs.values():
            if entry.job.queue == queue.name and entry.state is State.READY:
                entry.expires = None
        super()._take_from(session, queue, filter, want, now)


@found_by("dependencies")
class ReleasesEarly(MemoryBroker):
    """The first dependency that succeeds is enough."""

    def _deliver(self, post: Post, now: int) -> None:
        entry = self._store.jobs.get(post.id)
        if entry is not None and post.sender in entry.waiting and post.state is State.SUCCEEDED:
            for other in [other for other in entry.waiting if other != post.sender]:
                del entry.waiting[other]
                self._store.forget_dependant(other, post.id)
        super()._deliver(post, now)


@found_by("order")
class LastInFirstOut(MemoryBroker):
    """The newest job of a lane goes first."""

    def _take_from(self, session: str, queue: Queue, filter: Filter, want: int, now: int) -> None:
        for lanes in queue.line.classes.values():
            for lane in lanes.lanes():
                numbers = sorted((lane.jobs.position(id), id) for id in lane.jobs)
                backward = list(zip([number for number, _ in numbers], reversed(numbers), strict=True))
                for _, (_, id) in backward:
                    lane.jobs.remove(id)
                for number, (_, id) in backward:
                    lane.jobs.add(number, 0, id)
        super()._take_from(session, queue, filter, want, now)


@found_by("bounds")
class OverfillsQueue(MemoryBroker):
    """The bound is looked at one job too late."""

    async def put(self, jobs: Sequence[Job], **named: Any) -> list[Accepted]:
        wider = [replace(job, max_ready=job.max_ready + 1) if job.max_ready else job for job in jobs]
        return await super().put(wider, **named)


class _QuietStore(JobStore):
    def note(self, entry: JobEntry, kind: Move | Sign, run: int = 0) -> None:
        if kind is not Move.PUT or entry.state is not State.WAITING:
            super().note(entry, kind, run)


@found_by("feed", "lost")
class LosesEvents(_OtherStore):
    """A job that is put leaves no word in the feed when it has to wait."""

    store_type = _QuietStore
