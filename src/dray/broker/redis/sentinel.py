"""Asks all sentinels at once which server is the primary; the answer of the newest epoch counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

import hiredis
from msgspec.structs import replace

from dray.broker.blocking import run_blocking
from dray.broker.redis.blocking_connection import BlockingConnection
from dray.broker.redis.connection import LoopConnection, Reply, pack
from dray.broker.redis.errors import unreachable
from dray.broker.redis.options import Address, Options
from dray.errors import BrokerAway, BrokerError

ASK_WITHIN: Final = 1.0
"""Seconds that a sentinel may take to answer."""
ASK_EVERY: Final = 2.0
"""Seconds after which they are asked again, as a primary that was replaced may still answer."""


class _Answer(NamedTuple):
    epoch: int
    address: Address


class Sentinels:
    """The sentinels of one primary."""

    def __init__(self, options: Options, blocking: bool) -> None:
        self._addresses, self._name, self._blocking = options.sentinels, options.primary, blocking
        self._options = replace(
            options,
            username=options.sentinel_username,
            password=options.sentinel_password,
            db=0,
            tls=options.tls if options.sentinel_tls is None else options.sentinel_tls,
            connect_timeout=min(ASK_WITHIN, options.connect_timeout),
            timeout=ASK_WITHIN,
        )
        self.current: Address | None = None
        """The primary that was used last."""
        self._epoch = 0
        self._asked = 0.0

    @property
    def due(self) -> bool:
        return time.monotonic() - self._asked > ASK_EVERY

    async def find_primaries(self) -> list[Address]:
        """The servers that the newest answers name: one, or two while the sentinels change over.

        Then the one in use comes last. An epoch older than one seen before is refused.
        """
        self._asked = time.monotonic()
        found = self._ask_in_threads() if self._blocking else await self._ask_on_loop()
        answers = [one for one in found if isinstance(one, _Answer)]
        if not answers:
            raise next(one for one in found if isinstance(one, BrokerError))
        newest = max(answer.epoch for answer in answers)
        named = dict.fromkeys(answer.address for answer in answers if answer.epoch == newest)
        if newest < self._epoch:
            raise BrokerAway(
                f"the sentinels that answer name {', '.join(map(str, named))}, which has been replaced: "
                "they are cut off from the others"
            )
        self._epoch = newest
        return sorted(named, key=lambda address: address == self.current)

    def switched_to(self, address: Address) -> Address | None:
        """Use this primary from now on; returns the one whose place it takes."""
        before, self.current = self.current, address
        return before if before != address else None

    async def _ask_on_loop(self) -> Sequence[_Answer | BrokerError]:
        return await asyncio.gather(*(self._ask_one_on_loop(one) for one in self._addresses))

    async def _ask_one_on_loop(self, address: Address) -> _Answer | BrokerError:
        try:
            async with asyncio.timeout(ASK_WITHIN):
                connection = await LoopConnection.connect(address, self._options)
                try:
                    replies = await connection.exchange(self._questions, 2)
                finally:
                    connection.close()
            return self._read(address, *replies)
        except TimeoutError as error:
            return unreachable(address, error, self._options.tls)
        except BrokerError as error:
            return error

    def _ask_in_threads(self) -> Sequence[_Answer | BrokerError]:
        with ThreadPoolExecutor(len(self._addresses)) as threads:
            return list(threads.map(self._ask_one_in_thread, self._addresses))

    def _ask_one_in_thread(self, address: Address) -> _Answer | BrokerError:
        try:
            connection = run_blocking(BlockingConnection.connect(address, self._options, within=ASK_WITHIN))
            try:
                replies = run_blocking(connection.exchange(self._questions, 2, ASK_WITHIN))
            finally:
                connection.close()
            return self._read(address, *replies)
        except BrokerError as error:
            return error

    @property
    def _questions(self) -> bytes:
        """The second names a replica as soon as it is promoted, the first only when all is done."""
        ask = ("SENTINEL", "MASTER", self._name), ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
        return b"".join(pack(*words) for words in ask)

    def _read(self, asked: Address, master: Reply, named: Reply) -> _Answer | BrokerError:
        if isinstance(master, hiredis.ReplyError) or not isinstance(named, list):
            if named is None or "No such master" in str(master):
                return BrokerError(
                    f"the sentinel {asked} watches no primary named {self._name}: check the URL"
                )
            return BrokerError(f"{asked} answered with an error: {master}")
        facts = dict(zip(master[::2], master[1::2], strict=True))
        return _Answer(int(facts[b"config-epoch"]), Address(named[0].decode(), int(named[1])))


def is_primary(role: Reply) -> bool:
    """The reply to ROLE is that of a primary."""
    return isinstance(role, list) and bool(role) and role[0] == b"master"
