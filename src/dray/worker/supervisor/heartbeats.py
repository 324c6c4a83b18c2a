"""Heartbeats of a worker: one call renews the leases of its executors, another its document; clock skew."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from dray.broker.verbs import Beat, Broker, Heard
from dray.documents.worker_registry import SKEWED, WorkerInfo, delete_worker, describe_skew, write_worker
from dray.errors import BrokerError
from dray.stats.sketch import RecentMaximum
from dray.worker.channel import SessionNews
from dray.worker.retrying_broker import FIRST_PAUSE, LONGEST_PAUSE, RetryingBroker
from dray.worker.supervisor.executor_process import ExecutorProcess

WRITE_EVERY: Final = 2.0
"""Seconds between writes of the worker's document while something in it changes."""
SKEW_STEP: Final = 500
"""Milliseconds by which the clock skew must change to count: two measurements are never quite the same."""

log = logging.getLogger("dray.worker")


class Heartbeats:
    """Renews the sessions of all executors, and the worker's document in the registry."""

    def __init__(
        self,
        retrying: RetryingBroker,
        *,
        lease: int,
        heartbeat: int,
        executors: Sequence[ExecutorProcess],
        describe: Callable[[], WorkerInfo],
    ) -> None:
        self._retrying, self._lease, self._every = retrying, lease, heartbeat / 1000
        self._executors, self._describe = executors, describe
        self._written: WorkerInfo | None = None
        self._written_at = 0.0
        self._changed = asyncio.Event()
        self._round_trip = RecentMaximum()

    async def renew_forever(self) -> None:
        pauses = self._retrying.pauses(FIRST_PAUSE, min(self._every, LONGEST_PAUSE))
        while True:
            try:
                await self.renew()
                pauses.reset()
                pause = self._every
            except (BrokerError, OSError):  # logged by `RetryingBroker`
                pause = pauses.next()
            await asyncio.sleep(pause)

    async def renew(self) -> None:
        """Renew the sessions of all executors, and pass lost and cancelled runs on to each."""
        open = [(one, one.session) for one in self._executors if one.session is not None]
        if not open:
            return
        beats = [Beat(session, self._lease) for _, session in open]
        began = time.monotonic()
        answers = await self._retrying.ask(lambda broker: broker.renew(beats))
        self._round_trip.add(time.monotonic() - began)
        for (executor, session), heard in zip(open, answers, strict=True):
            if executor.session == session:  # else it opened another one meanwhile
                _pass_on(executor, session, heard)

    async def write_forever(self) -> None:
        """Write the worker's document with each heartbeat, and soon after a change in it."""
        while True:
            info = self._describe()
            due = time.monotonic() - self._written_at >= self._every
            if due or self._written is None or _without_times(info) != _without_times(self._written):
                await self.write(info)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(WRITE_EVERY, self._every)):
                    await self._changed.wait()
            self._changed.clear()

    def write_soon(self) -> None:
        """Write the document now: something important in it has changed."""
        self._changed.set()

    @property
    def round_trip(self) -> float:
        """Seconds that the slowest call took within the last minute."""
        return self._round_trip.value

    async def write(self, info: WorkerInfo) -> None:
        began = time.monotonic()
        await self._retrying.ask(lambda broker: write_worker(broker, info, 2 * self._lease))
        self._round_trip.add(time.monotonic() - began)
        self._written, self._written_at = info, time.monotonic()

    async def remove(self, worker: str) -> None:
        await self._retrying.ask(lambda broker: delete_worker(broker, worker))


def _pass_on(executor: ExecutorProcess, session: str, heard: Heard) -> None:
    if heard.opened or heard.epoch != executor.epoch:
        executor.lapse()
    elif heard.lost or heard.cancelled:
        executor.send(SessionNews(session, heard.lost, heard.cancelled, heard.forced))


def _without_times(info: WorkerInfo) -> WorkerInfo:
    """The document without the fields that change all the time."""
    executors = tuple(
        msgspec.structs.replace(one, beat_age=0, tried_age=None if one.tried_age is None else 0)
        for one in info.executors
    )
    return msgspec.structs.replace(
        info, seen=0, executors=executors, average=None, p95=None, lag=0.0, round_trip=0.0
    )


class ClockSkew:
    """The difference between the clocks of this machine and of the broker; a large one is logged."""

    def __init__(self, broker: Broker, wall: Callable[[], float] = time.time) -> None:
        self._broker, self._wall = broker, wall
        self._skew = self._logged = 0

    def measure(self) -> int:
        """Milliseconds by which the machine's clock is ahead of the broker's; negative if it is behind."""
        skew = round(self._wall() * 1000) - self._broker.clock()
        if abs(skew - self._skew) >= SKEW_STEP:
            self._skew = skew
        if abs(self._skew) > SKEWED and abs(self._skew - self._logged) > SKEWED:
            self._logged = self._skew
            log.warning(
                "the clock of this machine is %s the broker's; dray goes by the broker's, your own code may "
                "not: keep the clocks of all machines by NTP",
                describe_skew(self._skew),
            )
        elif abs(self._skew) <= SKEWED and self._logged:
            self._logged = 0
            log.warning("the clock of this machine agrees with the broker's again")
        return self._skew
