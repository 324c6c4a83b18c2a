"""Hands a job that became ready to a sleeping session, as the answer to the take it would make next."""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from dray.broker.memory.entries import JobEntry
from dray.broker.memory.store import JobStore
from dray.broker.rules import BECOMES_READY, can_hand_over, matches, why_too_late
from dray.broker.verbs import Interest, NextTake, Ref

S = TypeVar("S")


def hand_over(store: JobStore, asleep: dict[S, Interest | None], now: int) -> None:
    """Hand over what became ready in this step. A sleeper that gets a job is struck off in its queue.

    Called again in the same step, it looks at what happened since.
    """
    for name, events in list(store.notes.items()):
        since = store.seen_notes.get(name, 0)
        store.seen_notes[name] = len(events)
        made_ready = {event.id for event in events[since:] if event.kind in BECOMES_READY}
        entry = _only_ready(store, name, now) if made_ready else None
        if entry is None or entry.job.id not in made_ready:
            continue
        for sleeper, interest in asleep.items():
            if interest is None or interest.next_take is None:
                continue
            if _may_have(store, interest, interest.next_take, entry, now):
                _give(store, interest.session or "", interest.next_take.request, entry, now)
                asleep[sleeper] = _without(interest, interest.next_take, name)
                break


def _without(interest: Interest, take: NextTake, queue: str) -> Interest:
    left = tuple(name for name in take.queues if name != queue)
    return replace(interest, next_take=NextTake(take.request, left) if left else None)


def _only_ready(store: JobStore, name: str, now: int) -> JobEntry | None:
    """The ready job of a queue if there is one only, and nothing else may be in its way."""
    queue = store.queue(name)
    if queue.has_settings() or queue.offers or queue.due.until(now, 1) or len(queue.line) != 1:
        return None
    # A step forwards one message; jobs that one end releases count as ready together.
    posts = (store.jobs.get(post.id) for post in store.outbox)
    if any(to is not None and to.job.queue == name for to in posts):
        return None
    ready = [id for class_ in queue.line.classes.values() for lane in class_.lanes() for id in lane.jobs]
    entry = store.jobs[ready[0]]
    late = why_too_late(entry.expires, entry.deadline, now)
    durable = entry.log or entry.undo
    return entry if late is None and not durable and can_hand_over(entry.job) else None


def _may_have(store: JobStore, interest: Interest, take: NextTake, entry: JobEntry, now: int) -> bool:
    job, session = entry.job, store.sessions.get(interest.session or "")
    return (
        session is not None
        and now < session.expires
        and job.queue in take.queues
        and 0 < session.asked.get(job.queue, 0) < take.request
        and matches(interest.filter, job.task, job.priority, job.version)
    )


def _give(store: JobStore, name: str, request: int, entry: JobEntry, now: int) -> None:
    session, queue = store.sessions[name], entry.job.queue
    ref = (entry.job.id, store.start(entry, name, now))
    session.asked[queue] = request
    session.advance[queue] = (request, ref)
    session.handed[ref] = now


def handed_over(store: JobStore, interest: Interest) -> list[Ref]:
    """The runs that were handed over as answers to the take of this interest."""
    take, session = interest.next_take, store.sessions.get(interest.session or "")
    if take is None or session is None:
        return []
    answers = [session.advance.get(queue, (0, ("", 0))) for queue in take.queues]
    return [ref for request, ref in answers if request == take.request and ref in session.holds]
