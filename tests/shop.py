"""What tests of the API start from: a plugin, loaded by the modules that name it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from by_hand import Hand, Say

from dray import App


@pytest.fixture(params=["blocking", "awaited"])
def say(request: pytest.FixtureRequest) -> Iterator[Say]:
    if request.param == "blocking":
        yield Say(None)
        return
    with asyncio.Runner() as runner:
        yield Say(runner)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def app(url: str) -> Iterator[App]:
    app = App("shop", broker=url)
    yield app
    app.close()


@pytest.fixture
def memory_app() -> Iterator[App]:
    app = App("shop", broker="memory://")
    yield app
    app.close()


@pytest.fixture
def hand(app: App) -> Iterator[Hand]:
    with Hand(app) as hand:
        yield hand
