"""Being woken: one connection that listens on channels, counts what it hears on each, and keeps it.

A channel is listened to before the store is looked at, so nothing slips in between. When the connection
breaks, every channel counts as heard: whoever sleeps looks again, and the next one to sleep connects anew.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from dray.broker.redis.options import Options
from dray.broker.redis.router import Router
from dray.broker.redis.wire import BlockingLink, Link, Reply, pack
from dray.errors import BrokerAway

KEPT: Final = 4 << 20
"""Bytes of what was said that nobody has asked for yet; more counts as a broken connection."""


class Bell(Protocol):
    broken: int
    """Another number whenever something that was said may have been missed."""

    async def listen(self, channels: Sequence[str]) -> None:
        """Be sure to hear what is said on these channels from now on."""
        ...

    def heard(self, channels: Sequence[str]) -> int:
        """A number that is another one after something was said on one of the channels."""
        ...

    def said(self, channel: str) -> list[bytes]:
        """What was said on a channel, other than `1` (look!); each is told once."""
        ...

    def take_in(self) -> None:
        """Hear what has come already."""
        ...

    async def sleep(self, channels: Sequence[str], heard: int, seconds: float) -> None:
        """Until something is said on one of the channels, or for so long."""
        ...

    async def check(self) -> None:
        """See that the connection is alive; if not, let it go."""
        ...

    def close(self) -> None: ...


class _Ears:
    """What was heard on which channel."""

    def __init__(self, router: Router, options: Options) -> None:
        self._router, self._options = router, options
        self._subscribed: set[str] = set()
        self._counts: dict[str, int] = {}
        self._said: dict[str, list[bytes]] = {}
        self._kept = 0
        self.broken = 0

    def heard(self, channels: Sequence[str]) -> int:
        return self.broken + sum(self._counts.get(channel, 0) for channel in channels)

    def said(self, channel: str) -> list[bytes]:
        words = self._said.pop(channel, [])
        self._kept -= sum(map(len, words))
        return words

    def _hear(self, reply: Reply) -> bool:
        if reply[0] != b"message":
            return False
        channel = reply[1].decode()
        self._counts[channel] = self._counts.get(channel, 0) + 1
        if reply[2] != b"1":
            self._said.setdefault(channel, []).append(reply[2])
            self._kept += len(reply[2])
            if self._kept > KEPT:
                self._forget()
        return True

    def _break(self) -> None:
        self._subscribed.clear()
        self._counts.clear()
        self._forget()

    def _forget(self) -> None:
        self.broken += 1
        self._said.clear()
        self._kept = 0


class LoopBell(_Ears):
    """On an event loop."""

    def __init__(self, router: Router, options: Options) -> None:
        super().__init__(router, options)
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._sleeping: dict[asyncio.Future[None], None] = {}
        self._confirmed: dict[str, asyncio.Future[None]] = {}

    async def listen(self, channels: Sequence[str]) -> None:
        if self._link is not None and self._link.open and self._subscribed.issuperset(channels):
            return
        async with self._opening:
            link = await self._connected()
            new = [channel for channel in channels if channel not in self._subscribed]
            if not new:
                return
            loop = asyncio.get_running_loop()
            confirmed = {channel: loop.create_future() for channel in new}
            self._confirmed |= confirmed
            link.send(pack("SUBSCRIBE", *new))
            try:
                async with asyncio.timeout(self._options.timeout):
                    await asyncio.gather(*confirmed.values())
            except TimeoutError:
                link.close()
                raise BrokerAway(f"{link.address} does not confirm a subscription: try again") from None
            self._subscribed.update(new)

    async def _connected(self) -> Link:
        if self._link is None or not self._link.open:
            home = await self._router.open()
            self._link = await Link.connect(home.address, self._options, self._take)
            self._link.lost.add_done_callback(lambda _: self._lost())
        return self._link

    def _take(self, reply: Reply) -> None:
        if reply[0] == b"subscribe":
            waiting = self._confirmed.pop(reply[1].decode(), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(None)
        elif self._hear(reply):
            self._rouse()

    def _lost(self) -> None:
        self._break()
        for waiting in self._confirmed.values():
            if not waiting.done():
                waiting.set_exception(BrokerAway("the connection that listens was cut: try again"))
                waiting.exception()
        self._confirmed.clear()
        self._rouse()

    def take_in(self) -> None:
        """The loop does that."""

    def _rouse(self) -> None:
        for sleeper in self._sleeping:
            if not sleeper.done():
                sleeper.set_result(None)

    async def sleep(self, channels: Sequence[str], heard: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while self.heard(channels) == heard and loop.time() < end:
            sleeper: asyncio.Future[None] = loop.create_future()
            self._sleeping[sleeper] = None
            timer = loop.call_at(end, _end, sleeper)
            try:
                await sleeper
            finally:
                timer.cancel()
                del self._sleeping[sleeper]

    async def check(self) -> None:
        if self._link is not None and self._link.open:
            with suppress(BrokerAway):
                await self._link.exchange(pack("PING"), 1)

    def close(self) -> None:
        if self._link is not None:
            self._link.close()


def _end(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)


class BlockingBell(_Ears):
    """Without an event loop: its coroutines never suspend."""

    def __init__(self, router: Router, options: Options) -> None:
        super().__init__(router, options)
        self._link: BlockingLink | None = None

    async def listen(self, channels: Sequence[str]) -> None:
        link = await self._connected()
        new = [channel for channel in channels if channel not in self._subscribed]
        if not new:
            return
        link.send(pack("SUBSCRIBE", *new))
        confirmed = 0
        while confirmed < len(new):
            reply = link.receive(self._options.timeout)
            confirmed += reply[0] == b"subscribe"
            self._hear(reply)
        self._subscribed.update(new)

    async def _connected(self) -> BlockingLink:
        if self._link is None or self._link.fileno() < 0:
            self._break()
            home = await self._router.open()
            self._link = await BlockingLink.connect(home.address, self._options)
        return self._link

    def take_in(self) -> None:
        try:
            while self._link is not None and (reply := self._link.heard(0)) is not None:
                self._hear(reply)
        except BrokerAway:
            self._break()

    async def sleep(self, channels: Sequence[str], heard: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.heard(channels) == heard and self._link is not None:
            left = end - time.monotonic()
            if left <= 0:
                return
            try:
                reply = self._link.heard(left)
            except BrokerAway:
                self._break()
                return
            if reply is not None:
                self._hear(reply)

    async def check(self) -> None:
        if self._link is None or self._link.fileno() < 0:
            return
        try:
            self._link.send(pack("PING"))
            while self._hear(reply := self._link.receive(self._options.timeout)):
                pass
            assert reply[0] == b"pong"  # noqa: S101 (nothing else can come)
        except BrokerAway:
            self._break()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
