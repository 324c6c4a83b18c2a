"""Turns a snapshot into samples.

Labels are names that the broker has checked, and their number is bounded. Keys, groups, ids and tags never
are labels: there is no end to them.
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

from dray.documents.worker_registry import WorkerInfo
from dray.flows.graph import FLOW_TASK
from dray.job import PLACES
from dray.observe.snapshot import Snapshot
from dray.observe.table import PREFIX, TABLE
from dray.schedules.schedule import GRACE
from dray.settings.queue_choice import is_pattern
from dray.stats.tallies import BOUNDS, OTHER, Histogram, SupervisorEvent, Tallies, Tally

MOST: Final = 1000
"""Tasks, queues and workers with samples of their own; the rest is summed up under `OTHER`."""
MOST_PAIRS: Final = 5000
"""The same for tasks by queue."""
_FLOW_ENDS: Final = {"succeeded": "succeeded", "failed": "dead", "cancelled": "cancelled"}
"""States of flows, and the outcome of the run that ends one."""
Values = dict[tuple[str, ...], float]
Part = Callable[[Snapshot], Iterator[Metric]]


def families(seen: Snapshot) -> Iterator[Metric]:
    """Every metric of a snapshot."""
    yield _values("build_info", {(version("dray"),): 1})
    for part in WHOLE if seen.whole else OF_WORKER:
        yield from part(seen)


def _values(name: str, values: Mapping[tuple[str, ...], float]) -> Metric:
    """A gauge or a counter, as the table says: labels → value."""
    about = TABLE[name]
    kind = GaugeMetricFamily if about.kind == "gauge" else CounterMetricFamily
    family = kind(PREFIX + name, about.help, labels=about.labels)
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


def label_for(names: Iterable[str], most: int = MOST) -> Callable[[str], str]:
    """A function from a name to its label: the name itself, or `OTHER`."""
    kept = frozenset(sorted(set(names))[:most])
    return lambda name: name if name in kept else OTHER


# jobs and runs


def _arrivals(seen: Snapshot) -> Iterator[Metric]:
    name = label_for(task for task in seen.accepted if task != OTHER)
    accepted = ((name(task), queues) for task, queues in sorted(seen.accepted.items()))
    yield _values("jobs_accepted", _by_queue(accepted))


def _runs(seen: Snapshot) -> Iterator[Metric]:
    tasks = _merged(seen.tasks)
    yield _values("runs", _by_queue((task, tally.ends) for task, tally in sorted(tasks.items())))
    yield _values("runs_started", {(task,): tally.runs for task, tally in tasks.items()})
    yield _values("steps", _steps(tasks))
    yield _histogram("run_seconds", {task: tally.lasted for task, tally in tasks.items()})
    yield _histogram("wait_seconds", {task: tally.delays for task, tally in tasks.items()})
    yield _values("stalls", {(task,): tally.stalls for task, tally in tasks.items()})
    yield _values("stalled_seconds", {(task,): tally.stalled for task, tally in tasks.items()})


def _steps(tasks: Tallies) -> Values:
    found: Values = {}
    for task, tally in tasks.items():
        if tally.steps_run or tally.steps_replayed:
            found[task, "run"], found[task, "replayed"] = tally.steps_run, tally.steps_replayed
    return found


def _flows(seen: Snapshot) -> Iterator[Metric]:
    accepted = sum(sum(sources.values()) for sources in seen.accepted.get(FLOW_TASK, {}).values())
    ends = seen.tasks[FLOW_TASK].ends.values() if FLOW_TASK in seen.tasks else ()
    ended = {state: sum(kinds.get(kind, 0) for kinds in ends) for state, kind in _FLOW_ENDS.items()}
    yield _values("flows", {("accepted",): accepted, **{(state,): count for state, count in ended.items()}})


def _by_queue(counts: Iterable[tuple[str, Mapping[str, Mapping[str, int]]]]) -> Values:
    """Task, queue and kind → count, with `MOST_PAIRS` of task and queue."""
    found: Values = defaultdict(float)
    for task, queues in counts:
        for queue, kinds in sorted(queues.items()):
            crowded = len(found) >= MOST_PAIRS
            for kind, count in kinds.items():
                labels = (task, queue, kind)
                found[(OTHER, OTHER, kind) if crowded and labels not in found else labels] += count
    return found


def _merged(tasks: Tallies) -> Tallies:
    name = label_for(task for task in tasks if task != OTHER)
    merged: Tallies = {}
    for task, tally in tasks.items():
        label = name(task)
        merged[label] = merged.get(label, Tally()).beside(tally) if label == OTHER else tally
    return merged


def _second_runs(seen: Snapshot) -> Iterator[Metric]:
    name, sums = label_for(seen.second), Counter[tuple[str, ...]]()
    for task, second in seen.second.items():
        for result in ("launched", "won", "wasted"):
            sums[name(task), result] += getattr(second, result)
    yield _values("second_runs", sums)


def _events(seen: Snapshot) -> Iterator[Metric]:
    count = seen.events.get
    yield _values(
        "executor_deaths",
        {
            ("died",): count(SupervisorEvent.EXECUTOR_DIED, 0),
            ("killed",): count(SupervisorEvent.EXECUTOR_KILLED, 0),
        },
    )
    yield _values("lease_losses", {(): count(SupervisorEvent.LEASE_LOST, 0)})
    yield _values("runs_freed", {(): count(SupervisorEvent.RUN_FREED, 0)})


# the store


def _queues(seen: Snapshot) -> Iterator[Metric]:
    served = {queue for worker in seen.workers for queue in worker.queues}
    name = label_for([*(info.name for info in seen.queues), *served])
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
    yield _values("queue_jobs", jobs)
    yield _values("queue_ready", ready)
    yield _values("queue_oldest_ready_seconds", _seconds(oldest))
    yield _values("queue_due_late_seconds", _seconds(late))
    yield _values("queue_paused", paused)
    yield _values("queue_paused_tasks", tasks)
    yield _values("queue_workers", _served(seen, name))


def _served(seen: Snapshot, name: Callable[[str], str]) -> Values:
    found: Values = {(name(info.name),): 0 for info in seen.queues}
    for worker in seen.workers:
        if worker.state == "running":
            listed = {queue for queue in worker.queues if not is_pattern(queue)}
            matched = {info.name for info in seen.queues if worker.serves_queue(info.name)}
            for queue in {name(queue) for queue in listed | matched}:
                found[queue,] = found.get((queue,), 0) + 1
    return found


def _seconds(milliseconds: Mapping[tuple[str, ...], int]) -> Values:
    return {labels: value / 1000 for labels, value in milliseconds.items()}


def _store(seen: Snapshot) -> Iterator[Metric]:
    yield _values("limit_reached", {labels: float(full) for labels, full in seen.limited.items()})
    yield _values("repairs", {(kind,): count for kind, count in seen.repairs.counts.items()})
    yield _values("interrupted_steps", {(kind,): count for kind, count in seen.repairs.finished.items()})
    yield _values("data_losses", {(): seen.losses})
    yield _values("leader_present", {(): float(seen.led)})
    yield _values("broker_round_trip_seconds", {(): seen.round_trip})
    yield _values("broker_cpu_seconds", _of_servers(seen, "cpu_seconds"))
    yield _values("broker_memory_bytes", _of_servers(seen, "used_memory"))
    yield _values("broker_memory_limit_bytes", _of_servers(seen, "max_memory"))
    yield _values("broker_clients", _of_servers(seen, "clients"))


def _of_servers(seen: Snapshot, field: str) -> Values:
    used = {(server.address,): getattr(server, field) for server in seen.servers}
    return {labels: float(value) for labels, value in used.items() if value is not None}


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
    yield _values("schedules", {(state,): count for state, count in states.items()})
    yield _values("schedules_late", {(): sum(late > GRACE for late in lates)})
    yield _values("schedules_latest_seconds", {(): max(lates) / 1000})


# workers


def _worker_states(seen: Snapshot) -> Iterator[Metric]:
    states = Counter({"running": 0, "stopping": 0})
    states.update(worker.state for worker in seen.workers)
    yield _values("workers", {(state,): count for state, count in states.items()})


def _workers(seen: Snapshot) -> Iterator[Metric]:
    name = label_for(worker.id for worker in seen.workers)
    listed = [worker for worker in seen.workers if name(worker.id) != OTHER]
    yield _values(
        "worker_info",
        {(worker.id, worker.host, worker.version, worker.mode): 1 for worker in listed},
    )
    executors, slots, limits = (Counter[tuple[str, ...]]() for _ in range(3))
    for worker in seen.workers:
        label = name(worker.id)
        at_work = sum(one.session is not None for one in worker.executors)
        executors[label,] += at_work
        slots[label, "used"] += worker.running
        slots[label, "free"] += max(0, worker.slots - worker.running)
        limits[label,] += worker.slots
    yield _values("worker_executors", executors)
    yield _values("worker_slots", slots)
    yield _values("worker_concurrency", limits)
    yield _values("worker_leader", _each(listed, lambda worker: float(worker.leader)))
    yield _values("worker_loop_lag_seconds", _each(listed, lambda worker: worker.lag))
    yield _values(
        "worker_silence_seconds", _each(listed, lambda worker: max(0, seen.now - worker.seen) / 1000)
    )
    yield _values("worker_clock_skew_seconds", _each(listed, lambda worker: worker.skew / 1000))
    yield _values("worker_round_trip_seconds", _each(listed, lambda worker: worker.round_trip))


def _each(workers: Iterable[WorkerInfo], value: Callable[[WorkerInfo], float]) -> Values:
    return {(worker.id,): value(worker) for worker in workers}


OF_WORKER: Final[tuple[Part, ...]] = (_runs, _events, _workers)
WHOLE: Final[tuple[Part, ...]] = (
    _arrivals,
    _runs,
    _flows,
    _second_runs,
    _events,
    _queues,
    _store,
    _schedules,
    _worker_states,
    _workers,
)
