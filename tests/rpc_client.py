"""A gRPC server of an app and a client of it, in one event loop, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import grpc

from dray.app import App
from dray.serve.grpc import GrpcServer, serve_grpc
from dray.serve.rpc import dray_pb2 as pb

METHODS = pb.DESCRIPTOR.services_by_name["TaskQueue"].methods_by_name
PATIENCE = 30.0


class Failed(Exception):
    """A call that ended with an error."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.status = error.code().name
        self.message = error.details() or ""
        self.trailers = dict(tuple(error.trailing_metadata() or ()))

    @property
    def code(self) -> object:
        return self.trailers.get("dray-error-code")

    @property
    def field(self) -> object:
        return self.trailers.get("dray-error-field")


class Client:
    """Methods by their names: `await client("Get", id="x")`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        key: str | None = None,
        metadata: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.channel = channel
        self.metadata = metadata if key is None else (("authorization", f"Bearer {key}"), *metadata)

    def start(self, name: str, request: Any = None, *, timeout: float = PATIENCE, **fields: Any) -> Any:
        """The call itself, to be awaited, iterated over or cancelled."""
        method = METHODS[name]
        asked = getattr(pb, method.input_type.name)(**fields) if request is None else request
        kind = self.channel.unary_stream if method.server_streaming else self.channel.unary_unary
        calling: Any = kind(
            f"/dray.v1.TaskQueue/{name}",
            request_serializer=type(asked).SerializeToString,
            response_deserializer=getattr(pb, method.output_type.name).FromString,
        )
        return calling(asked, metadata=self.metadata, timeout=timeout, wait_for_ready=True)

    async def __call__(
        self, name: str, request: Any = None, *, timeout: float = PATIENCE, **fields: Any
    ) -> Any:
        call = self.start(name, request, timeout=timeout, **fields)
        try:
            if METHODS[name].server_streaming:
                return await anext(aiter(call))
            return await call
        except grpc.aio.AioRpcError as error:
            raise Failed(error) from None
        finally:
            call.cancel()

    async def fails(self, name: str, request: Any = None, **fields: Any) -> Failed:
        """How a call fails."""
        try:
            answer = await self(name, request, **fields)
        except Failed as failed:
            return failed
        raise AssertionError(f"{name} did not fail: {answer}")

    async def one(self, *queues: str, **fields: Any) -> pb.HeldJob:
        """A job, fetched."""
        answer = await self("FetchAndHold", queues=queues or ["default"], **fields)
        (job,) = answer.jobs
        assert isinstance(job, pb.HeldJob)
        return job


class Worker:
    """One stream of `Work`, opened with its first message."""

    def __init__(self, client: Client, **start: Any) -> None:
        method = METHODS["Work"]
        self.call: Any = client.channel.stream_stream(
            f"/dray.v1.TaskQueue/{method.name}",
            request_serializer=_serialized,
            response_deserializer=pb.WorkReply.FromString,
        )(metadata=client.metadata, timeout=PATIENCE, wait_for_ready=True)
        given: dict[str, Any] = {"queues": ["default"], "credits": 10} | start
        self._start = pb.WorkStart(**given)
        self.news = pb.WorkReply()

    async def __aenter__(self) -> Worker:
        await self.say(start=self._start)
        await self.until(lambda news: news.HasField("started"))
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.call.cancel()

    async def say(self, message: object = None, **fields: Any) -> None:
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # why it has ended is read below
            await self.call.write(pb.WorkRequest(**fields) if message is None else message)

    async def until(self, enough: Callable[[pb.WorkReply], object]) -> pb.WorkReply:
        """What came and was not looked at yet, once it is enough."""
        while not enough(self.news):
            try:
                reply = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise Failed(error) from None
            if reply is grpc.aio.EOF:
                await self._ended()
            self.news.MergeFrom(reply)
        return self.news

    async def _next(self, field: str, count: int) -> list[Any]:
        found = getattr(await self.until(lambda news: len(getattr(news, field)) >= count), field)
        told = list(found)
        del found[:]
        return told

    async def _ended(self) -> None:
        if await self.call.code() is not grpc.StatusCode.OK:
            error: Any = grpc.aio.AioRpcError
            code, details = await self.call.code(), await self.call.details()
            raise Failed(error(code, (), await self.call.trailing_metadata(), details))
        raise EOFError("the stream has ended")

    async def jobs(self, count: int = 1) -> list[pb.HeldJob]:
        return await self._next("jobs", count)

    async def settled(self, count: int = 1) -> list[pb.WorkSettled]:
        return await self._next("settled", count)

    async def stops(self, count: int = 1) -> list[pb.WorkStop]:
        return await self._next("stops", count)

    async def ack(self, *jobs: pb.HeldJob, result_json: str = "") -> list[pb.WorkSettled]:
        await self.say(acks=[pb.WorkAck(id=job.id, run=job.run, result_json=result_json) for job in jobs])
        return await self.settled(len(jobs))

    async def fails(self) -> Failed:
        """How the stream fails."""
        try:
            await self.until(lambda news: False)
        except Failed as failed:
            return failed
        raise AssertionError("it did not fail")


def _serialized(message: Any) -> bytes:
    """A message; bytes are sent as they are, to try what the server makes of them."""
    return message if isinstance(message, bytes) else message.SerializeToString()


class Stage:
    """What a scene plays on."""

    def __init__(self, app: App, server: GrpcServer, channel: grpc.aio.Channel) -> None:
        self.app, self.server, self.channel = app, server, channel
        self.client = Client(channel)

    def with_key(self, key: str | None) -> Client:
        return Client(self.channel, key)


Scene = Callable[[Stage], Awaitable[None]]


def play(app: App, scene: Scene, *, options: Iterable[tuple[str, int]] = (), **serving: Any) -> None:
    """Start a server for an app, play the scene, stop the server."""
    asyncio.run(_play(app, scene, options, serving))


async def _play(app: App, scene: Scene, options: Iterable[tuple[str, int]], serving: dict[str, Any]) -> None:
    server = await serve_grpc(app, "127.0.0.1:0", **serving)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=list(options)) as channel:
            await scene(Stage(app, server, channel))
    finally:
        await server.stop(0.5)
        await (await app.client.loop_link()).broker.close()


async def until(condition: Callable[[], Awaitable[object]], otherwise: str, seconds: float = 30) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not await condition():
        assert loop.time() < end, otherwise
        await asyncio.sleep(0.02)
