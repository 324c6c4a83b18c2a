"""Duties: what one worker at a time does for all of them, under a hold (`hold.py`).

A duty is an object with a name and one method:

    class Tidy:
        name = "tidying"

        async def step(self, line: Lifeline) -> float:
            done = await line.ask(lambda broker: broker.sweep(100))
            return 0.0 if done.more else 1.0

`step` does one bounded piece of work and says in how many seconds it wants to be called again (0: at once).
It is called only while this worker holds the duties, one call at a time. Each duty has a task of its own: one
that takes long or fails holds up neither the others nor the hold. Rules for it:

- Two workers may do it at once (one was frozen past its term and goes on with what it knew). Every write must
  be harmless then: idempotent, or a compare-and-set. `hold` saves work, it protects nothing.
- Errors are raised, not handled: `BrokerError` and `OSError` mean "the broker is away", and it is called
  again after the sweep interval; anything else is logged with its traceback and tried again after growing
  pauses.
- What it remembers between two steps may be old: another worker may have had the duties in between.
- It is cancelled when the worker ends, at any await.

Who adds one: list it in `duties_of` of supervisor.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dray.errors import BrokerError
from dray.recovery import note_repairs
from dray.stats import Happening
from dray.worker.hold import Hold
from dray.worker.lifeline import Lifeline, Pauses

LONGEST_PAUSE: Final = 60.0
"""Seconds between tries of a duty that fails for a reason of our own."""

log = logging.getLogger("dray.worker")

Happened = Callable[[Happening, int], None]
"""Notes that something has happened, so many times."""


def unnoted(what: Happening, times: int = 1) -> None:
    """For whoever keeps no books."""


class Duty(Protocol):
    """One kind of work for all, in steps; see the head of this module."""

    @property
    def name(self) -> str:
        """What log lines call it."""
        ...

    async def step(self, line: Lifeline) -> float:
        """Do a bounded piece; in how many seconds it is to be called again."""
        ...


class Duties:
    """One worker's part in the duties: try to hold them, and do them while it does."""

    def __init__(
        self,
        line: Lifeline,
        worker: str,
        duties: Sequence[Duty],
        *,
        lease: int,
        interval: int,
        stands_in: bool = False,
    ) -> None:
        self._line, self._duties, self._interval = line, duties, interval / 1000
        self.hold = Hold(line, worker, lease=lease, stands_in=stands_in)

    @property
    def leader(self) -> bool:
        return self.hold.held

    async def run(self) -> None:
        """Hold and do them for ever. No failure ends it: the next try may work."""
        async with asyncio.TaskGroup() as together:
            together.create_task(self.hold.keep(self._interval))
            for duty in self._duties:
                together.create_task(self._do(duty))

    async def give_up(self) -> None:
        """Let another worker take over at once, for good."""
        await self.hold.give_up()

    async def _do(self, duty: Duty) -> None:
        pauses = Pauses(self._interval, LONGEST_PAUSE)
        while True:
            await self.hold.wait()
            try:
                pause = await duty.step(self._line)
                pauses = Pauses(self._interval, LONGEST_PAUSE)
            except (BrokerError, OSError):  # the line has logged it
                pause = self._interval
            except Exception:
                pause = pauses.next()
                log.exception("%s failed; it is tried again in %.1f s", duty.name, pause)
            await asyncio.sleep(pause)


class Sweep:
    """Upkeep: due jobs, lapsed leases, the outbox, pruning, repairs."""

    name = "upkeep"

    def __init__(self, interval: int, happened: Happened = unnoted) -> None:
        self._interval, self._happened = interval / 1000, happened

    async def step(self, line: Lifeline) -> float:
        # Whoever lost touch for a lease does not expire others: they may live, and had no way to say so.
        swept = await line.ask(lambda broker: broker.sweep(lapse=not line.doubtful))
        if swept.lapsed:
            self._happened(Happening.LEASE_LOST, swept.lapsed)
        if swept.freed:
            self._happened(Happening.RUN_FREED, swept.freed)
        if swept.repairs:
            await line.ask(lambda broker: note_repairs(broker, swept.repairs))
        return 0.0 if swept.more else self._interval
