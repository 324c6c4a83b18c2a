"""Checks of `dray doctor` for any broker. Each check is a function that yields findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from dray.app import App
from dray.broker.actions import Query
from dray.broker.repairs import INTERRUPTED, describe
from dray.broker.verbs import PAGE_MAX, QueueInfo
from dray.cli.output import counted, now_ms, rough
from dray.client.link import Link
from dray.documents.data_loss import read_store_identity
from dray.documents.queue_state import describe_unserved, unserved, waiting_jobs
from dray.documents.repair_log import read_repairs
from dray.documents.worker_registry import SKEWED, WorkerInfo, describe_skew
from dray.errors import near_names
from dray.job import State
from dray.schedules.api import ScheduleInfo
from dray.settings import SCHEDULING_MODES

OLDEST_CLOCK: Final = 1_735_689_600_000
"""The year 2025: a clock before that was never set."""
SLOW: Final = 0.25
REPAIRED_LATELY: Final = 7 * 24 * 3600 * 1000
WAITED_LONG: Final = 10 * 60_000
SHOWN: Final = 5
LOOK_AT: Final = 5_000
"""Ready jobs that are checked for unknown tasks."""


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    status: Literal["ok", "warn", "fail"]
    text: str
    todo: str = ""
    """What to do about it."""


def check_broker(app: App, place: str) -> Iterator[Finding]:
    """The broker answers in time, and its data is consistent."""
    began = time.monotonic()
    app.client.block(lambda link: link.broker.queues())
    took = time.monotonic() - began
    text = f"{place} answers in {took * 1000:.1f} ms"
    if took > SLOW:
        yield Finding(
            "broker", "warn", text, "look at the load of the machine and the disk or network between"
        )
    else:
        yield Finding("broker", "ok", text)
    problems = app.client.block(lambda link: link.broker.audit())
    if problems:
        shown = "; ".join(problems[:5]) + ("; …" if len(problems) > 5 else "")
        todo = (
            "a running worker repairs it within minutes; keep a copy of the store before, and find out who "
            "else writes to it, or report it as a bug"
        )
        found = counted(len(problems), "inconsistency", "inconsistencies")
        yield Finding("audit", "fail", f"{found}: {shown}", todo)
    else:
        yield Finding("audit", "ok", "every job is in exactly one place")


def check_repairs(app: App) -> Iterator[Finding]:
    """No repairs lately: a sound store needs none."""
    repairs = app.client.block(lambda link: read_repairs(link.broker))
    if repairs.finished:
        steps = describe(repairs.finished, INTERRUPTED)
        yield Finding("repairs", "ok", f"steps of killed processes were finished, no damage: {steps}")
    if not repairs.counts:
        yield Finding("repairs", "ok", "none was made so far")
        return
    ago = now_ms() - repairs.last
    text = f"{sum(repairs.counts.values())} in all, the last {rough(ago)} ago: {describe(repairs.latest)}"
    if ago > REPAIRED_LATELY:
        yield Finding("repairs", "ok", text)
        return
    todo = "look for what damaged the store then: a server without persistence, a copied file, a stray script"
    yield Finding("repairs", "warn", text, todo)


def check_losses(app: App) -> Iterator[Finding]:
    """The broker has not lost its data."""
    birth = app.client.block(lambda link: read_store_identity(link.broker))
    lost = None if birth is None else birth.lost
    if birth is None or lost is None or now_ms() - lost > REPAIRED_LATELY:
        return
    text = f"the broker lost all its data {rough(now_ms() - lost)} ago ({birth.losses} × so far)"
    todo = (
        "look for a FLUSHALL, a restart without persistence (appendonly yes) or a replaced file; jobs from "
        "before must be enqueued again, and schedules that were made at run time made again"
    )
    yield Finding("data", "warn", text, todo)


def check_clock(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """The clocks of the workers' machines agree with the broker's."""
    now = now_ms()
    if now < OLDEST_CLOCK:
        yield Finding(
            "clock", "fail", "the clock of this machine was never set", "set it, and keep it by NTP"
        )
        return
    skewed = [worker for worker in workers if abs(worker.skew) > SKEWED]
    for worker in skewed:
        text = f"{worker.host}: {describe_skew(worker.skew)} the broker's (worker {worker.id})"
        yield Finding("clock", "warn", text, "keep it by NTP; dray goes by the broker's clock")
    if not skewed:
        yield Finding("clock", "ok", "those of the workers agree with the broker's" if workers else "is set")


def check_workers(queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Some worker is running, and one of them does the upkeep."""
    alive = [worker for worker in workers if worker.state == "running"]
    served = {queue for worker in alive for queue in worker.queues}
    count = sum(map(waiting_jobs, queues))
    if alive:
        where = ", ".join(sorted(served)) or "no queue: schedules and recovery only"
        yield Finding("workers", "ok", f"{len(alive)} running, for {where}")
        if not any(worker.leader for worker in workers):
            text = "no worker does the upkeep (due jobs, recovery) at the moment"
            yield Finding("workers", "warn", text, "look again in a minute; else restart a worker")
    elif count:
        where = ", ".join(info.name for info in queues if waiting_jobs(info))
        text = f"none is running, and {counted(count, 'job waits', 'jobs wait')} in {where}"
        yield Finding("workers", "warn", text, "start one: dray worker")
    else:
        yield Finding("workers", "ok", "none is running, and nothing waits")


def check_schedules(
    schedules: Sequence[ScheduleInfo],
    workers: Sequence[WorkerInfo],
    declared: Sequence[ScheduleInfo] | None = None,
) -> Iterator[Finding]:
    """Some worker makes the jobs of schedules, all of them get theirs, and they are as the code declares."""
    active = [one for one in schedules if one.paused is None]
    differences = [] if declared is None else list(_differences(schedules, declared))
    yield from differences
    idle = active and workers and not any(worker.mode in SCHEDULING_MODES for worker in workers)
    if idle:
        are = counted(len(active), "is due at times", "are due at times")
        text = f"{are}, and no worker that is running makes their jobs"
        yield Finding("schedules", "warn", text, "start one beside the specialized workers: dray scheduler")
    failing = [one for one in active if one.last_error is not None]
    for one in failing[:SHOWN]:
        yield Finding("schedules", "warn", f"{one.name}: {one.last_error}", f"dray schedules show {one.name}")
    if len(failing) > SHOWN:
        yield Finding(
            "schedules", "warn", f"and {len(failing) - SHOWN} more with errors", "dray schedules ls"
        )
    if schedules and not (failing or idle or differences):
        yield Finding("schedules", "ok", f"{len(schedules)}, of which {len(schedules) - len(active)} paused")


def _differences(schedules: Sequence[ScheduleInfo], declared: Sequence[ScheduleInfo]) -> Iterator[Finding]:
    """Schedules that differ between the code and the store."""
    stored, code = {one.name: one for one in schedules}, {one.name: one for one in declared}
    for name, one in code.items():
        found = stored.get(name)
        if found is None:
            text = f"{name} ({one.rule}) is declared in code and not stored: it makes no jobs yet"
            yield Finding("schedules", "warn", text, "start a worker with this code: it writes it down")
        elif found.origin != "code":
            text = f"{name} is declared in code, but one of this name was made at run time: that one counts"
            yield Finding(
                "schedules", "warn", text, f"dray schedules delete {name}, or rename it in the code"
            )
        elif _main(found) != _main(one):
            text = f"{name} is stored as {_described(found)} and declared as {_described(one)}"
            yield Finding("schedules", "warn", text, "restart the workers with the newest code")
    for name, one in stored.items():
        if one.origin == "code" and name not in code:
            text = f"{name} ({one.rule}) is stored, and this app's code does not declare it"
            todo = f"dray schedules delete {name}, unless other code declares it"
            yield Finding("schedules", "warn", text, todo)


def _main(one: ScheduleInfo) -> tuple[object, ...]:
    return one.task, one.kind, one.rule, one.tz, one.queue


def _described(one: ScheduleInfo) -> str:
    zone = f" {one.tz}" if one.tz is not None else ""
    return f"{one.kind} {one.rule}{zone} of {one.task} in queue {one.queue}"


def check_queues(queues: Sequence[QueueInfo], workers: Sequence[WorkerInfo] = ()) -> Iterator[Finding]:
    """No queue is unserved, paused for long, or has dead or long waiting jobs."""
    found = False
    now = now_ms()
    for info in unserved(queues, workers) if workers else ():
        found = True
        text, _, todo = describe_unserved(info, workers).rpartition(": ")
        yield Finding("queues", "warn", text, f"start one: {todo}")
    for info in queues:
        for what, pause in (("", info.paused), *((f" task {t}", p) for t, p in info.paused_tasks.items())):
            if pause is not None:
                found = True
                by = f" by {pause.by}" if pause.by else ""
                text = f"{info.name}:{what} paused{by} for {rough(now - pause.at)}"
                yield Finding("queues", "warn", text, f"dray queues resume {info.name}, if that is over")
        waited = now - info.oldest_ready if info.oldest_ready is not None else 0
        if waited > WAITED_LONG and info.paused is None:
            found = True
            text = f"{info.name}: a ready job is {rough(waited)} old"
            yield Finding(
                "queues", "warn", text, "more workers or concurrency; `dray why` tells what blocks it"
            )
        dead = info.counts.get(State.DEAD, 0)
        if dead:
            found = True
            text = f"{info.name}: {counted(dead, 'dead job', 'dead jobs')}"
            yield Finding("queues", "warn", text, f"dray dead ls --queue {info.name}")
    if not found:
        nothing = "nothing unserved, paused or dead" if workers else "nothing paused or dead"
        yield Finding("queues", "ok", f"{len(queues)} in use, {nothing}")


def check_tasks(app: App, named: bool, workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """No ready job has an unknown task: it would wait for ever."""
    ready = app.client.block(_ready_tasks)
    missing = {name: count for name, count in ready.items() if name not in app.tasks} if named else {}
    for name, count in sorted(missing.items()):
        near = near_names(name, app.tasks, 1)
        hint = f"it was renamed to {near[0]}, or " if near else ""
        todo = f"{hint}the code that has it is not deployed here: deploy it, or delete its jobs"
        jobs = counted(count, "ready job", "ready jobs")
        yield Finding("tasks", "warn", f"{jobs} of {name}, which the app does not have", todo)
    known = {task for worker in workers for task in worker.tasks}
    for name, count in sorted(ready.items()):
        if known and name not in known and name not in missing:
            text = f"{counted(count, 'ready job', 'ready jobs')} of {name}, which no running worker knows"
            yield Finding("tasks", "warn", text, "restart the workers with the newest code")
            missing[name] = count
    if not missing:
        where = f"the app has {len(app.tasks)}; " if named else ""
        yield Finding("tasks", "ok", f"{where}no ready job is of an unknown task")


async def _ready_tasks(link: Link) -> Counter[str]:
    tasks: Counter[str] = Counter()
    cursor = None
    while tasks.total() < LOOK_AT:
        page = await link.broker.find(Query(state=State.READY), cursor=cursor, limit=PAGE_MAX)
        tasks.update(record.job.task for record in page.records)
        cursor = page.cursor
        if cursor is None:
            break
    return tasks
