"""Enqueue over HTTP: one job, or many with a result for each."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any, Final

import msgspec

from dray.app import App
from dray.errors import DuplicateJob, JobNotFound, UnknownTask, near_names
from dray.handle import JobHandle
from dray.job import check_word
from dray.options import Using, read_options
from dray.serve.auth import Caller
from dray.serve.errors import Refused, forbidden, refusal_of
from dray.serve.http_request import HttpRequest
from dray.serve.models import (
    BatchIn,
    BatchOut,
    BatchResult,
    CallIn,
    ErrorBody,
    JobIn,
    RawBatch,
    Submitted,
)
from dray.serve.request import Request
from dray.serve.routes import Reply, Route
from dray.task import Call

IDEMPOTENCY: Final = "Idempotency-Key"
MADE_BY: Final = "dray-request"
"""The header of a job that names the request which made it."""
_read_job = msgspec.json.Decoder(JobIn).decode


async def submit(request: HttpRequest) -> Reply:
    """Enqueue a job. 200 if its key or id was taken: then it is the job that was there before."""
    given: CallIn = request.body
    if "idempotency-key" not in request.headers:
        done = await enqueue(request, given)
    else:
        repeat = await _idempotency(request, given, 1)
        done = await enqueue(request, given, repeat.options(given, 0))
        if done.duplicate:  # by another request, at the same time
            await repeat.check()
    return Reply(done, 200 if done.duplicate else 201)


async def submit_batch(request: HttpRequest) -> Reply:
    """Enqueue jobs together; those that are right are one atomic step, each wrong one has its own error."""
    batch: RawBatch = request.body
    keyed = "idempotency-key" in request.headers
    repeat = await _idempotency(request, batch, len(batch.jobs)) if keyed else None
    # In one turn of the loop, so that they travel as one put.
    results = await asyncio.gather(
        *(_try(request, repeat, number, raw) for number, raw in enumerate(batch.jobs))
    )
    if repeat is not None and any(result.duplicate is True for result in results):
        await repeat.check()
    return Reply(BatchOut(results=results))


async def _try(
    request: HttpRequest, repeat: IdempotencyKey | None, number: int, raw: msgspec.Raw
) -> BatchResult:
    try:
        given = _read_job(raw)
        done = await enqueue(request, given, None if repeat is None else repeat.options(given, number))
    except Exception as error:
        refused = refusal_of(error)
        if refused is None or refused.status == 503:  # not this job's fault
            raise
        shown = ErrorBody(code=refused.code, message=refused.message, field=refused.field)
        return BatchResult(error=shown)
    return BatchResult(id=done.id, status=done.status, duplicate=done.duplicate)


class IdempotencyKey:
    """The idempotency key of a request: the ids of its jobs follow from it, so that a repeat finds them."""

    def __init__(self, request: HttpRequest, key: str, body: object, jobs: int) -> None:
        self._app, caller = request.app, request.caller.id
        plain = msgspec.json.decode(msgspec.json.encode(body))  # without differences of writing
        if isinstance(plain, dict):  # nor of what is left out, which later versions may know more of
            plain = {name: value for name, value in plain.items() if value not in (None, [], {})}
        self._fingerprint = sha256(msgspec.json.encode(plain, order="deterministic")).hexdigest()
        texts = (f"{caller} {number} {key}" for number in range(jobs))
        self._ids = [f"idem-{sha256(text.encode()).hexdigest()}" for text in texts]

    def options(self, given: CallIn, number: int) -> Using:
        """The options that one of the jobs gets, unless it has an id of its own."""
        if "id" in (chosen := given.options()):
            return {}
        return {"id": self._ids[number], "headers": {**chosen.get("headers", {}), MADE_BY: self._fingerprint}}

    async def check(self) -> None:
        """Refuse a key whose jobs another request made."""
        link = await self._app.client.loop_link()
        for record in await link.broker.get(self._ids):
            if record is not None and record.job.headers.get(MADE_BY, self._fingerprint) != self._fingerprint:
                message = "this key was used for another request: repeat that one unchanged, or use a new key"
                raise Refused(422, "idempotency_key_reused", message, IDEMPOTENCY)


async def _idempotency(request: HttpRequest, body: object, jobs: int) -> IdempotencyKey:
    key = check_word(IDEMPOTENCY, request.headers["idempotency-key"])
    repeat = IdempotencyKey(request, key, body, jobs)
    await repeat.check()
    return repeat


async def enqueue(request: Request, given: CallIn, more: Using | None = None) -> Submitted:
    """Enqueue one job for a caller, as far as it may. `more` are options that its JSON does not hold."""
    app, caller = request.app, request.caller
    options: Any = given.options()
    args, kwargs = check_call(app, caller, given, options.get("queue"))
    if options.get("on_duplicate") == "replace":
        _check_replace(caller, by_id="id" in options)
    try:
        job: JobHandle[Any] | None = await app.asubmit(
            Call(given.task, args, kwargs, read_options(options | (more or {}))), wait_for_room=False
        )
    except DuplicateJob as error:
        await _check_owner(caller, app.job(error.existing_id))
        raise
    if not isinstance(job, JobHandle):
        raise Refused(409, "not_enqueued", "the app's middleware did not let it through")
    if job.duplicate:
        await _check_owner(caller, job)
    return Submitted(id=job.id, status=job.accepted or await job.astatus(), duplicate=job.duplicate)


async def _check_owner(caller: Caller, job: JobHandle[Any]) -> None:
    """Refuse if the job that was there before is outside the caller's limits."""
    if not caller.limited:
        return
    try:
        info = await job.ainfo()
        if caller.reaches(info.queue, info.task):
            return
    except JobNotFound:  # it has just gone, and its queue and task are unknown
        pass
    raise Refused(409, "taken", "this key or id is taken by a job that this key may not see", "id")


def check_call(
    app: App, caller: Caller, given: CallIn, queue: str | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments in the types of the task's parameters; refused if the caller may not enqueue this."""
    caller.need(task=given.task)
    task = app.tasks.get(given.task)
    if task is None and not app.settings.accept_unknown_tasks:
        known = sorted(name for name in app.tasks if caller.reaches(task=name))
        raise UnknownTask(given.task, near_names(given.task, known), known)
    caller.need(queue=queue or (task and task.options.queue) or "default")
    if task is None:
        return tuple(given.args), given.kwargs
    try:
        task.hints.check(tuple(given.args), given.kwargs)
    except TypeError as error:
        raise Refused(422, "invalid_args", str(error), "args") from error
    return task.hints.convert(given.args, given.kwargs, text=True)


def _check_replace(caller: Caller, *, by_id: bool) -> None:
    """The job that is replaced must be the caller's. Keys are per queue, ids are not."""
    if caller.tasks is not None or (caller.queues is not None and by_id):
        raise forbidden("a key with limits may not replace a job that could be another's", "on_duplicate")


ROUTES: Final = (
    Route(
        "POST",
        "/api/jobs",
        submit,
        "submit",
        "Enqueue a job",
        {201: Submitted, 200: Submitted},
        body=JobIn,
        errors=(409, 413),
        headers=(IDEMPOTENCY,),
    ),
    Route(
        "POST",
        "/api/jobs/batch",
        submit_batch,
        "submit",
        "Enqueue up to 1000 jobs, with a result for each",
        {200: BatchOut},
        body=BatchIn,
        read_as=RawBatch,
        errors=(413,),
        headers=(IDEMPOTENCY,),
    ),
)
