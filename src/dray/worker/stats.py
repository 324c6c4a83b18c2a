"""A worker's statistics: what its executors tell, added up and kept in the broker; what the dead leave."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from dray.broker.verbs import Broker
from dray.roster import read_workers
from dray.stats import (
    OTHER,
    Happening,
    Past,
    Tallies,
    Tally,
    WorkerTallies,
    add_counts,
    delete_tallies,
    read_tallies,
    write_past,
    write_tallies,
)
from dray.worker.channel import Measured
from dray.worker.lifeline import Lifeline

TELL_EVERY: Final = 5.0
"""Seconds between two writes of a worker's document, or its heartbeat if that is shorter."""
ARCHIVE_EVERY: Final = 30.0
RECENT: Final = 60.0
"""Seconds for which a late event loop is remembered."""
MOST_TASKS: Final = 500
"""How many tasks a document tells of, first come first served; the rest counts as one, `OTHER`.

Whoever is in stays in: a counter that changes its name would seem to fall.
"""


class Books:
    """All that the executors of one worker have told about their runs."""

    def __init__(self, worker: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._worker, self._monotonic = worker, monotonic
        self._tallies: Tallies = {}
        """All that is in the document, or is to be."""
        self._new: Tallies = {}
        """Of that, what is not in it yet."""
        self._events: dict[str, int] = {}
        self._new_events: dict[str, int] = {}
        self._version = 0
        self._lags: deque[tuple[float, float]] = deque()

    def hear(self, told: Measured) -> None:
        for task, newer in told.tasks.items():
            self._add(task, newer)
        if told.lag:
            self._lags.append((self._monotonic(), told.lag))

    def stalled(self, task: str, seconds: float) -> None:
        """A run of this task kept an event loop from turning."""
        self._add(task, Tally(stalls=1, stalled=seconds))

    def happened(self, what: Happening, times: int = 1) -> None:
        for events in (self._events, self._new_events):
            add_counts(events, {what.value: times})

    @property
    def told(self) -> WorkerTallies:
        """All of it, as the document is to say; `seen` is for whoever writes it."""
        return WorkerTallies(seen=0, tasks=self._tallies, events=self._events)

    def _add(self, task: str, newer: Tally) -> None:
        _add_to(self._tallies, task, newer)
        self._new.setdefault(task, Tally()).merge(newer)

    @property
    def average(self) -> float | None:
        """How long its runs take, in seconds; None before the first has ended."""
        weighed = [(tally.took.weight, tally.took.average) for tally in self._tallies.values()]
        weight = sum(share for share, _ in weighed)
        return sum(share * average for share, average in weighed) / weight if weight else None

    @property
    def lag(self) -> float:
        """The longest time by which an event loop was late within the last minute, in seconds."""
        while self._lags and self._lags[0][0] < self._monotonic() - RECENT:
            self._lags.popleft()
        return max((lag for _, lag in self._lags), default=0.0)

    @property
    def stalls(self) -> int:
        return sum(tally.stalls for tally in self._tallies.values())

    async def tell_for_ever(self, line: Lifeline, heartbeat: int) -> None:
        while True:
            await asyncio.sleep(min(TELL_EVERY, heartbeat / 1000))
            await self.tell(line)

    async def tell(self, line: Lifeline) -> None:
        """Write the worker's document, if there is anything new."""
        if not self._new and not self._new_events:
            return
        telling, self._new = self._new, {}
        events, self._new_events = self._new_events, {}
        try:
            await line.ask(lambda broker: self._write(broker, telling, events))
        except BaseException:
            self._new = _sum(telling, self._new)
            add_counts(self._new_events, events)
            raise

    async def _write(self, broker: Broker, telling: Tallies, events: dict[str, int]) -> None:
        while True:
            told = WorkerTallies(seen=broker.clock(), tasks=self._tallies, events=self._events)
            reply = await write_tallies(broker, self._worker, told, self._version)
            self._version = 0 if reply.doc is None else reply.doc.version
            if reply.written:
                return
            if reply.doc is None:  # it was out of touch for so long that the archive has what it told before
                self._tallies = _sum(telling, self._new)
                self._events = {**events}
                add_counts(self._events, self._new_events)


class Archive:
    """The duty that takes over what workers counted that are gone."""

    name = "the archive of statistics"

    def __init__(self, lease: int) -> None:
        self._patience = 2 * lease

    async def step(self, line: Lifeline) -> float:
        if not line.doubtful:
            await line.ask(self._take_over)
        return ARCHIVE_EVERY

    async def _take_over(self, broker: Broker) -> None:
        workers, past, version = await read_tallies(broker)
        if not workers and not past.taken_over:
            return
        living = {worker.id for worker in await read_workers(broker)}
        old = broker.clock() - self._patience
        gone = {name: told for name, told in workers.items() if name not in living and told.seen < old}
        # First it is in the archive, with the name; then the document goes, then the name. So nobody counts
        # it twice, and whoever goes on after a crash in between knows what is left to do.
        if gone:
            past = _with(past, gone)
            version = await write_past(broker, past, version)
            if not version:
                return
        for name in past.taken_over:
            await delete_tallies(broker, name)
        if past.taken_over:
            await write_past(broker, Past(tasks=past.tasks, events=past.events), version)


def _sum(older: Tallies, newer: Tallies) -> Tallies:
    added: Tallies = {}
    for tallies in (older, newer):
        for task, tally in tallies.items():
            _add_to(added, task, tally)
    return added


def _add_to(tallies: Tallies, task: str, newer: Tally) -> None:
    if task not in tallies and len(tallies) >= MOST_TASKS:
        task = OTHER
    tallies.setdefault(task, Tally()).merge(newer)


def _with(past: Past, gone: dict[str, WorkerTallies]) -> Past:
    tasks, events = past.tasks, {**past.events}
    for told in sorted(gone.values(), key=lambda told: told.seen):
        tasks = _sum(tasks, told.tasks)
        add_counts(events, told.events)
    return Past(tasks=tasks, events=events, taken_over=(*past.taken_over, *gone))
