"""Model workers: what a good executor does at the seam, in its plainest form.

It keeps unsent outcomes and sends them until they are answered, repeats a take whose reply was lost under the
same number, renews in a task of its own, and drops what it held when its session is lost. After that it goes
on under a new name: a stale call of the old session can then do no harm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from dray.broker.verbs import Beat, Broker, Filter, Heard, Interest, Ref, Report
from dray.errors import BrokerAway, InvalidInput, SessionLost
from dray.job import Error, Outcome, OutcomeKind, Progress, Taken
from dray.testing.sim.orders import script

CRASH = Error("Crash", "the child is gone")


class Worker:
    """One executor process. `die` kills it for good; `clock` is the broker's time in milliseconds."""

    def __init__(
        self,
        name: str,
        broker: Broker,
        *,
        queues: tuple[str, ...],
        filter: Filter,
        slots: int,
        lease: float,
        dice: random.Random,
        clock: Callable[[], int],
        die: Callable[[], object],
        session_opened: Callable[[str], object],
    ) -> None:
        self._name, self._broker = name, broker
        self._queues, self._filter, self._slots = queues, filter, slots
        self._lease, self._dice, self._clock, self._die = lease, dice, clock, die
        self._session_opened = session_opened
        self._sessions = 0
        self._reset()
        self.stopping = False

    def _reset(self) -> None:
        self._sessions += 1
        self._session = f"{self._name}/{self._sessions}"
        self._epoch = self._request = 0
        self._unanswered = False
        self._want = 0
        self._runs: dict[Ref, asyncio.Task[None]] = {}
        self._unsent: dict[Ref, Outcome] = {}
        self._lost = asyncio.Event()
        self._wake = asyncio.Event()
        self._told: set[Ref] = set()

    async def run(self) -> None:
        while not self.stopping:
            await self._open()
            helpers = [asyncio.create_task(self._beat()), asyncio.create_task(self._listen())]
            await self._serve()
            for task in [*helpers, *self._runs.values()]:
                task.cancel()
            if not self.stopping:
                self._reset()
        await self._leave()

    def stop(self) -> None:
        self.stopping = True
        self._wake.set()

    async def _open(self) -> None:
        self._session_opened(self._session)
        await self._persist(self._introduce)

    async def _introduce(self) -> None:
        (heard,) = await self._broker.renew([Beat(self._session, int(self._lease * 1000))])
        self._epoch = heard.epoch

    async def _persist(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        while True:
            with suppress(BrokerAway):
                await call()
                return
            await asyncio.sleep(self._dice.uniform(0.05, 1))

    # Heartbeat

    async def _beat(self) -> None:
        while True:
            with suppress(BrokerAway):
                await self._renew()
            await asyncio.sleep(self._lease / 3)

    async def _renew(self) -> None:
        reports = tuple(Report(id, run, Progress(1.0)) for id, run in self._runs if self._dice.random() < 0.2)
        (heard,) = await self._broker.renew([Beat(self._session, int(self._lease * 1000), reports)])
        self._hear(heard)

    def _hear(self, heard: Heard) -> None:
        if heard.epoch != self._epoch:
            self._lost.set()
            self._wake.set()
        for ref in heard.lost:
            self._drop(ref)
        for ref in heard.cancelled:
            run = self._runs.get(ref)
            if run is not None and ref not in self._told:
                self._told.add(ref)
                run.cancel()

    def _drop(self, ref: Ref) -> None:
        """The run is void: stop it, and say so, or the broker would tell us for ever."""
        if ref in self._runs:
            self._runs[ref].cancel()
        self._unsent.setdefault(ref, Outcome(id=ref[0], run=ref[1], kind=OutcomeKind.GIVE_BACK))
        self._wake.set()

    async def _listen(self) -> None:
        """Woken for work and for word about the session."""
        while True:
            room = len(self._runs) < self._slots
            interest = Interest(
                queues=self._queues if room else (), filter=self._filter, session=self._session
            )
            try:
                wake = await self._broker.wait(interest, self._dice.uniform(1, 10))
            except BrokerAway:
                await asyncio.sleep(self._dice.uniform(0.05, 1))
                continue
            if wake.told:
                with suppress(BrokerAway):
                    await self._renew()
            if wake.work:
                self._wake.set()
            # Word stays until the run ends, which a job that does not listen may put off for long.
            await asyncio.sleep(self._lease / 6 if wake.told else 0.05)

    # Taking and settling

    async def _serve(self) -> None:
        while not self._lost.is_set() and not self.stopping:
            self._wake.clear()
            try:
                await self._settle()
                busy = await self._take()
            except BrokerAway:
                await asyncio.sleep(self._dice.uniform(0.02, 0.5))
                continue
            except (SessionLost, InvalidInput):
                return
            if not busy and not self._unsent:
                await self._wake.wait()

    async def _settle(self) -> None:
        batch = list(self._unsent.items())
        if not batch:
            return
        await self._broker.settle(self._session, [outcome for _, outcome in batch])
        for ref, outcome in batch:
            if self._unsent.get(ref) is outcome:
                del self._unsent[ref]

    async def _take(self) -> bool:
        if not self._unanswered:
            self._want = self._slots - len(self._runs)
            if not self._want:
                return False
            self._request, self._unanswered = self._request + 1, True
        taken = await self._broker.take(self._session, self._request, self._queues, self._filter, self._want)
        self._unanswered = False
        for job in taken:
            ref = (job.job.id, job.run)
            if ref not in self._runs and ref not in self._unsent:
                task = self._runs[ref] = asyncio.create_task(self._run(ref, job))
                task.add_done_callback(partial(self._stopped_early, ref))
        return bool(taken)

    def _stopped_early(self, ref: Ref, task: asyncio.Task[None]) -> None:
        """A task that is cancelled before its first step never gets to say so itself."""
        if task.cancelled() and self._runs.get(ref) is task:
            self._report(ref, OutcomeKind.CANCELLED, None)

    async def _run(self, ref: Ref, taken: Taken) -> None:
        try:
            kind, error = await self._perform(taken)
        except asyncio.CancelledError:
            if self._lost.is_set():
                raise
            kind, error = OutcomeKind.CANCELLED, None
        self._report(ref, kind, error)

    def _report(self, ref: Ref, kind: OutcomeKind, error: Error | None) -> None:
        del self._runs[ref]
        at = self._clock() + self._dice.choice([0, 500, 4000]) if kind is OutcomeKind.RETRY else None
        outcome = Outcome(id=ref[0], run=ref[1], kind=kind, at=at, error=error, result=b"ok")
        self._unsent.setdefault(ref, outcome)
        self._wake.set()

    async def _perform(self, taken: Taken) -> tuple[OutcomeKind, Error | None]:
        play = script(taken.job)
        await self._sleep(play.seconds, deaf=play.deaf)
        if play.act == "crash" and taken.run <= play.times:
            if not taken.suspect:
                self._die()
                await asyncio.sleep(3600)
            return OutcomeKind.CRASHED, CRASH
        if play.act == "child" and taken.run <= play.times:
            return OutcomeKind.CRASHED, CRASH
        if play.act == "reject":
            return OutcomeKind.DEAD, Error("Reject", "no")
        if play.act == "fail" and taken.attempt <= play.times:
            used_up = taken.attempt > taken.job.retries
            return OutcomeKind.DEAD if used_up else OutcomeKind.RETRY, Error("ValueError", "failed")
        return OutcomeKind.SUCCEEDED, None

    async def _sleep(self, seconds: float, *, deaf: bool) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not deaf or self._lost.is_set() or self.stopping:
                    raise

    # A good end

    async def _leave(self) -> None:
        """Give back what did not finish, then let go of the session."""
        for id, run in list(self._runs):
            self._unsent.setdefault((id, run), Outcome(id=id, run=run, kind=OutcomeKind.GIVE_BACK))
        if self._unsent and self._dice.random() < 0.8:
            await self._persist(self._settle)
        await self._persist(lambda: self._broker.release(self._session, suspect=False))
