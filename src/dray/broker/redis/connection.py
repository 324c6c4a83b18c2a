"""One connection to one server, on an event loop: it sends commands and reads replies, in order, once.

Commands sent in one turn of the loop leave in one write. `blocking_connection` has those that need no loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, cast

import hiredis

from dray.broker.redis.errors import cut, refused, silent, too_old, unreachable
from dray.broker.redis.options import Address, Options
from dray.errors import BrokerAway, BrokerError

Reply = Any
"""Bytes, int, None, a list of replies, or a `hiredis.ReplyError`."""
SILENCE: Final = 0.5
"""`on_silence` is called every so many seconds while a call is unanswered."""


class Connection(Protocol):
    """The interface that the router uses."""

    address: Address
    mode: str
    """`standalone` or `cluster`."""

    @property
    def open(self) -> bool: ...

    async def exchange(self, data: bytes, count: int) -> list[Reply]: ...

    def close(self) -> None: ...


class LoopConnection(asyncio.Protocol):
    """A connection on an event loop."""

    def __init__(
        self, address: Address, timeout: float, on_message: Callable[[Reply], None] | None = None
    ) -> None:
        self.address, self.mode = address, ""
        self._timeout = timeout
        self._on_message = on_message
        """Called with published messages, on a connection that subscribes."""
        self.on_silence: Callable[[LoopConnection], None] | None = None
        """Called while a call goes unanswered: the node may have been replaced."""
        self._reader = hiredis.Reader()
        self._pending: deque[tuple[int, list[Reply], asyncio.Future[list[Reply]], float]] = deque()
        self._unsent: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.lost: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def connect(
        cls, address: Address, options: Options, on_message: Callable[[Reply], None] | None = None
    ) -> LoopConnection:
        connection = cls(address, options.connect_timeout, on_message)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(options.connect_timeout):
                if address.path is not None:
                    await loop.create_unix_connection(lambda: connection, address.path)
                else:
                    await loop.create_connection(
                        lambda: connection, address.host, address.port, ssl=options.context()
                    )
                await greet(connection, options)
        except (OSError, TimeoutError) as error:
            connection.close()
            raise unreachable(address, error, options.tls) from error
        except BaseException:
            connection.close()
            raise
        connection._set_timeout(options.timeout)
        return connection

    def _set_timeout(self, seconds: float) -> None:
        self._timeout = seconds
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(cut(self.address))
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (reply := self._reader.gets()) is not False:
            if self._on_message is not None and _is_message(reply):
                self._on_message(reply)
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
        if self._timer is None:
            self._timer = self._loop.call_later(
                self._timeout if self.on_silence is None else SILENCE, self._check
            )
        return future

    def send(self, data: bytes) -> None:
        """Send without expecting a reply."""
        if self._transport is not None and self.open:
            self._transport.write(data)

    def _flush(self) -> None:
        data, self._unsent = self._unsent, []
        if self._transport is not None and data:
            self._transport.write(data[0] if len(data) == 1 else b"".join(data))

    def _check(self) -> None:
        """Give up the connection if its oldest call timed out; later calls would too."""
        self._timer = None
        if not self._pending:
            return
        left = self._pending[0][3] - self._loop.time()
        if left <= 0:
            self.give_up(silent(self.address, self._timeout))
            return
        if self.on_silence is None:
            self._timer = self._loop.call_later(left, self._check)
            return
        waited = self._timeout - left
        if waited >= SILENCE:
            self.on_silence(self)
        again = SILENCE - waited if waited < SILENCE else SILENCE
        self._timer = self._loop.call_later(min(left, again), self._check)

    def give_up(self, error: BrokerAway) -> None:
        """Fail all unanswered calls and close."""
        self._fail(error)
        self.close()

    def _fail(self, error: BrokerAway) -> None:
        pending, self._pending = self._pending, deque()
        for _, _, future, _ in pending:
            if not future.done():
                future.set_exception(error)
                future.exception()  # a cancelled caller never reads it

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        self._fail(cut(self.address))


def _is_message(reply: Reply) -> bool:
    return isinstance(reply, list) and bool(reply) and reply[0] in (b"message", b"subscribe", b"unsubscribe")


pack_all: Final = cast(Callable[[Sequence[str | bytes | int]], bytes], hiredis.pack_command)
"""The bytes of a command; the stubs of hiredis allow one argument only."""


def pack(*args: str | bytes | int) -> bytes:
    return pack_all(args)


async def greet(connection: Connection, options: Options) -> None:
    """Log in, and check that dray can work with this server."""
    hello: list[str | bytes | int] = ["HELLO", 2]
    if options.password is not None:
        hello += ["AUTH", options.username or "default", options.password]
    commands = [pack(*hello)]
    if options.db:
        commands.append(pack("SELECT", options.db))
    replies = await connection.exchange(b"".join(commands), len(commands))
    _check_greeting(connection.address, replies)
    facts = dict(zip(replies[0][::2], replies[0][1::2], strict=True))
    server, version = facts[b"server"].decode(), facts[b"version"].decode()
    least = (7, 2) if server == "valkey" else (6, 2)
    if tuple(int(part) for part in version.split(".")[:2]) < least:
        raise too_old(connection.address, server, version)
    connection.mode = facts[b"mode"].decode()


def _check_greeting(address: Address, replies: Sequence[Reply]) -> None:
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            if "unknown command" in str(reply).lower():
                raise too_old(address, "a server", "older than 6.0")
            raise refused(address, str(reply))
    if not isinstance(replies[0], list):
        raise BrokerError(f"{address} does not answer like Redis: is it another kind of server?")
