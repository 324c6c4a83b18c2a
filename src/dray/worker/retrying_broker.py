"""A broker whose outages are survived: opening waits until it answers, and calls can be repeated until then.

Each outage is logged once when it begins and once when it is over.
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
from dray.retry_pauses import RetryPauses

T = TypeVar("T")

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0
"""Also the delay after which a worker notices, at the latest, that the broker answers again."""

log = logging.getLogger("dray.worker")


class RetryingBroker:
    """A broker, and whether it answers."""

    def __init__(
        self,
        broker: Broker,
        lease: float,
        *,
        lost: bool = False,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._random = random
        self.broker, self._lease, self._wall, self.monotonic = broker, lease, wall, monotonic
        self.answers = asyncio.Event()
        """Set while the last call was answered."""
        self.answers.set()
        self._answered = (monotonic(), wall())
        self._doubtful_until = monotonic() + lease if lost else 0.0

    @classmethod
    async def open(cls, open: Callable[[], Awaitable[Broker]], lease: float) -> RetryingBroker:
        """Open the broker; while it is away, try again. Any other error is raised."""
        pauses, began = RetryPauses(FIRST_PAUSE, LONGEST_PAUSE), time.monotonic()
        while True:
            try:
                broker = await open()
            except BrokerAway as error:
                if not pauses.tries:
                    log.warning("the broker is away, it is tried until it answers: %s", error)
                await asyncio.sleep(pauses.next())
                continue
            seconds = time.monotonic() - began
            if pauses.tries:
                log.warning("the broker answers after %.1f s", seconds)
            return cls(broker, lease, lost=seconds > lease)

    @property
    def doubtful(self) -> bool:
        """This process was cut off for a lease, less than a lease ago.

        Other workers probably were too: their leases ran out though they live, and must not be ended before
        they had time to renew them.
        """
        return self.monotonic() < self._doubtful_until or self._gap() > self._lease

    async def ask(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the broker once. An outage is logged, and raised."""
        try:
            answer = await call(self.broker)
        except (BrokerError, OSError) as error:
            if self.answers.is_set():
                self.answers.clear()
                log.warning("the broker is away; running jobs go on, it is tried until it answers: %s", error)
            raise
        self._note_answer()
        return answer

    async def retry(self, call: Callable[[Broker], Awaitable[T]]) -> T:
        """Call the broker until it answers; callers with a deadline use `asyncio.timeout`."""
        pauses = self.pauses()
        while True:
            try:
                return await self.ask(call)
            except (BrokerError, OSError):
                await asyncio.sleep(pauses.next())

    def pauses(self, first: float = FIRST_PAUSE, longest: float = LONGEST_PAUSE) -> RetryPauses:
        """Pauses between tries, with the randomness of this object."""
        return RetryPauses(first, longest, random=self._random)

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
