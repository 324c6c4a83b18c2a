"""From what was read to samples.

Labels are names that the broker has checked, and of each kind there are so many at most. Keys,
groups, ids and tags never are labels: there is no end to them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from dray.job import PLACES
from dray.observe.gathering import Snapshot
from dray.observe.table import PREFIX, TABLE
from dray.roster import WorkerInfo
from dray.schedule import GRACE
from dray.stats import BOUNDS, OTHER, Happening, Histogram, Tallies, Tally

MOST: Final = 1000
"""Tasks, queues and workers that are told of one by one; the rest is summed up under `OTHER`."""
MOST_PAIRS: Final = 5000
"""The same for tasks by queue."""
Values = dict[tuple[str, ...], float]
Part = Callable[[Snapshot], Iterator[Metric]]


def families(seen: Snapshot) -> Iterator[Metric]:
    """Every metric that has something to tell."""
    yield _gauge("build_info", {(version("dray"),): 1})
    for part in WHOLE if seen.whole else OF_WORKER:
        yield from part(seen)


def _gauge(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    about = TABLE[name]
    family = GaugeMetricFamily(PREFIX + name, about.help, labels=about.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _counter(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    about = TABLE[name]
    family = CounterMetricFamily(PREFIX + name, about.help, labels=about.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _histogram(name: str, values: Mapping[str, Histogram]) -> Metric:
    about = TABLE[name]
    family = HistogramMetricFamily(PREFIX + name, about.help, labels=about.labels)
    ends = [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]
    for label, one in values.items():
        if one.counts:
            buckets = list(zip(ends, map(float, accumulate(one.counts)), strict=True))
            family.add_metric([label], buckets, one.sum)
    return family


def shown(names: Iterable[str], most: int = MOST) -> Callable[[str], str]:
    """What stands for each name on a label."""
    kept = frozenset(sorted(set(names))[:most])
    return lambda name: name if name in kept else OTHER


# runs


def _runs(seen: Snapshot) -> Iterator[Metric]:
    tasks = _merged(seen.tasks)
    ends: Values = defaultdict(float)
    for task, tally in sorted(tasks.items()):
        for queue, counts in sorted(tally.ends.items()):
            crowded = len(ends) >= MOST_PAIRS
            for outcome, count in counts.items():
                labels = (task, queue, outcome)
                ends[(OTHER, OTHER, outcome) if crowded and labels not in ends else labels] += count
    yield _counter("runs", ends)
    yield _counter("runs_started", {(task,): tally.runs for task, tally in tasks.items()})
    yield _histogram("run_seconds", {task: tally.lasted for task, tally in tasks.items()})
    yield _histogram("wait_seconds", {task: tally.delays for task, tally in tasks.items()})
    yield _counter("stalls", {(task,): tally.stalls for task, tally in tasks.items()})
    yield _counter("stalled_seconds", {(task,): tally.stalled for task, tally in tasks.items()})


def _merged(tasks: Tallies) -> Tallies:
    name = shown(task for task in tasks if task != OTHER)
    merged: Tallies = {}
    for task, tally in tasks.items():
        label = name(task)
        merged[label] = merged.get(label, Tally()).beside(tally) if label == OTHER else tally
    return merged


def _second_runs(seen: Snapshot) -> Iterator[Metric]:
    name, sums = shown(seen.second), Counter[tuple[str, ...]]()
    for task, second in seen.second.items():
        for result in ("launched", "won", "wasted"):
            sums[name(task), result] += getattr(second, result)
    yield _counter("second_runs", sums)


def _events(seen: Snapshot) -> Iterator[Metric]:
    count = seen.events.get
    yield _counter(
        "executor_deaths",
        {
            ("died",): count(Happening.EXECUTOR_DIED, 0),
            ("killed",): count(Happening.EXECUTOR_KILLED, 0),
        },
    )
    yield _counter("lease_losses", {(): count(Happening.LEASE_LOST, 0)})
    yield _counter("runs_freed", {(): count(Happening.RUN_FREED, 0)})


# the store


def _queues(seen: Snapshot) -> Iterator[Metric]:
    name = shown(info.name for info in seen.queues)
    jobs, ready, oldest = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    late, paused, tasks = Counter[tuple[str, ...]](), Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for info in seen.queues:
        queue = name(info.name)
        for state in PLACES:
            jobs[queue, state.value] += info.counts.get(state, 0)
        for priority, (count, since) in info.ready.items():
            labels = (queue, str(priority))
            ready[labels] += count
            oldest[labels] = max(oldest[labels], max(0, seen.now - since))
        overdue = 0 if info.next_due is None else max(0, seen.now - info.next_due)
        late[queue,] = max(late[queue,], overdue)
        paused[queue,] += info.paused is not None
        tasks[queue,] += len(info.paused_tasks)
    yield _gauge("queue_jobs", jobs)
    yield _gauge("queue_ready", ready)
    yield _gauge("queue_oldest_ready_seconds", _seconds(oldest))
    yield _gauge("queue_due_late_seconds", _seconds(late))
    yield _gauge("queue_paused", paused)
    yield _gauge("queue_paused_tasks", tasks)
    yield _gauge("queue_workers", _served(seen, name))


def _served(seen: Snapshot, name: Callable[[str], str]) -> Values:
    found: Values = {(name(info.name),): 0 for info in seen.queues}
    for worker in seen.workers:
        if worker.state == "running":
            for queue in {name(queue) for queue in worker.queues}:
                found[queue,] = found.get((queue,), 0) + 1
    return found


def _seconds(milliseconds: Mapping[tuple[str, ...], int]) -> Values:
    return {labels: value / 1000 for labels, value in milliseconds.items()}


def _store(seen: Snapshot) -> Iterator[Metric]:
    yield _gauge("limit_reached", {labels: float(full) for labels, full in seen.limited.items()})
    yield _counter("repairs", {(kind,): count for kind, count in seen.repairs.items()})
    yield _gauge("leader_present", {(): float(seen.led)})
    yield _gauge("broker_round_trip_seconds", {(): seen.round_trip})


def _schedules(seen: Snapshot) -> Iterator[Metric]:
    states = Counter({"active": 0, "paused": 0, "ended": 0})
    lates = [0]
    for schedule in seen.schedules:
        if schedule.paused is not None:
            states["paused"] += 1
        elif schedule.next_run is None:
            states["ended"] += 1
        else:
            states["active"] += 1
            lates.append(seen.now - schedule.next_run)
    yield _gauge("schedules", {(state,): count for state, count in states.items()})
    yield _gauge("schedules_late", {(): sum(late > GRACE for late in lates)})
    yield _gauge("schedules_latest_seconds", {(): max(lates) / 1000})


# workers


def _crew(seen: Snapshot) -> Iterator[Metric]:
    states = Counter({"running": 0, "stopping": 0})
    states.update(worker.state for worker in seen.workers)
    yield _gauge("workers", {(state,): count for state, count in states.items()})


def _workers(seen: Snapshot) -> Iterator[Metric]:
    name = shown(worker.id for worker in seen.workers)
    told = [worker for worker in seen.workers if name(worker.id) != OTHER]
    yield _gauge(
        "worker_info",
        {(worker.id, worker.host, worker.version, worker.mode): 1 for worker in told},
    )
    executors, slots = Counter[tuple[str, ...]](), Counter[tuple[str, ...]]()
    for worker in seen.workers:
        label = name(worker.id)
        at_work = sum(one.session is not None for one in worker.executors)
        executors[label,] += at_work
        slots[label, "used"] += worker.running
        slots[label, "free"] += max(0, at_work * worker.concurrency - worker.running)
    yield _gauge("worker_executors", executors)
    yield _gauge("worker_slots", slots)
    yield _gauge("worker_leader", _each(told, lambda worker: float(worker.leader)))
    yield _gauge("worker_loop_lag_seconds", _each(told, lambda worker: worker.lag))
    yield _gauge("worker_silence_seconds", _each(told, lambda worker: max(0, seen.now - worker.seen) / 1000))
    yield _gauge("worker_clock_skew_seconds", _each(told, lambda worker: worker.skew / 1000))
    yield _gauge("worker_round_trip_seconds", _each(told, lambda worker: worker.round_trip))


def _each(workers: Iterable[WorkerInfo], value: Callable[[WorkerInfo], float]) -> Values:
    return {(worker.id,): value(worker) for worker in workers}


OF_WORKER: Final[tuple[Part, ...]] = (_runs, _events, _workers)
WHOLE: Final[tuple[Part, ...]] = (_runs, _second_runs, _events, _queues, _store, _schedules, _crew, _workers)
