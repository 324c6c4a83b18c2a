"""A primary, two replicas and three sentinels that watch them, as real processes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import hiredis
from redis_server import BINARIES, Server, free_port, wait_until

NAME = "main"


class Sentinel:
    """One sentinel process."""

    def __init__(self, binary: str, folder: Path, primary: int, *more: str) -> None:
        folder.mkdir(parents=True)
        self.binary, self.file, self.port = binary, folder / "sentinel.conf", free_port()
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {folder}",
            f"sentinel monitor {NAME} 127.0.0.1 {primary} 2",
            f"sentinel down-after-milliseconds {NAME} 1000",
            f"sentinel failover-timeout {NAME} 6000",
            *more,
        ]
        self.file.write_text("\n".join(lines) + "\n")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with (self.file.parent / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, str(self.file), "--sentinel"], stdout=log, stderr=log
            )

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def command(self, *args: str, password: str | None = None) -> object:
        reader = hiredis.Reader()
        with socket.create_connection(("127.0.0.1", self.port), 20) as link:
            if password is not None:
                link.sendall(hiredis.pack_command(("AUTH", password)))  # type: ignore[arg-type]
                link.recv(1000)
            link.sendall(hiredis.pack_command(args))  # type: ignore[arg-type]
            while (reply := reader.gets()) is False:
                reader.feed(link.recv(1 << 16))
        return reply


class Watched:
    """The servers and their sentinels."""

    def __init__(self, servers: list[Server], sentinels: list[Sentinel], password: str | None) -> None:
        self.servers, self.sentinels, self.password = servers, sentinels, password

    @property
    def url(self) -> str:
        login = f":{self.password}@" if self.password else ""
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in self.sentinels)
        option = f"?sentinel_password={self.password}" if self.password else ""
        return f"redis+sentinel://{login}{hosts}/{NAME}{option}"

    def primary(self) -> Server:
        """As the first sentinel knows it."""
        reply = self.sentinels[0].command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME, password=self.password)
        assert isinstance(reply, list), reply
        return next(one for one in self.servers if one.port == int(reply[1]))

    def fail_over(self, how: str) -> tuple[Server, float]:
        """Lose the primary; returns it, and when another had taken its place."""
        victim = self.primary()
        _catch_up(victim, [one for one in self.servers if one is not victim], self.password)
        if how == "manual":
            self.sentinels[0].command("SENTINEL", "FAILOVER", NAME, password=self.password)
        elif how == "crash":
            victim.stop()
        else:
            victim.freeze()
        wait_until(lambda: self._is_replaced(victim), "no replica is promoted", 60)
        return victim, time.monotonic()

    def _is_replaced(self, victim: Server) -> bool:
        new = self.primary()
        return new is not victim and new.command("ROLE", password=self.password)[0] == b"master"


def _catch_up(primary: Server, replicas: list[Server], password: str | None) -> None:
    """Redis copies without waiting: what it acknowledged must be there before it goes."""
    primary.command("CLIENT", "PAUSE", "3000", "WRITE", password=password)
    wait_until(
        lambda: len({_offset(one, password) for one in (primary, *replicas)}) == 1, "replicas do not catch up"
    )


def _offset(server: Server, password: str | None) -> int:
    lines = server.command("INFO", "replication", password=password).split(b"\r\n")
    name = b"slave_repl_offset:" if b"role:slave" in lines else b"master_repl_offset:"
    return int(next(line for line in lines if line.startswith(name)).partition(b":")[2])


@contextlib.contextmanager
def watched(folder: Path, password: str | None = None) -> Iterator[Watched]:
    binary = BINARIES["valkey"]()
    assert binary is not None
    fixed = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]
    if password is not None:
        fixed += ["--requirepass", password, "--masterauth", password]
    more = [f"requirepass {password}", f"sentinel auth-pass {NAME} {password}"] if password else []
    with contextlib.ExitStack() as stack:
        servers = [Server(binary, folder / "server0", *fixed)]
        source = ("--replicaof", f"127.0.0.1 {servers[0].port}")
        servers += [Server(binary, folder / f"server{n}", *fixed, *source) for n in (1, 2)]
        for server in servers:
            server.start()
            stack.callback(server.stop)
        sentinels = [Sentinel(binary, folder / f"sentinel{n}", servers[0].port, *more) for n in range(3)]
        for sentinel in sentinels:
            sentinel.start()
            stack.callback(sentinel.stop)
        found = Watched(servers, sentinels, password)
        for sentinel in sentinels:
            wait_until(lambda one=sentinel: _knows_all(one, password), "a sentinel does not find the others")  # type: ignore[misc]
        yield found


def _knows_all(sentinel: Sentinel, password: str | None) -> bool:
    with contextlib.suppress(OSError):
        reply = sentinel.command("SENTINEL", "MASTER", NAME, password=password)
        if isinstance(reply, list):
            facts = dict(zip(reply[::2], reply[1::2], strict=True))
            return (facts[b"num-other-sentinels"], facts[b"num-slaves"]) == (b"2", b"2")
    return False
