"""`wait`: look, and if there is nothing, be registered as asleep in the same step; then sleep until rung.

Nothing is polled. Every `SLICE` a sleeper looks anyhow, and sees whether its bell still hears: that bounds
what a ring lost with a node, or a connection that died without a word, can cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from dray.broker.redis.bell import Bell
from dray.broker.redis.core import Core
from dray.broker.redis.router import Call, command
from dray.broker.redis.taking import filter_args
from dray.broker.verbs import Interest, Wake
from dray.errors import BrokerError

SLICE = 5.0


class Waiting:
    """The waits of one broker object."""

    def __init__(self, core: Core, bell: Bell) -> None:
        self._core, self._bell = core, bell
        self._free: list[str] = []
        self._names = 0
        self._rising: set[asyncio.Task[None]] = set()

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if timeout <= 0:
            wake, _ = await self._look(interest, "", 0)
            return wake
        waiter = self._free.pop() if self._free else self._name()
        try:
            return await self._wait(interest, timeout, waiter)
        finally:
            self._free.append(waiter)

    def _name(self) -> str:
        self._names += 1
        return f"{self._core.name}.{self._names}"

    async def _wait(self, interest: Interest, timeout: float, waiter: str) -> Wake:
        deadline = time.monotonic() + timeout
        channels = self._channels(interest, waiter)
        try:
            while True:
                await self._bell.listen(channels)
                heard = self._bell.heard(channels)
                left = deadline - time.monotonic()
                wake, until = await self._look(interest, waiter if left > 0 else "", left)
                if wake != Wake() or left <= 0:
                    break
                nap = min(left, until, SLICE)
                await self._bell.sleep(channels, heard, nap)
                if nap == SLICE and self._bell.heard(channels) == heard:
                    await self._bell.check()
        except BaseException:
            self._leave(interest, waiter)
            raise
        await self._rise(interest.queues, waiter, 0)
        return wake

    def _channels(self, interest: Interest, waiter: str) -> list[str]:
        keys = self._core.keys
        channels = [keys.bell(waiter)]
        if interest.session is not None:
            channels.append(keys.session_channel(interest.session))
        if interest.watcher is not None:
            channels.append(keys.watcher_channel(interest.watcher))
        return channels

    def _leave(self, interest: Interest, waiter: str) -> None:
        """Broken off: a ring that came meanwhile is passed on, without keeping the caller waiting."""
        if self._core.blocking or not interest.queues:
            return
        task = asyncio.get_running_loop().create_task(self._rise_quietly(interest.queues, waiter))
        self._rising.add(task)
        task.add_done_callback(self._rising.discard)

    async def _rise_quietly(self, queues: Sequence[str], waiter: str) -> None:
        with contextlib.suppress(BrokerError):
            await self._rise(queues, waiter, 1)

    async def _rise(self, queues: Sequence[str], waiter: str, unheard: int) -> None:
        await self._core.calls([self._core.on_queue("rise", name, None, waiter, unheard) for name in queues])

    async def settle(self) -> None:
        """Before the connection is closed."""
        if self._rising:
            await asyncio.gather(*self._rising)

    async def _look(self, interest: Interest, waiter: str, left: float) -> tuple[Wake, float]:
        """What news there is, and for how long to sleep at most if there is none."""
        elsewhere, told = await self._session_queues(interest)
        length = int(min(max(left, 0), SLICE) * 1000)
        watched = await self._watched(interest.watcher)
        calls = [
            *(self._looking(name, interest, waiter, length, 1) for name in interest.queues),
            *(self._looking(name, interest, "", length, 0) for name in elsewhere),
            *(self._core.on_queue("mail", name, None, interest.watcher or "") for name in watched),
        ]
        replies = await self._core.calls(calls)
        looked = replies[: len(calls) - len(watched)]
        finished = tuple(dict.fromkeys(id.decode() for mail in replies[len(looked) :] for id in mail))
        work = any(reply[0] for reply in looked)
        told = told or any(reply[1] for reply in looked)
        times = [int(reply[2]) / 1000 for reply in looked if reply[2] != b""]
        return Wake(work, told, finished), min(times, default=3600.0)

    def _looking(self, queue: str, interest: Interest, waiter: str, length: int, work: int) -> Call:
        args = (waiter, length, interest.session or "", work, *filter_args(interest.filter))
        return self._core.on_queue("look", queue, None, *args)

    async def _session_queues(self, interest: Interest) -> tuple[list[str], bool]:
        """Where else there may be word for the session, and whether it is unknown."""
        if interest.session is None:
            return [], False
        state, *facts = await self._core.call(self._core.on_own("session_enrol", None, interest.session, ""))
        if state == b"unknown":
            return [], True
        return [name.decode() for name in facts[3] if name.decode() not in interest.queues], False

    async def _watched(self, watcher: str | None) -> list[str]:
        """The queues in which a watcher waits for jobs."""
        if watcher is None:
            return []
        key = f"{self._core.keys.own}w:{watcher}"
        return [name.decode() for name in await self._core.call(command(key, "SMEMBERS", key))]
