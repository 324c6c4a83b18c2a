"""For workers in other languages: fetch, ack, nack, extend. All rules are those of `app.external`."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from dray.errors import DrayError, InvalidInput
from dray.external import FETCH_MAX, HeldJob, Nack
from dray.job import check_word
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.calling import Calling
from dray.serve.rpc.methods import seen

BYTES_MAX: Final = 3 * 1024 * 1024
"""Arguments in one answer; clients accept 4 MiB unless they are told otherwise."""
_KINDS: Final[dict[int, Nack]] = {
    pb.NACK_KIND_UNSPECIFIED: "retry",
    pb.NACK_KIND_RETRY: "retry",
    pb.NACK_KIND_DEAD: "dead",
    pb.NACK_KIND_GIVE_BACK: "give_back",
    pb.NACK_KIND_CRASHED: "crashed",
}


async def fetch_and_hold(calling: Calling, request: pb.FetchAndHoldRequest) -> pb.FetchAndHoldResponse:
    """Who goes away before the answer leaves holds nothing; one that is lost on its way is for the lease."""
    fetching = asyncio.ensure_future(_fetch(calling, request))
    answered = False
    try:
        held = await calling.unless_leaving(asyncio.shield(fetching)) or []
        answer = pb.FetchAndHoldResponse(jobs=[messages.held_out(job) for job in held])
        answered = fetching.done()
    finally:
        if not answered:
            calling.shared.afterwards(_give_back(calling, fetching))
    return answer


async def _fetch(calling: Calling, request: pb.FetchAndHoldRequest) -> list[HeldJob]:
    caller, tasks = calling.caller, list(request.tasks)
    for queue in request.queues:
        caller.need(queue=queue)
    for task in tasks:
        caller.need(task=task)
    if not tasks and caller.tasks is not None:
        tasks = sorted(caller.tasks)
    if not request.wait >= 0:
        raise InvalidInput("wait", request.wait, "seconds from 0 are allowed")
    if request.limit > FETCH_MAX:
        raise InvalidInput("limit", request.limit, f"1 to {FETCH_MAX} is allowed")
    return await calling.app.external.afetch(
        list(request.queues),
        limit=request.limit or 1,
        lease=messages.given(request, "lease"),
        tasks=tasks or None,
        wait=calling.patience(request.wait) or 0,
        max_bytes=BYTES_MAX,
    )


async def _give_back(calling: Calling, fetching: asyncio.Future[list[HeldJob]]) -> None:
    """The call ended before its fetch did, or with what it had fetched."""
    fetching.cancel()
    await asyncio.wait((fetching,))
    if not fetching.cancelled() and fetching.exception() is None and (held := fetching.result()):
        with contextlib.suppress(DrayError):  # then the lease runs out
            await calling.app.external.arelease(held[0].id, held[0].token)


async def ack(calling: Calling, request: pb.AckRequest) -> pb.SettleResponse:
    await _check(calling, request.id)
    result: Any = messages.read_json("result_json", request.result_json, object, None)
    done = await calling.app.external.aack(request.id, request.token, result, codec="json")
    return pb.SettleResponse(status=messages.state(done))


async def nack(calling: Calling, request: pb.NackRequest) -> pb.SettleResponse:
    await _check(calling, request.id)
    if request.kind not in _KINDS:
        raise InvalidInput("kind", request.kind, "a value of NackKind is allowed")
    done = await calling.app.external.anack(
        request.id,
        request.token,
        how=_KINDS[request.kind],
        error=messages.read_error(request),
        delay=messages.given(request, "delay_seconds"),
    )
    return pb.SettleResponse(status=messages.state(done))


async def extend(calling: Calling, request: pb.ExtendRequest) -> pb.ExtendResponse:
    await _check(calling, request.id)
    done = await calling.app.external.aextend(
        request.id,
        request.token,
        lease=messages.given(request, "lease"),
        progress=messages.read_progress(request),
    )
    return pb.ExtendResponse(lease_until=messages.stamp(done.lease_until), cancelling=done.cancelling)


async def _check(calling: Calling, id: str) -> None:
    """A key with limits has no say over other jobs, whatever token it got hold of."""
    check_word("id", id)
    if calling.caller.limited:
        await seen(calling, id)
