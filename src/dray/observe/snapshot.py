"""The data that one scrape reads from the broker, in a bounded number of calls that change nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dray.broker.servers import HasServers, ServerUse
from dray.broker.verbs import Broker, QueueInfo
from dray.documents.data_loss import read_store_identity
from dray.documents.repair_log import Repairs, read_repairs
from dray.documents.worker_registry import LEADERSHIP, WorkerInfo, read_workers
from dray.job import Job, State
from dray.schedules.schedule import Schedule
from dray.schedules.store import read_schedules
from dray.stats.arrivals import Counts, read_arrivals
from dray.stats.tallies import SecondRuns, Tallies, add_counts, add_workers, read_second_runs, read_tallies
from dray.task import Task
from dray.why.limits import rates_of, slots_of

LIMITS_MOST: Final = 200
"""Limits that are checked for being reached."""

Limited = dict[tuple[str, str, str], bool]
"""Queue, task (empty: all) and kind of limit → whether it holds ready jobs back."""


class Snapshot(msgspec.Struct, kw_only=True):
    """The state of the whole system or, with `whole` unset, of one worker."""

    now: int
    tasks: Tallies
    events: Mapping[str, int]
    workers: list[WorkerInfo]
    whole: bool = False
    queues: list[QueueInfo] = []
    limited: Limited = {}
    second: Mapping[str, SecondRuns] = {}
    repairs: Repairs = Repairs()
    losses: int = 0
    accepted: Counts = {}
    schedules: list[Schedule] = []
    led: bool = False
    round_trip: float = 0.0
    servers: list[ServerUse] = []


async def gather(broker: Broker, tasks: Mapping[str, Task[..., Any]]) -> Snapshot:
    """Read everything. `tasks` are those of the app, for the limits they declare."""
    began = time.perf_counter()
    leader = (await broker.doc(*LEADERSHIP)).doc
    round_trip = time.perf_counter() - began
    tallies, archive, _ = await read_tallies(broker)
    events = dict(archive.events)
    for worker in tallies.values():
        add_counts(events, worker.events)
    queues = await broker.queues()
    identity = await read_store_identity(broker)
    return Snapshot(
        now=broker.clock(),
        tasks=add_workers([archive.tasks, *(worker.tasks for worker in tallies.values())]),
        events=events,
        workers=await read_workers(broker),
        whole=True,
        queues=queues,
        limited=await _limited(broker, queues, tasks),
        second={task: second for task, (second, _) in (await read_second_runs(broker)).items()},
        repairs=await read_repairs(broker),
        losses=0 if identity is None else identity.losses,
        accepted=await read_arrivals(broker),
        schedules=[schedule for schedule, _ in await read_schedules(broker)],
        led=leader is not None,
        round_trip=round_trip,
        servers=await broker.servers() if isinstance(broker, HasServers) else [],
    )


async def _limited(
    broker: Broker, queues: Iterable[QueueInfo], tasks: Mapping[str, Task[..., Any]]
) -> Limited:
    found: Limited = {}
    asked = 0
    for info in queues:
        for job in _examples(info, tasks):
            scope = "task" if job.task else "queue"
            slots = [bound.most for bound in slots_of(job, info) if bound.scope == scope]
            rates = [rate for _, of, rate in rates_of(job, info) if of == scope]
            if not slots and not rates:
                continue
            usage = None
            if info.counts.get(State.READY):
                usage, asked = await broker.usage(job), asked + 1
            for most in slots:
                full = usage is not None and usage.running.get(scope, 0) >= most
                found[info.name, job.task, "max_running"] = full
            for rate in rates:
                full = usage is not None and not rate.available(usage.tats.get(scope, 0), usage.now)
                found[info.name, job.task, "rate"] = full
            if asked >= LIMITS_MOST or len(found) >= LIMITS_MOST:
                return found
    return found


def _examples(info: QueueInfo, tasks: Mapping[str, Task[..., Any]]) -> Iterable[Job]:
    """An example job for each limit that may exist: it stands for all jobs under that limit."""
    yield Job(id="", task="", queue=info.name)
    declared = {
        name: task.options for name, task in tasks.items() if (task.options.queue or "default") == info.name
    }
    for name in sorted({*info.task_limits, *declared}):
        job, said = Job(id="", task=name, queue=info.name), declared.get(name)
        if said is not None and said.rate_key is None:
            job = replace(job, rate=said.rate)
        if said is not None and said.running_key is None:
            job = replace(job, max_running=said.max_running)
        yield job
