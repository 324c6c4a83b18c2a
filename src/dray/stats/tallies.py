"""How tasks fare: how many ran, how long they took, what they used. Kept in the broker as small documents.

Each worker writes one about itself, with each heartbeat in which something has changed. What workers that
are gone have counted is added up in one more by whoever does the duties, so there are never more documents
than workers, and one. Whoever reads adds them up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from dray.broker.verbs import Broker, DocReply
from dray.durations import Sketch

KIND: Final = "stats"
PAST: Final = "stats-past"
"""The kind of the document about workers that are gone; it has one name, `NAME`."""
NAME: Final = "tasks"
SECOND: Final = "second-runs"
KEEP: Final = 7 * 86_400_000
"""Milliseconds for which a worker's document is kept after its last word."""
KEEP_PAST: Final = 90 * 86_400_000
BOUNDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3600.0)
"""Seconds: the upper ends of a `Histogram`'s buckets. Longer times are in one more."""
READ_TRIES: Final = 3
OTHER: Final = "(other)"
"""Stands for the tasks, or queues, beyond those that are told of one by one. None can have this name."""
MOST_QUEUES: Final = 100
"""Of a task."""


class Histogram(msgspec.Struct, array_like=True):
    """Lengths of time ever seen, by `BOUNDS`. Unlike a `Sketch` it never forgets."""

    counts: list[int] = msgspec.field(default_factory=list)
    """As many as there are bounds, and one; empty if nothing was seen."""
    sum: float = 0.0

    def add(self, seconds: Sequence[float]) -> None:
        if not seconds:
            return
        counts = self._opened()
        for one in seconds:
            counts[bisect_left(BOUNDS, one)] += 1
        self.sum += sum(seconds)

    def merge(self, other: Histogram) -> None:
        if len(other.counts) == len(BOUNDS) + 1:  # else of a version with other bounds
            self.counts = [a + b for a, b in zip(self._opened(), other.counts, strict=True)]
            self.sum += other.sum

    def _opened(self) -> list[int]:
        if len(self.counts) != len(BOUNDS) + 1:
            self.counts, self.sum = [0] * (len(BOUNDS) + 1), 0.0
        return self.counts


class Tally(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one task came to in one process, one worker or all of them. All times in seconds."""

    runs: int = 0
    """Started."""
    failed: int = 0
    took: Sketch = msgspec.field(default_factory=Sketch)
    """Of runs that succeeded."""
    waited: Sketch = msgspec.field(default_factory=Sketch)
    """From when a job was enqueued, or due, to its first start."""
    cpu: float = 0.0
    """CPU seconds of `metered` runs."""
    metered: int = 0
    memory: int = 0
    """Bytes: the most that a child process used for it; 0 if it never ran in one."""
    stalls: int = 0
    """How often it kept an event loop from turning."""
    stalled: float = 0.0
    """For how long in all."""
    speculate: bool = False
    """Whether its jobs may get a second run."""
    ends: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)
    """Runs that ended: queue → outcome (of `OutcomeKind`, or `LOST`) → how many."""
    lasted: Histogram = msgspec.field(default_factory=Histogram)
    """The times of `took`, and"""
    delays: Histogram = msgspec.field(default_factory=Histogram)
    """those of `waited`, never forgotten."""

    def merge(self, newer: Tally) -> None:
        """Add what was counted since."""
        self.took.merge(newer.took)
        self.waited.merge(newer.waited)
        self._count(newer)

    def beside(self, other: Tally) -> Tally:
        """Both together, as of the same time."""
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
        for name in ("runs", "failed", "cpu", "metered", "stalls", "stalled"):
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
"""The outcome of a run whose lease was over before it ended: what it came to was dropped."""


class Happening(StrEnum):
    """What supervisors count beside runs."""

    EXECUTOR_DIED = "executor_died"
    """By itself, or by somebody else's hand."""
    EXECUTOR_KILLED = "executor_killed"
    """By its supervisor: it hung, or did not end in time."""
    LEASE_LOST = "lease_lost"
    """A session whose lease ran out was ended, by whoever leads."""
    RUN_FREED = "run_freed"
    """A run that such a session held goes to somebody else."""


class WorkerTallies(msgspec.Struct, kw_only=True):
    """A worker's document."""

    seen: int
    """Milliseconds since the epoch."""
    tasks: Tallies
    events: dict[str, int] = {}
    """What its supervisor saw happen (`Happening`), and how often."""


class Past(msgspec.Struct, kw_only=True):
    """The document about workers that are gone."""

    tasks: Tallies = msgspec.field(default_factory=dict)
    events: dict[str, int] = {}
    taken_over: tuple[str, ...] = ()
    """Workers whose counts are in here already, though their documents may still be there."""


class SecondRuns(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The document about a task's second runs, written by whoever does the duties."""

    launched: int = 0
    won: int = 0
    wasted: int = 0
    credit: float = 0.0
    """How many more may be launched now."""
    runs: int = 0
    """The runs of the task that credit was given for."""
    offered: dict[str, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Jobs offered to another worker that has not begun yet: id → its run and failures at that time."""
    begun: dict[str, int] = msgspec.field(default_factory=dict)
    """Jobs with a second run: id → its number."""


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths of time in seconds, mostly of the last few thousand runs."""

    average: float = 0.0
    """Moving: the last twenty values make up most of it."""
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


class TaskStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a task fares, on all workers or on one."""

    task: str
    runs: int = 0
    """How many were started."""
    failed: int = 0
    """How many of them failed."""
    duration: Spread = Spread()
    """How long runs that succeeded took."""
    samples: int = 0
    """How many runs the percentiles stand for."""
    wait: Spread = Spread()
    """From when a job was enqueued, or due, to its first start."""
    cpu: float | None = None
    """CPU seconds of an average run; None if that was never measured."""
    memory: int | None = None
    """The most bytes that a child process used for it; None if it never ran in one."""
    stalls: int = 0
    """How often it kept an event loop from turning for over a second."""
    stalled: float = 0.0
    """For how many seconds in all."""
    speculate: bool = False
    launched: int = 0
    """Second runs of slow jobs (`speculate=True`) that were begun,"""
    won: int = 0
    """that completed first,"""
    wasted: int = 0
    """that were for nothing."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """What `app.stats()` tells."""

    tasks: dict[str, TaskStats] = {}
    """On all workers, also those that are gone."""
    workers: dict[str, dict[str, TaskStats]] = {}
    """On each worker that has told something within a week: by its id, then by task."""


T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_read_worker = msgspec.msgpack.Decoder(WorkerTallies).decode
_read_past = msgspec.msgpack.Decoder(Past).decode
_read_second = msgspec.msgpack.Decoder(SecondRuns).decode


async def write_tallies(broker: Broker, worker: str, tallies: WorkerTallies, version: int) -> DocReply:
    return await broker.doc(KIND, worker, _encode(tallies), expect_version=version, ttl=KEEP)


async def read_tallies(broker: Broker) -> tuple[dict[str, WorkerTallies], Past, int]:
    """What each worker has told; what those that are gone had, and the version of that document.

    What is past is read before and after: a worker that is taken over in between is not counted twice.
    """
    doc = (await broker.doc(PAST, NAME)).doc
    for _ in range(READ_TRIES):
        before, docs = doc, await broker.docs(KIND)
        doc = (await broker.doc(PAST, NAME)).doc
        if (before and before.version) == (doc and doc.version):
            break
    past = (_try(_read_past, doc.value) if doc is not None else None) or Past()
    told = {one.name: _try(_read_worker, one.value) for one in docs if one.name not in past.taken_over}
    found = {name: one for name, one in told.items() if one is not None}
    return found, past, 0 if doc is None else doc.version


async def write_past(broker: Broker, past: Past, version: int) -> int:
    """The new version; 0 if somebody else was faster."""
    reply = await broker.doc(PAST, NAME, _encode(past), expect_version=version, ttl=KEEP_PAST)
    return reply.doc.version if reply.written and reply.doc is not None else 0


async def delete_tallies(broker: Broker, worker: str) -> None:
    await broker.doc(KIND, worker, None)


async def read_second_runs(broker: Broker) -> dict[str, tuple[SecondRuns, int]]:
    """Of each task, with the version of its document."""
    found = {}
    for doc in await broker.docs(SECOND):
        second = _try(_read_second, doc.value)
        if second is not None:
            found[doc.name] = (second, doc.version)
    return found


async def write_second_runs(broker: Broker, task: str, second: SecondRuns, version: int) -> int:
    """The new version; 0 if somebody else was faster."""
    reply = await broker.doc(SECOND, task, _encode(second), expect_version=version, ttl=KEEP_PAST)
    return reply.doc.version if reply.written and reply.doc is not None else 0


def _try(read: Callable[[bytes], T], value: bytes) -> T | None:
    """None for what another version wrote: it will be written anew."""
    try:
        return read(value)
    except msgspec.MsgspecError:
        return None


def together(all: Iterable[Tallies]) -> Tallies:
    """The counts of several workers, added up."""
    sums: Tallies = {}
    for tallies in all:
        for task, tally in tallies.items():
            sums[task] = sums[task].beside(tally) if task in sums else tally
    return sums


async def read_stats(broker: Broker) -> Stats:
    """How all tasks fare, on all workers and on each."""
    workers, past, _ = await read_tallies(broker)
    second = await read_second_runs(broker)
    sums = together([past.tasks, *(told.tasks for told in workers.values())])
    return Stats(
        tasks={
            name: shown(name, sums[name], second.get(name, (None, 0))[0])
            for name in sorted(sums)
            if name != OTHER
        },
        workers={
            worker: {name: shown(name, told.tasks[name]) for name in sorted(told.tasks) if name != OTHER}
            for worker, told in workers.items()
        },
    )


def shown(task: str, tally: Tally, second: SecondRuns | None = None) -> TaskStats:
    second = second or SecondRuns()
    return TaskStats(
        task=task,
        runs=tally.runs,
        failed=tally.failed,
        duration=spread(tally.took),
        samples=round(tally.took.weight),
        wait=spread(tally.waited),
        cpu=tally.cpu / tally.metered if tally.metered else None,
        memory=tally.memory or None,
        stalls=tally.stalls,
        stalled=tally.stalled,
        speculate=tally.speculate,
        launched=second.launched,
        won=second.won,
        wasted=second.wasted,
    )


def spread(sketch: Sketch) -> Spread:
    p50, p95, p99 = (sketch.percentile(percent) for percent in (50, 95, 99))
    return Spread(average=sketch.average, p50=p50, p95=p95, p99=p99, longest=sketch.longest)


def estimate(ahead: Mapping[str, int], slots: int, tasks: Mapping[str, TaskStats]) -> float | None:
    """In how many seconds a job may start that has these ahead of it (task → how many, running ones too).

    `slots` is how many jobs run at once on the workers that would take it. None where nobody can tell: there
    is no slot, or a task ahead has never run to its end.
    """
    waits = sum(ahead.values()) - slots + 1
    if slots < 1 or any(
        count and (name not in tasks or not tasks[name].samples) for name, count in ahead.items()
    ):
        return None
    if waits <= 0:
        return 0.0
    mean = sum(tasks[name].duration.average * count for name, count in ahead.items()) / sum(ahead.values())
    return mean * waits / slots
