"""What tests of the embedded broker's file, and of the command line, start from."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from postgres_server import PostgresServer, running_postgres
from shell import Shell, make_shell
from sqlite_file import LAYOUT, opened

from dray.broker.sqlite.database import Database
from dray.settings.model import cores

hypothesis.settings.register_profile("any machine", deadline=None)  # a busy one is no failure
hypothesis.settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts its background jobs so, and the commands that tests interrupt would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = tmp_path / "layout"
    folder.mkdir()
    (folder / "0001_jobs.sql").write_text(LAYOUT)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "jobs.db"


@pytest.fixture
def db(path: Path, layout: Path) -> Iterator[Database]:
    database = opened(path, layout)
    yield database
    database.close()


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A project with an app, and the command `dray` in its folder."""
    return make_shell(tmp_path / "shop", monkeypatch, capsys)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server, started for the first test that needs one."""
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgres"])
def history_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database for a history, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/history.db"
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """For `-n auto`. Half of the tests wait for processes and servers: one runner more keeps cores busy."""
    return min(4, cores() + 1)
