"""SQLite keeps the promises of the reference; every broker object is a connection of its own to one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dray.broker import Broker, connect
from dray.policy import Retention
from dray.testing.conformance import *  # noqa: F403
from dray.testing.conformance import Opener


@pytest.fixture(params=["loop", "blocking"])
def open_broker(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    blocking = request.param == "blocking"
    url = f"sqlite:///{tmp_path / 'dray.db'}"

    async def open(namespace: str, retention: Retention | None) -> Broker:
        return await connect(url, namespace, retention=retention, blocking=blocking)

    return Opener(open, blocking=blocking)
