"""Sends each call to the node that serves its slot; a single server takes the same path as a cluster.

A call that a node did not carry out (unreachable, unknown script, slot elsewhere) is sent again if another
node is known to serve the slot. Every other failure is raised, because the call may have taken effect.

After a failure the other nodes are asked for the map of slots, the failed one last; or, if the URL names
sentinels, these for the primary. While a node is silent the others are asked too: once they name a
replacement, its connections are given up at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import hiredis
import msgspec

from dray.broker.blocking import run_blocking
from dray.broker.redis.blocking_connection import BlockingConnection, Pool
from dray.broker.redis.cluster import Nodes, SlotMap
from dray.broker.redis.connection import (
    SILENCE,
    Connection,
    LoopConnection,
    Reply,
    pack,
    pack_all,
)
from dray.broker.redis.errors import being_replaced, refused, replaced, unreachable
from dray.broker.redis.keys import beside
from dray.broker.redis.options import Address, Options
from dray.broker.redis.scripts import SCRIPTS, Script
from dray.broker.redis.sentinel import Sentinels, is_primary
from dray.errors import BrokerAway, BrokerBusy, BrokerError

Arg = str | bytes | int
REDIRECTS_MAX: Final = 8
MOVING_PAUSES: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between tries while a slot moves to another node."""
ASK_WITHIN: Final = 1.0
"""Seconds that a node may take to send the map, while others can be asked."""
UNFIT: Final = frozenset({"CLUSTERDOWN", "MASTERDOWN", "LOADING", "READONLY", "NOREPLICAS", "UNBLOCKED"})
"""Errors of a node that serves no slot now; it has carried out nothing."""


class Command(msgspec.Struct, eq=False):
    """A script or a command on a key."""

    script: Script | None
    key: str
    args: Sequence[Arg]
    reply: Reply = None
    moving: bool = False
    """It was refused because its slot moves to another node."""

    def packed(self, cluster: bool = False) -> bytes:
        if self.script is None:
            return pack_all(self.args)
        if cluster and self.key[-1] == ":":
            return pack_all(("EVALSHA", self.script.sha, 2, self.key, beside(self.key), *self.args))
        return pack_all(("EVALSHA", self.script.sha, 1, self.key, *self.args))


def script(name: str, key: str, *args: Arg) -> Command:
    return Command(SCRIPTS[name], key, args)


def command(key: str, *args: Arg) -> Command:
    return Command(None, key, args)


class Router:
    """The connections of one broker object. A blocking one is shared by threads."""

    def __init__(self, options: Options, blocking: bool) -> None:
        self._options, self._blocking = options, blocking
        self._connections: dict[Address, LoopConnection] = {}
        self._pools: dict[Address, Pool] = {}
        self._opening: dict[Address, asyncio.Lock] = {}
        self._nodes = Nodes(options.addresses)
        self._map_lock, self._map_thread_lock = asyncio.Lock(), threading.Lock()
        self._checking: dict[LoopConnection, asyncio.Task[None]] = {}
        self._sentinels = Sentinels(options, blocking) if options.sentinels else None
        self.cluster = False
        self.replaceable = self._sentinels is not None
        """Another server may take the place of one: on a cluster, or by Sentinel."""
        self.fail_overs = 0
        """How often a node was replaced; each time, messages and unreplicated writes may be lost."""

    # connections

    async def home(self) -> Address:
        """A node that answered last."""
        while (home := self._nodes.home) is None:
            await self._learn()
        return home

    async def connect(
        self, address: Address, on_message: Callable[[Reply], None] | None = None
    ) -> LoopConnection:
        """A new connection on the loop; raises early if the node turns out to be replaced."""
        if not self.replaceable:
            return await LoopConnection.connect(address, self._options, on_message)
        making = asyncio.ensure_future(LoopConnection.connect(address, self._options, on_message))
        try:
            while not (await asyncio.wait((making,), timeout=SILENCE))[0]:
                if await self.is_replaced(address):
                    raise replaced(address)
        except BaseException:
            making.cancel()
            making.add_done_callback(_close)
            raise
        connection = making.result()
        connection.on_silence = self._check_silent
        return connection

    async def connect_blocking(self, address: Address) -> BlockingConnection:
        return await BlockingConnection.connect(
            address, self._options, self._is_replaced_blocking if self.replaceable else None
        )

    def lose(self, address: Address) -> None:
        """Note that a node failed: the next call asks the others."""
        self._nodes.failed(address)

    async def primaries(self) -> list[Address]:
        """All nodes that take writes."""
        home, slots = await self.home(), self._nodes.map
        return [home] if slots is None else sorted(slots.primaries, key=str)

    async def ask(self, address: Address, *commands: bytes) -> list[Reply]:
        """Send commands to one node as they are; errors are replies."""
        connection = await self._borrow(address)
        try:
            return await connection.exchange(b"".join(commands), len(commands))
        finally:
            self._give_back(connection)

    def is_primary(self, address: Address) -> bool:
        if self._sentinels is not None:
            return address == self._sentinels.current
        slots = self._nodes.map
        return slots is None or address in slots.primaries

    async def ask_primaries(self, request: bytes) -> dict[Address, Reply]:
        """The answer of every primary to one request."""
        return {address: (await self.ask(address, request))[0] for address in await self.primaries()}

    async def _connected(
        self, address: Address, connect: Callable[[Address], Awaitable[LoopConnection]]
    ) -> LoopConnection:
        connection = self._connections.get(address)
        if connection is not None and connection.open:
            return connection
        async with self._opening.setdefault(address, asyncio.Lock()):
            connection = self._connections.get(address)
            if connection is None or not connection.open:
                self._connections[address] = connection = await connect(address)
                replaceable = connection.mode == "cluster" or self.replaceable
                connection.on_silence = self._check_silent if replaceable else None
        return connection

    def _pool(self, address: Address) -> Pool:
        pool = self._pools.get(address)
        if pool is None:
            options = self._options
            made = Pool(address, options.pool_size, options.connect_timeout + options.timeout)
            pool = self._pools.setdefault(address, made)
        return pool

    async def _borrow(self, address: Address) -> Connection:
        if self._blocking:
            return await self._pool(address).borrow(self.connect_blocking)
        return await self._connected(address, self.connect)

    def _give_back(self, connection: Connection) -> None:
        if isinstance(connection, BlockingConnection):
            self._pool(connection.address).give_back(connection)

    # calls

    async def call(self, call: Command) -> Reply:
        """`calls` for a single call, the usual case."""
        home = self._nodes.home
        if home is None or self.replaceable:
            return (await self.calls((call,)))[0]
        pool = self._pools.get(home)  # only a blocking router has pools
        lent = None if pool is None else pool.lend()
        connection = self._connections.get(home)
        if lent is None and (connection is None or not connection.open):
            return (await self.calls((call,)))[0]
        try:
            if lent is not None:
                [reply] = await lent.exchange(call.packed(), 1)
            elif connection is not None:
                [reply] = await connection.begin(call.packed(), 1)
        except BrokerAway:
            self._nodes.failed(home)
            raise
        finally:
            if pool is not None and lent is not None:
                pool.give_back(lent)
        if not isinstance(reply, hiredis.ReplyError):
            return reply
        again = await self._amend(home, call, str(reply))
        return (await self.calls((call,)))[0] if again else call.reply

    async def post(self, calls: Sequence[Command]) -> None:
        """Make calls whose replies are not needed; without waiting, where possible."""
        home = self._nodes.home
        connection = self._connections.get(home) if home is not None and not self.cluster else None
        if connection is not None and connection.open and calls:
            connection.begin(b"".join([call.packed() for call in calls]), len(calls))
        elif calls:
            await self.calls(calls)

    async def calls(self, calls: Sequence[Command]) -> list[Reply]:
        """Make independent calls; those to one node are sent together, in order."""
        left = list(calls)
        for tries in range(REDIRECTS_MAX):
            left = await self._try(left)
            if not left:
                return [call.reply for call in calls]
            if tries < len(MOVING_PAUSES) and any(call.moving for call in left):
                for call in left:
                    call.moving = False
                await self._pause(MOVING_PAUSES[tries])
        raise BrokerAway("the cluster keeps sending calls elsewhere: its slots are being moved; try again")

    async def _pause(self, seconds: float) -> None:
        if self._blocking:
            time.sleep(seconds)  # noqa: ASYNC251 (there is no loop)
        else:
            await asyncio.sleep(seconds)

    async def _try(self, calls: Sequence[Command]) -> list[Command]:
        """Make calls; returns those that were not carried out and must be repeated."""
        if self._nodes.stale or (self._sentinels is not None and self._sentinels.due):
            await self._learn()
        home, slots = await self.home(), self._nodes.map
        parts: dict[Address, list[Command]] = {}
        for call in calls:
            parts.setdefault(home if slots is None else slots.primary(call.key), []).append(call)
        if len(parts) == 1 or self._blocking:
            again = [await self._exchange(address, part) for address, part in parts.items()]
        else:
            again = await asyncio.gather(*(self._exchange(address, part) for address, part in parts.items()))
        return [call for part in again for call in part]

    async def _exchange(self, address: Address, calls: list[Command]) -> list[Command]:
        """Make calls to one node; returns those that must be repeated."""
        try:
            connection = await self._borrow(address)
        except BrokerBusy:
            raise
        except BrokerAway:
            if await self.is_replaced(address):
                return calls  # nothing was sent
            raise
        try:
            packed = b"".join([call.packed(self.cluster) for call in calls])
            replies = await connection.exchange(packed, len(calls))
        except BrokerAway:
            self._nodes.failed(address)
            raise
        finally:
            self._give_back(connection)
        again: list[Command] = []
        failure: BrokerError | None = None
        for call, reply in zip(calls, replies, strict=True):
            if not isinstance(reply, hiredis.ReplyError):
                call.reply = reply
                continue
            try:
                if await self._amend(address, call, str(reply)):
                    again.append(call)
            except BrokerError as error:
                failure = error
        if failure is not None:
            raise failure
        return again

    async def _amend(self, address: Address, call: Command, text: str) -> bool:
        """Handle an error reply; true if the call must be repeated."""
        code, _, rest = text.removeprefix("ERR ").partition(" ")  # some proxies say `ERR READONLY`
        if code == "NOSCRIPT" and call.script is not None:
            [reply] = await self.ask(address, pack("SCRIPT", "LOAD", call.script.source))
            if isinstance(reply, hiredis.ReplyError):
                raise refused(address, str(reply))
            return True
        if code == "MOVED":
            if self._nodes.map is None or self._nodes.map.primary(call.key) == address:
                await self._learn(address)
            return True
        if code == "ASK":
            return await self._ask(_address(rest.split()[1].encode(), address), call)
        if code == "TRYAGAIN":
            call.moving = True
            return True
        if code in UNFIT and await self.is_replaced(address):
            return True
        if code == "READONLY" and not self.cluster:
            self._drop(address)  # its host name may lead to another server by now
        raise being_replaced(address, text) if code in UNFIT and self._sentinels else refused(address, text)

    async def _ask(self, address: Address, call: Command) -> bool:
        """Follow an ASK redirect to the node that the slot moves to; true if the call must be repeated."""
        parts = [pack("ASKING"), call.packed(self.cluster)]
        if call.script is not None:
            parts.insert(0, pack("SCRIPT", "LOAD", call.script.source))
        *_, reply = await self.ask(address, *parts)
        if isinstance(reply, hiredis.ReplyError):
            call.moving = str(reply).startswith("TRYAGAIN")
            if call.moving:
                return True
            raise refused(address, str(reply))
        call.reply = reply
        return False

    # the map

    async def _learn(self, first: Address | None = None, *, patient: bool = True) -> None:
        """Request the map, from `first` first, unless another task or thread did meanwhile."""
        version = self._nodes.version
        if self._blocking:
            with self._map_thread_lock:
                if self._nodes.version == version:
                    await self._ask_around(first, patient)
            return
        async with self._map_lock:
            if self._nodes.version == version:
                await self._ask_around(first, patient)

    async def _ask_around(self, first: Address | None, patient: bool) -> None:
        """Ask one node after the other, each briefly; then again with the full timeout."""
        if self._sentinels is not None:
            await self._ask_sentinels(self._sentinels)
            return
        longest = self._options.connect_timeout
        rounds = [longest] if len(self._nodes.in_order(first)) == 1 else [min(ASK_WITHIN, longest), longest]
        failure: BrokerError | None = None
        partial: tuple[Address, SlotMap] | None = None
        for seconds in rounds if patient else rounds[:1]:
            for address in self._nodes.in_order(first):
                try:
                    slots = await self._ask_map(address, seconds)
                except BrokerError as error:
                    failure = failure or error
                    self._nodes.failed(address)
                    continue
                if slots is None or slots.complete:
                    self._accept(address, slots)
                    return
                partial = partial or (address, slots)
            if partial is not None:
                self._accept(*partial)
                return
        raise failure or BrokerError("the URL names no server")

    async def _ask_sentinels(self, sentinels: Sentinels) -> None:
        for address in await sentinels.find_primaries():
            if address == sentinels.current or is_primary(
                await self._ask_node(address, pack("ROLE"), ASK_WITHIN)
            ):
                break
            self._drop(address)
        else:
            raise being_replaced(address, "it is a replica still")
        self._nodes.answered(address, None)
        if (before := sentinels.switched_to(address)) is not None:
            self.fail_overs += 1
            self._drop(before)

    def _accept(self, address: Address, slots: SlotMap | None) -> None:
        self.cluster = self.replaceable = slots is not None
        if self._nodes.answered(address, slots):
            self.fail_overs += 1

    async def _ask_map(self, address: Address, seconds: float) -> SlotMap | None:
        """The map of one node; None if the server is no cluster."""
        reply = await self._ask_node(address, pack("CLUSTER", "SLOTS"), seconds)
        if isinstance(reply, hiredis.ReplyError):
            raise refused(address, str(reply))
        return None if reply is None else SlotMap(address, reply)

    async def _ask_node(self, address: Address, request: bytes, seconds: float) -> Reply:
        """The answer of a node that may fail, on a new connection if need be; None of a single server."""
        ask = self._ask_node_blocking if self._blocking else self._ask_node_on_loop
        return await ask(address, request, seconds)

    def _is_asked(self, connection: Connection) -> bool:
        return connection.mode == "cluster" or self._sentinels is not None

    async def _ask_node_blocking(self, address: Address, request: bytes, seconds: float) -> Reply:
        pool = self._pool(address)
        connection = pool.spare()
        if connection is None:
            connection = await BlockingConnection.connect(address, self._options, within=seconds)
        connection.on_silence = None
        try:
            if not self._is_asked(connection):
                return None
            [reply] = await connection.exchange(request, 1, seconds)
            connection.on_silence = self._is_replaced_blocking
            return reply
        finally:
            pool.add(connection)

    async def _ask_node_on_loop(self, address: Address, request: bytes, seconds: float) -> Reply:
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connected(address, self._connect_unchecked)
                return (await connection.exchange(request, 1))[0] if self._is_asked(connection) else None
        except TimeoutError as error:
            raise unreachable(address, error, self._options.tls) from None

    async def _connect_unchecked(self, address: Address) -> LoopConnection:
        return await LoopConnection.connect(address, self._options)

    # silent and replaced nodes

    async def is_replaced(self, address: Address) -> bool:
        """After a failure: ask the other nodes if they name another primary in its place."""
        self._nodes.failed(address)
        if not self.replaceable:
            return False
        if not self._nodes.fresh:
            try:
                await self._learn(patient=False)
            except BrokerError:
                return False
        return not self.is_primary(address)

    def _check_silent(self, connection: LoopConnection) -> None:
        """Called repeatedly while a node is silent."""
        if connection not in self._checking:
            task = asyncio.get_running_loop().create_task(self._give_up_replaced(connection))
            self._checking[connection] = task
            task.add_done_callback(lambda _: self._checking.pop(connection, None))

    async def _give_up_replaced(self, connection: LoopConnection) -> None:
        if await self.is_replaced(connection.address):
            connection.give_up(replaced(connection.address))

    def _is_replaced_blocking(self, address: Address) -> bool:
        return run_blocking(self.is_replaced(address))

    # the end

    def _drop(self, address: Address) -> None:
        """The next call opens a new connection."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
        if self._blocking:
            self._pool(address).clear()

    def close(self) -> None:
        for task in self._checking.values():
            task.cancel()
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        for pool in self._pools.values():
            pool.close()


def _close(making: asyncio.Future[LoopConnection]) -> None:
    """Close a connection whose caller was cancelled."""
    if not making.cancelled() and making.exception() is None:
        making.result().close()


def _address(text: bytes, asked: Address) -> Address:
    host, _, port = text.decode().rpartition(":")
    return Address(host.strip("[]") or asked.host, int(port))
