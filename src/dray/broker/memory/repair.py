"""Repairs damage that `audit` would report, such as a job in no place or in two.

No move of `JobStore` causes such damage. This is the specification of the repairs of the other brokers.
"""

from __future__ import annotations

from collections import Counter

from dray.broker.memory.durable import has_news, wake
from dray.broker.memory.entries import JobEntry, Queue, Session
from dray.broker.memory.store import JobStore, Post
from dray.broker.memory.take import Line, class_key, lane_key
from dray.broker.repairs import Round, found
from dray.broker.rules import deadline_of
from dray.broker.verbs import Ref
from dray.job import PLACES, Job, Move, Place, State


def repair_store(store: JobStore, round: Round, limit: int, now: int) -> dict[str, int]:
    """Check the next stretch of each collection; returns the repairs by kind."""
    repair = _Repair(store, now)
    for entry in round.next("jobs", store.jobs.values(), limit):
        repair.job(entry)
    for name in round.next("sessions", store.sessions, limit):
        repair.session(name, store.sessions[name])
    for name in round.next("queues", store.queues, limit):
        repair.queue(store.queues[name])
    for place in round.next("keys", store.keys, limit):
        repair.key(place)
    for dependency in round.next("dependants", store.dependants, limit):
        repair.dependants(dependency)
    return found(repair.done)


class _Repair:
    def __init__(self, store: JobStore, now: int) -> None:
        self.store, self.now = store, now
        self.done: Counter[str] = Counter()

    def job(self, entry: JobEntry) -> None:
        for run in list(entry.runs):
            self._run(entry, run)
        if entry.state is State.RUNNING and not entry.runs:
            self._run_again(entry)
        self._deadline(entry)
        self._place(entry)
        self._offer(entry)
        self._key_of(entry)
        self._waits(entry)

    # runs

    def _run(self, entry: JobEntry, run: int) -> None:
        """A run that its session does not list is added there; if the session is gone, the run is ended."""
        ref, name = (entry.job.id, run), entry.runs[run].session
        session = self.store.sessions.get(name)
        if entry.state is not State.RUNNING:
            self.done["run"] += 1
            del entry.runs[run]
            if session is not None:
                session.holds.pop(ref, None)
        elif session is None:
            self.done["run"] += 1
            self.store.sessions[name] = Session(0)
            self.store.sessions[name].holds[ref] = None
            self.store.crash(entry, run, self.now)
            del self.store.sessions[name]
        elif ref not in session.holds:
            self.done["run"] += 1
            session.holds[ref] = None

    def _run_again(self, entry: JobEntry) -> None:
        self.done["run"] += 1
        self.store.after_crash(entry, True, 0, entry.run, self.now)

    def session(self, name: str, session: Session) -> None:
        for ref in list(session.holds):
            if not self._holds(name, ref):
                self.done["run"] += 1
                del session.holds[ref]

    def _holds(self, name: str, ref: Ref) -> bool:
        entry = self.store.jobs.get(ref[0])
        return entry is not None and ref[1] in entry.runs and entry.runs[ref[1]].session == name

    # places

    def _place(self, entry: JobEntry) -> None:
        queue, id, place = self.store.queue(entry.job.queue), entry.job.id, PLACES.get(entry.state)
        wakes = entry.suspended is not None and entry.suspended.until is not None
        timed = place is Place.DUE or (place is Place.WAITING and wakes)
        if id in queue.due and not timed:
            self.done["place"] += 1
            queue.due.remove(id)
        if id in queue.ended and place not in (Place.DEAD, Place.DONE):
            self.done["place"] += 1
            queue.ended.remove(id)
        if _in_line(queue.line, entry.job) and place is not Place.READY:
            self.done["place"] += 1
            queue.line.leave(entry.job)
        there = {
            Place.DUE: id in queue.due,
            Place.WAITING: id in queue.due or not timed,
            Place.READY: _in_line(queue.line, entry.job),
            Place.DEAD: id in queue.ended,
            Place.DONE: id in queue.ended,
        }
        if place is not None and not there.get(place, True):
            self.done["place"] += 1
            self.store.enter(entry)

    def _deadline(self, entry: JobEntry) -> None:
        if entry.undo or entry.state.finished:
            return
        if (entry.deadline is None) != (entry.job.deadline is None):
            self.done["record"] += 1
            entry.deadline = deadline_of(entry.job.deadline, entry.due or entry.job.due, self.now)

    def _offer(self, entry: JobEntry) -> None:
        offers = self.store.queue(entry.job.queue).offers
        wanted = entry.offered and entry.state is State.RUNNING
        if entry.offered != wanted or (entry.job.id in offers) != wanted:
            self.done["offer"] += 1
            entry.offered = wanted
            if wanted:
                offers[entry.job.id] = None
            else:
                offers.pop(entry.job.id, None)

    def queue(self, queue: Queue) -> None:
        """Entries without a job."""
        for ids in (queue.due, queue.ended):
            for id in [id for id in ids if id not in self.store.jobs]:
                self.done["place"] += 1
                ids.remove(id)
        for id in [id for id in queue.offers if id not in self.store.jobs]:
            self.done["offer"] += 1
            del queue.offers[id]
        self._line(queue.line)

    def _line(self, line: Line) -> None:
        for key, class_ in list(line.classes.items()):
            for name, group in list(class_.groups.items()):
                for lane_name, lane in list(group.lanes.items()):
                    for id in [id for id in lane.jobs if id not in self.store.jobs]:
                        self.done["place"] += 1
                        lane.jobs.remove(id)
                    if not lane.jobs:
                        self.done["lane"] += 1
                        del group.lanes[lane_name]
                if not group.lanes:
                    self.done["lane"] += 1
                    del class_.groups[name]
            if not class_.groups:
                self.done["lane"] += 1
                del line.classes[key]

    # keys

    def _key_of(self, entry: JobEntry) -> None:
        job = entry.job
        if job.key is None or job.key_ttl is not None or entry.state.finished:
            return
        holder = self.store.keys.get((job.queue, job.key), ("", None))[0]
        if holder != job.id and not self._rightful(job.queue, job.key, holder):
            self.done["key"] += 1
            self.store.keys[job.queue, job.key] = (job.id, None)

    def key(self, place: tuple[str, str]) -> None:
        id, until = self.store.keys[place]
        entry = self.store.jobs.get(id)
        if entry is None or (entry.state.finished and until is None):
            self.done["key"] += 1
            del self.store.keys[place]

    def _rightful(self, queue: str, key: str, holder: str) -> bool:
        entry = self.store.jobs.get(holder)
        return entry is not None and (entry.job.queue, entry.job.key) == (queue, key)

    # dependencies

    def _waits(self, entry: JobEntry) -> None:
        store, id = self.store, entry.job.id
        suspended = entry.suspended
        if suspended is not None and entry.state not in (State.WAITING, State.SCHEDULED, State.RETRYING):
            self.done["record"] += 1
            entry.suspended = None
        elif (
            entry.state is State.WAITING
            and suspended is not None
            and (has_news(entry, suspended) or (suspended.jobs and not entry.waiting))
        ):
            self.done["dependency"] += 1
            wake(store, entry, self.now)
        elif entry.state is State.WAITING and suspended is None and not entry.waiting:
            self.done["dependency"] += 1
            store.line_up(entry, Move.RELEASED, entry.job.due, self.now)
        elif entry.state is not State.WAITING and entry.waiting:
            self.done["dependency"] += 1
            store.stop_waiting(entry)
        for dependency in entry.waiting:
            if not store.dependants.get(dependency, {}).get(id):
                self.done["dependency"] += 1
                store.dependants.setdefault(dependency, {})[id] = True
                other = store.jobs.get(dependency)
                if other is not None and other.state.finished:
                    store.outbox.append(Post("dependency", id, dependency, other.state))

    def dependants(self, dependency: str) -> None:
        for id, waits in list(self.store.dependants[dependency].items()):
            entry, other = self.store.jobs.get(id), self.store.jobs.get(dependency)
            known = entry is not None and dependency in entry.waiting
            if not known if waits else other is None or not other.job.node:
                self.done["dependency"] += 1
                self.store.forget_dependant(dependency, id)


def _in_line(line: Line, job: Job) -> bool:
    class_ = line.classes.get(class_key(job))
    group = class_.groups.get(job.group) if class_ else None
    lane = group.lanes.get(lane_key(job)) if group else None
    return lane is not None and job.id in lane.jobs
