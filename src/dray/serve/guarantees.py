"""Guarantees in force, and statistics of tasks, over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from dray.admin.guarantees import ServerPromise, WorkerPromise
from dray.info import moment, plain
from dray.serve.errors import forbidden
from dray.serve.http_request import HttpRequest
from dray.serve.models import Out
from dray.serve.routes import Reply, Route
from dray.stats.task_stats import DurationSummary, TaskStats


class RepairsOut(Out):
    counts: dict[str, int]
    """Repaired damage, by kind."""
    finished: dict[str, int]
    """Steps of killed processes that were finished: no damage."""
    last_at: datetime | None


class GuaranteesOut(Out):
    """What the broker promises at present."""

    broker: str
    place: str
    durability: str
    survives_restart: bool | None
    survives_power_cut: bool | None
    sentence: str
    since: datetime | None
    losses: int
    repairs: RepairsOut
    servers: list[ServerPromise]
    workers: list[WorkerPromise]
    warnings: list[str]


async def show(request: HttpRequest) -> Reply:
    """Durability in force, repairs, losses and clocks. They tell of all queues."""
    if request.caller.limited:
        raise forbidden("this key is limited to some queues or tasks, and guarantees tell of all")
    found = await request.app.guarantees.aread()
    repairs = RepairsOut(
        counts=found.repairs.counts,
        finished=found.repairs.finished,
        last_at=moment(found.repairs.last) if found.repairs.last else None,
    )
    since = None if found.since is None else moment(found.since)
    return Reply(msgspec.convert(plain(found) | {"repairs": plain(repairs), "since": since}, GuaranteesOut))


class TaskOut(Out):
    """Runs and durations of a task, on all workers."""

    task: str
    accepted: int
    runs: int
    failed: int
    duration: DurationSummary
    wait: DurationSummary
    known: bool
    """The app of this server has it."""


class TasksOut(Out):
    tasks: list[TaskOut]


async def list_tasks(request: HttpRequest) -> Reply:
    """Tasks that ran, were enqueued, or are registered in the server's app."""
    app = request.app
    found = (await app.astats()).tasks
    names = sorted(name for name in {*found, *app.tasks} if request.caller.reaches(task=name))
    tasks = [_task_out(found.get(name, TaskStats(task=name)), name in app.tasks) for name in names]
    return Reply(TasksOut(tasks=tasks))


def _task_out(stats: TaskStats, known: bool) -> TaskOut:
    return TaskOut(
        task=stats.task,
        accepted=stats.accepted,
        runs=stats.runs,
        failed=stats.failed,
        duration=stats.duration,
        wait=stats.wait,
        known=known,
    )


ROUTES: Final = (
    Route("GET", "/api/guarantees", show, "read", "What the broker promises now", {200: GuaranteesOut}),
    Route("GET", "/api/tasks", list_tasks, "read", "Runs and durations by task", {200: TasksOut}),
)
