"""A worker's statistics: the counts of its executors, added up and written to the broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from dray.broker.verbs import Broker
from dray.stats.arrivals import Arrivals
from dray.stats.sketch import RecentMaximum, Sketch
from dray.stats.tallies import (
    SupervisorEvent,
    Tallies,
    Tally,
    WorkerTallies,
    add_counts,
    add_in_sequence,
    add_tally,
    write_tallies,
)
from dray.worker.channel import RunStatistics
from dray.worker.retrying_broker import RetryingBroker

WRITE_EVERY: Final = 5.0
"""Seconds between two writes of a worker's document, or its heartbeat if that is shorter."""


class WorkerStatistics:
    """The counts of one worker's executors and of its supervisor."""

    def __init__(self, worker: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.worker = worker
        self._tallies: Tallies = {}
        """All counts."""
        self._new: Tallies = {}
        """Those of them that are not written yet."""
        self._events: dict[str, int] = {}
        self._new_events: dict[str, int] = {}
        self._version = 0
        self._lag = RecentMaximum(monotonic)
        self.arrivals = Arrivals()
        """Jobs of schedules that this worker has put."""

    def add(self, measured: RunStatistics) -> None:
        for task, newer in measured.tasks.items():
            self._add(task, newer)
        if measured.lag:
            self._lag.add(measured.lag)

    def add_stall(self, task: str, seconds: float) -> None:
        """A run of this task kept an event loop from turning."""
        self._add(task, Tally(stalls=1, stalled=seconds))

    def count_event(self, event: SupervisorEvent, times: int = 1) -> None:
        for events in (self._events, self._new_events):
            add_counts(events, {event.value: times})

    def document(self, seen: int) -> WorkerTallies:
        return WorkerTallies(seen=seen, tasks=self._tallies, events=self._events)

    def _add(self, task: str, newer: Tally) -> None:
        add_tally(self._tallies, task, newer)
        self._new.setdefault(task, Tally()).merge(newer)

    @property
    def average(self) -> float | None:
        """Seconds that a run takes on average; None before the first has ended."""
        weighed = [(tally.took.weight, tally.took.average) for tally in self._tallies.values()]
        weight = sum(share for share, _ in weighed)
        return sum(share * average for share, average in weighed) / weight if weight else None

    @property
    def p95(self) -> float | None:
        """Seconds that 95 of 100 of its runs did not exceed; None before the first has ended."""
        all = Sketch()
        for tally in self._tallies.values():
            all = all.beside(tally.took)
        return all.percentile(95) if all.counts else None

    @property
    def lag(self) -> float:
        """The longest time by which an event loop was late within the last minute, in seconds."""
        return self._lag.value

    @property
    def stalls(self) -> int:
        return sum(tally.stalls for tally in self._tallies.values())

    async def write_forever(self, retrying: RetryingBroker, heartbeat: int) -> None:
        while True:
            await asyncio.sleep(min(WRITE_EVERY, heartbeat / 1000))
            await self.write(retrying)

    async def write(self, retrying: RetryingBroker) -> None:
        """Write the worker's document, if anything is new."""
        if self.arrivals.unwritten:
            await retrying.ask(self.arrivals.write)
        if not self._new and not self._new_events:
            return
        writing, self._new = self._new, {}
        events, self._new_events = self._new_events, {}
        try:
            await retrying.ask(lambda broker: self._write(broker, writing, events))
        except BaseException:
            self._new = add_in_sequence(writing, self._new)
            add_counts(self._new_events, events)
            raise

    async def _write(self, broker: Broker, writing: Tallies, events: dict[str, int]) -> None:
        while True:
            document = self.document(broker.clock())
            reply = await write_tallies(broker, self.worker, document, self._version)
            self._version = 0 if reply.doc is None else reply.doc.version
            if reply.written:
                return
            if reply.doc is None:  # after a long outage: the archive has what was written before
                self._tallies = add_in_sequence(writing, self._new)
                self._events = {**events}
                add_counts(self._events, self._new_events)
