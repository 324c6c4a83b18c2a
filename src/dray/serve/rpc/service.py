"""The table of methods, and how each call is admitted and answered."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from dray.admin.api_keys import Role
from dray.serve.admission import Admission
from dray.serve.auth import Access, Peer
from dray.serve.deadline import Deadline
from dray.serve.errors import Refused
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import producer_methods, work_method, worker_methods
from dray.serve.rpc.call_context import CallState, GrpcCall
from dray.serve.rpc.errors import Context, fail
from dray.serve.rpc.request_reader import RequestReader, address_of
from dray.stats.arrivals import SOURCE

NAME: Final = "dray.v1.TaskQueue"

Unary = Callable[[GrpcCall, Any], Awaitable[Any]]
Stream = Callable[[GrpcCall, Any], AsyncGenerator[Any, None]]


class Method(NamedTuple):
    """One method of the service."""

    request: Any
    """The class of its request."""
    role: Role
    answer: Unary | None = None
    stream: Stream | None = None
    waits: bool = False
    """It may last as long as its caller likes."""


METHODS: Final[dict[str, Method]] = {
    "Enqueue": Method(pb.EnqueueRequest, "submit", producer_methods.enqueue),
    "EnqueueBatch": Method(pb.EnqueueBatchRequest, "submit", producer_methods.enqueue_batch),
    "Delete": Method(pb.DeleteRequest, "admin", producer_methods.delete),
    "Cancel": Method(pb.CancelRequest, "submit", producer_methods.cancel),
    "Get": Method(pb.GetRequest, "read", producer_methods.get),
    "SendEvent": Method(pb.SendEventRequest, "submit", producer_methods.send_event),
    "WaitResult": Method(pb.WaitResultRequest, "read", producer_methods.wait_result, waits=True),
    "FetchAndHold": Method(pb.FetchAndHoldRequest, "work", worker_methods.fetch_and_hold, waits=True),
    "Ack": Method(pb.AckRequest, "work", worker_methods.ack),
    "Nack": Method(pb.NackRequest, "work", worker_methods.nack),
    "Extend": Method(pb.ExtendRequest, "work", worker_methods.extend),
    "Work": Method(pb.WorkRequest, "work", stream=work_method.work, waits=True),
    "GetFlow": Method(pb.GetFlowRequest, "read", producer_methods.get_flow),
    "ListFlows": Method(pb.ListFlowsRequest, "read", producer_methods.list_flows),
    "ListQueues": Method(pb.ListQueuesRequest, "read", producer_methods.list_queues),
    "WatchEvents": Method(pb.WatchEventsRequest, "read", stream=producer_methods.watch_events, waits=True),
}


class GrpcService:
    """Serves the methods: admits each call, reads its request, and answers errors."""

    def __init__(self, state: CallState, access: Access) -> None:
        self._state = state
        self._admission = Admission(state.app, access, "calls")
        self._reader = RequestReader()

    def handler(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            NAME, {name: self._handler(method) for name, method in METHODS.items()}
        )

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        codec: dict[str, Any] = {
            "request_deserializer": partial(_read, method.request),
            "response_serializer": _serialize,
        }
        if method.answer is None:
            return grpc.stream_stream_rpc_method_handler(partial(self._stream, method), **codec)
        return grpc.stream_unary_rpc_method_handler(partial(self._answer, method), **codec)

    async def _answer(self, method: Method, requests: AsyncIterator[Any], context: Context) -> Any:
        assert method.answer is not None  # noqa: S101 (for the type checker)
        try:
            peer = Peer(_headers(context), address_of(context.peer()))
            leave = self._enter(method, peer)
            try:
                call, request = await self._admit(method, peer, requests, context)
                if method.waits:
                    return await self._admission.run(peer, method.answer(call, request), waits=True)
                with Deadline(self._admission.timeout):
                    return await method.answer(call, request)
            finally:
                leave()
        except Exception as error:
            await fail(context, error)

    async def _stream(
        self, method: Method, requests: AsyncIterator[Any], context: Context
    ) -> AsyncIterator[Any]:
        assert method.stream is not None  # noqa: S101 (for the type checker)
        try:
            peer = Peer(_headers(context), address_of(context.peer()))
            leave = self._enter(method, peer)
            try:
                call, request = await self._admit(method, peer, requests, context)
                async for message in self._admission.stream(peer, method.stream(call, request)):
                    yield message
            finally:
                leave()
        except Exception as error:
            await fail(context, error)

    def _enter(self, method: Method, peer: Peer) -> Callable[[], None]:
        return self._admission.enter(self._admission.auth.share_of(peer), waits=method.waits)

    async def _admit(
        self, method: Method, peer: Peer, requests: AsyncIterator[Any], context: Context
    ) -> tuple[GrpcCall, Any]:
        """The caller is admitted before its request is read, as that is held in memory."""
        caller = await self._admission.admit(peer, method.role)
        SOURCE.set("grpc")  # each call is a task of its own
        request = await self._reader.read(requests)
        if isinstance(request, Refused):
            raise request
        return GrpcCall(self._state, caller, context, requests), request


def _read(kind: Any, data: bytes) -> Any:
    """The request, or the refusal of one that cannot be read: gRPC would answer with its own error."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        return Refused(400, "invalid_message", f"this is no {kind.DESCRIPTOR.full_name}: {error}")


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


def _headers(context: Context) -> Mapping[str, str]:
    found = {}
    for name, value in context.invocation_metadata() or ():
        found[name.lower()] = value if isinstance(value, str) else value.decode("latin-1")
    return found
