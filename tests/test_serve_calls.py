"""How many Python calls one request costs the server: a figure that no busy machine changes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import grpc
import pytest
import redis_server
from test_serve_connections import opened

from dray import App
from dray.serve.grpc import serve_grpc
from dray.serve.http import HttpService
from dray.serve.rpc import dray_pb2 as pb
from dray.worker.process import new_event_loop

HTTP_MAX = 200
"""Python calls of one submit on Redis, the ASGI server's included; every resumption of a coroutine is one."""
GRPC_MAX = 220
"""Of one Enqueue; about a fifth is grpcio's own."""
BODY = json.dumps({"task": "add", "args": [1], "queue": "default"}).encode()
REQUEST = (
    b"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path_factory.mktemp("valkey")) as server:
        yield f"redis://127.0.0.1:{server.port}/0"


class Counter:
    """Counts the calls of the thread that it is made in."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        self.calls += event == "call"


def shop(broker: str) -> App:
    app = App("shop", broker=broker)

    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    return app


async def fewest(ask: threading.Thread, asked: threading.Semaphore, answered: asyncio.Event) -> int:
    """The calls of the cheapest of several requests, which another thread makes when it is allowed to."""
    counts = []
    ask.start()
    for _ in range(30):
        answered.clear()
        counter = Counter()
        asked.release()
        sys.setprofile(counter)
        try:
            await answered.wait()
        finally:
            sys.setprofile(None)
        counts.append(counter.calls)
    return min(counts)


def test_a_submit_over_http_costs_few_calls(broker: str) -> None:
    async def scene() -> int:
        app, asked, answered = shop(broker), threading.Semaphore(0), asyncio.Event()
        service = HttpService(app, access="keyless", hosts=frozenset({"127.0.0.1"}))
        loop = asyncio.get_running_loop()

        def ask(port: int) -> None:
            with socket.create_connection(("127.0.0.1", port), 30) as connection:
                for _ in range(30):
                    asked.acquire()
                    connection.sendall(REQUEST)
                    assert connection.recv(65536).startswith(b"HTTP/1.1 201")
                    loop.call_soon_threadsafe(answered.set)

        async with opened(service) as (_, port):
            thread = threading.Thread(target=ask, args=(port,))
            try:
                return await fewest(thread, asked, answered)
            finally:
                await asyncio.to_thread(thread.join)
                await (await app.client.loop_link()).broker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        calls = runner.run(scene())
    assert calls <= HTTP_MAX


def test_an_enqueue_over_grpc_costs_few_calls(broker: str) -> None:
    async def scene() -> int:
        app, asked, answered = shop(broker), threading.Semaphore(0), asyncio.Event()
        server = await serve_grpc(app, "127.0.0.1:0")
        loop = asyncio.get_running_loop()

        def ask() -> None:
            with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                enqueue = channel.unary_unary(
                    "/dray.v1.TaskQueue/Enqueue",
                    request_serializer=pb.EnqueueRequest.SerializeToString,
                    response_deserializer=pb.EnqueueResponse.FromString,
                )
                for _ in range(30):
                    asked.acquire()
                    enqueue(pb.EnqueueRequest(task="add", args_json="[1]", queue="default"), timeout=30)
                    loop.call_soon_threadsafe(answered.set)

        thread = threading.Thread(target=ask)
        try:
            return await fewest(thread, asked, answered)
        finally:
            await asyncio.to_thread(thread.join)
            await server.stop(1)
            await (await app.client.loop_link()).broker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        calls = runner.run(scene())
    assert calls <= GRPC_MAX
