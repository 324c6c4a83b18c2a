"""Finds news for a waiter, and blocks until there is some."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from dray.broker.memory.entries import JobEntry, Queue
from dray.broker.memory.hand_over import handed_over
from dray.broker.memory.store import JobStore
from dray.broker.rules import is_overdue, matches
from dray.broker.verbs import Interest, Wake


def news(store: JobStore, interest: Interest, now: int) -> Wake:
    mail = store.mail.pop(interest.watcher, {}) if interest.watcher else {}
    queues = tuple(name for name in interest.queues if _has_work(store, name, interest, now))
    refs = handed_over(store, interest)
    since = min((store.jobs[id].runs[run].since for id, run in refs), default=0)
    return Wake(
        bool(queues),
        _has_notification(store, interest.session),
        tuple(mail),
        queues=queues,
        taken=tuple(store.taken(*ref) for ref in refs),
        handed_at=since,
    )


def _has_notification(store: JobStore, name: str | None) -> bool:
    """The session has notifications that `renew` has not reported yet."""
    session = store.sessions.get(name or "")
    if session is None:
        return name is not None
    asked = {ref for ref in session.holds if store.jobs[ref[0]].cancel is not None}
    return bool((asked | set(session.void)) - session.heard)


def _has_work(store: JobStore, name: str, interest: Interest, now: int) -> bool:
    queue = store.queue(name)
    return (
        bool(queue.due.until(now, 1))
        or any(
            queue.line.class_room(key[1], queue.line.classes[key], now)
            for key in queue.line.open_classes(interest.filter, now)
        )
        or any(_offers_to(interest, store.jobs[id], queue, now) for id in queue.offers)
    )


def _offers_to(interest: Interest, entry: JobEntry, queue: Queue, now: int) -> bool:
    job, line = entry.job, queue.line
    return bool(
        matches(interest.filter, job.task, job.priority, job.version)
        and not line.paused
        and not is_overdue(entry.deadline, now)
        and job.task not in line.paused_tasks
        and all(run.session != interest.session for run in entry.runs.values())
        and line.job_room(job, now)
    )


def next_time(store: JobStore, interest: Interest, now: int) -> int | None:
    """The next moment at which a job falls due or a rate has room again."""
    times: list[int] = []
    for name in interest.queues:
        queue = store.queue(name)
        times += [t for t in (queue.due.first(), queue.line.frees_at(interest.filter, now)) if t is not None]
    return min(times, default=None)


class Sleeper:
    """One `wait` that is asleep, woken from any thread."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._roused = False
        self._event: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def reset(self) -> None:
        self._roused = False
        if self._event is not None:
            self._event.clear()

    def rouse(self) -> None:
        self._roused = True
        if self._event is not None and self._loop is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    def block(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._roused, seconds)

    async def sleep(self, seconds: float) -> None:
        if self._event is None:
            self._event, self._loop = asyncio.Event(), asyncio.get_running_loop()
        if self._roused:
            return
        with suppress(TimeoutError):
            # Not `wait_for`: on Python 3.11 it forgets a cancel that comes together with the event.
            async with asyncio.timeout(seconds):
                await self._event.wait()
