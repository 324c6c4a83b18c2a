"""The promises that lean most on the server, on Redis and on a cluster of three primaries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis_leaks import leaks
from redis_server import Server, need, running, three_primaries

from dray.broker import Broker, connect
from dray.policy import Retention
from dray.testing.conformance import (
    Opener,
    TestCrashes,
    TestDocuments,
    TestDuplicates,
    TestFairness,
    TestFeed,
    TestFencing,
    TestMaxRunning,
    TestNamespaces,
    TestOrder,
    TestOrphans,
    TestPuttingWithADocument,
    TestRates,
    TestReading,
    TestReplacing,
    TestRuns,
    TestSessions,
    TestSpeculation,
    TestUpkeep,
    TestWaitingForJobs,
    TestWaitingForWork,
    TestWatching,
    TestWordForASession,
)

__all__ = [
    "TestCrashes",
    "TestDocuments",
    "TestDuplicates",
    "TestFairness",
    "TestFeed",
    "TestFencing",
    "TestMaxRunning",
    "TestNamespaces",
    "TestOrder",
    "TestOrphans",
    "TestPuttingWithADocument",
    "TestRates",
    "TestReading",
    "TestReplacing",
    "TestRuns",
    "TestSessions",
    "TestSpeculation",
    "TestUpkeep",
    "TestWaitingForJobs",
    "TestWaitingForWork",
    "TestWatching",
    "TestWordForASession",
]


class Place:
    """Servers, and the URL that leads to them."""

    def __init__(self, servers: list[Server], url: str, blocking: bool) -> None:
        self.servers, self.url, self.blocking = servers, url, blocking

    def empty(self) -> None:
        for server in self.servers:
            server.command("FLUSHALL")

    def leaks(self) -> list[str]:
        return [leak for server in self.servers for leak in leaks(server)]


def redis(stack: ExitStack, folder: Path) -> Place:
    server = stack.enter_context(running("redis", folder))
    return Place([server], f"redis://127.0.0.1:{server.port}", False)


def redis_cluster(stack: ExitStack, folder: Path) -> Place:
    server = stack.enter_context(running("redis", folder, cluster=True))
    return Place([server], f"redis+cluster://127.0.0.1:{server.port}", True)


def primaries(stack: ExitStack, folder: Path) -> Place:
    servers = stack.enter_context(three_primaries("valkey", folder))
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return Place(servers, f"redis+cluster://{hosts}", False)


@pytest.fixture(scope="module", params=[redis, redis_cluster, primaries], ids=lambda made: made.__name__)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    make: Callable[[ExitStack, Path], Place] = request.param
    if make is not primaries:
        need("redis")
    with ExitStack() as stack:
        yield make(stack, tmp_path_factory.mktemp("server"))


@pytest.fixture
def open_broker(place: Place) -> Iterator[Opener]:
    place.empty()

    async def open(namespace: str, retention: Retention | None) -> Broker:
        return await connect(place.url, namespace, retention=retention, blocking=place.blocking)

    yield Opener(open, blocking=place.blocking)
    assert place.leaks() == []
