"""Enqueue over HTTP: one job, or many with a result for each."""

from __future__ import annotations

import asyncio
from difflib import get_close_matches
from hashlib import sha256
from typing import Any, Final

import msgspec

from dray.app import PATIENT, App
from dray.call import Call, Using, read_options
from dray.errors import UnknownTask
from dray.handle import JobHandle
from dray.job import check_word
from dray.serve.callers import Caller
from dray.serve.models import (
    BatchIn,
    BatchOut,
    BatchResult,
    ErrorBody,
    JobIn,
    RawBatch,
    ScheduleIn,
    Submitted,
)
from dray.serve.refusals import Refused, forbidden, refusal_of
from dray.serve.routes import Ask, Reply, Route

IDEMPOTENCY: Final = "Idempotency-Key"
_NOT_OPTIONS: Final = frozenset({"task", "args", "kwargs"})
_read_job = msgspec.json.Decoder(JobIn).decode


async def submit(ask: Ask) -> Reply:
    """Enqueue a job. 200 if its key or id was taken: then it is the job that was there before."""
    given: JobIn = ask.body
    done = await enqueue(ask.app, ask.caller, given, _spare_id(ask, 0))
    return Reply(done, 200 if done.duplicate else 201)


async def submit_batch(ask: Ask) -> Reply:
    """Enqueue jobs together; those that are right are one atomic step, each wrong one has its own error."""
    batch: RawBatch = ask.body
    # In one turn of the loop, so that they travel as one put.
    results = await asyncio.gather(*(_try(ask, number, raw) for number, raw in enumerate(batch.jobs)))
    return Reply(BatchOut(results=results))


async def _try(ask: Ask, number: int, raw: msgspec.Raw) -> BatchResult:
    try:
        done = await enqueue(ask.app, ask.caller, _read_job(raw), _spare_id(ask, number))
    except Exception as error:
        refused = refusal_of(error)
        if refused is None or refused.status == 503:  # not this job's fault
            raise
        told = ErrorBody(code=refused.code, message=refused.message, field=refused.field)
        return BatchResult(error=told)
    return BatchResult(id=done.id, status=done.status, duplicate=done.duplicate)


def _spare_id(ask: Ask, number: int) -> str | None:
    """The id that an idempotency key stands for: the same request makes the same job."""
    key = ask.headers.get(IDEMPOTENCY.lower())
    if key is None:
        return None
    check_word(IDEMPOTENCY, key)
    return f"idem-{sha256(f'{ask.caller.id} {number} {key}'.encode()).hexdigest()}"


async def enqueue(app: App, caller: Caller, given: JobIn, spare_id: str | None = None) -> Submitted:
    """Enqueue one job for a caller, as far as they may."""
    call = _call(app, caller, given, spare_id)
    token = PATIENT.set(False)
    try:
        job = await app.asubmit(call)
    finally:
        PATIENT.reset(token)
    if not isinstance(job, JobHandle):
        raise Refused(409, "not_enqueued", "the app's middleware did not let it through")
    if job.duplicate and caller.limited:
        await _check_owner(caller, job)
    status = job.accepted or await job.astatus()
    return Submitted(id=job.id, status=status, duplicate=job.duplicate)


async def _check_owner(caller: Caller, job: JobHandle[Any]) -> None:
    """The job that was there before may be none of the caller's business."""
    info = await job.ainfo()
    if not caller.reaches(info.queue, info.task):
        raise Refused(409, "taken", "this key or id is taken by a job that this key may not see", "id")


def _call(app: App, caller: Caller, given: JobIn, spare_id: str | None) -> Call[Any]:
    args, kwargs = check_call(app, caller, given)
    _check_replace(caller, given)
    options: Using = {  # type: ignore[assignment]  # read_options checks each by its name
        name: value
        for name in given.__struct_fields__
        if name not in _NOT_OPTIONS and (value := getattr(given, name)) is not None
    }
    if spare_id is not None:
        options.setdefault("id", spare_id)
    return Call(given.task, args, kwargs, read_options(options))


def check_call(app: App, caller: Caller, given: JobIn | ScheduleIn) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Whether the caller may enqueue this; the arguments, in the types that the task wants."""
    caller.need(task=given.task)
    task = app.tasks.get(given.task)
    if task is None and not app.settings.accept_unknown_tasks:
        known = sorted(name for name in app.tasks if caller.reaches(task=name))
        raise UnknownTask(given.task, get_close_matches(given.task, known, n=2, cutoff=0.5), known)
    caller.need(queue=given.queue or (task and task.options.queue) or "default")
    if task is None:
        return tuple(given.args), given.kwargs
    try:
        task.hints.check(tuple(given.args), given.kwargs)
    except TypeError as error:
        raise Refused(422, "invalid_args", str(error), "args") from error
    return task.hints.convert(given.args, given.kwargs, text=True)


def _check_replace(caller: Caller, given: JobIn) -> None:
    """What is replaced is gone: it must be the caller's. Keys are per queue, ids are not."""
    if given.on_duplicate != "replace":
        return
    if caller.tasks is not None or (caller.queues is not None and given.id is not None):
        raise forbidden("a key with limits may not replace a job that could be another's", "on_duplicate")


ROUTES: Final = (
    Route(
        method="POST",
        path="/api/jobs",
        handler=submit,
        role="submit",
        summary="Enqueue a job",
        body=JobIn,
        replies={201: Submitted, 200: Submitted},
        errors=(409, 413),
        headers=(IDEMPOTENCY,),
    ),
    Route(
        method="POST",
        path="/api/jobs/batch",
        handler=submit_batch,
        role="submit",
        summary="Enqueue up to 1000 jobs, with a result for each",
        body=BatchIn,
        read_as=RawBatch,
        replies={200: BatchOut},
        errors=(413,),
        headers=(IDEMPOTENCY,),
    ),
)
