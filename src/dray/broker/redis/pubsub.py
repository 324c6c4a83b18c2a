"""Wake-ups by publish and subscribe: one connection that counts and keeps the messages of its channels.

A waiter subscribes before it checks the store, so no message is missed in between. When the connection
breaks, or a node of the cluster was replaced, every channel counts as changed: all waiters check again, and
the next one to wait connects again if necessary.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from dray.broker.redis.blocking_connection import BlockingConnection
from dray.broker.redis.connection import SILENCE, LoopConnection, Reply, pack
from dray.broker.redis.options import Options
from dray.broker.redis.router import Router
from dray.errors import BrokerAway

UNREAD_MAX: Final = 4 << 20
"""Bytes of unread messages; more counts as a broken connection."""


class Subscriber(Protocol):
    on_message: Callable[[str], None] | None

    @property
    def breaks(self) -> int:
        """Changes whenever a message may have been missed."""
        ...

    async def subscribe(self, channels: Sequence[str]) -> None:
        """Receive all messages of these channels from now on."""
        ...

    def counter(self, channels: Sequence[str]) -> int:
        """Changes with every message on one of the channels."""
        ...

    def messages(self, channel: str) -> list[bytes]:
        """The unread messages of a channel, other than `1` (check again); each is returned once."""
        ...

    def receive(self) -> None:
        """Read messages that have arrived, without waiting."""
        ...

    async def sleep(self, channels: Sequence[str], counter: int, seconds: float) -> None:
        """Wait until the counter of the channels differs, or for so many seconds."""
        ...

    async def check(self) -> None:
        """Ping the server; a connection that does not answer is given up."""
        ...

    def close(self) -> None: ...


class _Messages:
    """Counts and keeps the messages of each channel."""

    def __init__(self, router: Router, options: Options) -> None:
        self._router, self._options = router, options
        self._subscribed: set[str] = set()
        self._counts: dict[str, int] = {}
        self._unread: dict[str, list[bytes]] = {}
        self._unread_bytes = 0
        self._breaks = 0
        self.on_message: Callable[[str], None] | None = None
        """Called with the channel of each message; only on an event loop."""

    @property
    def breaks(self) -> int:
        return self._breaks + self._router.fail_overs

    def counter(self, channels: Sequence[str]) -> int:
        seen = self._breaks + self._router.fail_overs
        for channel in channels:
            seen += self._counts.get(channel, 0)
        return seen

    def messages(self, channel: str) -> list[bytes]:
        messages = self._unread.pop(channel, [])
        self._unread_bytes -= sum(map(len, messages))
        return messages

    def _keep(self, reply: Reply) -> bool:
        if reply[0] != b"message":
            return False
        channel = reply[1].decode()
        self._counts[channel] = self._counts.get(channel, 0) + 1
        if reply[2] != b"1":
            self._unread.setdefault(channel, []).append(reply[2])
            self._unread_bytes += len(reply[2])
            if self._unread_bytes > UNREAD_MAX:
                self._drop_messages()
        return True

    def _reset(self) -> None:
        self._subscribed.clear()
        self._drop_messages()

    def _drop_messages(self) -> None:
        self._breaks += 1
        self._unread.clear()
        self._unread_bytes = 0


class LoopSubscriber(_Messages):
    """On an event loop."""

    def __init__(self, router: Router, options: Options) -> None:
        super().__init__(router, options)
        self._connection: LoopConnection | None = None
        self._opening = asyncio.Lock()
        self._sleeping: dict[asyncio.Future[None], None] = {}
        self._confirmations: dict[str, asyncio.Future[None]] = {}

    async def subscribe(self, channels: Sequence[str]) -> None:
        if self._connection is not None and self._connection.open and self._subscribed.issuperset(channels):
            return
        async with self._opening:
            connection = await self._connected()
            new = [channel for channel in channels if channel not in self._subscribed]
            if not new:
                return
            loop = asyncio.get_running_loop()
            confirmations = {channel: loop.create_future() for channel in new}
            self._confirmations |= confirmations
            connection.send(pack("SUBSCRIBE", *new))
            if self._router.replaceable:
                connection.begin(pack("PING"), 1)  # only an unanswered call makes `on_silence` run
            try:
                async with asyncio.timeout(self._options.timeout):
                    await asyncio.gather(*confirmations.values())
            except TimeoutError:
                connection.close()
                raise _not_confirmed(connection) from None
            self._subscribed.update(new)

    async def _connected(self) -> LoopConnection:
        connection = self._connection
        if connection is not None and connection.open and self._router.is_primary(connection.address):
            return connection
        if connection is not None:  # a node that is no primary may be cut off from the others
            connection.close()
            self._lost(connection)
        self._connection = new = await self._open()
        new.lost.add_done_callback(lambda _: self._lost(new))
        return new

    async def _open(self) -> LoopConnection:
        home = await self._router.home()
        try:
            return await self._router.connect(home, self._on_message)
        except BrokerAway:
            self._router.lose(home)
            raise

    def _on_message(self, reply: Reply) -> None:
        if reply[0] == b"subscribe":
            confirmation = self._confirmations.pop(reply[1].decode(), None)
            if confirmation is not None:
                _end(confirmation)
        elif self._keep(reply):
            self._wake_all()
            if self.on_message is not None:
                self.on_message(reply[1].decode())

    def _lost(self, connection: LoopConnection) -> None:
        if connection is not self._connection:
            return  # it has been replaced already
        self._reset()
        for confirmation in self._confirmations.values():
            if not confirmation.done():
                confirmation.set_exception(BrokerAway("the connection that listens was cut: try again"))
                confirmation.exception()
        self._confirmations.clear()
        self._wake_all()

    def receive(self) -> None:
        """The loop does that."""

    def _wake_all(self) -> None:
        for sleeper in self._sleeping:
            _end(sleeper)

    async def sleep(self, channels: Sequence[str], counter: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.counter(channels) == counter and loop.time() < end:
            sleeper: asyncio.Future[None] = loop.create_future()
            self._sleeping[sleeper] = None
            timer = loop.call_at(end, _end, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                del self._sleeping[sleeper]

    async def check(self) -> None:
        if self._connection is not None and self._connection.open:
            with suppress(BrokerAway):
                await self._connection.exchange(pack("PING"), 1)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _not_confirmed(connection: LoopConnection | BlockingConnection) -> BrokerAway:
    return BrokerAway(f"{connection.address} does not confirm a subscription: try again")


class BlockingSubscriber(_Messages):
    """Without an event loop: its coroutines never suspend. For any number of threads.

    One of the waiting threads reads the connection, the others sleep until it has read something. The lock is
    held for everything but sleeping, so that no two threads read or write at the same time.
    """

    def __init__(self, router: Router, options: Options) -> None:
        super().__init__(router, options)
        self._connection: BlockingConnection | None = None
        self._changed = threading.Condition()
        self._has_reader = False
        """A thread waits for data on the connection."""
        self._pongs = 0

    async def subscribe(self, channels: Sequence[str]) -> None:
        with self._changed:
            connection = await self._connected()
            new = [channel for channel in channels if channel not in self._subscribed]
            if not new:
                return
            self._send(connection, pack("SUBSCRIBE", *new))
            await self._expect(connection, lambda: self._subscribed.issuperset(new))
            if not self._subscribed.issuperset(new):
                raise _not_confirmed(connection)

    async def _connected(self) -> BlockingConnection:
        connection = self._connection
        if connection is not None and not connection.closed:
            if self._router.is_primary(connection.address):
                return connection
            connection.close()  # a node that is no primary may be cut off from the others
        self._reset()
        home = await self._router.home()
        try:
            self._connection = connection = await self._router.connect_blocking(home)
        except BrokerAway:
            self._router.lose(home)
            raise
        return connection

    def _send(self, connection: BlockingConnection, data: bytes) -> None:
        try:
            connection.send(data)
        except BaseException:
            self._give_up(connection)
            raise

    async def _expect(self, connection: BlockingConnection, arrived: Callable[[], bool]) -> None:
        """Wait for a reply. Without one the connection is given up, at once if the node was replaced."""
        end = time.monotonic() + self._options.timeout
        while not arrived() and not connection.closed:
            self._receive_until(connection, arrived, min(end, time.monotonic() + SILENCE))
            if arrived():
                return
            if time.monotonic() >= end or await self._router.is_replaced(connection.address):
                self._give_up(connection)

    def messages(self, channel: str) -> list[bytes]:
        with self._changed:
            return super().messages(channel)

    def receive(self) -> None:
        with self._changed:
            if self._connection is not None:
                self._receive_all(self._connection)

    async def sleep(self, channels: Sequence[str], counter: int, seconds: float) -> None:
        with self._changed:
            if self._connection is not None:
                end = time.monotonic() + seconds
                self._receive_until(self._connection, lambda: self.counter(channels) != counter, end)

    def _receive_until(self, connection: BlockingConnection, arrived: Callable[[], bool], end: float) -> None:
        """Returns when it has arrived, at the end of the time, or when the connection is closed."""
        while not arrived() and connection is self._connection and not connection.closed:
            left = end - time.monotonic()
            if left <= 0:
                return
            if self._has_reader:
                self._changed.wait(left)
            elif not self._receive_all(connection):
                self._wait_for_data(connection, left)

    def _wait_for_data(self, connection: BlockingConnection, seconds: float) -> None:
        """Sleep until data arrives; meanwhile other threads have the lock."""
        self._has_reader = True
        try:
            self._changed.release()
            try:
                connection.readable(seconds)
            finally:
                self._changed.acquire()
        finally:
            self._has_reader = False
            self._changed.notify_all()

    def _receive_all(self, connection: BlockingConnection) -> bool:
        """Read what has arrived; false if nothing has."""
        received = False
        try:
            while not connection.closed and (reply := connection.next_message()) is not None:
                received = True
                if reply[0] == b"subscribe":
                    self._subscribed.add(reply[1].decode())
                self._pongs += reply[0] == b"pong"
                self._keep(reply)
        except BrokerAway:
            self._give_up(connection)
            received = True
        except BaseException:  # half of a reply may be read
            self._give_up(connection)
            raise
        if received:
            self._changed.notify_all()
        return received

    def _give_up(self, connection: BlockingConnection) -> None:
        connection.close()
        if connection is self._connection:
            self._reset()
            self._changed.notify_all()

    async def check(self) -> None:
        with self._changed:
            connection, pongs = self._connection, self._pongs
            if connection is None or connection.closed:
                return
            with suppress(BrokerAway):
                self._send(connection, pack("PING"))
                await self._expect(connection, lambda: self._pongs > pongs)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
