"""What `dray doctor` looks at, on any broker. Each check is a function that yields findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final, Literal

import msgspec

from dray.app import App
from dray.broker.repairs import describe
from dray.broker.verbs import PAGE_MAX, Query, QueueInfo
from dray.cli.output import now_ms, rough
from dray.client import Link
from dray.job import State
from dray.recovery import Repairs, read_repairs
from dray.roster import SKEWED, WorkerInfo, describe_skew
from dray.schedules import ScheduleInfo
from dray.settings import SCHEDULING_MODES

OLDEST_CLOCK: Final = 1_735_689_600_000
"""The year 2025: a clock before that was never set."""
SLOW: Final = 0.25
REPAIRED_LATELY: Final = 7 * 24 * 3600 * 1000
WAITED_LONG: Final = 10 * 60_000
SHOWN: Final = 5
LOOK_AT: Final = 5_000
"""How many ready jobs are looked at for tasks that nobody knows."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    check: str
    status: Literal["ok", "warn", "fail"]
    text: str
    todo: str = ""
    """What to do about it."""


def check_broker(app: App) -> Iterator[Finding]:
    """It answers, in good time, and what it holds is consistent."""
    began = time.monotonic()
    app.client.block(_touch)
    took = time.monotonic() - began
    text = f"answers in {took * 1000:.1f} ms"
    if took > SLOW:
        yield Finding(
            "broker", "warn", text, "look at the load of the machine and the disk or network between"
        )
    else:
        yield Finding("broker", "ok", text)
    problems = app.client.block(_audit)
    if problems:
        shown = "; ".join(problems[:5]) + ("; …" if len(problems) > 5 else "")
        todo = (
            "a running worker repairs it within minutes; keep a copy of the store before, and find out who "
            "else writes to it, or report it as a bug"
        )
        yield Finding("audit", "fail", f"{len(problems)} inconsistencies: {shown}", todo)
    else:
        yield Finding("audit", "ok", "every job is in exactly one place")


def check_repairs(app: App) -> Iterator[Finding]:
    """Nothing had to be repaired lately: a sound store needs none."""
    repairs = app.client.block(_repairs)
    if not repairs.counts:
        yield Finding("repairs", "ok", "none was ever needed")
        return
    ago = now_ms() - repairs.last
    text = f"{sum(repairs.counts.values())} in all, the last {rough(ago)} ago: {describe(repairs.latest)}"
    if ago > REPAIRED_LATELY:
        yield Finding("repairs", "ok", text)
        return
    todo = "look for what damaged the store then: a server without persistence, a copied file, a stray script"
    yield Finding("repairs", "warn", text, todo)


async def _repairs(link: Link) -> Repairs:
    return await read_repairs(link.broker)


async def _touch(link: Link) -> None:
    await link.broker.queues()


async def _audit(link: Link) -> list[str]:
    return await link.broker.audit()


def check_clock(workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """All count by the broker's clock; what tasks do by their own machine's may be wrong."""
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
    """Somebody serves every queue that holds work."""
    alive = [worker for worker in workers if worker.state == "running"]
    waiting = [info for info in queues if _work(info)]
    served = {queue for worker in alive for queue in worker.queues}
    if alive:
        yield Finding("workers", "ok", f"{len(alive)} running, for {', '.join(sorted(served))}")
        if not any(worker.leader for worker in workers):
            text = "no worker does the upkeep (due jobs, recovery) at the moment"
            yield Finding("workers", "warn", text, "look again in a minute; else restart a worker")
    elif waiting:
        count = sum(map(_work, waiting))
        yield Finding("workers", "warn", f"none is running, and {count} jobs wait", "start one: dray worker")
    else:
        yield Finding("workers", "ok", "none is running, and nothing waits")
    for info in waiting if alive else ():
        if info.name not in served:
            text = f"{info.name}: {_work(info)} jobs wait, and no worker serves it"
            yield Finding("queues", "warn", text, f"start one: dray worker -Q {info.name}")


def _work(info: QueueInfo) -> int:
    return sum(info.counts.get(state, 0) for state in (State.READY, State.SCHEDULED, State.RETRYING))


def check_schedules(schedules: Sequence[ScheduleInfo], workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Somebody makes the jobs of schedules, and all of them get theirs."""
    active = [one for one in schedules if one.paused is None]
    if active and workers and not any(worker.mode in SCHEDULING_MODES for worker in workers):
        text = f"{len(active)} are due at times, and no worker that is running makes their jobs"
        yield Finding("schedules", "warn", text, "start one beside the specialized workers: dray scheduler")
    failing = [one for one in active if one.last_error is not None]
    for one in failing[:SHOWN]:
        yield Finding("schedules", "warn", f"{one.name}: {one.last_error}", f"dray schedules show {one.name}")
    if len(failing) > SHOWN:
        yield Finding(
            "schedules", "warn", f"and {len(failing) - SHOWN} more with errors", "dray schedules ls"
        )
    if schedules and not failing:
        yield Finding("schedules", "ok", f"{len(schedules)}, of which {len(schedules) - len(active)} paused")


def check_queues(queues: Sequence[QueueInfo]) -> Iterator[Finding]:
    """Nothing is paused and forgotten, dead, or waits too long."""
    found = False
    now = now_ms()
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
            yield Finding(
                "queues", "warn", f"{info.name}: {dead} dead jobs", f"dray dead ls --queue {info.name}"
            )
    if not found:
        yield Finding("queues", "ok", f"{len(queues)} in use, nothing paused or dead")


def check_tasks(app: App, named: bool, workers: Sequence[WorkerInfo]) -> Iterator[Finding]:
    """Jobs whose task nobody knows wait for ever."""
    ready = app.client.block(_ready_tasks)
    missing = {name: count for name, count in ready.items() if name not in app.tasks} if named else {}
    for name, count in sorted(missing.items()):
        near = get_close_matches(name, app.tasks, n=1)
        hint = f"it was renamed to {near[0]}, or " if near else ""
        todo = f"{hint}the code that has it is not deployed here: deploy it, or delete its jobs"
        yield Finding("tasks", "warn", f"{count} ready jobs of {name}, which the app does not have", todo)
    known = {task for worker in workers for task in worker.tasks}
    for name, count in sorted(ready.items()):
        if known and name not in known and name not in missing:
            text = f"{count} ready jobs of {name}, which no running worker knows"
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
