"""`app.external.astream`: jobs arrive while the worker has credits, its outcomes are settled in batches."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final, Self

from dray.admin import suspects
from dray.admin.external_session import ExternalSession
from dray.admin.held_job import Nack, check_nack, failed, not_run, read_error, succeeded
from dray.admin.work_loop import WorkLoop
from dray.admin.work_news import Settlement, WorkNews
from dray.duration import parse_duration
from dray.errors import BrokerError, InvalidInput, SessionLost
from dray.job import Error, Progress, check_word
from dray.options import Duration

CREDITS_MAX: Final = 1000


class WorkStream(WorkLoop):
    """One worker's session, open inside `async with`; iterate over it for jobs and answers.

        async with app.external.astream(["images"], credits=50) as stream:
            async for news in stream:
                for job in news.jobs:
                    stream.ack(job.id, job.run, {"size": 42})

    The lease is renewed while the worker shows that it is alive: each call but `room` does, `beat` is for
    when there is nothing else to say. After a lease of silence the iteration raises `SessionLost`.
    """

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
        """Open the session; `async with` does it."""
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
            self._order(id, run, "lost")

    def refuse(self, id: str, run: int, error: Exception) -> None:
        """Answer a report that cannot be accepted."""
        self._news.settled.append(Settlement(id, run, error=error))
        self._told.set()

    async def room(self) -> None:
        """Wait until there is room for more reports."""
        while self._is_full() and not self._running.done():
            self._has_room.clear()
            await self._has_room.wait()
        self.beat()

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
