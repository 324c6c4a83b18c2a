"""gRPC calls that are not sent to their end: they cost little, end soon, and keep nobody out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from half_sent import HalfSent
from rpc_client import Stage, play
from served import Served, serving

from dray import App
from dray.serve.errors import Refused
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import request_reader
from dray.serve.rpc.request_reader import RequestReader, address_of

ENQUEUE, CHECK = "/dray.v1.TaskQueue/Enqueue", "/grpc.health.v1.Health/Check"
SIZE = 8 * 1024 * 1024
CALLS = 60


def memory(served: Served) -> int:
    """MiB that the server holds."""
    assert served.process is not None
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


def port_of(served: Served) -> int:
    lines = [line for line in served.said if "grpc://" in line]
    end = time.monotonic() + 30
    while not lines and time.monotonic() < end:
        time.sleep(0.02)
        lines = [line for line in served.said if "grpc://" in line]
    return int(lines[0].split("grpc://")[1].split(",")[0].rpartition(":")[2])


def enqueue(port: int, key: str) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            ENQUEUE,
            request_serializer=pb.EnqueueRequest.SerializeToString,
            response_deserializer=pb.EnqueueResponse.FromString,
        )
        request = pb.EnqueueRequest(task="add", args_json="[1]")
        answer = call(
            request, metadata=(("authorization", f"Bearer {key}"),), timeout=60, wait_for_ready=True
        )
        assert isinstance(answer, pb.EnqueueResponse)
        return answer.id


def check(port: int) -> int:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        return int(stub.Check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True).status)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("sqlite", tmp_path_factory.mktemp("reading")) as served:
        yield served


@pytest.fixture(scope="module")
def key(served: Served) -> str:
    return served.key("admin")


# The bounds are far below what all the calls would hold (480 MiB), and far above what is measured.


def test_half_sent_calls_without_a_key_are_answered_at_once_and_hold_next_to_nothing(
    served: Served, key: str
) -> None:
    port = port_of(served)
    enqueue(port, key)
    time.sleep(1.5)  # the keys that the server knows are a second old at most
    before = memory(served)
    with HalfSent(port, CALLS, SIZE, ENQUEUE) as attack:
        for _ in range(30):
            attack.send(1.0)
            if len(attack.answered) == CALLS:
                break
        assert len(attack.answered) == CALLS
        assert attack.sent < CALLS * SIZE / 10
        assert memory(served) - before < 100
        assert enqueue(port, key)


@pytest.mark.parametrize("path", [ENQUEUE, CHECK], ids=["with a key", "of a service that needs none"])
def test_half_sent_calls_that_are_read_make_way_for_others_and_hold_a_bounded_amount(
    path: str, served: Served, key: str
) -> None:
    port = port_of(served)
    before = memory(served)
    with HalfSent(port, CALLS, SIZE, path, key if path == ENQUEUE else None) as attack:
        most = 0
        for _ in range(3):
            attack.send(1.0)
            most = max(most, memory(served) - before)
        assert attack.sent > SIZE  # some are read
        assert enqueue(port, key)
        assert check(port) == 1
        assert most < 300
        for _ in range(60):
            attack.send(1.0)
            if len(attack.answered) == CALLS:
                break
        assert len(attack.answered) == CALLS


# readers


async def never() -> AsyncIterator[str]:
    await asyncio.Event().wait()
    yield ""


async def once(text: str) -> AsyncIterator[str]:
    yield text


def test_a_request_that_does_not_come_is_refused_after_a_while() -> None:
    async def scene() -> None:
        with pytest.raises(Refused) as caught:
            await RequestReader(2, patience=0.05).read(never())
        assert caught.value.code == "request_too_slow"

    asyncio.run(scene())


def test_a_call_without_a_request_is_refused() -> None:
    async def nothing() -> AsyncIterator[str]:
        empty: tuple[str, ...] = ()
        for text in empty:
            yield text

    async def scene() -> None:
        with pytest.raises(Refused) as caught:
            await RequestReader().read(nothing())
        assert caught.value.code == "invalid_message"

    asyncio.run(scene())


def test_slow_clients_make_way_when_others_wait_and_not_before() -> None:
    async def scene() -> None:
        readers = RequestReader(2, patience=60, crowded=0.1)
        slow = [asyncio.create_task(readers.read(never())) for _ in range(2)]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in slow)
        assert await readers.read(once("a")) == "a"
        results = await asyncio.gather(*slow, return_exceptions=True)
        assert all(isinstance(result, Refused) for result in results)
        assert await readers.read(once("b")) == "b"

    asyncio.run(scene())


def test_a_turn_that_does_not_come_is_refused_and_gives_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_reader, "QUEUE_SECONDS", 0.05)

    async def scene() -> None:
        readers = RequestReader(1, patience=60, crowded=60)
        slow = asyncio.create_task(readers.read(never()))
        await asyncio.sleep(0)
        with pytest.raises(Refused) as caught:
            await readers.read(once("a"))
        assert caught.value.status == 503
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)
        assert await readers.read(once("b")) == "b"

    asyncio.run(scene())


# services without keys


def test_health_and_reflection_answer_as_before(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")

    async def scene(stage: Stage) -> None:
        health: Any = health_pb2_grpc.HealthStub(stage.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert (await anext(aiter(watch))).status in (1, 2)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="nobody"), timeout=30)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch.cancel()
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        make: Any = reflection_pb2_grpc.ServerReflectionStub
        stub = make(stage.channel)
        found = [answer async for answer in stub.ServerReflectionInfo(iter([ask, ask]), timeout=30)]
        names = {service.name for service in found[1].list_services_response.service}
        assert len(found) == 2
        assert "dray.v1.TaskQueue" in names

    play(app, scene)
    app.close()


def test_one_address_holds_a_share_of_the_calls_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_reader, "PUBLIC_SHARE", 3)
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")

    async def scene(stage: Stage) -> None:
        health: Any = health_pb2_grpc.HealthStub(stage.channel)
        watches = [health.Watch(health_pb2.HealthCheckRequest(), timeout=30) for _ in range(3)]
        for watch in watches:
            await anext(aiter(watch))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await stage.client("ListQueues")  # those with a key, or where none is needed, have room of their own
        for watch in watches:
            watch.cancel()

        async def answers() -> bool:
            try:
                await health.Check(health_pb2.HealthCheckRequest(), timeout=30)
            except grpc.aio.AioRpcError:
                return False
            return True

        async with asyncio.timeout(30):
            while not await answers():
                await asyncio.sleep(0.02)

    play(app, scene)
    app.close()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:[::1]:5000", "::1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("unix:", "unix:"),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address
