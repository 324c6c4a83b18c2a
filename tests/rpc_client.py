"""A gRPC server of an app and a client of it, in one event loop, over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
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
        self._metadata = metadata if key is None else (("authorization", f"Bearer {key}"), *metadata)

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
        return calling(asked, metadata=self._metadata, timeout=timeout, wait_for_ready=True)

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
