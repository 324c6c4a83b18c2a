"""Which node a call goes to: the one path for a single server and for a cluster.

A call that a node did not carry out (it does not know the script, or the slot is elsewhere) is sent again;
every other failure is the caller's to know, because the call may have taken effect.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import hiredis

from dray.broker.redis.faults import refused
from dray.broker.redis.keys import SLOTS, beside, slot
from dray.broker.redis.options import Address, Options
from dray.broker.redis.scripts import SCRIPTS, Script
from dray.broker.redis.wire import BlockingLink, Link, Reply, Wire, pack
from dray.errors import BrokerAway, BrokerError

Arg = str | bytes | int
REDIRECTS_MAX: Final = 8
MOVING_PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between tries while a slot is on its way to another node."""


class Call:
    """A script or a command on a key."""

    __slots__ = ("_args", "key", "reply", "script")

    def __init__(self, script: Script | None, key: str, args: Sequence[Arg]) -> None:
        self.script, self.key, self._args = script, key, args
        self.reply: Reply = None

    def packed(self, cluster: bool = False) -> bytes:
        if self.script is None:
            return pack(*self._args)
        if cluster and self.key[-1] == ":":
            return pack("EVALSHA", self.script.sha, 2, self.key, beside(self.key), *self._args)
        return pack("EVALSHA", self.script.sha, 1, self.key, *self._args)


def script(name: str, key: str, *args: Arg) -> Call:
    return Call(SCRIPTS[name], key, args)


def command(key: str, *args: Arg) -> Call:
    return Call(None, key, args)


class Router:
    """The connections of one broker object, and what is known of the cluster."""

    def __init__(self, options: Options, blocking: bool) -> None:
        self._options, self._blocking = options, blocking
        self._links: dict[Address, Wire] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._slots: list[Address] | None = None
        self._home: Address | None = None
        self.cluster = False
        self._moving = False
        """A node refused a call because its slot is on its way elsewhere."""

    async def open(self) -> Wire:
        """Connect to the first node that answers."""
        failure: BrokerError | None = None
        for address in dict.fromkeys([*([self._home] if self._home else []), *self._options.addresses]):
            try:
                link = await self.link(address)
            except BrokerAway as error:
                failure = error
                continue
            self._home = address
            self.cluster = link.mode == "cluster"
            if self.cluster and self._slots is None:
                await self._map(link)
            return link
        raise failure or BrokerError("the URL names no server")

    async def link(self, address: Address) -> Wire:
        link = self._links.get(address)
        if link is not None and link.open:
            return link
        if self._blocking:
            self._links[address] = link = await BlockingLink.connect(address, self._options)
            return link
        async with self._opening.setdefault(address, asyncio.Lock()):
            link = self._links.get(address)
            if link is None or not link.open:
                self._links[address] = link = await Link.connect(address, self._options)
        return link

    async def call(self, call: Call) -> Reply:
        """The same as `calls` with one, which nearly all are."""
        if self._home is not None and not self.cluster:
            link = self._links.get(self._home)
            if link is not None and link.open:
                [reply] = await link.exchange(call.packed(), 1)
                if not isinstance(reply, hiredis.ReplyError):
                    return reply
                if not await self._amend(link, call, str(reply)):
                    return call.reply
        [reply] = await self.calls([call])
        return reply

    async def run(self, name: str, key: str, *args: Arg) -> Reply:
        """Run one script."""
        [reply] = await self.calls([Call(SCRIPTS[name], key, args)])
        return reply

    async def post(self, calls: Sequence[Call]) -> None:
        """Make calls whose answers nobody needs: without waiting, where that can be."""
        link = self._links.get(self._home) if self._home is not None and not self.cluster else None
        if isinstance(link, Link) and link.open and calls:
            link.begin(b"".join([call.packed() for call in calls]), len(calls))
        elif calls:
            await self.calls(calls)

    async def calls(self, calls: Sequence[Call]) -> list[Reply]:
        """Make calls that do not depend on each other; those to one node travel together, in order."""
        left = list(calls)
        for tries in range(REDIRECTS_MAX):
            left = await self._try(left)
            if not left:
                return [call.reply for call in calls]
            if self._moving and tries < len(MOVING_PAUSES):
                self._moving = False
                await self._pause(MOVING_PAUSES[tries])
        raise BrokerAway("the cluster keeps sending calls elsewhere: its slots are being moved; try again")

    async def _pause(self, seconds: float) -> None:
        if self._blocking:
            time.sleep(seconds)  # noqa: ASYNC251 (there is no loop here)
        else:
            await asyncio.sleep(seconds)

    async def _try(self, calls: Sequence[Call]) -> list[Call]:
        """Make calls; returns those that were not carried out and should be made again."""
        parts: dict[Wire, list[Call]] = {}
        for call in calls:
            parts.setdefault(await self._wire(call.key), []).append(call)
        if len(parts) == 1 or self._blocking:
            again = [await self._exchange(wire, part) for wire, part in parts.items()]
        else:
            again = await asyncio.gather(*(self._exchange(wire, part) for wire, part in parts.items()))
        return [call for part in again for call in part]

    async def _wire(self, key: str) -> Wire:
        if self._home is not None and not self.cluster:
            link = self._links.get(self._home)
            if link is not None and link.open:
                return link
        if self._slots is None:
            link = await self.open()
            if not self.cluster or self._slots is None:
                return link
        return await self.link(self._slots[slot(key)])

    async def _exchange(self, wire: Wire, calls: list[Call]) -> list[Call]:
        try:
            packed = b"".join([call.packed(self.cluster) for call in calls])
            replies = await wire.exchange(packed, len(calls))
        except BrokerAway:
            self._slots = None  # a node that is gone may have been replaced
            raise
        again: list[Call] = []
        failure: BrokerError | None = None
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                call.reply = reply
                continue
            try:
                if await self._amend(wire, call, str(reply)):
                    again.append(call)
            except BrokerError as error:
                failure = error
        if failure is not None:
            raise failure
        return again

    async def _amend(self, wire: Wire, call: Call, text: str) -> bool:
        """Deal with an error reply; whether the call is to be made again."""
        code, _, rest = text.partition(" ")
        if code == "NOSCRIPT" and call.script is not None:
            [reply] = await wire.exchange(pack("SCRIPT", "LOAD", call.script.source), 1)
            if isinstance(reply, hiredis.ReplyError):
                raise refused(wire.address, str(reply))
            return True
        if code == "MOVED":
            await self._map(wire)
            return True
        if code == "ASK":
            return await self._ask(_address(rest.split()[1].encode(), wire.address), call)
        if code == "TRYAGAIN":
            self._moving = True
            return True
        raise refused(wire.address, text)

    async def _ask(self, address: Address, call: Call) -> bool:
        """The slot is on its way to another node, which answers for this once. Whether to try again."""
        wire = await self.link(address)
        parts = [pack("ASKING"), call.packed(self.cluster)]
        if call.script is not None:
            parts.insert(0, pack("SCRIPT", "LOAD", call.script.source))
        *_, reply = await wire.exchange(b"".join(parts), len(parts))
        if isinstance(reply, hiredis.ReplyError):
            self._moving = str(reply).startswith("TRYAGAIN")
            if self._moving:
                return True
            raise refused(address, str(reply))
        call.reply = reply
        return False

    async def _map(self, wire: Wire) -> None:
        """Learn which node serves which slots."""
        [reply] = await wire.exchange(pack("CLUSTER", "SLOTS"), 1)
        if isinstance(reply, hiredis.ReplyError):
            raise refused(wire.address, str(reply))
        slots = [wire.address] * SLOTS
        for first, last, primary, *_ in reply:
            host = primary[0].decode() or wire.address.host
            slots[first : last + 1] = [Address(host, primary[1])] * (last + 1 - first)
        self._slots = slots

    async def nodes(self) -> list[Wire]:
        """A connection to every primary."""
        home = await self.open()
        if not self.cluster or self._slots is None:
            return [home]
        return [await self.link(address) for address in dict.fromkeys(self._slots)]

    def close(self) -> None:
        for link in self._links.values():
            link.close()
        self._links.clear()


def _address(text: bytes, asked: Address) -> Address:
    host, _, port = text.decode().rpartition(":")
    return Address(host.strip("[]") or asked.host, int(port))
