"""One connection to one server: commands out, replies in, in order, without retries.

`Link` lives on an event loop, `BlockingLink` needs none; both are used as `await link.exchange(data, count)`.
What is written in one turn of the loop leaves in one piece, so calls that are made together travel together.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import hiredis

from dray.broker.redis.faults import cut, refused, silent, too_old, unreachable
from dray.broker.redis.options import Address, Options
from dray.errors import BrokerAway, BrokerError

Reply = Any
"""Bytes, int, None, a list of replies, or a `hiredis.ReplyError`."""


class Wire(Protocol):
    """What the router needs of a connection."""

    address: Address
    mode: str
    """`standalone` or `cluster`."""

    @property
    def open(self) -> bool: ...

    async def exchange(self, data: bytes, count: int) -> list[Reply]: ...

    def close(self) -> None: ...


class Link(asyncio.Protocol):
    """A connection on an event loop."""

    def __init__(
        self, address: Address, timeout: float, heard: Callable[[Reply], None] | None = None
    ) -> None:
        self.address, self.mode = address, ""
        self._timeout = timeout
        self._heard = heard
        """Takes what comes unasked, on a connection that listens."""
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[int, list[Reply], asyncio.Future[list[Reply]], float]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._watch: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, address: Address, options: Options, heard: Callable[[Reply], None] | None = None
    ) -> Link:
        link = cls(address, options.connect_timeout, heard)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(options.connect_timeout):
                if address.path is not None:
                    await loop.create_unix_connection(lambda: link, address.path)
                else:
                    await loop.create_connection(
                        lambda: link, address.host, address.port, ssl=options.context()
                    )
                await _greet(link, options)
        except (OSError, TimeoutError) as error:
            link.close()
            raise unreachable(address, error, options.tls) from error
        except BaseException:
            link.close()
            raise
        link._set_timeout(options.timeout)
        return link

    def _set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none, but does the same

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(cut(self.address))
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._heard is not None and _unasked(reply):
                self._heard(reply)
                continue
            if not self._pending:
                continue
            count, replies, future, _ = self._pending[0]
            replies.append(reply)
            if len(replies) == count:
                self._pending.popleft()
                if not future.done():
                    future.set_result(replies)

    async def exchange(self, data: bytes, count: int) -> list[Reply]:
        if not self.open:
            raise cut(self.address)
        return await self.begin(data, count)

    def begin(self, data: bytes, count: int) -> asyncio.Future[list[Reply]]:
        future: asyncio.Future[list[Reply]] = self._loop.create_future()
        self._pending.append((count, [], future, self._loop.time() + self._timeout))
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        if self._watch is None:
            self._watch = self._loop.call_later(self._timeout, self._check)
        return future

    def send(self, data: bytes) -> None:
        """Write without waiting for an answer."""
        if self._transport is not None and self.open:
            self._transport.write(data)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, []
        if self._transport is not None and data:
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    def _check(self) -> None:
        """The oldest call must have been answered in time, else nothing on this connection will be."""
        self._watch = None
        if not self._pending:
            return
        left = self._pending[0][3] - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._check)
            return
        self._fail(silent(self.address, self._timeout))
        self.close()

    def _fail(self, error: BrokerAway) -> None:
        pending, self._pending = self._pending, deque()
        for _, _, future, _ in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever was cancelled meanwhile does not ask for it

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        self._fail(cut(self.address))


class BlockingLink:
    """A connection without an event loop: its coroutines never suspend."""

    def __init__(self, address: Address, sock: socket.socket, timeout: float) -> None:
        self.address, self.mode = address, ""
        self._socket: socket.socket | None = sock
        self._reader = hiredis.Reader()
        self._timeout = self._waits = timeout
        sock.settimeout(timeout)
        self._buffer = bytearray(65_536)  # a new one for every reply would cost more than reading it

    @classmethod
    async def connect(cls, address: Address, options: Options) -> BlockingLink:
        link = cls(address, _socket(address, options), options.connect_timeout)
        try:
            await _greet(link, options)
        except BaseException:
            link.close()
            raise
        link._timeout = options.timeout
        return link

    @property
    def open(self) -> bool:
        """False also when the server hung up while nobody looked."""
        if self._socket is None:
            return False
        if select.select([self._socket], [], [], 0)[0]:
            self.close()
            return False
        return True

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    async def exchange(self, data: bytes, count: int) -> list[Reply]:
        self.send(data)
        if count == 1:
            return [self.receive(self._timeout)]
        return [self.receive(self._timeout) for _ in range(count)]

    def _wait_for(self, seconds: float, sock: socket.socket) -> None:
        """Each change is a call of the system's."""
        if seconds != self._waits:
            sock.settimeout(seconds)
            self._waits = seconds

    def send(self, data: bytes) -> None:
        if self._socket is None:
            raise cut(self.address)
        try:
            self._wait_for(self._timeout, self._socket)
            self._socket.sendall(data)
        except OSError as error:
            self.close()
            raise unreachable(self.address, error) from error

    def receive(self, seconds: float) -> Reply:
        """The next reply. Half a reply that does not go on breaks the connection."""
        while (reply := self._reader.gets()) is False:
            if self._socket is None:
                raise cut(self.address)
            try:
                self._wait_for(seconds, self._socket)
                size = self._socket.recv_into(self._buffer)
            except TimeoutError as error:
                self.close()
                raise silent(self.address, seconds) from error
            except OSError as error:
                self.close()
                raise cut(self.address) from error
            if not size:
                self.close()
                raise cut(self.address)
            self._reader.feed(self._buffer, 0, size)  # type: ignore[arg-type]  # its stubs know bytes only
        return reply

    def heard(self, seconds: float) -> Reply | None:
        """What came unasked within so many seconds; None if nothing did."""
        reply = self._reader.gets()
        if reply is not False:
            return reply
        if self._socket is None:
            raise cut(self.address)
        pending = getattr(self._socket, "pending", None)  # bytes that TLS has decrypted already
        if not (pending and pending()) and not select.select([self._socket], [], [], max(0.0, seconds))[0]:
            return None
        return self.receive(self._timeout)

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None


def _socket(address: Address, options: Options) -> socket.socket:
    try:
        if address.path is not None:
            sock = socket.socket(socket.AF_UNIX)
        else:
            sock = socket.create_connection((address.host, address.port), options.connect_timeout)
    except OSError as error:
        raise unreachable(address, error) from error
    try:
        sock.settimeout(options.connect_timeout)
        if address.path is not None:
            sock.connect(address.path)
            return sock
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = options.context()
        return sock if context is None else context.wrap_socket(sock, server_hostname=address.host)
    except OSError as error:
        sock.close()
        raise unreachable(address, error, options.tls) from error


def _unasked(reply: Reply) -> bool:
    return isinstance(reply, list) and bool(reply) and reply[0] in (b"message", b"subscribe", b"unsubscribe")


def pack(*args: str | bytes | int) -> bytes:
    data: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # its stubs allow one argument only
    return data


async def _greet(wire: Link | BlockingLink, options: Options) -> None:
    """Log in, and see that the server is one that dray can work with."""
    hello: list[str | bytes | int] = ["HELLO", 2]
    if options.password is not None:
        hello += ["AUTH", options.username or "default", options.password]
    commands = [pack(*hello)]
    if options.db:
        commands.append(pack("SELECT", options.db))
    replies = await wire.exchange(b"".join(commands), len(commands))
    _check_greeting(wire.address, replies)
    facts = dict(zip(replies[0][::2], replies[0][1::2], strict=True))
    server, version = facts[b"server"].decode(), facts[b"version"].decode()
    least = (7, 2) if server == "valkey" else (6, 2)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        raise too_old(wire.address, server, version)
    wire.mode = facts[b"mode"].decode()


def _check_greeting(address: Address, replies: Sequence[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            if "unknown command" in str(reply).lower():
                raise too_old(address, "a server", "older than 6.0")
            raise refused(address, str(reply))
    if not isinstance(replies[0], list):
        raise BrokerError(f"{address} does not answer like Redis: is it another kind of server?")
