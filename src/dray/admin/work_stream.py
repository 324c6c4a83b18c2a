"""`app.external.astream`: jobs arrive while the worker has credits, its outcomes are settled in batches.

One loop calls the broker. Each turn settles what was reported and takes as many jobs as there are free
credits, both at the same time; what is reported meanwhile is the next batch. Without work, one wait at the
broker wakes the loop: nothing polls.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self

import msgspec

from dray.admin import suspects
from dray.admin.external_session import SETTLE_STEP, ExternalSession
from dray.admin.held_job import (
    HeldJob,
    HeldRun,
    JobReader,
    Nack,
    check_nack,
    failed,
    give_back,
    held_job,
    held_run,
    not_run,
    read_error,
    succeeded,
)
from dray.broker.verbs import Filter, Interest, Ref
from dray.duration import parse_duration
from dray.errors import BrokerError, InvalidInput, LeaseLost, SessionLost
from dray.job import Error, Outcome, Progress, State, Taken, Verdict, check_word
from dray.options import Duration
from dray.retry_pauses import RetryPauses

if TYPE_CHECKING:
    from dray.app import App

CREDITS_MAX: Final = 1000
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


class Settlement(NamedTuple):
    """The answer to a reported outcome."""

    id: str
    run: int
    state: State | None = None
    """The state of the job now: `cancelled`, whatever was reported, if it was asked to stop."""
    error: Exception | None = None
    """Why it was not accepted. `LeaseLost`: another worker has, or had, the job."""


class StopOrder(NamedTuple):
    """A run to stop: its job was cancelled, or is not held by this stream any more."""

    id: str
    run: int
    reason: Literal["cancelled", "lost"]


class WorkNews(msgspec.Struct):
    """What a stream has for its worker."""

    jobs: list[HeldJob] = []
    settled: list[Settlement] = []
    stops: list[StopOrder] = []
    finishing: bool = False
    """No more jobs will come."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.settled or self.stops or self.finishing)


class WorkStream:
    """One worker's session, open inside `async with`; iterate over it for jobs and answers.

        async with app.external.astream(["images"], credits=50) as stream:
            async for news in stream:
                for job in news.jobs:
                    stream.ack(job.id, job.run, {"size": 42})

    The lease is renewed while the worker shows that it is alive: each call but `room` does, `beat` is for
    when there is nothing else to say. After a lease of silence the iteration raises `SessionLost`.
    """

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

    @property
    def lease(self) -> float:
        """Seconds."""
        return self._lease / 1000

    # its life

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def open(self) -> None:
        link = await self._app.client.loop_link()
        self._loop = asyncio.get_running_loop()
        self._session = ExternalSession(link.broker, self._lease)
        await self._session.open()
        self._heard_at = self._renewed_at = self._loop.time()
        self._running = self._loop.create_task(self._run())

    def finish(self, *, when_idle: bool = False) -> None:
        """Take no more jobs; end once all that was reported is settled, or (`when_idle`) nothing is held."""
        self._finish = "idle" if when_idle and self._finish != "now" else "now"
        self._news.finishing = True
        self._wake.set()
        self._told.set()

    async def close(self, *, lost: bool = False) -> None:
        """Settle what was reported and free the other jobs. `lost`: the worker is gone, they are suspect."""
        if self._closed:
            return
        self._closed = True
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        await self._stop_waiting()
        lost = lost or isinstance(self._failure, SessionLost)
        with contextlib.suppress(BrokerError, OSError):  # then the lease runs out
            while self._session.outcomes:
                await self._settle()
            if self._suspect is not None and not lost:
                await suspects.unmark(self._session.broker, *self._suspect)
            await self._session.broker.release(self._session.name, suspect=lost)

    # what the worker says

    def beat(self) -> None:
        """The worker is alive."""
        if self._heard_at <= self._renewed_at:  # so the loop does not know when to renew next
            self._wake.set()
        self._heard_at = self._loop.time()

    def allow(self, credits: int) -> None:
        """Hold at most so many jobs from now on."""
        if type(credits) is not int or not 0 <= credits <= CREDITS_MAX:
            raise InvalidInput("credits", credits, f"a whole number from 0 to {CREDITS_MAX} is allowed")
        self.beat()
        self._credits = credits
        self._wake.set()

    def ack(self, id: str, run: int, result: object = None, *, codec: str | None = None) -> None:
        """Report success; the answer is a `Settlement`. What cannot be stored is raised, and not reported."""
        self.beat()
        self._report(succeeded(self._app, check_word("id", id), run, result, codec))

    def nack(
        self,
        id: str,
        run: int,
        *,
        how: Nack = "retry",
        error: Error | str | None = None,
        delay: Duration | None = None,
    ) -> None:
        """Report that it did not succeed, as `app.external.nack`; the answer is a `Settlement`."""
        self.beat()
        check_nack(how, delay)
        wait = None if delay is None else parse_duration("delay", delay)
        if not self.holds(check_word("id", id), run):
            how = "give_back"  # of no effect: the broker says whether it was settled before
        if how == "retry":
            self._report(failed(self._app, id, self._held[id], read_error(error), wait))
        else:
            self._report(not_run(id, run, how, read_error(error)))

    def report(self, id: str, run: int, progress: Progress) -> None:
        """Report progress. Of a run that is not held it is answered by the order to stop it."""
        self.beat()
        if self.holds(id, run):
            self._progress[id, run] = progress
            self._wake.set()
        else:
            self._news.stops.append(StopOrder(id, run, "lost"))
            self._told.set()

    def refuse(self, id: str, run: int, error: Exception) -> None:
        """Answer a report that cannot be accepted."""
        self._news.settled.append(Settlement(id, run, error=error))
        self._told.set()

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

    async def room(self) -> None:
        """Wait until there is room for more reports."""
        while self._is_full() and not self._running.done():
            self._has_room.clear()
            await self._has_room.wait()
        self.beat()

    def _is_full(self) -> bool:
        waiting = len(self._session.outcomes) + len(self._news.settled) + len(self._news.stops)
        return waiting >= SETTLE_STEP or self._backlog >= BACKLOG_BYTES

    # what the worker hears

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> WorkNews:
        while not self._news:
            if self._running.done():
                raise StopAsyncIteration if self._failure is None else self._failure
            self._told.clear()
            await self._told.wait()
        news, self._news = self._news, WorkNews()
        self._has_room.set()
        self._wake.set()
        return news

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
        end = self._heard_at + self._lease / 1000
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
        if self._renew_now or (
            self._progress and not self._progress.keys().isdisjoint(self._session.outcomes)
        ):
            return True
        since = self._loop.time() - self._renewed_at
        if self._progress and since >= PROGRESS_EVERY:
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
                refused = settled.verdict is Verdict.REFUSED
                answer = (
                    Settlement(*ref, error=LeaseLost(ref[0])) if refused else Settlement(*ref, settled.state)
                )
                self._news.settled.append(answer)
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
        if taken:
            try:
                await self._accept(taken)
            except BaseException:
                self._settle_later(give_back(one) for one in taken)
                raise

    async def _accept(self, taken: list[Taken]) -> None:
        """Pass jobs on; what does not fit, or must wait for its turn to be alone, goes back."""
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
        self._settle_later([*(give_back(one) for one in others), *unfit, *([] if crash is None else [crash])])
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
        except (BrokerError, OSError):
            await asyncio.sleep(1)
            self._renew_now = True
        self._wait = None
        self._no_work = False
        self._wake.set()

    async def _stop_waiting(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
        await asyncio.gather(*self._waits, return_exceptions=True)


def _size(outcome: Outcome) -> int:
    error = outcome.error
    size = 0 if outcome.result is None else len(outcome.result)
    return size if error is None else size + len(error.message) + len(error.traceback)
