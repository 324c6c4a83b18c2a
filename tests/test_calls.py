"""How many Python calls one request costs the server, one job its executor: no busy machine changes that."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import grpc
import pytest
import redis_server
from test_serve_connections import opened
from workshop import at_work, until

from dray import App
from dray.serve.grpc import serve_grpc
from dray.serve.http import HttpService
from dray.serve.rpc import dray_pb2 as pb
from dray.worker.process import new_event_loop

HTTP_MAX = 180
"""Python calls of one submit on Redis, the ASGI server's included; every resumption of a coroutine is one."""
GRPC_MAX = 190
"""Of one Enqueue; about a fifth is grpcio's own."""
WORKER_MAX = 340
"""Of one job through an idle executor on Redis: woken, take, run, settle, asleep again. 296 on a
quiet machine; a busy one has been seen to split a turn in every round, which costs 20 to 25 more."""
BODY = json.dumps({"task": "add", "args": [1], "queue": "default"}).encode()


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


ROUNDS = 30


class Asker:
    """Makes one request after the other in a thread of its own, each when it is allowed to."""

    def __init__(self, ask: Callable[[Callable[[], None], Callable[[], None]], None]) -> None:
        self._ask, self._loop = ask, asyncio.get_running_loop()
        self._allowed, self._answered = threading.Semaphore(0), asyncio.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._ask(self._wait, self._tell)
        except BaseException as error:
            self._error = error
            self._tell()

    def _wait(self) -> None:
        assert self._allowed.acquire(timeout=60)

    def _tell(self) -> None:
        self._loop.call_soon_threadsafe(self._answered.set)

    async def fewest(self) -> int:
        """The calls of the cheapest of the requests."""
        counts = []
        self._thread.start()
        for _ in range(ROUNDS):
            self._answered.clear()
            counter = Counter()
            self._allowed.release()
            sys.setprofile(counter)
            try:
                await self._answered.wait()
            finally:
                sys.setprofile(None)
            if self._error is not None:
                raise self._error
            counts.append(counter.calls)
        await asyncio.to_thread(self._thread.join)
        return min(counts)


def calls_of_http(broker: str) -> int:
    async def scene() -> int:
        app = shop(broker)
        service = HttpService(app, access="keyless", hosts=frozenset({"127.0.0.1"}))

        async with opened(service) as (_, port):

            def ask(wait: Callable[[], None], tell: Callable[[], None]) -> None:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
                for _ in range(ROUNDS):
                    wait()
                    connection.request("POST", "/api/jobs", BODY, {"Content-Type": "application/json"})
                    reply = connection.getresponse()
                    assert reply.status == 201, reply.read()
                    reply.read()
                    tell()
                connection.close()

            try:
                return await Asker(ask).fewest()
            finally:
                await (await app.client.loop_link()).broker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(scene())


def calls_of_grpc(broker: str) -> int:
    async def scene() -> int:
        app = shop(broker)
        server = await serve_grpc(app, "127.0.0.1:0")

        def ask(wait: Callable[[], None], tell: Callable[[], None]) -> None:
            with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
                enqueue = channel.unary_unary(
                    "/dray.v1.TaskQueue/Enqueue",
                    request_serializer=pb.EnqueueRequest.SerializeToString,
                    response_deserializer=pb.EnqueueResponse.FromString,
                )
                for _ in range(ROUNDS):
                    wait()
                    enqueue(pb.EnqueueRequest(task="add", args_json="[1]", queue="default"), timeout=30)
                    tell()

        try:
            return await Asker(ask).fewest()
        finally:
            await server.stop(1)
            await (await app.client.loop_link()).broker.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(scene())


def calls_of_worker(broker: str) -> int:
    async def scene() -> int:
        app, client = App("shop", broker=broker), App("shop", broker=broker)

        @app.task
        async def add(a: int, b: int = 0) -> int:
            return a + b

        async with at_work(app) as executor:

            def ask(wait: Callable[[], None], tell: Callable[[], None]) -> None:
                for _ in range(ROUNDS):
                    wait()
                    assert client.enqueue("add", 1).get(30) == 1
                    time.sleep(0.05)  # it settles, and goes to sleep
                    tell()

            await until(lambda: executor._listener._wait is not None)
            try:
                return await Asker(ask).fewest()
            finally:
                client.close()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(scene())


def counted(what: str, broker: str) -> int:
    """In a process of its own: other tests leave threads and event loops behind."""
    command = [sys.executable, __file__, what, broker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_a_submit_over_http_costs_few_calls(broker: str) -> None:
    assert counted("http", broker) <= HTTP_MAX


def test_an_enqueue_over_grpc_costs_few_calls(broker: str) -> None:
    assert counted("grpc", broker) <= GRPC_MAX


def test_a_job_through_an_idle_executor_costs_few_calls(broker: str) -> None:
    assert counted("worker", broker) <= WORKER_MAX


if __name__ == "__main__":
    scenes = {"http": calls_of_http, "grpc": calls_of_grpc, "worker": calls_of_worker}
    print(scenes[sys.argv[1]](sys.argv[2]))
