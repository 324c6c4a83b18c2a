"""Methods for producers and observers: enqueue, get, wait, cancel, delete, list queues, watch events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.structs import replace

from dray.client.link import Link
from dray.errors import CodecError, DrayError, InvalidInput, JobTimeout, ResultGone
from dray.handle import JobHandle, aas_completed, outcome_of
from dray.info import JobInfo
from dray.job import Record, State
from dray.serve.enqueue import enqueue as submit
from dray.serve.errors import Refused, not_found, try_later
from dray.serve.event_feed import Subscription, queues_to_follow, read_cursor
from dray.serve.flows import NODES_SHOWN, find_flow, may_see
from dray.serve.models import MANY
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.call_context import GrpcCall
from dray.serve.rpc.errors import refusal_in_grpc, refusal_message

STOPPING = "the server stops; call again"


async def enqueue(call: GrpcCall, request: pb.EnqueueRequest) -> pb.EnqueueResponse:
    done = await submit(call, messages.job_in(request))
    return pb.EnqueueResponse(id=done.id, status=messages.state(done.status), duplicate=done.duplicate)


async def enqueue_batch(call: GrpcCall, request: pb.EnqueueBatchRequest) -> pb.EnqueueBatchResponse:
    if not 1 <= len(request.jobs) <= MANY:
        raise InvalidInput("jobs", len(request.jobs), f"1 to {MANY} jobs are allowed")
    # In one turn of the loop, so that they travel as one put.
    results = await asyncio.gather(*(_try(call, job) for job in request.jobs))
    return pb.EnqueueBatchResponse(results=results)


async def _try(call: GrpcCall, job: pb.EnqueueRequest) -> pb.EnqueueResult:
    try:
        return pb.EnqueueResult(accepted=await enqueue(call, job))
    except Exception as error:
        return pb.EnqueueResult(refused=refusal_message(refusal_in_grpc(error)))


async def get(call: GrpcCall, request: pb.GetRequest) -> pb.Job:
    return await _shown(call, await call.find_job(request.id))


async def wait_result(call: GrpcCall, request: pb.WaitResultRequest) -> pb.Job:
    info = await call.find_job(request.id)
    wait = messages.given(request, "wait")
    if wait is not None and not wait >= 0:
        raise InvalidInput("wait", wait, "seconds from 0 are allowed")
    if not info.status.finished and wait != 0:
        await call.unless_stopping(_end(call.app.job(info.id), wait, call.time_to_wait(wait)))
        info = await call.find_job(info.id)
        if not info.status.finished and call.state.stopping.is_set():
            raise try_later(503, "stopping", STOPPING, 1)
    return await _shown(call, info)


async def _end(job: JobHandle[Any], wanted: float | None, patience: float | None) -> None:
    """Wait for the end of a job. Without a wanted time, the deadline itself ends the call."""
    with suppress(JobTimeout):
        async for _ in aas_completed([job], None if wanted is None else patience):
            pass


async def _shown(call: GrpcCall, info: JobInfo) -> pb.Job:
    if info.status is not State.SUCCEEDED or call.caller.hides_values:
        return messages.job_out(info, None)
    if info.result is None:  # None was returned, it is not kept, or it cannot be read
        record = await call.app.client.run(_record, info.id)
        try:
            outcome_of(call.app.job(info.id), record)
        except (ResultGone, CodecError) as error:
            return messages.job_out(replace(info, reason=str(error)), None)
        except DrayError:
            return messages.job_out(info, None)
    return messages.job_out(info, (info.result,))


async def _record(link: Link, id: str) -> Record | None:
    (record,) = await link.broker.get([id])
    return record


async def cancel(call: GrpcCall, request: pb.CancelRequest) -> pb.CancelResponse:
    info = await call.find_job(request.id)
    reason = request.reason or f"cancelled by {call.caller.name}"
    return pb.CancelResponse(cancelled=await call.app.job(info.id).acancel(reason, force=request.force))


async def delete(call: GrpcCall, request: pb.DeleteRequest) -> pb.DeleteResponse:
    info = await call.find_job(request.id)
    await call.app.keys.arecord(call.caller.name, "Delete", info.id)
    done = await call.app.jobs.adelete([info.id])
    if not done.ids:
        if await call.app.job(info.id).astatus() is State.NOT_FOUND:
            raise not_found(info.id)
        reason = done.refused.get(info.id, "it could not be deleted")
        raise Refused(412, "not_deleted", f"job {info.id}: {reason}", "id")
    return pb.DeleteResponse()


async def send_event(call: GrpcCall, request: pb.SendEventRequest) -> pb.SendEventResponse:
    info = await call.find_job(request.id)
    try:
        value = msgspec.json.decode(request.value_json or "null")
    except msgspec.DecodeError as error:
        raise InvalidInput("value_json", request.value_json, f"JSON is allowed ({error})") from None
    job = call.app.job(info.id)
    return pb.SendEventResponse(accepted=await job.asend(request.event, value, id=request.message_id or None))


async def get_flow(call: GrpcCall, request: pb.GetFlowRequest) -> pb.Flow:
    _, info = await find_flow(call, request.id)
    return messages.flow_out(info, NODES_SHOWN)


async def list_flows(call: GrpcCall, request: pb.ListFlowsRequest) -> pb.ListFlowsResponse:
    limit = request.limit or 100
    if limit > MANY:
        raise InvalidInput("limit", limit, f"1 to {MANY} are allowed")
    found, cursor = await call.app.flows.afind(
        request.state or None, limit=limit, cursor=request.cursor or None
    )
    shown = [messages.flow_row(flow) for flow in found if may_see(call, flow.tasks, flow.queues)]
    return pb.ListFlowsResponse(flows=shown, cursor=cursor or "")


async def list_queues(call: GrpcCall, request: pb.ListQueuesRequest) -> pb.ListQueuesResponse:
    queues = await call.app.queues.alist()
    return pb.ListQueuesResponse(
        queues=[messages.queue_out(queue) for queue in queues if call.caller.reaches(queue.name)]
    )


async def watch_events(
    call: GrpcCall, request: pb.WatchEventsRequest
) -> AsyncGenerator[pb.WatchEventsResponse, None]:
    """Events from where the client left off, then as they happen."""
    queues = queues_to_follow(call.caller, request.queues)
    subscription = await Subscription.open(call.events, queues, _since(request))
    try:
        yield _events_message(subscription, [], [])
        while (feed := await subscription.next()) is not None:
            gaps = subscription.gaps(feed)
            events = [
                event for entry in subscription.new_entries(feed) for event in messages.events_out(entry)
            ]
            if events or gaps:
                yield _events_message(subscription, events, gaps)
    finally:
        subscription.close()


def _since(request: pb.WatchEventsRequest) -> dict[str, int] | None:
    """The cursor to begin at; None: now."""
    if not request.cursor:
        return {} if request.from_oldest else None
    cursor = read_cursor(request.cursor)
    if cursor is None:
        message = "only a cursor that an earlier message told is allowed"
        raise Refused(422, "invalid_cursor", message, "cursor")
    return cursor


def _events_message(
    subscription: Subscription, events: list[pb.Event], gaps: list[str]
) -> pb.WatchEventsResponse:
    return pb.WatchEventsResponse(events=events, cursor=subscription.cursor.decode(), gaps=gaps)
