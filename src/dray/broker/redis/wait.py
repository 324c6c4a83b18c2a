"""`wait`: check for work, register as asleep in the same step if there is none, then sleep until woken.

A wake-up says what it is for, so a waiter woken for work, or sent the end of a job, need not check again. A
message to a subscribed watcher is sent once and not stored, so a broken connection may have lost one: the
next wait for that watcher raises `BrokerAway`, and the caller reads its jobs again.

Nothing is polled. Every `SLICE` a sleeper checks anyway, and pings its connection, which bounds the delay of
a lost wake-up. On a cluster it checks more often, as a node that replaces another may not know the sleepers.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from itertools import count
from typing import Any, Final

from msgspec.structs import replace

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import read_ended
from dray.broker.redis.hand_over import MARK, hand_over, read_mark, take_args
from dray.broker.redis.ids import public_id
from dray.broker.redis.pubsub import Subscriber
from dray.broker.redis.router import Command, command
from dray.broker.redis.standing_wait import QUEUES_MIN, StandingWait
from dray.broker.redis.take import filter_args
from dray.broker.verbs import Filter, Interest, Wake
from dray.errors import BrokerAway, BrokerError
from dray.job import Record

SLICE: Final = 5.0
CLUSTER_SLICE: Final = 1.0
ASK_AGAIN: Final = 1.0
"""Seconds for which a known session is not looked up again; its notifications wake it."""
LOOK_FIRST: Final = 4
"""More queues than these are looked at for emptiness first, which costs a twentieth of a script each."""
STANDING_MAX: Final = 60.0
"""Seconds after which a standing wait that is not used is given up."""


class Waits:
    """The waits of one broker object."""

    def __init__(self, core: Core, subscriber: Subscriber) -> None:
        self._core, self._subscriber = core, subscriber
        self._free: list[str] = []
        """Names of waiters for reuse."""
        self._names, self._sleeps = count(1), count(1)
        self._leaving: set[asyncio.Task[None]] = set()
        self._places: dict[tuple[str | None, str | None], tuple[Sequence[str], Sequence[str]]] = {}
        """Further queues that may have notifications for a session, or mail for a watcher."""
        self._fetched: dict[str, int] = {}
        """Subscribed watchers whose mail was fetched, with the connection's `breaks` then."""
        self._known: dict[str, tuple[float, int]] = {}
        """When a session was last known, with the connection's `breaks` then."""
        self._standing: dict[str, StandingWait] = {}
        """By session."""
        self._by_channel: dict[str, StandingWait] = {}
        subscriber.on_message = self._message_came

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        if timeout <= 0:
            self._subscriber.receive()
            received = self._received(interest)
            standing = self._standing.get(interest.session or "")
            if standing is not None and standing.filter == interest.filter:
                received = _both(received, standing.news(interest.queues))
                interest = replace(interest, queues=standing.unknown(interest.queues))
            return _both(received, (await self._check(interest, "", 0))[0])
        if interest.session is not None and self._can_stand(interest):
            standing = await self._stand(interest.session, interest.filter)
            return await standing.wait(interest.queues, timeout, self._slice, interest.next_take)
        waiter = self._name()
        wake = await self._wait(interest, timeout, waiter)
        self._free.append(waiter)  # one that is broken off is free once it has left its sleep
        return wake

    def _name(self) -> str:
        try:
            return self._free.pop()
        except IndexError:
            return f"{self._core.name}.{next(self._names)}"

    @property
    def _slice(self) -> float:
        return CLUSTER_SLICE if self._core.router.replaceable else SLICE

    async def _wait(self, interest: Interest, timeout: float, waiter: str) -> Wake:
        deadline = time.monotonic() + timeout
        channels = self._channels(interest, waiter)
        asleep: list[str] = []
        wake, checked, woken = Wake(), False, False
        number = next(self._sleeps) % MARK
        try:
            while wake == Wake():
                await self._subscriber.subscribe(channels)
                counter, left = self._subscriber.counter(channels), deadline - time.monotonic()
                until = self._slice
                wake = self._received(interest)
                if wake == Wake() and (checked or not self._needs_no_check(interest)):
                    name = waiter if left > 0 else ""
                    wake, until, where = await self._check(interest, name, left, number)
                    asleep = where if name else asleep
                checked = True
                if left <= 0:
                    break
                if wake == Wake():
                    nap = min(left, until, self._slice)
                    wake = await self._sleep(interest, channels, counter, nap, number)
                    woken = wake.work or bool(wake.taken)
        except BaseException:
            self._break_off(interest, waiter)
            raise
        if not woken or len(asleep) > 1:  # a wake-up has removed it from its queue already
            await self._leave_sleep(asleep, waiter, woken)
        return wake

    async def _sleep(
        self, interest: Interest, channels: list[str], counter: int, nap: float, number: int
    ) -> Wake:
        await self._subscriber.sleep(channels, counter, nap)
        if nap == self._slice and self._subscriber.counter(channels) == counter:
            await self._subscriber.check()
        rung: dict[str, None] = {}
        handed: dict[str, bytes] = {}
        for message in self._subscriber.messages(channels[0]):
            kind, sleep, place = read_mark(message)
            if sleep == number and kind == b"w":
                rung[interest.queues[place]] = None
            elif sleep == number and kind == b"j":
                handed[interest.queues[place]] = message
        wake = Wake(work=bool(rung), queues=tuple(sorted(rung, key=interest.queues.index)))
        if handed:
            wake = _both(wake, hand_over(self._core, interest.session, interest.next_take, handed))
        return _both(wake, self._received(interest))

    def _received(self, interest: Interest) -> Wake:
        """Messages of ended jobs that arrived for the watcher."""
        watcher = interest.watcher
        if watcher is None:
            return Wake()
        since = self._fetched.get(watcher)
        if since is not None and since != self._subscriber.breaks:
            del self._fetched[watcher]
            raise BrokerAway("the connection that listens was cut: word of an end may be lost, read again")
        finished: dict[str, None] = {}
        records: dict[str, Record] = {}
        for message in self._subscriber.messages(self._core.keys.watcher_channel(watcher)):
            place, stored, ended = message.split(b"\n", 2)
            queue = place.decode()
            id = public_id(stored, queue)
            finished[id] = None
            if ended:
                records[id] = read_ended(queue, id, ended, self._core.retention)
            else:
                records.pop(id, None)
        return Wake(finished=tuple(finished), records=records) if finished else Wake()

    def _needs_no_check(self, interest: Interest) -> bool:
        """True if only a watcher is of interest, and none of its messages can have been missed.

        On a cluster ends are mailed as well, as a node does not know the subscribers of the others.
        """
        watcher = interest.watcher
        if self._core.router.cluster:
            return False
        alone = watcher is not None and not interest.queues and interest.session is None
        return alone and self._fetched.get(watcher or "") == self._subscriber.breaks

    def _channels(self, interest: Interest, waiter: str) -> list[str]:
        keys = self._core.keys
        channels = [keys.waiter_channel(waiter)]
        if interest.session is not None:
            channels.append(keys.session_channel(interest.session))
        if interest.watcher is not None:
            channels.append(keys.watcher_channel(interest.watcher))
        return channels

    def _break_off(self, interest: Interest, waiter: str) -> None:
        """Pass on a wake-up that came meanwhile, without keeping the caller waiting."""
        if self._core.blocking or not interest.queues:
            self._free.append(waiter)
            return
        task = asyncio.get_running_loop().create_task(self._pass_on(interest.queues, waiter))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _pass_on(self, queues: Sequence[str], waiter: str) -> None:
        with contextlib.suppress(BrokerError):
            await self._core.calls(
                [self._core.on_queue("leave_sleep", name, None, waiter) for name in queues]
            )
        self._free.append(waiter)

    async def _leave_sleep(self, queues: Sequence[str], waiter: str, hurry: bool) -> None:
        """Remove the waiter from the sleepers. In a hurry without waiting for the reply."""
        keys = [self._core.keys.queue(name) + "sleep" for name in queues]
        calls = [command(key, "HDEL", key, waiter) for key in keys]
        await (self._core.router.post(calls) if hurry else self._core.calls(calls))

    # waits of workers in many queues

    def _can_stand(self, interest: Interest) -> bool:
        """Only on a loop, which passes wake-ups on while the worker is busy."""
        many = len(interest.queues) >= QUEUES_MIN
        return many and interest.watcher is None and not self._core.blocking

    async def _stand(self, session: str, filter: Filter) -> StandingWait:
        standing = self._standing.get(session)
        if standing is not None and standing.filter == filter:
            return standing
        old = [name for name, one in self._standing.items() if name == session or _is_over(one)]
        for name in old:
            await self.leave(name)
        waiter, number = self._name(), next(self._sleeps) % MARK
        standing = StandingWait(self._core, self._subscriber, session, filter, waiter, number)
        self._standing[session] = self._by_channel[self._core.keys.waiter_channel(waiter)] = standing
        return standing

    async def leave(self, session: str) -> None:
        """The session waits no more."""
        standing = self._standing.pop(session, None)
        if standing is not None:
            await standing.leave()
            self._by_channel.pop(self._core.keys.waiter_channel(standing.waiter), None)
            self._free.append(standing.waiter)

    def _message_came(self, channel: str) -> None:
        standing = self._by_channel.get(channel)
        if standing is not None:
            standing.message_came()

    async def finish(self) -> None:
        """Finish before the connection is closed."""
        for session in list(self._standing):
            await self.leave(session)
        if self._leaving:
            await asyncio.gather(*self._leaving)

    async def _check(
        self, interest: Interest, waiter: str, left: float, sleep: int = 0
    ) -> tuple[Wake, float, list[str]]:
        """The news, the longest time to sleep if there is none, and the queues where the waiter sleeps now.

        The further queues of a session or watcher are asked for in the same round trip, and checked as they
        were known before; only new ones cost another.
        """
        breaks, session = self._subscriber.breaks, interest.session
        check = _Check(self._core, interest, waiter, int(min(max(left, 0), self._slice) * 1000), sleep)
        check.knows_session = bool(waiter) and self._known_lately(session)
        elsewhere, watched = self._places.get((interest.session, interest.watcher), ((), ()))
        await check.run(interest.queues, elsewhere, watched)
        if check.new_places((elsewhere, watched)):
            self._remember(interest, (check.elsewhere, check.watched))
            await check.run(
                (),
                [name for name in check.elsewhere if name not in elsewhere],
                [name for name in check.watched if name not in watched],
            )
        if interest.watcher is not None and waiter:
            self._fetched.setdefault(interest.watcher, breaks)
        if session is not None and waiter and not (check.told or check.knows_session):
            self._known[session] = (time.monotonic(), breaks)
        wake = Wake(bool(check.work), check.told, tuple(check.finished), queues=tuple(check.work))
        return wake, check.until, check.asleep

    def _known_lately(self, session: str | None) -> bool:
        at, breaks = self._known.get(session or "", (0.0, -1))
        return breaks == self._subscriber.breaks and time.monotonic() - at < ASK_AGAIN

    def _remember(self, interest: Interest, places: tuple[Sequence[str], Sequence[str]]) -> None:
        if len(self._places) > 1000:
            self._places.clear()
            self._known.clear()
        self._places[interest.session, interest.watcher] = places


def _is_over(standing: StandingWait) -> bool:
    return not standing.waiting and time.monotonic() - standing.used_at > STANDING_MAX


def _both(one: Wake, other: Wake) -> Wake:
    if one == Wake():
        return other
    finished = tuple(dict.fromkeys((*one.finished, *other.finished)))
    return Wake(
        one.work or other.work,
        one.told or other.told,
        finished,
        {**one.records, **other.records},
        one.queues + other.queues,
        one.taken + other.taken,
        max(one.handed_at, other.handed_at),
    )


class _Check:
    """One check for news in several queues."""

    def __init__(self, core: Core, interest: Interest, waiter: str, length: int, sleep: int) -> None:
        self._core, self._interest, self._waiter, self._length = core, interest, waiter, length
        self._sleep = sleep
        self.work: list[str] = []
        """The queues with work."""
        self.told = False
        self.knows_session = False
        """The session was known a moment ago, so its further queues are not asked for."""
        self.finished: dict[str, None] = {}
        self.until = 3600.0
        self.asleep: list[str] = []
        """The queues in which the waiter is registered now."""
        self.elsewhere: list[str] = []
        self.watched: list[str] = []

    def new_places(self, known: tuple[Sequence[str], Sequence[str]]) -> bool:
        return bool(set(self.elsewhere) - set(known[0]) or set(self.watched) - set(known[1]))

    async def run(self, queues: Sequence[str], elsewhere: Sequence[str], watched: Sequence[str]) -> None:
        interest, core = self._interest, self._core
        session, watcher = interest.session, interest.watcher
        key = f"{core.keys.own}w:{watcher}"
        if not self._waiter:  # else a script is needed in each, which registers the sleeper
            queues = await self._not_empty(queues, "index", "due", "offer", *self._notifications)
        elsewhere = await self._not_empty(elsewhere, *self._notifications)
        checks = [self._call(name, self._waiter, 1, place) for place, name in enumerate(queues)]
        checks += [self._call(name, "", 0) for name in elsewhere]
        mail = [core.on_queue("collect_finished", name, None, watcher or "") for name in watched]
        if self.knows_session:
            session = None
        ask = [] if session is None else [core.on_own("session_enrol", None, session)]
        ask += [] if watcher is None else [command(key, "SMEMBERS", key)]
        replies = await core.calls([*checks, *mail, *ask])
        self._read(queues, replies[: len(checks)])
        for name, ids in zip(watched, replies[len(checks) : len(checks) + len(mail)], strict=True):
            self.finished |= {public_id(id, name): None for id in ids}
        answers = iter(replies[len(checks) + len(mail) :])
        if session is not None:
            self._read_session(next(answers))
        if watcher is not None:
            self.watched = sorted(name.decode() for name in next(answers))

    @property
    def _notifications(self) -> tuple[str, str]:
        """The keys that a queue has if there are notifications for the session."""
        return "asked", f"v:{self._interest.session}"

    async def _not_empty(self, queues: Sequence[str], *keys: str) -> Sequence[str]:
        """The queues that have one of the keys; if they are few, all of them."""
        if len(queues) <= LOOK_FIRST:
            return queues
        prefixes = [self._core.keys.queue(name) for name in queues]
        looks = [command(prefix, "EXISTS", *(prefix + key for key in keys)) for prefix in prefixes]
        found = await self._core.calls(looks)
        return [name for name, number in zip(queues, found, strict=True) if number]

    def _call(self, queue: str, waiter: str, work: int, place: int = 0) -> Command:
        interest = self._interest
        args = (waiter, self._length, interest.session or "", work, *filter_args(interest.filter))
        take = take_args(self._core, interest.next_take if waiter else None, queue)
        return self._core.on_queue("check_for_work", queue, None, *args, self._sleep * MARK + place, *take)

    def _read(self, queues: Sequence[str], replies: Sequence[Any]) -> None:
        for place, (work, notified, until) in enumerate(replies):
            self.told = self.told or bool(notified)
            if work:
                self.work.append(queues[place])
            if until != b"":
                self.until = min(self.until, int(until) / 1000)
            if self._waiter and place < len(queues) and not (work or notified):
                self.asleep.append(queues[place])

    def _read_session(self, reply: Sequence[Any]) -> None:
        """An unknown session must learn so from `renew`."""
        if reply[0] == b"unknown":
            self.told = True
            return
        names = sorted(name.decode() for name in reply[3])
        self.elsewhere = [name for name in names if name not in self._interest.queues]
