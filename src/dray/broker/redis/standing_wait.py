"""A worker's wait in many queues: between its waits it stays registered as a sleeper in each of them.

To register in a queue is a script there, so a worker of a thousand queues must not do it anew each time it
falls asleep. A wake-up strikes it off in that one queue only. A wake-up that comes while the worker is busy
is passed on to another sleeper; the worker finds the queue in its next wait or look.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from random import random
from typing import Final

from msgspec.structs import replace

from dray.broker.redis.core import Core
from dray.broker.redis.hand_over import MARK, hand_over, read_mark, take_args
from dray.broker.redis.pubsub import Subscriber
from dray.broker.redis.router import Command, command
from dray.broker.redis.take import filter_args
from dray.broker.verbs import Filter, NextTake, Wake
from dray.errors import BrokerError

QUEUES_MIN: Final = 8
"""With fewer queues it is cheaper to register anew each time."""
STEP: Final = 500
"""Queues that are asked at once."""
EACH: Final = 0.02
"""Seconds between checks for each queue: a lost wake-up is found within 20 s in a thousand queues."""


class StandingWait:
    """The standing wait of one session, on an event loop."""

    def __init__(
        self, core: Core, subscriber: Subscriber, session: str, filter: Filter, waiter: str, number: int
    ) -> None:
        self._core, self._subscriber = core, subscriber
        self._session, self.filter, self.waiter, self._number = session, filter, waiter, number
        self._channels = [core.keys.waiter_channel(waiter), core.keys.session_channel(session)]
        self._places: dict[str, int] = {}
        self._names: list[str] = []
        self._asleep: dict[str, float] = {}
        """The queues where it is registered, and when it checks them anyway."""
        self._rung: dict[str, None] = {}
        """Queues that woke it, not reported yet."""
        self._take: NextTake | None = None
        """The take that it offers, in the current wait or in the last one."""
        self._handed: dict[str, bytes] = {}
        """Jobs that were handed over for it, not reported yet."""
        self._breaks = subscriber.breaks
        self._notices = subscriber.counter(self._channels[1:])
        self._ask_at = self._ping_at = 0.0
        self._passing: set[asyncio.Task[None]] = set()
        self.waiting = False
        self.used_at = time.monotonic()

    async def wait(
        self, queues: Sequence[str], timeout: float, slice: float, take: NextTake | None = None
    ) -> Wake:
        """Sleep until there is work in one of the queues or a notification for the session."""
        deadline = time.monotonic() + timeout
        self.waiting = True
        self._offer(take)
        try:
            while True:
                await self._subscriber.subscribe(self._channels)
                counter = self._subscriber.counter(self._channels)
                wake = self.news(queues)
                if wake == Wake():
                    wake = await self._check(queues, slice)
                left = deadline - time.monotonic()
                if wake != Wake() or left <= 0:
                    return wake
                await self._sleep(counter, min(left, slice, self._next_check(queues)), slice)
        finally:
            self.waiting, self.used_at = False, time.monotonic()
            self.message_came()  # one that this wait did not report

    def _offer(self, take: NextTake | None) -> None:
        """Register anew where the take is offered now, or was before."""
        if take != self._take:
            for name in (*(self._take.queues if self._take else ()), *(take.queues if take else ())):
                self._asleep.pop(name, None)
            self._take = take
            self._handed.clear()

    def news(self, queues: Sequence[str]) -> Wake:
        """The wake-ups since the last call."""
        self._read()
        rung = tuple(name for name in queues if name in self._rung) if self._rung else ()
        self._pass_on([name for name in self._rung if name not in rung])  # it serves them no more
        self._rung.clear()
        notices = self._subscriber.counter(self._channels[1:])
        notified, self._notices = notices != self._notices, notices
        wake = Wake(bool(rung), notified, queues=rung)
        if self._handed:
            handed = hand_over(self._core, self._session, self._take, self._handed)
            self._handed.clear()
            queues = (*rung, *handed.queues)
            wake = replace(handed, work=bool(queues), told=notified, queues=queues)
        return wake

    def unknown(self, queues: Sequence[str]) -> tuple[str, ...]:
        """The queues that may have work without a wake-up: it is not registered there, or must check."""
        if self._breaks != self._subscriber.breaks:  # a message may be lost
            self._breaks = self._subscriber.breaks
            self._asleep.clear()
        now = time.monotonic()
        return tuple(name for name in queues if self._asleep.get(name, 0.0) <= now)

    def message_came(self) -> None:
        """Pass on a wake-up that came while the worker is busy."""
        if not self.waiting:
            before = set(self._rung)
            self._read()
            self._pass_on([name for name in self._rung if name not in before])

    async def leave(self) -> None:
        """Unregister everywhere, also where a check may have registered it unnoticed; pass wake-ups on."""
        keys = [self._core.keys.queue(name) + "sleep" for name in self._names]
        with contextlib.suppress(BrokerError):
            replies = await self._core.calls([command(key, "HDEL", key, self.waiter) for key in keys])
            gone = [name for name, left in zip(self._names, replies, strict=True) if not left]
            missed = [name for name in gone if name in self._asleep]
            self._read()
            self._pass_on(list({**self._rung, **dict.fromkeys(missed)}))
        self._asleep.clear()
        if self._passing:
            await asyncio.gather(*self._passing)

    def _read(self) -> None:
        for message in self._subscriber.messages(self._channels[0]):
            kind, number, place = read_mark(message)
            if number != self._number or place >= len(self._names):
                continue
            name = self._names[place]
            self._asleep.pop(name, None)
            if kind == b"w":
                self._rung[name] = None
            elif kind == b"j" and self.waiting:
                self._handed[name] = message  # a busy session repeats the take that it offered

    async def _check(self, queues: Sequence[str], slice: float) -> Wake:
        """Check the queues where it is not registered, and register where there is no work."""
        unknown, work, told = self.unknown(queues), [], await self._is_unknown(slice)
        length = max(slice, EACH * len(queues))
        for first in range(0, len(unknown), STEP):
            step = unknown[first : first + STEP]
            replies = await self._core.calls([self._call(name, length) for name in step])
            for name, (found, notified, until) in zip(step, replies, strict=True):
                told = told or bool(notified)
                if found:
                    work.append(name)
                if found or notified:
                    self._asleep.pop(name, None)
                    continue
                nap = length * (0.75 + random() / 4)  # noqa: S311 (spreads the checks)
                self._asleep[name] = time.monotonic() + min(nap, nap if until == b"" else int(until) / 1000)
        return Wake(bool(work), told, queues=tuple(work))

    async def _is_unknown(self, slice: float) -> bool:
        """The session is unknown, and must learn so from `renew`; asked now and then."""
        now = time.monotonic()
        if now < self._ask_at:
            return False
        self._ask_at = now + slice
        reply = await self._core.call(self._core.on_own("session_enrol", None, self._session))
        return bool(reply[0] == b"unknown")

    def _call(self, queue: str, length: float) -> Command:
        place = self._places.get(queue)
        if place is None:
            place = self._places[queue] = len(self._names)
            self._names.append(queue)
        args = (self.waiter, int(length * 1000), self._session, 1, *filter_args(self.filter))
        mark, take = self._number * MARK + place, take_args(self._core, self._take, queue)
        return self._core.on_queue("check_for_work", queue, None, *args, mark, *take)

    def _next_check(self, queues: Sequence[str]) -> float:
        """Seconds until one of the queues must be checked; a little at least, so that the loop turns."""
        times = [self._asleep[name] for name in queues if name in self._asleep]
        return max(0.001, min(times, default=0.0) - time.monotonic())

    async def _sleep(self, counter: int, nap: float, slice: float) -> None:
        await self._subscriber.sleep(self._channels, counter, nap)
        if self._subscriber.counter(self._channels) != counter:
            self._ping_at = time.monotonic() + slice
        elif time.monotonic() >= self._ping_at:
            self._ping_at = time.monotonic() + slice
            await self._subscriber.check()

    def _pass_on(self, queues: Sequence[str]) -> None:
        if queues:
            task = asyncio.get_running_loop().create_task(self._wake_others(queues))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _wake_others(self, queues: Sequence[str]) -> None:
        with contextlib.suppress(BrokerError):
            filter = filter_args(self.filter)
            await self._core.calls([self._core.on_queue("pass_on", name, None, *filter) for name in queues])
