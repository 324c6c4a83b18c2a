"""A supervisor's line to the broker: opened however long that takes, and used whatever becomes of it.

An outage is logged once when it begins and once when it is over. What must reach the broker is said again
until it answers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dray.broker.verbs import Broker
from dray.errors import BrokerAway, BrokerError

T = TypeVar("T")
Open = Callable[[], Awaitable[Broker]]

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 5.0

log = logging.getLogger("dray.worker")


class Pauses:
    """Growing, capped, jittered pauses between tries."""

    def __init__(self, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> None:
        self._next, self._longest = first, longest

    def next(self) -> float:
        pause, self._next = self._next, min(self._next * 2, self._longest)
        return pause * random.uniform(0.75, 1.25)  # noqa: S311 (jitter)


class Lifeline:
    """A broker, and whether it answers."""

    def __init__(
        self,
        broker: Broker,
        lease: float,
        *,
        lost: bool = False,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.broker, self._lease, self._wall, self.monotonic = broker, lease, wall, monotonic
        self.answers = asyncio.Event()
        """Whether the last call was answered."""
        self.answers.set()
        self._answered = (monotonic(), wall())
        self._doubtful_until = monotonic() + lease if lost else 0.0

    @classmethod
    async def open(cls, open: Open, lease: float) -> Lifeline:
        """Open the broker; while it is away, keep trying. Any other error is the caller's to report."""
        pauses, began, away = Pauses(), time.monotonic(), False
        while True:
            try:
                broker = await open()
            except BrokerAway as error:
                if not away:
                    log.warning("the broker is away, it is tried until it answers: %s", error)
                away = True
                await asyncio.sleep(pauses.next())
                continue
            seconds = time.monotonic() - began
            if away:
                log.warning("the broker answers after %.1f s", seconds)
            return cls(broker, lease, lost=seconds > lease)

    @property
    def doubtful(self) -> bool:
        """Whether it was out of touch for a lease, less than a lease ago.

        Then others probably were too, and their leases ran out though they live: it must not judge them
        before they had time to say so.
        """
        return self.monotonic() < self._doubtful_until or self._gap() > self._lease

    async def ask(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """One try. An error of the broker is noted, and raised."""
        try:
            answer = await call(self.broker)
        except (BrokerError, OSError) as error:
            self._note_silence(error)
            raise
        self._note_answer()
        return answer

    async def insist(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """Try until there is an answer. Give it a deadline with `asyncio.timeout` where there is one."""
        pauses = Pauses()
        while True:
            try:
                return await self.ask(call)
            except (BrokerError, OSError):
                await asyncio.sleep(pauses.next())

    def _note_silence(self, error: Exception) -> None:
        if self.answers.is_set():
            self.answers.clear()
            log.warning("the broker is away; running jobs go on, it is tried until it answers: %s", error)

    def _gap(self) -> float:
        """Seconds since the last answer. While a machine sleeps, only one of the two clocks goes on."""
        return max(self.monotonic() - self._answered[0], self._wall() - self._answered[1])

    def _note_answer(self) -> None:
        gap = self._gap()
        self._answered = (self.monotonic(), self._wall())
        if gap > self._lease:
            self._doubtful_until = self.monotonic() + self._lease
        if not self.answers.is_set():
            self.answers.set()
            log.warning("the broker answers again after %.1f s", gap)
