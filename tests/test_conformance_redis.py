"""Valkey and Redis keep the promises of the reference, alone and as a cluster; nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from redis_leaks import leaks
from redis_server import Server, need, running

from dray.broker import Broker, connect
from dray.policy import Retention
from dray.testing.conformance import *  # noqa: F403
from dray.testing.conformance import Opener

SETUPS = [
    pytest.param((False, False), id="valkey-loop"),
    pytest.param((False, True), id="valkey-blocking"),
    pytest.param((True, False), id="valkey cluster-loop"),
    pytest.param((True, True), id="valkey cluster-blocking", marks=pytest.mark.slow),
]
"""Each as (cluster, blocking). A blocking client on a cluster is also in `test_conformance_redis_more`."""


class Setup(NamedTuple):
    server: Server
    blocking: bool


@pytest.fixture(scope="module", params=SETUPS)
def setup(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    cluster, blocking = request.param
    need("valkey")
    with running("valkey", tmp_path_factory.mktemp("server"), cluster=cluster) as server:
        yield Setup(server, blocking)


@pytest.fixture
def open_broker(setup: Setup) -> Iterator[Opener]:
    server, blocking = setup
    server.command("FLUSHALL")

    async def open(namespace: str, retention: Retention | None) -> Broker:
        url = f"redis://127.0.0.1:{server.port}"
        return await connect(url, namespace, retention=retention, blocking=blocking)

    yield Opener(open, blocking=blocking)
    assert leaks(server) == []
