"""Waits on the broker beside the executor's loop: for work, and for news of its session.

There is one wait at a time, started by `aim`. Its result is passed on, and the next wait begins when the loop
has dealt with it and aims again: so a wait never sees news that the loop is about to fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple

from dray.broker.verbs import Broker, Filter, Interest, NextTake, Wake
from dray.errors import BrokerError
from dray.retry_pauses import RetryPauses

log = logging.getLogger("dray.worker")

LONGEST_WAIT: Final = 20.0
"""Seconds that one wait may take; then the loop asks the broker itself."""
FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 1.0
"""Seconds between waits while the broker is away."""


class Aim(NamedTuple):
    """One wait: for news of this session; if `work`, for jobs too, perhaps with an offered take."""

    session: str
    work: bool
    next_take: NextTake | None = None


class Listener:
    def __init__(
        self,
        broker: Broker,
        queues: tuple[str, ...],
        filter: Filter,
        heard: Callable[[str, Wake | Exception], None],
        random: Callable[[], float],
    ) -> None:
        self._broker, self._queues, self._filter = broker, queues, filter
        self._heard, self._random = heard, random
        self._loop = asyncio.get_running_loop()
        self._aim: Aim | None = None
        """The current wait."""
        self._wait: asyncio.Task[None] | None = None
        self._old: dict[asyncio.Task[None], None] = {}
        self._pause = 0.0
        """Seconds to sleep before the next wait, after one that failed."""
        self._pauses = RetryPauses(FIRST_PAUSE, LONGEST_PAUSE, random=random)

    @property
    def waiting(self) -> bool:
        return self._aim is not None

    def aim(self, session: str, work: bool, next_take: NextTake | None = None) -> None:
        """Wait for news of a session, and for work if `work`."""
        aim = Aim(session, work, next_take)
        if aim == self._aim:
            return
        self._drop()
        self._aim = aim
        self._wait = self._loop.create_task(self._listen(aim))

    def serve(self, queues: tuple[str, ...]) -> bool:
        """Wait for work in these queues from now on; true if that ended a wait."""
        if queues == self._queues:
            return False
        self._queues = queues
        ends = self._aim is not None and self._aim.work
        if ends:
            self._drop()
        return ends

    async def _listen(self, aim: Aim) -> None:
        if self._pause:
            await asyncio.sleep(self._pause)
        interest = Interest(
            queues=self._queues if aim.work else (),
            filter=self._filter,
            session=aim.session,
            next_take=aim.next_take,
        )
        heard: Wake | Exception
        try:
            heard = await self._broker.wait(interest, LONGEST_WAIT * (0.75 + self._random() / 4))
            self._pause = 0.0
            self._pauses.reset()
        except (BrokerError, OSError) as error:
            self._pause, heard = self._pauses.next(), error
        except Exception as error:
            # Go on after any error: an executor that stops listening would never take a job again.
            log.exception("waiting on the broker failed")
            self._pause, heard = self._pauses.next(), error
        self._aim = self._wait = None
        self._heard(aim.session, heard)

    def _drop(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            # Kept until it is done: a wait frees its place at the broker in its last steps.
            self._old[self._wait] = None
            self._wait.add_done_callback(self._forget)
            self._aim = self._wait = None

    def _forget(self, wait: asyncio.Task[None]) -> None:
        self._old.pop(wait, None)
        if not wait.cancelled() and (error := wait.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "a wait failed as it was dropped", "exception": error}
            )

    def close(self) -> Coroutine[Any, Any, None]:
        """Stop waiting; await the result to know that the broker has freed the wait."""
        self._drop()
        return self._closed()

    async def _closed(self) -> None:
        if self._old:
            await asyncio.wait(list(self._old), timeout=1.0)
