"""The table of methods: who may call them, how often, and what becomes of errors."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import grpc
from google.protobuf.message import DecodeError

from dray.keys import Role
from dray.serve.callers import EVERYBODY, Caller, Gate
from dray.serve.limits import Room, Turnstile
from dray.serve.refusals import Refused, forbidden
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import holding, methods, watching
from dray.serve.rpc.calling import Calling, Shared
from dray.serve.rpc.statuses import Context, fail

NAME: Final = "dray.v1.TaskQueue"
log = logging.getLogger("dray.serve")

Unary = Callable[[Calling, Any], Awaitable[Any]]
Stream = Callable[[Calling, Any], AsyncIterator[Any]]


class Method(NamedTuple):
    """One method of the service."""

    request: Any
    """The class of its request; that of the answer goes without saying."""
    role: Role
    answer: Unary | None = None
    stream: Stream | None = None
    waits: bool = False
    """It may last as long as its caller likes."""


METHODS: Final[dict[str, Method]] = {
    "Enqueue": Method(pb.EnqueueRequest, "submit", methods.enqueue),
    "EnqueueBatch": Method(pb.EnqueueBatchRequest, "submit", methods.enqueue_batch),
    "Delete": Method(pb.DeleteRequest, "admin", methods.delete),
    "Cancel": Method(pb.CancelRequest, "submit", methods.cancel),
    "Get": Method(pb.GetRequest, "read", methods.get),
    "WaitResult": Method(pb.WaitResultRequest, "read", methods.wait_result, waits=True),
    "FetchAndHold": Method(pb.FetchAndHoldRequest, "work", holding.fetch_and_hold, waits=True),
    "Ack": Method(pb.AckRequest, "work", holding.ack),
    "Nack": Method(pb.NackRequest, "work", holding.nack),
    "Extend": Method(pb.ExtendRequest, "work", holding.extend),
    "ListQueues": Method(pb.ListQueuesRequest, "read", methods.list_queues),
    "WatchEvents": Method(pb.WatchEventsRequest, "read", stream=watching.watch_events, waits=True),
}


class Service:
    """All methods of one server."""

    def __init__(self, shared: Shared, gate: Gate) -> None:
        settings = shared.app.settings
        self._shared, self._gate = shared, gate
        self._turnstile = Turnstile(settings.key_rate)
        self._room = Room(settings.max_requests, "calls")
        self._waiting_room = Room(settings.max_waiting, "clients that wait")
        self._patience = (settings.connect_timeout + settings.read_timeout) / 1000

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
            return grpc.unary_stream_rpc_method_handler(self._streaming(method), **codec)
        return grpc.unary_unary_rpc_method_handler(self._answering(method), **codec)

    def _answering(self, method: Method) -> Callable[[Any, Context], Awaitable[Any]]:
        async def answer(request: Any, context: Context) -> Any:
            try:
                with self._enter(method):
                    calling = await self._admit(method, context)
                    if isinstance(request, Refused):
                        raise request
                    assert method.answer is not None  # noqa: S101 (for the type checker)
                    async with asyncio.timeout(None if method.waits else self._patience):
                        return await method.answer(calling, request)
            except Exception as error:
                await fail(context, error)

        return answer

    def _streaming(self, method: Method) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            try:
                with self._enter(method):
                    calling = await self._admit(method, context)
                    if isinstance(request, Refused):
                        raise request
                    assert method.stream is not None  # noqa: S101 (for the type checker)
                    async for message in method.stream(calling, request):
                        yield message
            except Exception as error:
                await fail(context, error)

        return stream

    def _enter(self, method: Method) -> contextlib.AbstractContextManager[None]:
        return (self._waiting_room if method.waits else self._room).enter()

    async def _admit(self, method: Method, context: Context) -> Calling:
        if self._gate.fresh:  # then nothing is waited for
            caller = await self._caller(context)
        else:
            async with asyncio.timeout(self._patience):
                caller = await self._caller(context)
        if not caller.may(method.role):
            raise forbidden(f"this key has not the role {method.role}")
        return Calling(self._shared, caller, context)

    async def _caller(self, context: Context) -> Caller:
        address = _address(context.peer())
        try:
            caller = await self._gate.admit(_headers(context))
        except Refused:
            self._turnstile.pass_one(f"unknown {address}")
            raise
        self._turnstile.pass_one(address if caller is EVERYBODY else caller.id)
        return caller


def _read(kind: Any, data: bytes) -> Any:
    """The request; one that cannot be read is a mistake of the caller's like any other."""
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


def _address(peer: str) -> str:
    """Of `ipv4:127.0.0.1:5000` the middle."""
    return peer.rpartition(":")[0].partition(":")[2] or peer
