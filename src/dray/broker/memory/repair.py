"""What `sweep` puts right: a job in no place or in two, and whatever else `audit` would name.

No move of `World` leaves any of it behind. Here it is the specification of what the other brokers repair.
"""

from __future__ import annotations

from collections import Counter

from dray.broker.memory.line import Line, class_key, lane_key
from dray.broker.memory.world import Kept, Queue, Session, World
from dray.broker.repairs import Round, found
from dray.broker.verbs import Ref
from dray.job import PLACES, Job, Move, Place, State


def mend(world: World, round: Round, limit: int, now: int) -> dict[str, int]:
    """Look at the next stretch of everything there is; what was put right, by kind."""
    mending = _Mending(world, now)
    for kept in round.next("jobs", world.jobs.values(), limit):
        mending.job(kept)
    for name in round.next("sessions", world.sessions, limit):
        mending.session(name, world.sessions[name])
    for name in round.next("queues", world.queues, limit):
        mending.queue(world.queues[name])
    for place in round.next("keys", world.keys, limit):
        mending.key(place)
    for dependency in round.next("dependants", world.dependants, limit):
        mending.dependants(dependency)
    return found(mending.done)


class _Mending:
    def __init__(self, world: World, now: int) -> None:
        self.world, self.now = world, now
        self.done: Counter[str] = Counter()

    def job(self, kept: Kept) -> None:
        for run in list(kept.runs):
            self._run(kept, run)
        if kept.state is State.RUNNING and not kept.runs:
            self._run_again(kept)
        self._place(kept)
        self._offer(kept)
        self._key_of(kept)
        self._waits(kept)

    # runs

    def _run(self, kept: Kept, run: int) -> None:
        """Held by a session that does not know: it does now; by one that is gone: its run is over."""
        ref, name = (kept.job.id, run), kept.runs[run].session
        session = self.world.sessions.get(name)
        if kept.state is not State.RUNNING:
            self.done["run"] += 1
            del kept.runs[run]
            if session is not None:
                session.holds.pop(ref, None)
        elif session is None:
            self.done["run"] += 1
            self.world.sessions[name] = Session(0)
            self.world.sessions[name].holds[ref] = None
            self.world.crash(kept, run, self.now)
            del self.world.sessions[name]
        elif ref not in session.holds:
            self.done["run"] += 1
            session.holds[ref] = None

    def _run_again(self, kept: Kept) -> None:
        self.done["run"] += 1
        kept.suspect = True
        if kept.cancel is not None:
            self.world.finish(kept, Move.CANCELLED, State.CANCELLED, self.now, kept.cancel)
        else:
            self.world.back_in_line(kept, Move.CRASHED, kept.run)

    def session(self, name: str, session: Session) -> None:
        for ref in list(session.holds):
            if not self._holds(name, ref):
                self.done["run"] += 1
                del session.holds[ref]

    def _holds(self, name: str, ref: Ref) -> bool:
        kept = self.world.jobs.get(ref[0])
        return kept is not None and ref[1] in kept.runs and kept.runs[ref[1]].session == name

    # places

    def _place(self, kept: Kept) -> None:
        queue, id, place = self.world.queue(kept.job.queue), kept.job.id, PLACES.get(kept.state)
        if id in queue.due and place is not Place.DUE:
            self.done["place"] += 1
            queue.due.remove(id)
        if id in queue.ended and place not in (Place.DEAD, Place.DONE):
            self.done["place"] += 1
            queue.ended.remove(id)
        if _in_line(queue.line, kept.job) and place is not Place.READY:
            self.done["place"] += 1
            queue.line.leave(kept.job)
        there = {
            Place.DUE: id in queue.due,
            Place.READY: _in_line(queue.line, kept.job),
            Place.DEAD: id in queue.ended,
            Place.DONE: id in queue.ended,
        }
        if place is not None and not there.get(place, True):
            self.done["place"] += 1
            self.world.enter(kept)

    def _offer(self, kept: Kept) -> None:
        offers = self.world.queue(kept.job.queue).offers
        wanted = kept.offered and kept.state is State.RUNNING
        if kept.offered != wanted or (kept.job.id in offers) != wanted:
            self.done["offer"] += 1
            kept.offered = wanted
            if wanted:
                offers[kept.job.id] = None
            else:
                offers.pop(kept.job.id, None)

    def queue(self, queue: Queue) -> None:
        """Entries without a job."""
        for ids in (queue.due, queue.ended):
            for id in [id for id in ids if id not in self.world.jobs]:
                self.done["place"] += 1
                ids.remove(id)
        for id in [id for id in queue.offers if id not in self.world.jobs]:
            self.done["offer"] += 1
            del queue.offers[id]
        self._line(queue.line)

    def _line(self, line: Line) -> None:
        for key, class_ in list(line.classes.items()):
            for name, group in list(class_.groups.items()):
                for lane_name, lane in list(group.lanes.items()):
                    for id in [id for id in lane.jobs if id not in self.world.jobs]:
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

    def _key_of(self, kept: Kept) -> None:
        job = kept.job
        if job.key is None or job.key_ttl is not None or kept.state.finished:
            return
        holder = self.world.keys.get((job.queue, job.key), ("", None))[0]
        if holder != job.id and not self._rightful(job.queue, job.key, holder):
            self.done["key"] += 1
            self.world.keys[job.queue, job.key] = (job.id, None)

    def key(self, place: tuple[str, str]) -> None:
        id, until = self.world.keys[place]
        kept = self.world.jobs.get(id)
        if kept is None or (kept.state.finished and until is None):
            self.done["key"] += 1
            del self.world.keys[place]

    def _rightful(self, queue: str, key: str, holder: str) -> bool:
        kept = self.world.jobs.get(holder)
        return kept is not None and (kept.job.queue, kept.job.key) == (queue, key)

    # dependencies

    def _waits(self, kept: Kept) -> None:
        world, id = self.world, kept.job.id
        if kept.state is State.WAITING and not kept.waiting:
            self.done["dependency"] += 1
            world.line_up(kept, Move.RELEASED, kept.job.due, self.now)
        elif kept.state is not State.WAITING and kept.waiting:
            self.done["dependency"] += 1
            world.stop_waiting(kept)
        for dependency in kept.waiting:
            if id not in world.dependants.get(dependency, {}):
                self.done["dependency"] += 1
                world.dependants.setdefault(dependency, {})[id] = None
                other = world.jobs.get(dependency)
                if other is not None and other.state.finished:
                    world.outbox.append((id, dependency, other.state))

    def dependants(self, dependency: str) -> None:
        for id in list(self.world.dependants[dependency]):
            kept = self.world.jobs.get(id)
            if kept is None or dependency not in kept.waiting:
                self.done["dependency"] += 1
                self.world.forget_dependant(dependency, id)


def _in_line(line: Line, job: Job) -> bool:
    class_ = line.classes.get(class_key(job))
    group = class_.groups.get(job.group) if class_ else None
    lane = group.lanes.get(lane_key(job)) if group else None
    return lane is not None and job.id in lane.jobs
