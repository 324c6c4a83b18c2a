"""The reference broker keeps its own promises."""

from __future__ import annotations

import pytest

from dray.broker import Broker
from dray.broker.memory import MemoryBroker
from dray.policy import Retention
from dray.testing.conformance import *  # noqa: F403
from dray.testing.conformance import Opener


@pytest.fixture(params=["loop", "blocking"])
def open_broker(request: pytest.FixtureRequest) -> Opener:
    """Its store is the object itself: one for each namespace."""
    blocking = request.param == "blocking"
    opened: dict[str, Broker] = {}

    async def open(namespace: str, retention: Retention | None) -> Broker:
        if namespace not in opened:
            opened[namespace] = MemoryBroker(namespace, retention=retention, blocking=blocking)
        return opened[namespace]

    return Opener(open, blocking=blocking)
