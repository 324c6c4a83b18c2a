"""Follows the broker's feed, so that the tour waits for what happens and never for time to pass."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from dray.broker.verbs import Broker
from dray.demo.crew import Crew
from dray.demo.news import tell_news
from dray.demo.trouble import Trouble
from dray.demo.view import Picture, View
from dray.job import Progress, State

LOOK_EVERY: Final = 0.1
PATIENCE: Final = 45.0
"""Seconds to wait for any one thing. Things take about one; a machine may be busy."""

T = TypeVar("T")


class Happening(NamedTuple):
    """One event of the feed."""

    kind: str
    id: str
    run: int
    at: int

    @property
    def task(self) -> str:
        return task_of(self.id)


def task_of(id: str) -> str:
    """Jobs of the tour are named after their task: `email-3`."""
    return id.partition("-")[0]


class Follower:
    """All that has happened so far. Looks again while somebody waits for more, and keeps the view true."""

    def __init__(self, broker: Broker, crew: Crew, view: View) -> None:
        self._broker, self._crew, self._view = broker, crew, view
        self._cursor: dict[str, int] = {}
        self.happened: list[Happening] = []
        self.counts: Counter[State] = Counter()
        self.progress: dict[str, Progress] = {}

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Look until something is so."""
        deadline = time.monotonic() + PATIENCE
        await self.look()
        while not condition():
            if time.monotonic() > deadline:
                states = ", ".join(f"{count} {state}" for state, count in self.counts.items() if count)
                raise Trouble(
                    f"waited {PATIENCE:g} s for {what}; the jobs are {states}{self._crew.last_words()}"
                )
            await asyncio.sleep(LOOK_EVERY)
            await self.look()

    async def meanwhile(self, what: str, doing: Awaitable[T]) -> T:
        """Look while something else is waited for."""
        task = asyncio.ensure_future(doing)
        try:
            await self.until(what, task.done)
        finally:
            task.cancel()
        return task.result()

    async def look(self) -> None:
        """Read what is new, tell it, and draw the picture of how things stand."""
        new = await self._read()
        self.counts = Counter()
        for queue in await self._broker.queues():
            self.counts.update(queue.counts)
        await self._crew.look()
        if any(event.kind == "progress" for event in new):
            await self._read_progress()
        for word, text in await tell_news(self._broker, new):
            self._view.say(word, text)
        self._view.draw(Picture(self.counts, self._crew.executors, self.progress))

    def ids(self, kind: str, task: str) -> list[str]:
        """The jobs of a task that something happened to, in that order, each as often as it happened."""
        return [event.id for event in self.happened if event.kind == kind and event.task == task]

    def ended(self, task: str) -> set[str]:
        """The jobs of a task that are over."""
        return {
            event.id
            for event in self.happened
            if event.task == task and event.kind in ("succeeded", "died", "cancelled")
        }

    def how_far(self, id: str) -> float:
        """What a running job has reported as done."""
        return self.progress[id].done if id in self.progress else 0.0

    @property
    def unfinished(self) -> int:
        return sum(count for state, count in self.counts.items() if not state.finished)

    async def _read(self) -> list[Happening]:
        new: list[Happening] = []
        while True:
            feed = await self._broker.events(self._cursor)
            if not feed.entries:
                self.happened += new
                return new
            self._cursor = dict(feed.cursor)
            new += [
                Happening(event.kind, event.id, event.run, entry.at)
                for entry in feed.entries
                for event in entry.events
            ]

    async def _read_progress(self) -> None:
        ids = sorted({event.id for event in self.happened if event.kind == "progress"})
        self.progress = {
            record.id: run.progress
            for record in await self._broker.get(ids)
            if record is not None
            for run in record.runs
            if run.progress is not None
        }
