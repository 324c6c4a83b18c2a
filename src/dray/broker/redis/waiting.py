"""`wait`: look, and if there is nothing, be registered as asleep in the same step; then sleep until rung.

Nothing is polled. Every `SLICE` a sleeper looks anyhow, and sees whether its bell still hears: that bounds
what a ring lost with a node, or a connection that died without a word, can cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any

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
        self._places: dict[tuple[str | None, str | None], tuple[Sequence[str], Sequence[str]]] = {}
        """Where else than in its own queues there may be word for a session, or mail for a watcher."""

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if timeout <= 0:
            return (await self._look(interest, "", 0))[0]
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
        asleep: list[str] = []
        try:
            while True:
                await self._bell.listen(channels)
                heard = self._bell.heard(channels)
                left = deadline - time.monotonic()
                if left <= 0:
                    wake, _, _ = await self._look(interest, "", 0)
                    break
                wake, until, asleep = await self._look(interest, waiter, left)
                if wake != Wake():
                    break
                nap = min(left, until, SLICE)
                await self._bell.sleep(channels, heard, nap)
                if nap == SLICE and self._bell.heard(channels) == heard:
                    await self._bell.check()
        except BaseException:
            self._leave(interest, waiter)
            raise
        await self._rise(asleep, waiter, 0)
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

    async def _look(self, interest: Interest, waiter: str, left: float) -> tuple[Wake, float, list[str]]:
        """What news there is, for how long to sleep at most if there is none, and where we sleep now.

        Where else there may be word or mail is asked for in the same round trip, and looked at as it was
        known before; what is new to us costs another.
        """
        look = _Look(self._core, interest, waiter, int(min(max(left, 0), SLICE) * 1000))
        elsewhere, watched = self._places.get((interest.session, interest.watcher), ((), ()))
        await look.around(interest.queues, elsewhere, watched)
        if look.new_places((elsewhere, watched)):
            self._remember(interest, (look.elsewhere, look.watched))
            await look.around(
                (),
                [name for name in look.elsewhere if name not in elsewhere],
                [name for name in look.watched if name not in watched],
            )
        return Wake(look.work, look.told, tuple(look.finished)), look.until, look.asleep

    def _remember(self, interest: Interest, places: tuple[Sequence[str], Sequence[str]]) -> None:
        if len(self._places) > 1000:
            self._places.clear()
        self._places[interest.session, interest.watcher] = places


class _Look:
    """One look for news."""

    def __init__(self, core: Core, interest: Interest, waiter: str, length: int) -> None:
        self._core, self._interest, self._waiter, self._length = core, interest, waiter, length
        self.work = self.told = False
        self.finished: dict[str, None] = {}
        self.until = 3600.0
        self.asleep: list[str] = []
        """The queues in which we are registered now."""
        self.elsewhere: list[str] = []
        self.watched: list[str] = []

    def new_places(self, known: tuple[Sequence[str], Sequence[str]]) -> bool:
        return bool(set(self.elsewhere) - set(known[0]) or set(self.watched) - set(known[1]))

    async def around(self, queues: Sequence[str], elsewhere: Sequence[str], watched: Sequence[str]) -> None:
        interest, core = self._interest, self._core
        session, watcher = interest.session, interest.watcher
        key = f"{core.keys.own}w:{watcher}"
        looks = [self._look(name, self._waiter, 1) for name in queues]
        looks += [self._look(name, "", 0) for name in elsewhere]
        mail = [core.on_queue("mail", name, None, watcher or "") for name in watched]
        ask = [] if session is None else [core.on_own("session_enrol", None, session, "")]
        ask += [] if watcher is None else [command(key, "SMEMBERS", key)]
        replies = await core.calls([*looks, *mail, *ask])
        self._looked(queues, replies[: len(looks)])
        for ids in replies[len(looks) : len(looks) + len(mail)]:
            self.finished |= {id.decode(): None for id in ids}
        answers = iter(replies[len(looks) + len(mail) :])
        if session is not None:
            self._session(next(answers))
        if watcher is not None:
            self.watched = sorted(name.decode() for name in next(answers))

    def _look(self, queue: str, waiter: str, work: int) -> Call:
        interest = self._interest
        args = (waiter, self._length, interest.session or "", work, *filter_args(interest.filter))
        return self._core.on_queue("look", queue, None, *args)

    def _looked(self, queues: Sequence[str], replies: Sequence[Any]) -> None:
        for place, (work, word, until) in enumerate(replies):
            self.work, self.told = self.work or bool(work), self.told or bool(word)
            if until != b"":
                self.until = min(self.until, int(until) / 1000)
            if self._waiter and place < len(queues) and not (work or word):
                self.asleep.append(queues[place])

    def _session(self, reply: Sequence[Any]) -> None:
        """An unknown session is to be told so."""
        if reply[0] == b"unknown":
            self.told = True
            return
        names = sorted(name.decode() for name in reply[4])
        self.elsewhere = [name for name in names if name not in self._interest.queues]
