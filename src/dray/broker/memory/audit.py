"""The invariants of the reference broker: what must hold between any two steps."""

from __future__ import annotations

from collections.abc import Iterator

from dray.broker.memory.line import class_key, lane_key
from dray.broker.memory.world import Kept, Queue, World
from dray.job import PLACES, Place, State


def problems(world: World) -> list[str]:
    """What is inconsistent, a sentence each."""
    return [
        *(problem for kept in world.jobs.values() for problem in _of_job(world, kept)),
        *(problem for queue in world.queues.values() for problem in _of_queue(world, queue)),
        *_of_sessions(world),
        *_of_keys(world),
        *_of_dependants(world),
    ]


def _of_job(world: World, kept: Kept) -> Iterator[str]:
    id, place, queue = kept.job.id, PLACES.get(kept.state), world.queue(kept.job.queue)
    class_ = queue.line.classes.get(class_key(kept.job))
    group = class_.groups.get(kept.job.group) if class_ else None
    lane = group.lanes.get(lane_key(kept.job)) if group else None
    ended = place if place in (Place.DEAD, Place.DONE) else Place.DONE
    stands = [
        where
        for where, there in (
            (Place.WAITING, kept.waiting),
            (Place.DUE, id in queue.due),
            (Place.READY, lane is not None and id in lane.jobs),
            (Place.HELD, kept.runs),
            (ended, id in queue.ended),
        )
        if there
    ]
    if stands != [place]:
        yield f"{id} is {kept.state} but stands in {', '.join(stands) or 'no place'}"
    if kept.offered and (kept.state is not State.RUNNING or id not in queue.offers):
        yield f"{id} is offered but {kept.state}"
    if len(kept.runs) > (2 if kept.job.speculate else 1):
        yield f"{id} has {len(kept.runs)} valid runs"
    for run in kept.runs.values():
        session = world.sessions.get(run.session)
        if session is None or (id, run.number) not in session.holds:
            yield f"run {run.number} of {id} is held by {run.session}, which does not know"
        if run.number > kept.run:
            yield f"run {run.number} of {id} is newer than its newest"


def _of_queue(world: World, queue: Queue) -> Iterator[str]:
    for ids in (queue.due, queue.ended, queue.offers):
        for id in ids:
            if id not in world.jobs:
                yield f"{queue.name} lists {id}, which does not exist"
    for (priority, task, _), class_ in queue.line.classes.items():
        empty = [group.name for group in class_.groups.values() if not group.lanes]
        if empty or not class_.groups or not all(lane.jobs for lane in class_.lanes()):
            yield f"{queue.name} keeps an empty class, group or lane for {task} at {priority}"
        for lane in class_.lanes():
            for id in lane.jobs:
                if id not in world.jobs:
                    yield f"{queue.name} has {id} in line, which does not exist"


def _of_sessions(world: World) -> Iterator[str]:
    for name, session in world.sessions.items():
        for id, run in session.holds:
            kept = world.jobs.get(id)
            if kept is None or run not in kept.runs or kept.runs[run].session != name:
                yield f"session {name} holds run {run} of {id}, which is not so"


def _of_keys(world: World) -> Iterator[str]:
    for (queue, key), (id, until) in world.keys.items():
        kept = world.jobs.get(id)
        if kept is None:
            yield f"key {key} of {queue} belongs to {id}, which does not exist"
        elif kept.state.finished and until is None:
            yield f"key {key} of {queue} belongs to {id}, which is {kept.state}"
    for kept in world.jobs.values():
        job = kept.job
        if job.key is None or job.key_ttl is not None or kept.state.finished:
            continue
        if world.keys.get((job.queue, job.key), ("", 0))[0] != job.id:
            yield f"{job.id} is unfinished but does not have its key {job.key}"


def _of_dependants(world: World) -> Iterator[str]:
    for kept in world.jobs.values():
        for dependency in kept.waiting:
            if kept.job.id not in world.dependants.get(dependency, {}):
                yield f"{kept.job.id} waits for {dependency}, which does not know"
    for dependency, dependants in world.dependants.items():
        for id in dependants:
            if id not in world.jobs or dependency not in world.jobs[id].waiting:
                yield f"{dependency} would tell {id}, which does not wait for it"
