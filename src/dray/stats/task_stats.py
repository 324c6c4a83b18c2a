"""Statistics as users see them: `app.stats()`, `dray stats`, and the estimate of when a job starts."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dray.broker.verbs import Broker
from dray.stats.sketch import Sketch
from dray.stats.tallies import OTHER, SecondRuns, Tally, add_workers, read_second_runs, read_tallies


class DurationSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, mostly of the last few thousand runs."""

    average: float = 0.0
    """Moving: the last twenty values make up most of it."""
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    longest: float = 0.0


class TaskStats(msgspec.Struct, frozen=True, kw_only=True):
    """Runs and durations of a task, on all workers or on one."""

    task: str
    accepted: int = 0
    """Jobs that were enqueued, as far as producers have written their counts; not by worker."""
    runs: int = 0
    """How many were started."""
    failed: int = 0
    """How many of them failed."""
    duration: DurationSummary = DurationSummary()
    """How long runs that succeeded took."""
    samples: int = 0
    """How many runs the percentiles stand for."""
    wait: DurationSummary = DurationSummary()
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
    """The answer of `app.stats()`."""

    tasks: dict[str, TaskStats] = {}
    """On all workers, also departed ones."""
    workers: dict[str, dict[str, TaskStats]] = {}
    """On each worker that wrote its counts within a week: by its id, then by task."""
    accepted: dict[str, dict[str, dict[str, int]]] = {}
    """Jobs that were enqueued: by task, queue and source (python, http, grpc, cli, schedule)."""

    def against_crew(self, worker: str) -> float | None:
        """The duration of its runs relative to the same tasks on all workers: 2.0 is twice as long.

        None before it has written any counts.
        """
        took = usual = 0.0
        for name, mine in self.workers.get(worker, {}).items():
            if mine.samples and name in self.tasks:
                took += mine.samples * mine.duration.average
                usual += mine.samples * self.tasks[name].duration.average
        return took / usual if usual else None


async def read_stats(broker: Broker) -> Stats:
    """The statistics of all tasks, on all workers together and on each."""
    workers, archive, _ = await read_tallies(broker)
    second = await read_second_runs(broker)
    sums = add_workers([archive.tasks, *(worker.tasks for worker in workers.values())])
    return Stats(
        tasks={
            name: task_stats(name, sums[name], second.get(name, (None, 0))[0])
            for name in sorted(sums)
            if name != OTHER
        },
        workers={
            id: {name: task_stats(name, worker.tasks[name]) for name in sorted(worker.tasks) if name != OTHER}
            for id, worker in workers.items()
        },
    )


def with_arrivals(stats: Stats, accepted: dict[str, dict[str, dict[str, int]]]) -> Stats:
    """Adds the number of enqueued jobs of each task, also of tasks that never ran."""
    sums = {
        task: sum(count for sources in queues.values() for count in sources.values())
        for task, queues in accepted.items()
        if task != OTHER
    }
    tasks = {
        name: msgspec.structs.replace(
            stats.tasks.get(name) or TaskStats(task=name), accepted=sums.get(name, 0)
        )
        for name in sorted({*stats.tasks, *sums})
    }
    return Stats(tasks=tasks, workers=stats.workers, accepted=accepted)


def task_stats(task: str, tally: Tally, second: SecondRuns | None = None) -> TaskStats:
    second = second or SecondRuns()
    return TaskStats(
        task=task,
        runs=tally.runs,
        failed=tally.failed,
        duration=summarize(tally.took),
        samples=round(tally.took.weight),
        wait=summarize(tally.waited),
        cpu=tally.cpu / tally.metered if tally.metered else None,
        memory=tally.memory or None,
        stalls=tally.stalls,
        stalled=tally.stalled,
        speculate=tally.speculate,
        launched=second.launched,
        won=second.won,
        wasted=second.wasted,
    )


def summarize(sketch: Sketch) -> DurationSummary:
    p50, p95, p99 = (sketch.percentile(percent) for percent in (50, 95, 99))
    return DurationSummary(average=sketch.average, p50=p50, p95=p95, p99=p99, longest=sketch.longest)


def estimate(ahead: Mapping[str, int], slots: int, tasks: Mapping[str, TaskStats]) -> float | None:
    """Seconds until a job may start that has these jobs ahead of it (task → count, running ones included).

    `slots` is the number of jobs that run at once on the workers that would take it. None if unknown: there
    is no slot, or a task ahead has never succeeded.
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
