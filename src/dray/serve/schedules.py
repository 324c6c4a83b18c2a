"""Schedules over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgspec

from dray.errors import ScheduleNotFound
from dray.info import plain
from dray.job import check_name
from dray.schedules import ScheduleInfo
from dray.serve.models import Out, PauseIn, PauseOut, ScheduleIn, Submitted
from dray.serve.refusals import Refused
from dray.serve.routes import Ask, Reply, Route
from dray.serve.submit import check_call

_NOT_OPTIONS: Final = frozenset({"name", "task", "args", "kwargs"})


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


class SchedulesOut(Out):
    schedules: list[ScheduleOut]


class Done(Out):
    name: str
    deleted: bool


def schedule_out(info: ScheduleInfo) -> ScheduleOut:
    return msgspec.convert(plain(info), ScheduleOut)


async def _seen(ask: Ask) -> ScheduleInfo:
    """The schedule that the path names; one that is none of the caller's business does not exist for it."""
    name = check_name("name", ask.path["name"])
    try:
        info = await ask.app.schedules.aget(name)
        if ask.caller.reaches(info.queue, info.task):
            return info
    except ScheduleNotFound:
        pass
    raise Refused(404, "schedule_not_found", f"no schedule is named {name}")


async def list_schedules(ask: Ask) -> Reply:
    found = await ask.app.schedules.alist()
    shown = [schedule_out(info) for info in found if ask.caller.reaches(info.queue, info.task)]
    return Reply(SchedulesOut(schedules=shown))


async def create(ask: Ask) -> Reply:
    """Make a schedule: `cron` (with `tz`) or `every`, and what its jobs are like."""
    given: ScheduleIn = ask.body
    args, kwargs = check_call(ask.app, ask.caller, given)
    said: dict[str, Any] = {
        name: value
        for name in given.__struct_fields__
        if name not in _NOT_OPTIONS and (value := getattr(given, name)) is not None
    }
    made = await ask.app.schedules.acreate(given.name, given.task, args=args, kwargs=kwargs, **said)
    return Reply(schedule_out(made), 201)


async def pause(ask: Ask) -> Reply:
    """Make no jobs until it is resumed."""
    given: PauseIn = ask.body
    if given.task is not None:
        raise Refused(422, "invalid_task", "a schedule is paused as a whole", "task")
    info = await _seen(ask)
    return Reply(
        schedule_out(await ask.app.schedules.apause(info.name, reason=given.reason, by=ask.caller.name))
    )


async def resume(ask: Ask) -> Reply:
    """Undo a pause; ticks that passed meanwhile are gone."""
    info = await _seen(ask)
    return Reply(schedule_out(await ask.app.schedules.aresume(info.name)))


async def trigger(ask: Ask) -> Reply:
    """Enqueue one job of it now, also while it is paused."""
    info = await _seen(ask)
    job = await ask.app.schedules.atrigger(info.name)
    status = job.accepted or await job.astatus()
    return Reply(Submitted(id=job.id, status=status, duplicate=job.duplicate), 201)


async def delete(ask: Ask) -> Reply:
    """Forget a schedule; its jobs stay. One that code declares comes back when a worker starts."""
    info = await _seen(ask)
    await ask.app.schedules.adelete(info.name)
    return Reply(Done(name=info.name, deleted=True))


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/schedules",
        handler=list_schedules,
        role="read",
        summary="Schedules and how they stand",
        replies={200: SchedulesOut},
    ),
    Route(
        method="POST",
        path="/api/schedules",
        handler=create,
        role="admin",
        summary="Make a schedule",
        body=ScheduleIn,
        replies={201: ScheduleOut},
        errors=(409,),
    ),
    Route(
        method="POST",
        path="/api/schedules/{name}/pause",
        handler=pause,
        role="admin",
        summary="Pause a schedule",
        body=PauseIn,
        body_needed=False,
        replies={200: ScheduleOut},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name}/resume",
        handler=resume,
        role="admin",
        summary="Undo a pause",
        replies={200: ScheduleOut},
    ),
    Route(
        method="POST",
        path="/api/schedules/{name}/trigger",
        handler=trigger,
        role="admin",
        summary="Enqueue one job of a schedule now",
        replies={201: Submitted},
        errors=(409,),
    ),
    Route(
        method="DELETE",
        path="/api/schedules/{name}",
        handler=delete,
        role="admin",
        summary="Forget a schedule",
        replies={200: Done},
    ),
)
