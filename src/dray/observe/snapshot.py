"""What one scrape reads from the broker: a bounded number of calls, none of which changes anything."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from dray.broker.verbs import Broker, QueueInfo
from dray.job import Job, State
from dray.reconciling import read_schedules
from dray.recovery import read_repairs
from dray.roster import HOLD, WorkerInfo, read_workers
from dray.schedule import Schedule
from dray.stats import SecondRuns, Tallies, add_counts, read_second_runs, read_tallies, together
from dray.task import Task
from dray.why.limits import rates_of, slots_of

LIMITS_MOST: Final = 200
"""Of how many limits is asked whether they are reached."""

Limited = dict[tuple[str, str, str], bool]
"""Queue, task (empty: all) and kind of limit → whether it holds ready jobs back."""


class Snapshot(msgspec.Struct, kw_only=True):
    """How everything stands, or, with `whole` unset, one worker."""

    now: int
    tasks: Tallies
    events: Mapping[str, int]
    workers: list[WorkerInfo]
    whole: bool = False
    queues: list[QueueInfo] = []
    limited: Limited = {}
    second: Mapping[str, SecondRuns] = {}
    repairs: Mapping[str, int] = {}
    schedules: list[Schedule] = []
    led: bool = False
    round_trip: float = 0.0


async def gather(broker: Broker, tasks: Mapping[str, Task[..., Any]]) -> Snapshot:
    """Read it all. `tasks` are those of the app: what they say of limits."""
    began = time.perf_counter()
    holder = (await broker.doc(*HOLD)).doc
    round_trip = time.perf_counter() - began
    told, past, _ = await read_tallies(broker)
    events = dict(past.events)
    for one in told.values():
        add_counts(events, one.events)
    queues = await broker.queues()
    return Snapshot(
        now=broker.clock(),
        tasks=together([past.tasks, *(one.tasks for one in told.values())]),
        events=events,
        workers=await read_workers(broker),
        whole=True,
        queues=queues,
        limited=await _limited(broker, queues, tasks),
        second={task: second for task, (second, _) in (await read_second_runs(broker)).items()},
        repairs=(await read_repairs(broker)).counts,
        schedules=[schedule for schedule, _ in await read_schedules(broker)],
        led=holder is not None,
        round_trip=round_trip,
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
    """A job for each limit that there may be: it stands for all that are under it."""
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
