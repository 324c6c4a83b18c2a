"""A real `dray server` on a free port, for a project in a folder of its own, and clients of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from redis_server import need, running
from shell import _finish, _take

from dray.app import App
from dray.job import OutcomeKind

SHOP = """
from dataclasses import dataclass
from datetime import datetime

from dray import App

app = App("shop")


@dataclass
class Parcel:
    weight: float
    to: str


@app.task
def add(a: int, b: int = 0) -> int:
    return a + b


@app.task(queue="email", retries=0)
def send(to: str, when: datetime | None = None, body: bytes = b"") -> str:
    return to


@app.task
def pack(parcel: Parcel) -> Parcel:
    return parcel
"""

GRPC = ("--grpc", "127.0.0.1:0")
"""Not what these tests are about, and its usual port may be another test's."""
_count = 0


class Served:
    """The server, and the app behind it as seen from here."""

    def __init__(self, folder: Path, broker: str, *options: str, **settings: str) -> None:
        global _count
        _count += 1
        module = f"served_{os.getpid()}_{_count}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{module}.py").write_text(SHOP)
        self.folder, self.module, self.options = folder, module, options
        self.environ = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
        self.environ |= {"DRAY_BROKER_URL": broker, "DRAY_APP": f"{module}:app"}
        self.environ |= {f"DRAY_{name.upper()}": text for name, text in settings.items()}
        self.broker = broker
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        self.said: list[str] = []

    def start(self, http: str = "127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dray", "server", "--http", http, *GRPC, *self.options],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        told = threading.Event()
        threading.Thread(target=self._listen, args=(self.process, told), daemon=True).start()
        assert told.wait(60), self.said
        assert self.url, "".join(self.said)

    def _listen(self, process: subprocess.Popen[str], told: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.said.append(line)
                if line.startswith("dray server: http"):
                    self.url = line.split()[2].removesuffix("/api,")
                    told.set()
        told.set()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def client(self, key: str | None = None, headers: dict[str, str] | None = None) -> httpx.Client:
        sent = ({} if key is None else {"Authorization": f"Bearer {key}"}) | (headers or {})
        return httpx.Client(base_url=self.url, headers=sent, timeout=60)

    @contextlib.contextmanager
    def app(self) -> Iterator[App]:
        """The same app, in this process."""
        app = App("shop", broker=self.broker)
        try:
            yield app
        finally:
            app.close()

    def finish(self, id: str, kind: OutcomeKind = OutcomeKind.SUCCEEDED, **outcome: Any) -> None:
        """Run this one job as a worker would, and settle it."""
        with self.app() as app:
            app.client.block(_finish, app, id, kind, outcome)

    def take(self, id: str) -> None:
        with self.app() as app:
            app.client.block(_take, id)

    def key(self, *roles: str, **limits: Any) -> str:
        with self.app() as app:
            return app.keys.create("-".join(roles), roles, **limits).secret


def without_httptools(folder: Path) -> dict[str, str]:
    """An environment in which httptools cannot be imported, as where only h11 is installed."""
    folder.mkdir(exist_ok=True)
    (folder / "httptools.py").write_text('raise ImportError("not installed")\n')
    return {"PYTHONPATH": str(folder)}


@contextlib.contextmanager
def serving(
    kind: str, folder: Path, *options: str, environ: dict[str, str] | None = None, **settings: str
) -> Iterator[Served]:
    """A server of a broker of this kind: `sqlite` or `valkey`."""
    with contextlib.ExitStack() as stack:
        if kind == "sqlite":
            broker = f"sqlite:///{folder / 'jobs.db'}"
        else:
            need(kind)
            broker = f"redis://127.0.0.1:{stack.enter_context(running(kind, folder / 'redis')).port}/0"
        served = Served(folder, broker, *options, **settings)
        served.environ |= environ or {}
        served.start()
        try:
            yield served
        finally:
            served.stop()


def events(lines: Iterator[str]) -> Iterator[tuple[str, str, Any]]:
    """Server-sent events: their name, id and data."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line and not line.startswith(":"):
            found[name] = value
        elif "event" in found:
            yield found["event"], found.get("id", ""), json.loads(found["data"])
            found = {}


def wait_until(condition: Callable[[], object], otherwise: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.02)
