"""Schedules over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from dray.errors import ScheduleNotFound
from dray.info import plain
from dray.job import check_name
from dray.options import JsonDuration
from dray.schedules.api import ScheduleInfo
from dray.serve.auth import Caller
from dray.serve.enqueue import check_call
from dray.serve.errors import Refused
from dray.serve.http_request import HttpRequest
from dray.serve.models import CallIn, In, Out, PauseIn, PauseOut, ScheduleIn, Submitted
from dray.serve.routes import Reply, Route


class ScheduleOut(Out):
    """A schedule and how it stands."""

    name: str
    task: str
    kind: str
    rule: str
    tz: str | None
    description: str
    queue: str
    priority: int
    args: list[Any] | None
    kwargs: dict[str, Any] | None
    jitter: float
    catch_up: str
    catch_up_cap: int
    overlap: str
    origin: str
    paused: PauseOut | None
    next_run: datetime | None
    last_run: datetime | None
    run_count: int
    last_error: str | None
    last_job: str | None
    created_at: datetime
    updated_at: datetime


class ScheduleChangeIn(In):
    """What to change: the rule, the arguments, or both."""

    cron: str | None = None
    tz: str | None = None
    every: JsonDuration | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class SchedulesOut(Out):
    schedules: list[ScheduleOut]


class DeletedOut(Out):
    name: str
    deleted: bool


DeletedOut.__name__ = "Done"  # the published name of its schema


def schedule_out(info: ScheduleInfo, caller: Caller) -> ScheduleOut:
    shown = msgspec.convert(plain(info), ScheduleOut)
    if caller.hides_values:
        shown.args = shown.kwargs = None
    return shown


async def _find(request: HttpRequest) -> ScheduleInfo:
    """The schedule that the path names; one outside the caller's limits does not exist for it."""
    name = check_name("name", request.path["name"])
    try:
        info = await request.app.schedules.aget(name)
        if request.caller.reaches(info.queue, info.task):
            return info
    except ScheduleNotFound:
        pass
    raise Refused(404, "schedule_not_found", f"no schedule is named {name}")


async def list_schedules(request: HttpRequest) -> Reply:
    found = await request.app.schedules.alist()
    shown = [
        schedule_out(info, request.caller) for info in found if request.caller.reaches(info.queue, info.task)
    ]
    return Reply(SchedulesOut(schedules=shown))


async def create(request: HttpRequest) -> Reply:
    """Make a schedule: `cron` (with `tz`) or `every`, and what its jobs are like."""
    given: Any = request.body
    options = given.options()
    args, kwargs = check_call(request.app, request.caller, given, options.get("queue"))
    made = await request.app.schedules.acreate(given.name, given.task, args=args, kwargs=kwargs, **options)
    return Reply(schedule_out(made, request.caller), 201)


async def change(request: HttpRequest) -> Reply:
    """Change what is given and keep the rest. One that code declares is changed there."""
    given: ScheduleChangeIn = request.body
    info = await _find(request)
    said: Any = {
        name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None
    }
    if given.args is not None or given.kwargs is not None:
        call = CallIn(task=info.task, args=given.args or [], kwargs=given.kwargs or {})
        said["args"], said["kwargs"] = check_call(request.app, request.caller, call, info.queue)
    return Reply(schedule_out(await request.app.schedules.achange(info.name, **said), request.caller))


async def pause(request: HttpRequest) -> Reply:
    """Make no jobs until it is resumed."""
    given: PauseIn = request.body
    if given.task is not None:
        raise Refused(422, "invalid_task", "a schedule is paused as a whole", "task")
    info = await _find(request)
    paused = await request.app.schedules.apause(info.name, reason=given.reason, by=request.caller.name)
    return Reply(schedule_out(paused, request.caller))


async def resume(request: HttpRequest) -> Reply:
    """Undo a pause; ticks that passed meanwhile are gone."""
    info = await _find(request)
    return Reply(schedule_out(await request.app.schedules.aresume(info.name), request.caller))


async def trigger(request: HttpRequest) -> Reply:
    """Enqueue one job of it now, also while it is paused."""
    info = await _find(request)
    job = await request.app.schedules.atrigger(info.name)
    status = job.accepted or await job.astatus()
    return Reply(Submitted(id=job.id, status=status, duplicate=job.duplicate), 201)


async def delete(request: HttpRequest) -> Reply:
    """Forget a schedule; its jobs stay. One that code declares comes back when a worker starts."""
    info = await _find(request)
    await request.app.schedules.adelete(info.name)
    return Reply(DeletedOut(name=info.name, deleted=True))


ROUTES: Final = (
    Route(
        "GET", "/api/schedules", list_schedules, "read", "Schedules and how they stand", {200: SchedulesOut}
    ),
    Route(
        "POST",
        "/api/schedules",
        create,
        "admin",
        "Make a schedule",
        {201: ScheduleOut},
        body=ScheduleIn,
        errors=(409,),
    ),
    Route(
        "PUT",
        "/api/schedules/{name}",
        change,
        "admin",
        "Change a schedule's rule or arguments",
        {200: ScheduleOut},
        body=ScheduleChangeIn,
    ),
    Route(
        "POST",
        "/api/schedules/{name}/pause",
        pause,
        "admin",
        "Pause a schedule",
        {200: ScheduleOut},
        body=PauseIn,
        body_needed=False,
    ),
    Route("POST", "/api/schedules/{name}/resume", resume, "admin", "Undo a pause", {200: ScheduleOut}),
    Route(
        "POST",
        "/api/schedules/{name}/trigger",
        trigger,
        "admin",
        "Enqueue one job of a schedule now",
        {201: Submitted},
        errors=(409,),
    ),
    Route("DELETE", "/api/schedules/{name}", delete, "admin", "Forget a schedule", {200: DeletedOut}),
)
