"""The invariants of the reference broker: what must hold between any two steps."""

from __future__ import annotations

from collections.abc import Iterator

from dray.broker.memory.durable import has_news
from dray.broker.memory.entries import JobEntry, Queue
from dray.broker.memory.store import JobStore
from dray.broker.memory.take import class_key, lane_key
from dray.job import PLACES, Place, State


def problems(store: JobStore) -> list[str]:
    """One sentence per inconsistency."""
    return [
        *(problem for entry in store.jobs.values() for problem in _of_job(store, entry)),
        *(problem for queue in store.queues.values() for problem in _of_queue(store, queue)),
        *_of_sessions(store),
        *_of_keys(store),
        *_of_dependants(store),
    ]


def _of_job(store: JobStore, entry: JobEntry) -> Iterator[str]:
    id, place, queue = entry.job.id, PLACES.get(entry.state), store.queue(entry.job.queue)
    class_ = queue.line.classes.get(class_key(entry.job))
    group = class_.groups.get(entry.job.group) if class_ else None
    lane = group.lanes.get(lane_key(entry.job)) if group else None
    ended = place if place in (Place.DEAD, Place.DONE) else Place.DONE
    stands = [
        where
        for where, there in (
            (Place.WAITING, entry.waiting or _waits(entry)),
            (Place.DUE, id in queue.due and entry.state is not State.WAITING),
            (Place.READY, lane is not None and id in lane.jobs),
            (Place.HELD, entry.runs),
            (ended, id in queue.ended),
        )
        if there
    ]
    if stands != [place]:
        yield f"{id} is {entry.state} but stands in {', '.join(stands) or 'no place'}"
    if entry.offered and (entry.state is not State.RUNNING or id not in queue.offers):
        yield f"{id} is offered but {entry.state}"
    if len(entry.runs) > (2 if entry.job.speculate else 1):
        yield f"{id} has {len(entry.runs)} valid runs"
    timed = not entry.undo and not entry.state.finished
    if timed and (entry.deadline is None) != (entry.job.deadline is None):
        yield f"{id} lacks the moment of its deadline, or has one without a deadline"
    yield from _of_durable(queue, entry)
    for run in entry.runs.values():
        session = store.sessions.get(run.session)
        if session is None or (id, run.number) not in session.holds:
            yield f"run {run.number} of {id} is held by {run.session}, which does not know"
        if run.number > entry.run:
            yield f"run {run.number} of {id} is newer than its newest"


def _waits(entry: JobEntry) -> bool:
    """It is suspended until something other than a moment comes."""
    suspended = entry.suspended
    return suspended is not None and bool(suspended.events or suspended.jobs or suspended.parked)


def _of_durable(queue: Queue, entry: JobEntry) -> Iterator[str]:
    id, suspended = entry.job.id, entry.suspended
    until = suspended.until if suspended is not None else None
    if suspended is not None and entry.state not in (State.WAITING, State.SCHEDULED, State.RETRYING):
        yield f"{id} is suspended but {entry.state}"
    if entry.state is State.WAITING and (id in queue.due) != (until is not None):
        yield f"{id} is not woken when its time comes, or has no such time"
    if suspended is not None and has_news(entry, suspended):
        yield f"{id} waits for an event that was sent"
    if entry.state.finished and (entry.undo is not None or entry.children):
        yield f"{id} is {entry.state} but not undone, or its children were not told"
    if entry.orphaned_by is not None and entry.state is not State.CANCELLED:
        yield f"{id} is {entry.state} but orphaned by {entry.orphaned_by}"


def _of_queue(store: JobStore, queue: Queue) -> Iterator[str]:
    for ids in (queue.due, queue.ended, queue.offers):
        for id in ids:
            if id not in store.jobs:
                yield f"{queue.name} lists {id}, which does not exist"
    for (priority, task, _), class_ in queue.line.classes.items():
        empty = [group.name for group in class_.groups.values() if not group.lanes]
        if empty or not class_.groups or not all(lane.jobs for lane in class_.lanes()):
            yield f"{queue.name} keeps an empty class, group or lane for {task} at {priority}"
        for lane in class_.lanes():
            for id in lane.jobs:
                if id not in store.jobs:
                    yield f"{queue.name} has {id} in line, which does not exist"


def _of_sessions(store: JobStore) -> Iterator[str]:
    for name, session in store.sessions.items():
        for id, run in session.holds:
            entry = store.jobs.get(id)
            if entry is None or run not in entry.runs or entry.runs[run].session != name:
                yield f"session {name} holds run {run} of {id}, which is not so"
        for id, run in session.handed:
            if (id, run) not in session.holds:
                yield f"run {run} of {id} was handed to session {name}, which does not hold it"


def _of_keys(store: JobStore) -> Iterator[str]:
    for (queue, key), (id, until) in store.keys.items():
        entry = store.jobs.get(id)
        if entry is None:
            yield f"key {key} of {queue} belongs to {id}, which does not exist"
        elif entry.state.finished and until is None:
            yield f"key {key} of {queue} belongs to {id}, which is {entry.state}"
    for entry in store.jobs.values():
        job = entry.job
        if job.key is None or job.key_ttl is not None or entry.state.finished:
            continue
        if store.keys.get((job.queue, job.key), ("", 0))[0] != job.id:
            yield f"{job.id} is unfinished but does not have its key {job.key}"


def _of_dependants(store: JobStore) -> Iterator[str]:
    for entry in store.jobs.values():
        for dependency in entry.waiting:
            if not store.dependants.get(dependency, {}).get(entry.job.id):
                yield f"{entry.job.id} waits for {dependency}, which does not know"
    for dependency, dependants in store.dependants.items():
        for id, waits in dependants.items():
            if waits and (id not in store.jobs or dependency not in store.jobs[id].waiting):
                yield f"{dependency} would notify {id}, which does not wait for it"
            if not waits and (dependency not in store.jobs or not store.jobs[dependency].job.node):
                yield f"{dependency} remembers {id}, but is no node"
