"""The pytest plugin: fixtures `dray_app`, `dray_testing` and `dray_worker`. See docs/testing.md.

pytest loads it wherever dray is installed, so it imports nothing of dray before a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dray.app import App
    from dray.testing.harness import Harness
    from dray.testing.live_worker import LiveWorker

_HARNESS = pytest.StashKey["Harness"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("dray_app", "the app that the fixture dray_app tests, as module:attribute", default="")


@pytest.fixture
def dray_app(request: pytest.FixtureRequest) -> Iterator[App]:
    """The app named by the ini option `dray_app`, or a new one without tasks, in testing mode.

    Override it in a conftest.py to test another app; `dray_testing` and `dray_worker` follow.
    """
    app = _named_app(request.config) or import_module("dray.app").App("test", broker="memory://")
    with app.testing() as harness:
        request.node.stash[_HARNESS] = harness
        yield app


@pytest.fixture
def dray_testing(request: pytest.FixtureRequest, dray_app: App) -> Iterator[Harness]:
    """The harness of `dray_app`: `drain()`, `advance()`, `enqueued()`, `dead()` …"""
    harness = request.node.stash.get(_HARNESS, None)
    if harness is not None and harness.app is dray_app:
        yield harness
        return
    with dray_app.testing() as harness:  # `dray_app` was overridden
        yield harness


@pytest.fixture
def dray_worker(dray_testing: Harness) -> Iterator[LiveWorker]:
    """A worker that runs the jobs of `dray_app` by itself, on the real clock, until the test is over.

    The test fails if the worker cannot be stopped then.
    """
    with dray_testing.worker() as worker:
        yield worker


def _named_app(config: pytest.Config) -> App | None:
    path = str(config.getini("dray_app"))
    if not path:
        return None
    loading, errors = import_module("dray.loading"), import_module("dray.errors")
    try:
        app: App = loading.load_app(path, config.rootpath)
    except errors.AppNotFound as error:
        pytest.fail(f"the ini option dray_app: {error}", pytrace=False)
    return app
