"""What is news to whom, and sleeping until there is some."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from dray.broker.checks import matches
from dray.broker.memory.world import Kept, Queue, World
from dray.broker.verbs import Interest, Wake


def news(world: World, interest: Interest, now: int) -> Wake:
    mail = world.mail.pop(interest.watcher, {}) if interest.watcher else {}
    return Wake(_has_work(world, interest, now), _has_word(world, interest.session), tuple(mail))


def _has_word(world: World, name: str | None) -> bool:
    """Anything that `renew` has not told yet; it tells all of it, again and again."""
    session = world.sessions.get(name or "")
    if session is None:
        return name is not None
    asked = {ref for ref in session.holds if world.jobs[ref[0]].cancel is not None}
    return bool((asked | set(session.void)) - session.heard)


def _has_work(world: World, interest: Interest, now: int) -> bool:
    for name in interest.queues:
        queue = world.queue(name)
        if queue.due.until(now, 1) or any(
            queue.line.class_room(key[1], queue.line.classes[key], now)
            for key in queue.line.open_classes(interest.filter, now)
        ):
            return True
        if any(_offers_to(interest, world.jobs[id], queue, now) for id in queue.offers):
            return True
    return False


def _offers_to(interest: Interest, kept: Kept, queue: Queue, now: int) -> bool:
    job, line = kept.job, queue.line
    return bool(
        matches(interest.filter, job.task, job.priority, job.version)
        and not line.paused
        and job.task not in line.paused_tasks
        and all(run.session != interest.session for run in kept.runs.values())
        and line.job_room(job, now)
    )


def next_time(world: World, interest: Interest, now: int) -> int | None:
    """When there may be work though nothing happens: a job falls due or a rate has room again."""
    times: list[int] = []
    for name in interest.queues:
        queue = world.queue(name)
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
            await asyncio.wait_for(self._event.wait(), seconds)
