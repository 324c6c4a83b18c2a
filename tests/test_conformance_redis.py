"""Valkey and Redis keep the promises of the reference, alone and as a cluster; nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_leaks import leaks
from redis_server import Server, need, running

from dray.broker import Broker, connect
from dray.policy import Retention
from dray.testing.conformance import *  # noqa: F403
from dray.testing.conformance import Opener

FULL = [("valkey", False), ("valkey", True)]


@pytest.fixture(scope="module", params=FULL, ids=["valkey", "valkey cluster"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    kind, cluster = request.param
    need(kind)
    with running(kind, tmp_path_factory.mktemp("server"), cluster=cluster) as server:
        yield server


@pytest.fixture(params=["loop", "blocking"])
def open_broker(request: pytest.FixtureRequest, server: Server) -> Iterator[Opener]:
    blocking = request.param == "blocking"
    server.command("FLUSHALL")

    async def open(namespace: str, retention: Retention | None) -> Broker:
        url = f"redis://127.0.0.1:{server.port}"
        return await connect(url, namespace, retention=retention, blocking=blocking)

    yield Opener(open, blocking=blocking)
    assert leaks(server) == []
