"""The method `Work`: one stream of jobs and outcomes. The rules are those of `app.external.astream`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from dray.admin.work_news import Settlement, WorkNews
from dray.admin.work_stream import WorkStream
from dray.errors import InvalidInput, LeaseLost, SessionLost
from dray.serve.errors import Refused
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.call_context import GrpcCall
from dray.serve.rpc.errors import refusal_in_grpc, refusal_message
from dray.serve.rpc.worker_methods import BYTES_MAX, check_work, nack_kind

ITEMS_MAX: Final = 1000
"""Acks, nacks and reports of progress in one message."""


async def work(call: GrpcCall, request: pb.WorkRequest) -> AsyncGenerator[pb.WorkReply, None]:
    """Serve one worker until it leaves, falls silent, or its connection breaks."""
    stream = _open(call, request)
    await stream.open()
    worker = _Worker(call, stream)
    tasks = [asyncio.ensure_future(worker.listen(request)), asyncio.ensure_future(worker.end_with_server())]
    try:
        with call.state.closing(lambda: stream.close(lost=worker.is_lost())):
            yield pb.WorkReply(started=pb.WorkStarted(lease=stream.lease))
            async for news in stream:
                yield _reply(news)
            if worker.failure is not None:
                raise worker.failure
    except SessionLost:
        message = "the worker was silent for a lease, or the broker forgot its session: others get its jobs"
        raise Refused(412, "session_lost", message) from None
    finally:
        for task in tasks:
            task.cancel()


def _open(call: GrpcCall, request: pb.WorkRequest) -> WorkStream:
    if not request.HasField("start"):
        raise Refused(422, "invalid_start", "the first message of a stream has `start`", "start")
    start = request.start
    return call.app.external.astream(
        list(start.queues),
        credits=start.credits,
        tasks=check_work(call.caller, start.queues, start.tasks),
        lease=messages.given(start, "lease"),
        max_bytes=BYTES_MAX,
    )


class _Worker:
    """Passes on what one worker says."""

    def __init__(self, call: GrpcCall, stream: WorkStream) -> None:
        self._call, self._stream = call, stream
        self._leaves = False
        self.failure: Exception | None = None

    def is_lost(self) -> bool:
        """It did not leave in good order, and was not sent away."""
        return not self._leaves and self.failure is None and not self._call.state.stopping.is_set()

    async def listen(self, first: pb.WorkRequest) -> None:
        """Read messages until the worker leaves; while too much waits to be settled none is read."""
        try:
            self._hear(first, later=False)
            while not self._leaves and (message := await self._next()) is not None:
                if isinstance(message, Refused):
                    raise message
                self._hear(message, later=True)
                await self._stream.room()
        except Exception as error:
            self.failure = error
        self._stream.finish()

    async def _next(self) -> pb.WorkRequest | Refused | None:
        """The next message; None after the last, also if the connection broke."""
        try:
            return await anext(self._call.requests, None)
        except Exception:
            return None

    async def end_with_server(self) -> None:
        await self._call.state.stopping.wait()
        self._stream.finish(when_idle=True)

    def _hear(self, message: pb.WorkRequest, *, later: bool) -> None:
        if later and message.HasField("start"):
            raise Refused(422, "invalid_start", "only the first message of a stream has `start`", "start")
        if len(message.acks) + len(message.nacks) + len(message.progress) > ITEMS_MAX:
            raise InvalidInput(
                "acks", "more", f"at most {ITEMS_MAX} acks, nacks and reports at a time are allowed"
            )
        stream = self._stream
        stream.beat()
        if message.HasField("credits"):
            stream.allow(message.credits)
        for progress in message.progress:
            self._try(progress, self._report)
        for ack in message.acks:
            self._try(ack, self._ack)
        for nack in message.nacks:
            self._try(nack, self._nack)
        self._leaves = message.leave

    def _try(self, item: Any, handle: Callable[[Any], None]) -> None:
        """An item that cannot be accepted is answered, and the others are not held up."""
        try:
            if self._call.caller.limited and not self._stream.holds(item.id, item.run):
                raise LeaseLost(item.id)  # a key with limits learns nothing of other jobs
            handle(item)
        except Exception as error:
            self._stream.refuse(item.id, item.run, error)

    def _ack(self, ack: pb.WorkAck) -> None:
        result: Any = messages.read_json("result_json", ack.result_json, object, None)
        self._stream.ack(ack.id, ack.run, result, codec="json")

    def _nack(self, nack: pb.WorkNack) -> None:
        self._stream.nack(
            nack.id,
            nack.run,
            how=nack_kind(nack.kind),
            error=messages.read_error(nack),
            delay=messages.given(nack, "delay_seconds"),
        )

    def _report(self, report: pb.WorkProgress) -> None:
        progress = messages.read_progress(report)
        if progress is not None:
            self._stream.report(report.id, report.run, progress)


def _reply(news: WorkNews) -> pb.WorkReply:
    return pb.WorkReply(
        jobs=[messages.held_out(job) for job in news.jobs],
        settled=[_settled(one) for one in news.settled],
        stops=[pb.WorkStop(id=stop.id, run=stop.run, lost=stop.reason == "lost") for stop in news.stops],
        finishing=news.finishing,
    )


def _settled(one: Settlement) -> pb.WorkSettled:
    if one.error is not None:
        refused = refusal_message(refusal_in_grpc(one.error))
        return pb.WorkSettled(id=one.id, run=one.run, refused=refused)
    return pb.WorkSettled(id=one.id, run=one.run, status=messages.state(one.state or ""))
