"""`wait`: look, and if there is nothing, be registered as asleep in the same step; then sleep until rung.

A ring says what it is for: who is rung for work, or told how a job ended, need not look once more. What is
told to a watcher that listens is told once and not kept, so a connection that broke may have cost word of an
end: the next wait for that watcher says so, and whoever waits reads its jobs again.

Nothing is polled. Every `SLICE` a sleeper looks anyhow, and sees whether its bell still hears: that bounds
what a ring lost with a node, or a connection that died without a word, can cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Any, Final

from dray.broker.redis.bell import Bell
from dray.broker.redis.core import Core
from dray.broker.redis.router import Call, command
from dray.broker.redis.rows import read_ended
from dray.broker.redis.taking import filter_args
from dray.broker.verbs import Interest, Wake
from dray.errors import BrokerAway, BrokerError
from dray.job import Record

SLICE: Final = 5.0
ASK_AGAIN: Final = 1.0
"""Seconds for which a session that was known is taken to be so: word for it rings."""


class Waiting:
    """The waits of one broker object."""

    def __init__(self, core: Core, bell: Bell) -> None:
        self._core, self._bell = core, bell
        self._free: list[str] = []
        self._names = self._sleeps = 0
        self._rising: set[asyncio.Task[None]] = set()
        self._places: dict[tuple[str | None, str | None], tuple[Sequence[str], Sequence[str]]] = {}
        """Where else than in its own queues there may be word for a session, or mail for a watcher."""
        self._listened: dict[str, int] = {}
        """Watchers whose mail was fetched once they were listened for, and which connection listens since."""
        self._known: dict[str, tuple[float, int]] = {}
        """When a session was last known, and which connection listened then."""

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if timeout <= 0:
            self._bell.take_in()
            said = self._said(interest)
            return _both(said, (await self._look(interest, "", 0))[0])
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
        wake, looked, rung = Wake(), False, False
        self._sleeps += 1
        number = self._sleeps
        ring = b"w%d" % number
        try:
            while wake == Wake():
                await self._bell.listen(channels)
                heard, left = self._bell.heard(channels), deadline - time.monotonic()
                until = SLICE
                wake = self._said(interest)
                if wake == Wake() and (looked or not self._hears_all(interest)):
                    name = waiter if left > 0 else ""
                    wake, until, where = await self._look(interest, name, left, number)
                    asleep = where if name else asleep
                looked = True
                if left <= 0:
                    break
                if wake == Wake():
                    wake = await self._sleep(interest, channels, heard, min(left, until, SLICE), ring)
                    rung = wake.work
        except BaseException:
            self._leave(interest, waiter)
            raise
        if not rung or len(asleep) > 1:  # who is rung in a queue is not registered there any more
            await self._rise(asleep, waiter, rung)
        return wake

    async def _sleep(
        self, interest: Interest, channels: list[str], heard: int, nap: float, ring: bytes
    ) -> Wake:
        await self._bell.sleep(channels, heard, nap)
        if nap == SLICE and self._bell.heard(channels) == heard:
            await self._bell.check()
        return _both(Wake(work=ring in self._bell.said(channels[0])), self._said(interest))

    def _said(self, interest: Interest) -> Wake:
        """What watchers were told meanwhile."""
        watcher = interest.watcher
        if watcher is None:
            return Wake()
        since = self._listened.get(watcher)
        if since is not None and since != self._bell.broken:
            del self._listened[watcher]
            raise BrokerAway("the connection that listens was cut: word of an end may be lost, read again")
        finished: dict[str, None] = {}
        records: dict[str, Record] = {}
        for message in self._bell.said(self._core.keys.watcher_channel(watcher)):
            name, _, ended = message.partition(b"\n")
            id = name.decode()
            finished[id] = None
            if ended:
                records[id] = read_ended(id, ended, self._core.retention)
            else:
                records.pop(id, None)
        return Wake(finished=tuple(finished), records=records) if finished else Wake()

    def _hears_all(self, interest: Interest) -> bool:
        """Whether nothing but word for a watcher is of interest, and nothing of that can have been missed.

        On a cluster word is mailed as well, as a node does not know who listens at the others.
        """
        watcher = interest.watcher
        if self._core.router.cluster:
            return False
        alone = watcher is not None and not interest.queues and interest.session is None
        return alone and self._listened.get(watcher or "") == self._bell.broken

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
        """A ring that nobody will answer is passed on."""
        with contextlib.suppress(BrokerError):
            await self._core.calls([self._core.on_queue("rise", name, None, waiter) for name in queues])

    async def _rise(self, queues: Sequence[str], waiter: str, hurry: bool) -> None:
        """Not asleep any more. In a hurry nobody waits for the answer: what follows comes after it anyhow."""
        keys = [self._core.keys.queue(name) + "sleep" for name in queues]
        calls = [command(key, "HDEL", key, waiter) for key in keys]
        await (self._core.router.post(calls) if hurry else self._core.calls(calls))

    async def settle(self) -> None:
        """Before the connection is closed."""
        if self._rising:
            await asyncio.gather(*self._rising)

    async def _look(
        self, interest: Interest, waiter: str, left: float, sleep: int = 0
    ) -> tuple[Wake, float, list[str]]:
        """What news there is, for how long to sleep at most if there is none, and where we sleep now.

        Where else there may be word or mail is asked for in the same round trip, and looked at as it was
        known before; what is new to us costs another.
        """
        broken, session = self._bell.broken, interest.session
        look = _Look(self._core, interest, waiter, int(min(max(left, 0), SLICE) * 1000), sleep)
        look.knows_session = bool(waiter) and self._known_lately(session)
        elsewhere, watched = self._places.get((interest.session, interest.watcher), ((), ()))
        await look.around(interest.queues, elsewhere, watched)
        if look.new_places((elsewhere, watched)):
            self._remember(interest, (look.elsewhere, look.watched))
            await look.around(
                (),
                [name for name in look.elsewhere if name not in elsewhere],
                [name for name in look.watched if name not in watched],
            )
        if interest.watcher is not None and waiter:
            self._listened.setdefault(interest.watcher, broken)
        if session is not None and waiter and not (look.told or look.knows_session):
            self._known[session] = (time.monotonic(), broken)
        return Wake(look.work, look.told, tuple(look.finished)), look.until, look.asleep

    def _known_lately(self, session: str | None) -> bool:
        at, broken = self._known.get(session or "", (0.0, -1))
        return broken == self._bell.broken and time.monotonic() - at < ASK_AGAIN

    def _remember(self, interest: Interest, places: tuple[Sequence[str], Sequence[str]]) -> None:
        if len(self._places) > 1000:
            self._places.clear()
            self._known.clear()
        self._places[interest.session, interest.watcher] = places


def _both(one: Wake, other: Wake) -> Wake:
    if one == Wake():
        return other
    finished = tuple(dict.fromkeys((*one.finished, *other.finished)))
    return Wake(one.work or other.work, one.told or other.told, finished, {**one.records, **other.records})


class _Look:
    """One look for news."""

    def __init__(self, core: Core, interest: Interest, waiter: str, length: int, sleep: int) -> None:
        self._core, self._interest, self._waiter, self._length = core, interest, waiter, length
        self._sleep = sleep
        self.work = self.told = False
        self.knows_session = False
        """It was known a moment ago: there is no need to ask where else there may be word for it."""
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
        if self.knows_session:
            session = None
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
        return self._core.on_queue("look", queue, None, *args, self._sleep)

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
