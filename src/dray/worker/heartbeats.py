"""A worker's signs of life: the leases of all its executors in one call, and its line on the roster."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dray.broker.verbs import Beat, Heard
from dray.errors import BrokerError
from dray.roster import WorkerInfo, delete_worker, write_worker
from dray.worker.channel import Told
from dray.worker.executors import Executor
from dray.worker.lifeline import FIRST_PAUSE, LONGEST_PAUSE, Lifeline, Pauses

TELL_EVERY: Final = 2.0
"""Seconds between updates of the roster while something changes."""
RECENT: Final = 60.0
"""Seconds for which a slow call is remembered."""


class Heartbeats:
    """Renews sessions and keeps the roster, for as long as its tasks run."""

    def __init__(
        self,
        line: Lifeline,
        *,
        lease: int,
        heartbeat: int,
        executors: Sequence[Executor],
        describe: Callable[[], WorkerInfo],
    ) -> None:
        self._line, self._lease, self._every = line, lease, heartbeat / 1000
        self._executors, self._describe = executors, describe
        self._told: WorkerInfo | None = None
        self._told_at = 0.0
        self._changed = asyncio.Event()
        self._trips: deque[tuple[float, float]] = deque()

    async def renew_for_ever(self) -> None:
        longest = min(self._every, LONGEST_PAUSE)
        pauses = Pauses(FIRST_PAUSE, longest)
        while True:
            try:
                await self.renew()
                pauses, pause = Pauses(FIRST_PAUSE, longest), self._every
            except (BrokerError, OSError):  # the line has logged it
                pause = pauses.next()
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """Keep what all executors hold, and pass on what the broker has to say to each."""
        open = [(one, one.session) for one in self._executors if one.session is not None]
        if not open:
            return
        beats = [Beat(session, self._lease) for _, session in open]
        began = time.monotonic()
        answers = await self._line.ask(lambda broker: broker.renew(beats))
        self._note_trip(began)
        for (executor, session), heard in zip(open, answers, strict=True):
            if executor.session == session:  # else it went on to another meanwhile
                _pass_on(executor, session, heard)

    async def tell_for_ever(self) -> None:
        """Write the worker's document with each heartbeat, and soon after anything in it has changed."""
        while True:
            info = self._describe()
            due = time.monotonic() - self._told_at >= self._every
            if due or self._told is None or _lasting(info) != _lasting(self._told):
                await self.tell(info)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(TELL_EVERY, self._every)):
                    await self._changed.wait()
            self._changed.clear()

    def tell_soon(self) -> None:
        """Something has changed that others should not wait for."""
        self._changed.set()

    @property
    def round_trip(self) -> float:
        """Seconds that the slowest call took within the last minute."""
        while self._trips and self._trips[0][0] < time.monotonic() - RECENT:
            self._trips.popleft()
        return max((seconds for _, seconds in self._trips), default=0.0)

    def _note_trip(self, began: float) -> None:
        now = time.monotonic()
        self._trips.append((now, now - began))

    async def tell(self, info: WorkerInfo) -> None:
        began = time.monotonic()
        await self._line.ask(lambda broker: write_worker(broker, info, 2 * self._lease))
        self._note_trip(began)
        self._told, self._told_at = info, time.monotonic()

    async def leave(self, worker: str) -> None:
        await self._line.ask(lambda broker: delete_worker(broker, worker))


def _pass_on(executor: Executor, session: str, heard: Heard) -> None:
    if heard.opened or heard.epoch != executor.epoch:
        executor.lapse()
    elif heard.lost or heard.cancelled:
        executor.send(Told(session, heard.lost, heard.cancelled))


def _lasting(info: WorkerInfo) -> WorkerInfo:
    """Without what changes by the mere passing of time."""
    executors = tuple(
        msgspec.structs.replace(one, beat_age=0, tried_age=None if one.tried_age is None else 0)
        for one in info.executors
    )
    return msgspec.structs.replace(info, seen=0, executors=executors, average=None, lag=0.0, round_trip=0.0)
