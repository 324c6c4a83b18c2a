"""Connections of clients that want nothing: they end, and never keep others out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from redis_tls import certificates
from served import serving, wait_until
from uvicorn.server import ServerState

from dray.serve import http_listener
from dray.serve.connections import LOCAL, ConnectionLimit, allowed_connections, origin
from dray.serve.http_listener import HttpListener
from dray.serve.http_protocol import PROTOCOL, H11Protocol, HttpProtocol

HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Client:
    """A connection without a network."""

    def __init__(self, origin: str, *, busy: bool = False) -> None:
        self.origin, self.busy, self.over = origin, busy, False

    def end(self) -> None:
        self.over = True


# the limit


def test_when_all_places_are_taken_the_oldest_idle_connection_of_who_has_most_gives_way() -> None:
    limit: ConnectionLimit[Client] = ConnectionLimit(6)
    many = [Client("a", busy=number == 0) for number in range(3)]
    others = [Client(name) for name in "bcd"]
    assert all(limit.add(one) for one in (*others, *many))
    newcomer = Client("e")
    assert limit.add(newcomer)
    assert [one.over for one in many] == [False, True, False]
    assert not any(one.over for one in others)
    assert limit.taken == 6


def test_one_address_holds_half_of_the_places_and_then_replaces_its_own() -> None:
    limit: ConnectionLimit[Client] = ConnectionLimit(8)
    mine = [Client("a") for _ in range(5)]
    assert all(limit.add(one) for one in mine)
    assert [one.over for one in mine] == [True, False, False, False, False]
    assert limit.taken == 4


def test_an_address_whose_connections_are_all_at_work_gets_no_more_than_its_share() -> None:
    limit: ConnectionLimit[Client] = ConnectionLimit(8)
    assert all(limit.add(Client("a", busy=True)) for _ in range(4))
    assert not limit.add(Client("a"))
    assert limit.add(Client("b"))


def test_a_proxy_on_this_machine_may_use_every_place() -> None:
    limit: ConnectionLimit[Client] = ConnectionLimit(8)
    assert all(limit.add(Client(LOCAL, busy=True)) for _ in range(8))
    assert not limit.add(Client(LOCAL))


def test_a_connection_that_has_left_leaves_once() -> None:
    limit: ConnectionLimit[Client] = ConnectionLimit(2)
    one = Client("a")
    limit.add(one)
    limit.remove(one)
    limit.remove(one)
    assert (limit.taken, limit.all()) == (0, [])


@pytest.mark.parametrize(
    ("address", "counts_as"),
    [
        ("127.0.0.1", LOCAL),
        ("127.9.9.9", LOCAL),
        ("::1", LOCAL),
        ("::ffff:127.0.0.1", LOCAL),
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_who_counts_as_one_client(address: str, counts_as: str) -> None:
    assert origin(address) == counts_as


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 65_536, resource.RLIM_INFINITY])
def test_there_are_fewer_places_than_descriptors(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    http, grpc = allowed_connections()
    assert http >= grpc >= 1
    assert limit == resource.RLIM_INFINITY or http + grpc <= limit - limit // 10


# listening

Handler = Callable[[Any, Any, Any], Awaitable[None]]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@contextlib.asynccontextmanager
async def opened(
    handler: Handler = answer,
    most: int = 10,
    tls: ssl.SSLContext | None = None,
    protocol: type[HttpProtocol] = PROTOCOL,
) -> AsyncIterator[tuple[HttpListener, int]]:
    config = uvicorn.Config(
        handler, http=protocol, log_config=None, lifespan="off", access_log=False, proxy_headers=False
    )
    config.load()
    state = ServerState()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        http = HttpListener(listening, tls, lambda: protocol(config, state, {}), most)
        try:
            yield http, listening.getsockname()[1]
        finally:
            http.close()
            for connection in http.connections.all():
                connection.end()
            await until(lambda: not state.connections)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def ask(port: int, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    return reader, writer


async def reply(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(30):
        return await reader.readuntil(b"ok")


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait for the end of the connection."""
    async with asyncio.timeout(30):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass
    return True


BOTH = pytest.mark.parametrize("protocol", [PROTOCOL, H11Protocol])
"""With httptools, and where only h11 is installed."""


def test_requests_are_read_with_httptools() -> None:
    assert PROTOCOL is not H11Protocol


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"HEADER_SECONDS": 0.5, "STALL_SECONDS": 0.5, "CHECK_EVERY": 0.05}.items():
        monkeypatch.setattr(http_listener, name, seconds)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("begin", [b"", HALF, WHOLE + HALF], ids=["nothing", "half", "the second request"])
@BOTH
def test_headers_that_do_not_come_end_the_connection_also_if_bytes_trickle_in(
    begin: bytes, protocol: type[HttpProtocol]
) -> None:
    async def scene() -> None:
        async with opened(protocol=protocol) as (http, port):
            reader, writer = await ask(port, begin)

            async def trickle() -> None:
                with contextlib.suppress(ConnectionError):
                    while begin:
                        writer.write(b"x")
                        await writer.drain()
                        await asyncio.sleep(0.02)

            trickling = asyncio.create_task(trickle())
            assert await is_cut(reader)
            await until(lambda: http.connections.taken == 0)
            trickling.cancel()
            writer.close()

    asyncio.run(scene())


@pytest.mark.usefixtures("hasty")
@BOTH
def test_a_request_in_progress_and_a_connection_between_requests_are_left_alone(
    protocol: type[HttpProtocol],
) -> None:
    release = asyncio.Event()

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await answer(scope, receive, send)

    async def scene() -> None:
        async with opened(slowly, protocol=protocol) as (http, port):
            reader, writer = await ask(port, WHOLE)
            await until(lambda: any(one.busy for one in http.connections.all()))
            await asyncio.sleep(1.5)  # three times what a client may take for its headers
            release.set()
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(1.5)
            writer.write(WHOLE)
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(scene())


@pytest.mark.usefixtures("hasty")
@BOTH
def test_a_client_that_does_not_read_its_reply_is_cut_off(protocol: type[HttpProtocol]) -> None:
    async def much(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000})

    async def scene() -> None:
        async with opened(much, protocol=protocol) as (http, port):
            with socket.create_connection(("127.0.0.1", port)) as silent:
                silent.sendall(WHOLE)
                await until(lambda: http.connections.taken == 1)
                await until(lambda: http.connections.taken == 0)

    asyncio.run(scene())


@BOTH
def test_half_sent_requests_do_not_keep_others_out_and_requests_at_work_do(
    protocol: type[HttpProtocol],
) -> None:
    release = asyncio.Event()

    async def slowly(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await release.wait()
        await answer(scope, receive, send)

    async def scene() -> None:
        async with opened(slowly, most=4, protocol=protocol) as (http, port):
            halves = [await ask(port, HALF) for _ in range(12)]
            await until(lambda: http.connections.taken == 4)
            reader, writer = await ask(port, WHOLE)
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
            writer.close()
            slow = [await ask(port, WHOLE.replace(b"/ ", b"/slow ")) for _ in range(4)]
            await until(lambda: sum(one.busy for one in http.connections.all()) == 4)
            reader, refused = await ask(port, WHOLE)
            assert (await reader.read(1000)).startswith(b"HTTP/1.1 503")
            release.set()
            for reader, _ in slow:
                assert await reply(reader)
            for _, writer in (*halves, *slow, (reader, refused)):
                writer.close()

    asyncio.run(scene())


def test_handshakes_that_are_not_finished_do_not_keep_others_out(tmp_path: Path) -> None:
    authority = certificates(tmp_path).authority
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")

    async def scene() -> None:
        async with opened(most=2, tls=context) as (http, port):
            silent = [await ask(port, b"\x16\x03") for _ in range(6)]
            await until(lambda: http.connections.taken == 2)
            client = ssl.create_default_context(cafile=authority)
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.write(WHOLE)
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
            for _, one in (*silent, (reader, writer)):
                one.close()

    asyncio.run(scene())


def test_a_system_without_descriptors_costs_one_line_in_the_log_and_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http_listener, "LOG_EVERY", 0.3)
    monkeypatch.setattr(http_listener, "PAUSE", 0.02)

    class Listening(socket.socket):
        failures = 0

        def accept(self) -> Any:
            if self.failures < 8:
                self.failures += 1
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return super().accept()

    async def scene() -> None:
        with Listening() as listening:
            listening.bind(("127.0.0.1", 0))
            listening.listen()
            config = uvicorn.Config(answer, http=PROTOCOL, log_config=None, lifespan="off")
            config.load()
            state = ServerState()
            http = HttpListener(listening, None, lambda: PROTOCOL(config, state, {}), 10)
            reader, writer = await ask(listening.getsockname()[1], WHOLE)
            assert (await reply(reader)).startswith(b"HTTP/1.1 200")
            writer.close()
            await until(lambda: caplog.records and not state.connections)
            http.close()

    with caplog.at_level(logging.WARNING, "dray.serve"):
        asyncio.run(scene())
    (line,) = [record.getMessage() for record in caplog.records]
    assert "accepting failed (Too many open files): 8" in line


# the whole server


@contextlib.contextmanager
def descriptors(most: int) -> Iterator[None]:
    """For what is started here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_half_sent_requests_than_descriptors_leave_the_server_alive_and_its_log_short(
    tmp_path: Path,
) -> None:
    with contextlib.ExitStack() as stack:
        with descriptors(128):
            served = stack.enter_context(serving("sqlite", tmp_path))
        port = int(served.url.rpartition(":")[2])
        slow = []
        for _ in range(200):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
            one.sendall(HALF)
            slow.append(one)
        for _ in range(5):
            with served.client() as http:
                assert http.get("/healthz").status_code == 200
        with served.client() as http:
            assert http.post("/api/jobs", json={"task": "add", "args": [1]}).status_code == 201
        for one in slow:
            with contextlib.suppress(OSError):
                one.sendall(b"more")
        wait_until(lambda: _half_open(port) == 0, "connections without a request do not end", 90)
        assert len(served.said) < 20, served.said


def _half_open(port: int) -> int:
    """Connections at the server's end."""
    rows = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(row.split()[1].endswith(f":{port:04X}") and row.split()[3] == "01" for row in rows)
