"""Durable jobs over HTTP: send an event, go on with a parked job, run one again from a step."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from dray.durable.steps import StepInfo
from dray.errors import CodecError
from dray.info import moment, plain
from dray.options import Word
from dray.serve.enqueue import check_call
from dray.serve.http_request import HttpRequest
from dray.serve.models import Acted, AnyJson, CallIn, Failure, In, JobOut, Out
from dray.serve.routes import Reply, Route


class StepOut(Out):
    """One step of a durable job."""

    id: str
    status: str
    at: datetime
    arguments: str = ""
    value: Any = None
    tries: int = 0
    error: Failure | None = None
    until: datetime | None = None
    job: str | None = None
    undo: str | None = None


class JobWithSteps(JobOut):
    """Everything known of a job, and the steps that it remembers."""

    steps: list[StepOut] = msgspec.field(default_factory=list)


class EventQuery(In):
    id: Word | None = None
    """The id of the message: the same one again has no effect."""


class SentOut(Out):
    id: str
    status: str
    accepted: bool
    """False if a message of this id was sent before."""


class RerunIn(In):
    step: Annotated[str, Meta(max_length=512)] | None = None
    """Begin with what the job remembers of the steps before this one."""
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class RerunOut(Out):
    id: str
    status: str
    rerun_of: str


async def steps_out(request: HttpRequest, id: str) -> list[StepOut]:
    """The steps of a job, in types of JSON."""
    return [_step_out(request, step) for step in await request.app.job(id).asteps()]


def _step_out(request: HttpRequest, step: StepInfo) -> StepOut:
    value = None
    if step.value is not None:
        try:
            value = plain(request.app.codecs.decode_value(step.value))
        except CodecError as wrong:
            value = f"(cannot be read: {wrong})"
    error = None if step.error is None else Failure(**msgspec.structs.asdict(step.error))
    return StepOut(
        id=step.id,
        status=step.status,
        at=moment(step.at),
        arguments=step.arguments,
        value=value,
        tries=step.tries,
        error=error,
        until=None if step.until is None else moment(step.until),
        job=step.job,
        undo=step.undo,
    )


async def send(request: HttpRequest) -> Reply:
    """The body is the value that `ctx.event` returns. With `id`, the same message is accepted once."""
    body: AnyJson = request.body
    query: EventQuery = request.query
    info = await request.find_job(request.path["id"])
    job = request.app.job(info.id)
    accepted = await job.asend(request.path["name"], body.value, id=query.id)
    return Reply(SentOut(id=info.id, status=await job.astatus(), accepted=accepted))


async def resume(request: HttpRequest) -> Reply:
    """Go on with a job that is parked because its code has changed. `changed` is false if it is not."""
    info = await request.find_job(request.path["id"])
    job = request.app.job(info.id)
    changed = await job.aresume()
    return Reply(Acted(id=info.id, status=await job.astatus(), changed=changed))


async def rerun(request: HttpRequest) -> Reply:
    """Run its call again as a new job, with other arguments or from a step on, if the body says so."""
    given: RerunIn = request.body
    info = await request.find_job(request.path["id"])
    job = request.app.job(info.id)
    args: Sequence[Any] | None = given.args
    kwargs = given.kwargs
    if args is not None and kwargs is not None:
        call = CallIn(task=info.task, args=given.args or [], kwargs=kwargs)
        args, kwargs = check_call(request.app, request.caller, call, info.queue)
    again = await job.arerun(step=given.step, args=args, kwargs=kwargs)
    return Reply(RerunOut(id=again.id, status=again.accepted or "ready", rerun_of=info.id), 201)


ROUTES: Final = (
    Route(
        "POST",
        "/api/jobs/{id}/events/{name}",
        send,
        "submit",
        "Send an event to a job",
        {200: SentOut},
        query=EventQuery,
        body=AnyJson,
        body_needed=False,
        errors=(409, 429),
    ),
    Route("POST", "/api/jobs/{id}/continue", resume, "admin", "Go on with a parked job", {200: Acted}),
    Route(
        "POST",
        "/api/jobs/{id}/rerun",
        rerun,
        "admin",
        "Run a job again as a new one",
        {201: RerunOut},
        body=RerunIn,
        body_needed=False,
    ),
)
