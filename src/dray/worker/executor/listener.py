"""Waits on the broker for whoever is busy with other things: for work, and for word about a session.

One wait at a time, started by `aim`. What it hears is handed on, and the next wait begins when its owner has
dealt with that and aims again: so a wait never looks at news that somebody is about to fetch.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from dray.broker.verbs import Broker, Filter, Interest, Wake
from dray.errors import BrokerError

log = logging.getLogger("dray.worker")

LONGEST: Final = 20.0
"""Seconds that one wait may take; then its owner looks for itself."""


class Listener:
    def __init__(
        self,
        broker: Broker,
        queues: tuple[str, ...],
        filter: Filter,
        heard: Callable[[Wake | Exception], None],
        random: Callable[[], float],
    ) -> None:
        self._broker, self._queues, self._filter = broker, queues, filter
        self._heard, self._random = heard, random
        self._loop = asyncio.get_running_loop()
        self._aim: tuple[str, bool] | None = None
        """What the wait that is under way is for: word for which session, and whether for work too."""
        self._wait: asyncio.Task[None] | None = None
        self._old: dict[asyncio.Task[None], None] = {}
        self._failures = 0

    def aim(self, session: str, work: bool) -> None:
        """From now on listen for this."""
        aim = self._aim
        if aim is not None and aim[1] is work and aim[0] == session:
            return
        self._drop()
        self._aim = (session, work)
        self._wait = self._loop.create_task(self._listen(session, work))

    async def _listen(self, session: str, work: bool) -> None:
        if self._failures:
            await asyncio.sleep(min(0.05 * 2**self._failures, 2.0) * (0.5 + self._random() / 2))
        interest = Interest(queues=self._queues if work else (), filter=self._filter, session=session)
        heard: Wake | Exception
        try:
            heard = await self._broker.wait(interest, LONGEST * (0.75 + self._random() / 4))
            self._failures = 0
        except (BrokerError, OSError) as error:
            self._failures = min(self._failures + 1, 10)
            heard = error
        except Exception as error:
            # Whatever it is, an executor that does not listen any more would never take a job again.
            log.exception("waiting on the broker failed")
            self._failures = min(self._failures + 1, 10)
            heard = error
        self._aim = self._wait = None
        self._heard(heard)

    def _drop(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            # Kept until it is done: a wait lets go of its place at the broker in its last steps.
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
        """Stop waiting; what it returns waits until the broker has let go."""
        self._drop()
        return self._closed()

    async def _closed(self) -> None:
        if self._old:
            await asyncio.wait(list(self._old), timeout=1.0)
