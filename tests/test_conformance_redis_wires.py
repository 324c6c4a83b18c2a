"""The same promises over TLS and over a socket in the file system: calls, large replies, and being woken."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_leaks import leaks
from redis_server import Server, need, running
from redis_tls import certificates

from dray.broker import Broker, connect
from dray.errors import BrokerError
from dray.policy import Retention
from dray.testing.conformance import Bench, Opener, TestRuns, TestWaitingForWork, TestWatching

__all__ = ["TestRuns", "TestWaitingForWork", "TestWatching"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module", params=["tls", "unix"])
def place(request: pytest.FixtureRequest, folder: Path) -> Iterator[tuple[Server, str]]:
    if request.param == "unix":
        with running("valkey", folder) as server:
            yield server, f"redis+unix://{server.socket}?db=0"
        return
    need("redis")  # valkey-server of the wheel has no TLS
    made = certificates(folder)
    with running("redis", folder, *made.options) as server:
        yield server, f"rediss://localhost:{made.port}?ca={made.authority}"


@pytest.fixture(params=["loop", "blocking"])
def open_broker(request: pytest.FixtureRequest, place: tuple[Server, str]) -> Iterator[Opener]:
    server, url = place
    blocking = request.param == "blocking"
    server.command("FLUSHALL")

    async def open(namespace: str, retention: Retention | None) -> Broker:
        return await connect(url, namespace, retention=retention, blocking=blocking)

    yield Opener(open, blocking=blocking)
    assert leaks(server) == []


def test_a_certificate_of_a_stranger_is_refused(place: tuple[Server, str], open_broker: Opener) -> None:
    _, url = place
    if not url.startswith("rediss"):
        return

    async def test() -> None:
        with pytest.raises(BrokerError, match="not trusted"):
            await connect(url.partition("?")[0], blocking=open_broker.blocking)

    Bench(open_broker).run(test)
