"""The loop of a stream: settles what was reported, takes as many jobs as there are free credits.

Each turn does both at the same time; what is reported meanwhile is the next batch. Without work, one wait at
the broker wakes the loop: nothing polls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal

from dray.admin import suspects
from dray.admin.external_session import SETTLE_STEP, ExternalSession
from dray.admin.held_job import HeldRun, JobReader, give_back, held_job, held_run, with_inputs
from dray.admin.work_news import Settlement, StopOrder, WorkNews
from dray.broker.verbs import Filter, Interest, Ref
from dray.errors import BrokerError, LeaseLost, SessionLost
from dray.job import Outcome, Progress, Taken, Verdict
from dray.retry_pauses import RetryPauses

if TYPE_CHECKING:
    from dray.app import App

BACKLOG_BYTES: Final = 4 * 1024 * 1024
"""Bytes of outcomes that wait to be settled; a worker that reports more has to wait."""
PROGRESS_EVERY: Final = 0.5
"""Seconds between reports of progress."""
TAKE_MAX: Final = 200
"""Jobs of one take: the next batch is on its way while a worker runs this one."""
_LOOK_AGAIN: Final = 30.0
"""Seconds after which a stream without work looks for jobs without a notification."""
_LATE: Final = 0.5
"""Seconds in which a message that waits to be read can still show that its worker is alive."""


class WorkLoop:
    """What a stream holds, and its calls to the broker."""

    _loop: asyncio.AbstractEventLoop
    _session: ExternalSession
    _heard_at: float
    """When the worker last showed that it is alive."""
    _renewed_at: float

    def __init__(
        self,
        app: App,
        queues: tuple[str, ...],
        filter: Filter,
        credits: int,
        lease: int,
        max_bytes: int | None,
    ) -> None:
        self._app, self._queues, self._filter, self._credits = app, queues, filter, credits
        self._lease, self._reader = lease, JobReader(app, max_bytes)
        self._held: dict[str, HeldRun] = {}
        self._own: set[Ref] = set()
        """Outcomes that the stream itself reported: they are not news."""
        self._suspect: Ref | None = None
        """The marked run of a suspect, until it is settled."""
        self._one_by_one = self._no_work = self._renew_now = self._closed = False
        self._step = TAKE_MAX
        """Jobs of the next take: fewer while large arguments make takes too large."""
        self._backlog = 0
        self._progress: dict[Ref, Progress] = {}
        self._news = WorkNews()
        self._finish: Literal["now", "idle"] | None = None
        self._failure: Exception | None = None
        self._wake, self._told, self._has_room = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._wait: asyncio.Task[None] | None = None
        self._waits: set[asyncio.Task[None]] = set()
        """This wait and those that were dropped: they free their places at the broker in their last steps."""
        self._waits_for_work = False

    def holds(self, id: str, run: int) -> bool:
        held = self._held.get(id)
        return held is not None and held.run == run

    def _report(self, outcome: Outcome) -> None:
        if self.holds(outcome.id, outcome.run):
            del self._held[outcome.id]
        ref = (outcome.id, outcome.run)
        if ref not in self._session.outcomes:
            self._session.outcomes[ref] = outcome
            self._backlog += _size(outcome)
        self._wake.set()

    def _is_full(self) -> bool:
        waiting = len(self._session.outcomes) + len(self._news.settled) + len(self._news.stops)
        return waiting >= SETTLE_STEP or self._backlog >= BACKLOG_BYTES

    # the loop

    async def _run(self) -> None:
        pauses = RetryPauses(0.1, 1.0)
        try:
            while not self._is_over():
                try:
                    await self._turn()
                    pauses.reset()
                except (BrokerError, OSError):
                    await self._check_alive()
                    await asyncio.sleep(pauses.next())
        except Exception as error:
            self._failure = error
        finally:
            self._loop.call_soon(self._told.set)  # when this task is done
            self._loop.call_soon(self._has_room.set)

    def _is_over(self) -> bool:
        if self._finish is None or self._session.outcomes:
            return False
        return self._finish == "now" or not self._held

    async def _turn(self) -> None:
        self._wake.clear()
        await self._check_alive()
        if self._must_renew():
            await self._renew()
        want = self._want()
        if self._session.outcomes:
            taking = self._loop.create_task(self._take(want)) if want else None
            try:
                await self._settle()
            except asyncio.CancelledError:
                if taking is not None:
                    taking.cancel()
                raise
            finally:
                if taking is not None:
                    await taking
        elif want:
            await self._take(want)
        else:
            self._listen()
            await self._sleep()
            return
        self._listen()

    async def _sleep(self) -> None:
        """Until there is something to do."""
        # Without room its messages are not read, so its silence says nothing.
        end = self._loop.time() + _LOOK_AGAIN if self._is_full() else self._heard_at + self._lease / 1000
        if self._heard_at > self._renewed_at:
            end = min(end, self._renewed_at + self._lease / 3000)
        if self._progress:
            end = min(end, self._renewed_at + PROGRESS_EVERY)
        if not self._is_over():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(end):
                    await self._wake.wait()

    async def _check_alive(self) -> None:
        """Raise `SessionLost` after a lease of silence."""
        if self._is_silent():
            await asyncio.sleep(_LATE)
            if self._is_silent():
                raise SessionLost(self._session.name)

    def _is_silent(self) -> bool:
        # Without room its messages are not read.
        return self._loop.time() >= self._heard_at + self._lease / 1000 and not self._is_full()

    # renewals

    def _must_renew(self) -> bool:
        since = self._loop.time() - self._renewed_at
        if self._renew_now or (self._progress and since >= PROGRESS_EVERY):
            return True
        if not self._progress.keys().isdisjoint(self._session.outcomes):  # of a run that has ended
            return True
        return since >= self._lease / 3000 and self._heard_at > self._renewed_at

    async def _renew(self) -> None:
        began, reports = self._loop.time(), self._progress
        self._progress, self._renew_now = {}, False
        try:
            heard = await self._session.renew(reports)
        except BaseException:
            self._progress, self._renew_now = reports | self._progress, True
            raise
        self._renewed_at = began
        for id, run in heard.lost:
            if self.holds(id, run):
                del self._held[id]
                self._order(id, run, "lost")
            if (id, run) == self._suspect:  # it will not be settled here
                self._suspect = None
                await suspects.unmark(self._session.broker, id, run)
        for id, run in heard.cancelled:
            if self.holds(id, run) and not self._held[id].stopping:
                self._held[id] = self._held[id]._replace(stopping=True)
                self._order(id, run, "cancelled")

    def _order(self, id: str, run: int, reason: Literal["cancelled", "lost"]) -> None:
        self._news.stops.append(StopOrder(id, run, reason))
        self._told.set()

    # outcomes

    async def _settle(self) -> None:
        if self._suspect in self._session.outcomes:
            assert self._suspect is not None  # noqa: S101 (for the type checker)
            await suspects.unmark(self._session.broker, *self._suspect)
        for outcome, settled in await self._session.settle():
            ref = (outcome.id, outcome.run)
            self._backlog -= _size(outcome)
            if ref == self._suspect:
                self._suspect = None
            if ref in self._own:
                self._own.discard(ref)
            else:
                lost = LeaseLost(outcome.id) if settled.verdict is Verdict.REFUSED else None
                self._news.settled.append(Settlement(*ref, None if lost else settled.state, lost))
        self._told.set()
        self._has_room.set()

    def _settle_later(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._own.add((outcome.id, outcome.run))
            self._report(outcome)

    # jobs

    def _want(self) -> int:
        """How many jobs to ask for now."""
        if self._session.unanswered:
            return self._session.unanswered
        return 0 if self._no_work else self._free()

    def _free(self) -> int:
        """How many jobs may be taken; a suspect is alone, and is taken alone."""
        if self._finish is not None or self._suspect is not None or self._news.jobs:
            return 0  # jobs that were not even picked up would only be kept from others
        free = self._credits - len(self._held)
        if self._one_by_one:
            return 1 if free > 0 and not self._held else 0
        return min(max(free, 0), self._step)

    async def _take(self, want: int) -> None:
        repeats = self._session.unanswered > 0
        taken = await self._session.take(self._queues, self._filter, want)
        self._renew_now = self._renew_now or repeats  # a cancel may have come before the job was known here
        self._no_work = len(taken) < want
        if self._finish is not None:
            self._settle_later(map(give_back, taken))
        elif taken:
            try:
                await self._accept(taken)
            except BaseException:
                self._settle_later(map(give_back, taken))
                raise

    async def _accept(self, taken: list[Taken]) -> None:
        """Pass jobs on; what does not fit, or must wait for its turn to be alone, goes back."""
        taken, over = await with_inputs(self._app, self._session.broker, taken)
        self._settle_later(over)
        if not taken:
            return
        first, crash = taken[0], None
        if first.suspect and not self._held:
            chosen, others = [first], taken[1:]
            crash = await suspects.mark(self._session.broker, first)
            self._suspect = (first.job.id, first.run)
            self._one_by_one = True
        else:
            chosen = [one for one in taken if not one.suspect]
            others = [one for one in taken if one.suspect]
            self._one_by_one = bool(others)
        kept, unfit = self._reader.read(chosen if crash is None else [])
        self._step = max(1, len(kept)) if unfit else min(self._step * 2, TAKE_MAX)
        self._settle_later([*map(give_back, others), *unfit, *([] if crash is None else [crash])])
        for one, call in kept:
            self._held[one.job.id] = held_run(one)
            self._news.jobs.append(held_job(one, call))
        self._told.set()

    # waiting for work

    def _listen(self) -> None:
        """Keep one wait at the broker: for news of the session, and for work when there was none."""
        for_work = self._no_work and self._free() > 0
        if self._wait is not None:
            if self._waits_for_work is for_work:
                return
            self._wait.cancel()
        self._waits_for_work = for_work
        self._wait = self._loop.create_task(self._hear(for_work))
        self._waits.add(self._wait)
        self._wait.add_done_callback(self._waits.discard)

    async def _hear(self, for_work: bool) -> None:
        queues = self._queues if for_work else ()
        interest = Interest(queues=queues, filter=self._filter, session=self._session.name)
        try:
            wake = await self._session.broker.wait(interest, _LOOK_AGAIN)
            self._renew_now = self._renew_now or wake.told
        except Exception:  # whatever it is, the calls of the loop meet it too
            await asyncio.sleep(1)
            self._renew_now = True
        if self._wait is asyncio.current_task():  # not one that was dropped
            self._wait = None
        self._no_work = False
        self._wake.set()

    async def _stop_waiting(self) -> None:
        for wait in self._waits:
            wait.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)


def _size(outcome: Outcome) -> int:
    error = outcome.error
    size = 0 if outcome.result is None else len(outcome.result)
    return size if error is None else size + len(error.message) + len(error.traceback)
