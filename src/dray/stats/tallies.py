"""Counts and durations of runs by task, in one small document per worker and one for departed workers.

A worker writes its own with each heartbeat in which something has changed. The leader adds the documents of
departed workers to the archive. Readers add them all up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from dray.broker.verbs import Broker, DocReply
from dray.documents.reading import read_doc
from dray.stats.sketch import Sketch

KIND: Final = "stats"
PAST: Final = "stats-past"
"""The kind of the archive, a document for all departed workers. Its name is `NAME`."""
NAME: Final = "tasks"
SECOND: Final = "second-runs"
KEEP: Final = 7 * 86_400_000
"""Milliseconds for which a worker's document is kept after its last write."""
KEEP_PAST: Final = 90 * 86_400_000
BOUNDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
"""Seconds: the upper ends of a `Histogram`'s buckets. One more bucket holds longer times."""
READ_TRIES: Final = 3
OTHER: Final = "(other)"
"""Sums up the tasks or queues beyond the limits below. No task or queue can have this name."""
MOST_TASKS: Final = 500
"""Tasks of a document, first come first served. A task never leaves it: counters must not fall."""
MOST_QUEUES: Final = 100
"""Queues of a task."""


class Histogram(msgspec.Struct, array_like=True):
    """All durations ever measured, counted by `BOUNDS`. Unlike a `Sketch` it never forgets."""

    counts: list[int] = msgspec.field(default_factory=list)
    """One for each bound, and one more; empty if nothing was measured."""
    sum: float = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        if not seconds:
            return
        counts = self._opened()
        for one in seconds:
            counts[bisect_left(BOUNDS, one)] += 1
        self.sum += sum(seconds)

    def merge(self, other: Histogram) -> None:
        if len(other.counts) == len(BOUNDS) + 1:  # another version may have other bounds
            self.counts = [a + b for a, b in zip(self._opened(), other.counts, strict=True)]
            self.sum += other.sum

    def _opened(self) -> list[int]:
        if len(self.counts) != len(BOUNDS) + 1:
            self.counts, self.sum = [0] * (len(BOUNDS) + 1), 0.0
        return self.counts


_SUMMED: Final = (
    *("runs", "failed", "cpu", "metered", "stalls", "stalled"),
    *("steps_run", "steps_replayed"),
)


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts and durations of one task in one process, one worker or all of them. All times in seconds."""

    runs: int = 0
    """Started."""
    failed: int = 0
    took: Sketch = msgspec.field(default_factory=Sketch)
    """Of runs that succeeded."""
    waited: Sketch = msgspec.field(default_factory=Sketch)
    """From the time at which a job was enqueued, or due, to its first start."""
    cpu: float = 0.0
    """CPU seconds of `metered` runs."""
    metered: int = 0
    memory: int = 0
    """Bytes: the most that a child process used for it; 0 if it never ran in one."""
    stalls: int = 0
    """How often it blocked an event loop."""
    stalled: float = 0.0
    """For how long in all."""
    speculate: bool = False
    """Its jobs may get a second run."""
    ends: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Runs that ended: queue → outcome (of `OutcomeKind`, or `LOST`) → count."""
    lasted: Histogram = msgspec.field(default_factory=Histogram)
    """The values of `took`, all of them."""
    delays: Histogram = msgspec.field(default_factory=Histogram)
    """The values of `waited`, all of them."""
    steps_run: int = 0
    steps_replayed: int = 0
    """Steps whose value or error was remembered."""

    def merge(self, newer: Tally) -> None:
        """Add later counts."""
        self.took.merge(newer.took)
        self.waited.merge(newer.waited)
        self._count(newer)

    def beside(self, other: Tally) -> Tally:
        """The sum of two counts of the same time."""
        both = msgspec.structs.replace(
            self,
            took=self.took.beside(other.took),
            waited=self.waited.beside(other.waited),
            ends={queue: dict(counts) for queue, counts in self.ends.items()},
            lasted=Histogram(self.lasted.counts, self.lasted.sum),
            delays=Histogram(self.delays.counts, self.delays.sum),
        )
        both._count(other)
        return both

    def _count(self, other: Tally) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.memory = max(self.memory, other.memory)
        self.speculate = self.speculate or other.speculate
        self.lasted.merge(other.lasted)
        self.delays.merge(other.delays)
        for queue, counts in other.ends.items():
            name = queue if queue in self.ends or len(self.ends) < MOST_QUEUES else OTHER
            add_counts(self.ends.setdefault(name, {}), counts)


def add_counts(counts: dict[str, int], more: Mapping[str, int]) -> None:
    for what, count in more.items():
        counts[what] = counts.get(what, 0) + count


Tallies = dict[str, Tally]
"""By task."""
LOST: Final = "lost"
"""The outcome of a run whose lease was over before it ended: its result was dropped."""


class SupervisorEvent(StrEnum):
    """Events that supervisors count beside runs."""

    EXECUTOR_DIED = "executor_died"
    """By itself, or killed by another process."""
    EXECUTOR_KILLED = "executor_killed"
    """By its supervisor: it hung, or did not end in time."""
    LEASE_LOST = "lease_lost"
    """The leader ended a session whose lease ran out."""
    RUN_FREED = "run_freed"
    """A run of such a session is given to another one."""


class WorkerTallies(msgspec.Struct, kw_only=True):
    """A worker's document."""

    seen: int
    """Milliseconds since the epoch."""
    tasks: Tallies
    events: dict[str, int] = {}
    """`SupervisorEvent` → how often."""


class ArchivedTallies(msgspec.Struct, kw_only=True):
    """The archive: the counts of departed workers."""

    tasks: Tallies = msgspec.field(default_factory=dict)
    events: dict[str, int] = {}
    taken_over: tuple[str, ...] = ()
    """Workers whose counts are in here already, though their documents may still exist."""


class SecondRuns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The document about a task's second runs, written by the leader."""

    launched: int = 0
    won: int = 0
    wasted: int = 0
    credit: float = 0.0
    """How many more may be offered now."""
    runs: int = 0
    """The runs of the task that credit was given for."""
    offered: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Jobs offered to another worker that has not begun yet: id → its run and failures at that time."""
    begun: dict[str, int] = msgspec.field(default_factory=dict)
    """Jobs with a second run: id → its number."""


_encode = msgspec.msgpack.Encoder().encode
_read_worker = msgspec.msgpack.Decoder(WorkerTallies).decode
_read_past = msgspec.msgpack.Decoder(ArchivedTallies).decode
_read_second = msgspec.msgpack.Decoder(SecondRuns).decode


async def write_tallies(broker: Broker, worker: str, tallies: WorkerTallies, version: int) -> DocReply:
    return await broker.doc(KIND, worker, _encode(tallies), expect_version=version, ttl=KEEP)


async def read_tallies(broker: Broker) -> tuple[dict[str, WorkerTallies], ArchivedTallies, int]:
    """The documents of all workers, the archive, and the version of the archive.

    The archive is read before and after: a worker that is archived in between is not counted twice.
    """
    doc = (await broker.doc(PAST, NAME)).doc
    for _ in range(READ_TRIES):
        before, docs = doc, await broker.docs(KIND)
        doc = (await broker.doc(PAST, NAME)).doc
        if (before and before.version) == (doc and doc.version):
            break
    past = read_doc(_read_past, doc) or ArchivedTallies()
    read = {one.name: read_doc(_read_worker, one) for one in docs if one.name not in past.taken_over}
    workers = {name: one for name, one in read.items() if one is not None}
    return workers, past, 0 if doc is None else doc.version


async def write_archive(broker: Broker, past: ArchivedTallies, version: int) -> int:
    """The new version; 0 if another process was faster."""
    reply = await broker.doc(PAST, NAME, _encode(past), expect_version=version, ttl=KEEP_PAST)
    return reply.doc.version if reply.written and reply.doc is not None else 0


async def delete_tallies(broker: Broker, worker: str) -> None:
    await broker.doc(KIND, worker, None)


async def read_second_runs(broker: Broker) -> dict[str, tuple[SecondRuns, int]]:
    """Of each task, with the version of its document."""
    found = {}
    for doc in await broker.docs(SECOND):
        second = read_doc(_read_second, doc)
        if second is not None:
            found[doc.name] = (second, doc.version)
    return found


async def write_second_runs(broker: Broker, task: str, second: SecondRuns, version: int) -> int:
    """The new version; 0 if another process was faster."""
    reply = await broker.doc(SECOND, task, _encode(second), expect_version=version, ttl=KEEP_PAST)
    return reply.doc.version if reply.written and reply.doc is not None else 0


def add_workers(all: Iterable[Tallies]) -> Tallies:
    """The sum of the counts of several workers."""
    sums: Tallies = {}
    for tallies in all:
        for task, tally in tallies.items():
            sums[task] = sums[task].beside(tally) if task in sums else tally
    return sums


def add_in_sequence(older: Tallies, newer: Tallies) -> Tallies:
    """The sum of two counts of which one follows the other."""
    added: Tallies = {}
    for tallies in (older, newer):
        for task, tally in tallies.items():
            add_tally(added, task, tally)
    return added


def add_tally(tallies: Tallies, task: str, newer: Tally) -> None:
    if task not in tallies and len(tallies) >= MOST_TASKS:
        task = OTHER
    tallies.setdefault(task, Tally()).merge(newer)


async def read_totals(broker: Broker) -> Tallies:
    """The counts of all workers, also departed ones."""
    workers, archive, _ = await read_tallies(broker)
    return add_workers([archive.tasks, *(worker.tasks for worker in workers.values())])
