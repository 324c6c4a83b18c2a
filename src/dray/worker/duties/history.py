"""The duty that writes the history: it reads the feed in batches, and the jobs that the events name.

It stands in no job's way: it asks the broker for what has happened already, works at most a seventh of the
time, and writes in a thread. What it missed, because the feed dropped entries before they were read, is
recorded as a gap, and the finished jobs of that queue are read anew.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from dray.broker.actions import Query
from dray.broker.checks import FEED_KEPT
from dray.broker.verbs import Broker, Entry
from dray.documents.worker_registry import read_workers
from dray.errors import HistoryError
from dray.history.api import open_thread
from dray.history.parameters import read_parameters
from dray.history.rows import Gap, RowMaker, changed_at
from dray.history.store import FLOOR, Batch, Mark, OpenGap, Position
from dray.job import FINISHED, Move, Record
from dray.retry_pauses import RetryPauses
from dray.settings import Settings
from dray.worker.retrying_broker import RetryingBroker

EVENTS_WANTED: Final = 2000
"""Events of one batch, roughly; an entry of the feed has up to a thousand."""
ENTRIES_MAX: Final = 1000
READ_STEP: Final = 500
"""Jobs that one call of the broker reads."""
IDLE: Final = 1.0
"""Seconds until the next look at a feed with nothing new."""
GATHER: Final = 0.2
"""Seconds until the next look otherwise, at least: a few events at a time would cost more each."""
REST: Final = 6.0
"""Time of rest for each second of work: so jobs lose little of the machine to it."""
LONGEST_REST: Final = 2.0
FACTS_EVERY: Final = 15.0
PRUNE_EVERY: Final = 60.0
LIGHT: Final = frozenset({Move.PUT, Move.TAKEN, Move.PROMOTED, Move.RELEASED})
"""Events after which the job is not read: its end will be. After a kind that is not known here, it is."""
STATES: Final = tuple(sorted(FINISHED))

log = logging.getLogger("dray.worker")


class Reading(msgspec.Struct, array_like=True):
    """How far a queue was read anew: a state of `STATES` and the cursor in it."""

    noticed: int
    """It mends gaps that were noticed up to then."""
    state: int = 0
    cursor: str | None = None


class HistoryWriter:
    """Reads the feed on from where the history ends."""

    name = "the history"

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._thread = open_thread(settings.history_url or "", settings.namespace)
        self._rows = RowMaker(settings)
        self._entries = 20
        self._facts_at = self._prune_at = float("-inf")
        self._pauses = RetryPauses(1.0, 30.0)

    async def step(self, retrying: RetryingBroker) -> float:
        try:
            began = self._monotonic()
            found = await self._step(retrying)
        except HistoryError as error:
            if not self._pauses.tries:
                log.warning("the history is not written, jobs go on; it is tried until it answers: %s", error)
            return self._pauses.next()
        if self._pauses.tries:
            log.warning("the history is written again")
        self._pauses.reset()
        rest = (self._monotonic() - began) * REST
        return IDLE if not found else max(GATHER, min(rest, LONGEST_REST))

    async def _step(self, retrying: RetryingBroker) -> bool:
        """One batch of the feed and one of a gap; True if there was anything."""
        await retrying.ask(self._refresh_facts)
        position: Position = await self._thread.run(lambda store: store.position())
        if position.floor is None:
            await self._begin(retrying)
            return True
        read = await self._read_feed(retrying, position)
        mended = bool(position.gaps) and await self._read_anew(retrying, position)
        return await self._prune(retrying.broker.clock()) or read or mended

    async def _refresh_facts(self, broker: Broker) -> None:
        """Read the parameter names of tasks and the versions of workers now and then."""
        if self._monotonic() >= self._facts_at:
            self._facts_at = self._monotonic() + FACTS_EVERY
            self._rows.names = await read_parameters(broker)
            now_at_work = {worker.id: worker.version for worker in await read_workers(broker)}
            self._rows.versions = {**dict(list(self._rows.versions.items())[-1000:]), **now_at_work}

    async def _begin(self, retrying: RetryingBroker) -> None:
        """A new history begins with the finished jobs that the broker has: each queue is a gap."""
        now = retrying.broker.clock()
        queues = await retrying.ask(lambda broker: broker.queue_names())
        await self._write(Batch(gaps=[Gap(queue, 0, 0, now) for queue in queues], feeds={FLOOR: (0, now)}))

    async def _read_feed(self, retrying: RetryingBroker, position: Position) -> bool:
        cursor = {queue: number for queue, (number, _) in position.feeds.items()}
        feed = await retrying.ask(lambda broker: broker.events(cursor, limit=self._entries))
        if not feed.entries:
            return False
        batch = Batch()
        marks, now = dict(position.feeds), retrying.broker.clock()
        for entry in feed.entries:
            gap = gap_before(entry, marks.get(entry.queue), now)
            if gap is not None:
                log.warning("history: events of queue %s were dropped before they were read", gap.queue)
                batch.gaps.append(gap)
            marks[entry.queue] = batch.feeds[entry.queue] = (entry.number, entry.at)
            batch.events += self._rows.events(entry)
        await self._add_jobs(retrying, batch, _to_read(feed.entries), position.floor or 0)
        await self._write(batch)
        wanted = self._entries * EVENTS_WANTED // max(1, len(batch.events))
        self._entries = max(1, min(wanted, self._entries * 4, ENTRIES_MAX))
        return True

    async def _add_jobs(self, retrying: RetryingBroker, batch: Batch, ids: Sequence[str], floor: int) -> None:
        for start in range(0, len(ids), READ_STEP):
            some = ids[start : start + READ_STEP]
            records = await retrying.ask(_getter(some))
            found = [record for record in records if record is not None]
            await self._add_records(retrying, batch, found, floor)

    async def _add_records(
        self, retrying: RetryingBroker, batch: Batch, records: Sequence[Record], floor: int
    ) -> None:
        if any(record.job.task not in self._rows.names for record in records):
            # A new task: its executor wrote the names before it took a job.
            self._rows.names = await retrying.ask(read_parameters)
        for record in records:
            if changed_at(record) >= floor:
                batch.jobs.append(self._rows.job(record))
                batch.attempts += self._rows.attempts(record)

    async def _read_anew(self, retrying: RetryingBroker, position: Position) -> bool:
        """Read one page of the finished jobs of a queue that has a gap."""
        queue = position.gaps[0].queue
        reading = _reading(position.gaps, queue)
        query = Query(state=STATES[reading.state], queue=queue)
        page = await retrying.ask(lambda broker: broker.find(query, cursor=reading.cursor, limit=READ_STEP))
        batch = Batch()
        await self._add_records(retrying, batch, page.records, position.floor or 0)
        await self._write(batch)
        if page.cursor is not None:
            following = Reading(reading.noticed, reading.state, page.cursor)
        elif reading.state + 1 < len(STATES):
            following = Reading(reading.noticed, reading.state + 1)
        else:
            now = retrying.broker.clock()
            await self._thread.run(lambda store: store.mend_gaps(queue, reading.noticed, now))
            return True
        text = msgspec.json.encode(following).decode()
        await self._thread.run(lambda store: store.note_reading(queue, text))
        return True

    async def _prune(self, now: int) -> bool:
        """Delete what is old, a bounded number of rows at a time; True if there is more."""
        if self._monotonic() < self._prune_at:
            return False
        before, most = now - self._settings.history_ttl, self._settings.history_max_size
        more: bool = await self._thread.run(lambda store: store.prune(before, now, most))
        if not more:
            self._prune_at = self._monotonic() + PRUNE_EVERY
        return more

    async def _write(self, batch: Batch) -> None:
        await self._thread.run(lambda store: store.write(batch))


def gap_before(entry: Entry, mark: Mark | None, now: int) -> Gap | None:
    """The gap between the last entry that was read and this one.

    The feed of a queue that was empty for a while is dropped, and one number with it: no gap.
    """
    last, at = mark or (0, 0)
    if entry.number == last + 1:
        return None
    if mark is not None and entry.number == last + 2 and entry.at - at >= FEED_KEPT:
        return None
    return Gap(entry.queue, last, entry.number, now)


def _to_read(entries: Sequence[Entry]) -> list[str]:
    """The jobs to read: those that ended, or changed otherwise, and those that are running now."""
    last: dict[str, str] = {}
    wanted: dict[str, None] = {}
    for entry in entries:
        for event in entry.events:
            last[event.id] = event.kind
            if event.kind not in LIGHT:
                wanted[event.id] = None
    wanted |= dict.fromkeys(id for id, kind in last.items() if kind == Move.TAKEN)
    return [id for id in wanted if id]


def _getter(ids: Sequence[str]) -> Callable[[Broker], Awaitable[list[Record | None]]]:
    return lambda broker: broker.get(ids)


def _reading(gaps: Sequence[OpenGap], queue: str) -> Reading:
    """The reading of a queue that was begun, else a new one for all its gaps."""
    own = [gap for gap in gaps if gap.queue == queue]
    begun = next((gap.reading for gap in own if gap.reading), None)
    if begun is None:
        return Reading(max(gap.at for gap in own))
    return msgspec.json.decode(begun, type=Reading)
