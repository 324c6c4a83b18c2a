"""Methods for workers in other languages: fetch, ack, nack, extend. The rules are those of `app.external`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import Any, Final

from dray.admin.external import FETCH_MAX
from dray.admin.held_job import HeldJob, Nack
from dray.errors import DrayError, InvalidInput
from dray.job import check_word
from dray.serve.auth import Caller
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.call_context import GrpcCall

BYTES_MAX: Final = 3 * 1024 * 1024
"""Bytes of arguments in one answer; clients accept 4 MiB by default."""
_KINDS: Final[dict[int, Nack]] = {
    pb.NACK_KIND_UNSPECIFIED: "retry",
    pb.NACK_KIND_RETRY: "retry",
    pb.NACK_KIND_DEAD: "dead",
    pb.NACK_KIND_GIVE_BACK: "give_back",
    pb.NACK_KIND_CRASHED: "crashed",
}


async def fetch_and_hold(call: GrpcCall, request: pb.FetchAndHoldRequest) -> pb.FetchAndHoldResponse:
    """A caller that goes away before the answer is sent holds nothing; later, the lease runs out."""
    fetching = asyncio.ensure_future(_fetch(call, request))
    answered = False
    try:
        held = await call.unless_stopping(asyncio.shield(fetching)) or []
        answer = pb.FetchAndHoldResponse(jobs=[messages.held_out(job) for job in held])
        answered = fetching.done()
    finally:
        if not answered:
            call.state.run_in_background(_give_back(call, fetching))
    return answer


async def _fetch(call: GrpcCall, request: pb.FetchAndHoldRequest) -> list[HeldJob]:
    tasks = check_work(call.caller, request.queues, request.tasks)
    if not request.wait >= 0:
        raise InvalidInput("wait", request.wait, "seconds from 0 are allowed")
    if request.limit > FETCH_MAX:
        raise InvalidInput("limit", request.limit, f"1 to {FETCH_MAX} is allowed")
    return await call.app.external.afetch(
        list(request.queues),
        limit=request.limit or 1,
        lease=messages.given(request, "lease"),
        tasks=tasks,
        wait=call.time_to_wait(request.wait) or 0,
        max_bytes=BYTES_MAX,
    )


def check_work(caller: Caller, queues: Iterable[str], tasks: Iterable[str]) -> list[str] | None:
    """The tasks that a worker can run and its key allows; None: any."""
    for queue in queues:
        caller.need(queue=queue)
    wanted = list(tasks)
    for task in wanted:
        caller.need(task=task)
    if not wanted and caller.tasks is not None:
        wanted = sorted(caller.tasks)
    return wanted or None


def nack_kind(kind: int) -> Nack:
    if kind not in _KINDS:
        raise InvalidInput("kind", kind, "a value of NackKind is allowed")
    return _KINDS[kind]


async def _give_back(call: GrpcCall, fetching: asyncio.Future[list[HeldJob]]) -> None:
    """Release what was fetched for a call that has ended without its answer."""
    fetching.cancel()
    await asyncio.wait((fetching,))
    if not fetching.cancelled() and fetching.exception() is None and (held := fetching.result()):
        with contextlib.suppress(DrayError):  # then the lease runs out
            await call.app.external.arelease(held[0].id, held[0].token)


async def ack(call: GrpcCall, request: pb.AckRequest) -> pb.SettleResponse:
    await _check(call, request.id)
    result: Any = messages.read_json("result_json", request.result_json, object, None)
    done = await call.app.external.aack(request.id, request.token, result, codec="json")
    return pb.SettleResponse(status=messages.state(done))


async def nack(call: GrpcCall, request: pb.NackRequest) -> pb.SettleResponse:
    await _check(call, request.id)
    done = await call.app.external.anack(
        request.id,
        request.token,
        how=nack_kind(request.kind),
        error=messages.read_error(request),
        delay=messages.given(request, "delay_seconds"),
    )
    return pb.SettleResponse(status=messages.state(done))


async def extend(call: GrpcCall, request: pb.ExtendRequest) -> pb.ExtendResponse:
    await _check(call, request.id)
    done = await call.app.external.aextend(
        request.id,
        request.token,
        lease=messages.given(request, "lease"),
        progress=messages.read_progress(request),
    )
    return pb.ExtendResponse(lease_until=messages.stamp(done.lease_until), cancelling=done.cancelling)


async def _check(call: GrpcCall, id: str) -> None:
    """A key with limits may not touch other jobs, even with a valid token."""
    check_word("id", id)
    if call.caller.limited:
        await call.find_job(id)
