"""For producers and onlookers: enqueue, look, wait, cancel, delete."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from dray.errors import InvalidInput, JobTimeout, ResultGone
from dray.handle import JobHandle, aas_completed
from dray.info import JobInfo
from dray.job import State, check_word
from dray.serve.models import MANY
from dray.serve.refusals import Refused, not_found, try_later
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.calling import Calling
from dray.serve.rpc.statuses import answer_to
from dray.serve.submit import enqueue as submit

STOPPING = "the server stops; call again"


async def enqueue(calling: Calling, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    done = await submit(calling.app, calling.caller, messages.job_in(request))
    return pb.EnqueueResponse(id=done.id, status=messages.state(done.status), duplicate=done.duplicate)


async def enqueue_batch(calling: Calling, request: pb.EnqueueBatchRequest) -> pb.EnqueueBatchResponse:
    if not 1 <= len(request.jobs) <= MANY:
        raise InvalidInput("jobs", len(request.jobs), f"1 to {MANY} jobs are allowed")
    # In one turn of the loop, so that they travel as one put.
    results = await asyncio.gather(*(_try(calling, job) for job in request.jobs))
    return pb.EnqueueBatchResponse(results=results)


async def _try(calling: Calling, job: pb.EnqueueRequest) -> pb.EnqueueResult:
    try:
        return pb.EnqueueResult(accepted=await enqueue(calling, job))
    except Exception as error:
        answer = answer_to(error)
        refused = pb.Refusal(
            status=answer.number, code=answer.code, message=answer.message, field=answer.field
        )
        return pb.EnqueueResult(refused=refused)


async def seen(calling: Calling, id: str) -> JobInfo:
    """A job by its id; one that is none of the caller's business does not exist for them."""
    info = await calling.app.job(check_word("id", id)).ainfo()
    if not calling.caller.reaches(info.queue, info.task):
        raise not_found(id)
    return info


async def get(calling: Calling, request: pb.GetRequest) -> pb.Job:
    return await _shown(calling, await seen(calling, request.id))


async def wait_result(calling: Calling, request: pb.WaitResultRequest) -> pb.Job:
    info = await seen(calling, request.id)
    wait = messages.given(request, "wait")
    if wait is not None and not wait >= 0:
        raise InvalidInput("wait", wait, "seconds from 0 are allowed")
    if not info.status.finished and wait != 0:
        await calling.unless_leaving(_end(calling.app.job(info.id), wait, calling.patience(wait)))
        info = await calling.app.job(info.id).ainfo()
        if not info.status.finished and calling.shared.leaving.is_set():
            raise try_later(503, "stopping", STOPPING, 1)
    return await _shown(calling, info)


async def _end(job: JobHandle[Any], wanted: float | None, patience: float | None) -> None:
    """Wait for the end of a job. With nothing wanted, the deadline itself ends the call."""
    with suppress(JobTimeout):
        async for _ in aas_completed([job], None if wanted is None else patience):
            pass


async def _shown(calling: Calling, info: JobInfo) -> pb.Job:
    result: tuple[object] | None = None
    if info.status is State.SUCCEEDED:
        result = (info.result,)
        if info.result is None:  # nothing was returned, or it is not kept any more
            try:
                await calling.app.job(info.id).aget(0)
            except (ResultGone, JobTimeout):
                result = None
    return messages.job_out(info, result)


async def cancel(calling: Calling, request: pb.CancelRequest) -> pb.CancelResponse:
    info = await seen(calling, request.id)
    reason = request.reason or f"cancelled by {calling.caller.name}"
    return pb.CancelResponse(cancelled=await calling.app.job(info.id).acancel(reason))


async def delete(calling: Calling, request: pb.DeleteRequest) -> pb.DeleteResponse:
    info = await seen(calling, request.id)
    await calling.app.keys.arecord(calling.caller.name, "Delete", info.id)
    done = await calling.app.jobs.adelete([info.id])
    if not done.ids:
        if await calling.app.job(info.id).astatus() is State.NOT_FOUND:
            raise not_found(info.id)
        reason = done.refused.get(info.id, "it could not be deleted")
        raise Refused(412, "not_deleted", f"job {info.id}: {reason}", "id")
    return pb.DeleteResponse()


async def list_queues(calling: Calling, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
    queues = await calling.app.queues.alist()
    return pb.ListQueuesResponse(
        queues=[messages.queue_out(queue) for queue in queues if calling.caller.reaches(queue.name)]
    )
