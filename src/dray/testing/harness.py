"""`app.testing()`: run an app's jobs inside a test, on the real code, on a clock that the test moves.

    with app.testing() as t:
        job = send_email.enqueue("a@x.org")
        t.drain()
        assert job.get(timeout=0) == 1

The executor, retries, timeouts, limits and middleware are those of a worker. Different are the broker (always
in memory, so that nothing real is touched), its clock (`advance`), backoffs (without jitter) and that jobs
run when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from dray.app import App
from dray.broker import Broker
from dray.call import Duration
from dray.client import Client
from dray.context import Retry
from dray.duration import parse_duration
from dray.errors import DrayError, InvalidInput, JobFailed, JobNotFound, JobStopped
from dray.handle import JobHandle
from dray.info import JobInfo, moment
from dray.job import State
from dray.task import Task
from dray.testing.crew import Crew
from dray.testing.live import LiveWorker
from dray.testing.loops import OwnLoop
from dray.testing.store import Clock, Ended, Store
from dray.testing.ticking import Ticking
from dray.why import explain

LIMIT: Final = 10_000
T = TypeVar("T")
Work = Callable[[Crew], Coroutine[Any, Any, T]]


class RunsForEver(DrayError):
    """Jobs led to more and more jobs; `task` is the one that ran most often."""

    def __init__(self, task: str, runs: int, limit: int) -> None:
        super().__init__(
            f"no end in sight: task {task!r} has run {runs:,} times in one go, and there is more to run. "
            f"Does it enqueue itself, or retry without a delay? If it is meant to, give a higher limit= "
            f"(now {limit:,})"
        )
        self.task, self.runs = task, runs


class Harness:
    """An app in testing mode, between `with app.testing() as t:` (or `async with`) and its end.

    `name` blocks and `aname` is awaited, as everywhere. The awaited ones run jobs on the test's own event
    loop, the blocking ones on a loop of their own.
    """

    def __init__(
        self, app: App, *, isolate: bool = False, limit: int = LIMIT, raise_errors: bool = False
    ) -> None:
        self.app, self.limit, self.raise_errors = app, limit, raise_errors
        self._isolate = isolate
        self._clock = Clock()
        self._store = Store(app, self._clock)
        self._ticking = Ticking(app, self._store, self._clock)
        self._own = OwnLoop()
        self._own_crew: Crew | None = None
        self._home: asyncio.AbstractEventLoop | None = None
        """The loop of `async with`: the only one whose worker can be stopped at the end."""
        self._home_crew: Crew | None = None
        self._before: tuple[Client, Callable[[], int]] | None = None
        self._busy = False

    def __repr__(self) -> str:
        return f"<testing of {self.app.name}, at {self.now:%Y-%m-%d %H:%M:%S} UTC>"

    # in and out

    def __enter__(self) -> Self:
        if self._before is not None or self._store.gate.closed_for_good:
            raise DrayError("this was entered before: call app.testing() for another one")
        self._before = (self.app.client, self.app.clock)
        self.app.client, self.app.clock = Client(self._open), self._clock
        self._ticking.reconcile()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._store.close_for_good()
            if self._own_crew is not None:
                self._own.run(self._own_crew.stop)
        finally:
            try:
                self._own.close()
            finally:
                self._restore()

    async def __aenter__(self) -> Self:
        self.__enter__()
        self._home = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._store.close_for_good()
            if self._home_crew is not None:
                await self._home_crew.stop()
        finally:
            self.__exit__(kind, error, trace)

    async def _open(self, blocking: bool) -> Broker:
        return self._store.view(blocking=blocking)

    def _restore(self) -> None:
        if self._before is not None:
            ours = self.app.client
            self.app.client, self.app.clock = self._before
            self._before = None
            ours.close()

    # looking

    @property
    def now(self) -> datetime:
        """What the clock of this test shows. It moves by `advance` only."""
        return moment(self._clock())

    def enqueued(self, task: str | Task[..., Any] | None = None, queue: str | None = None) -> list[JobInfo]:
        """Jobs that were enqueued and have not finished, in the order in which they came."""
        unfinished = (state for state in State if not state.finished)
        return _among(self._store.all_in(*unfinished), task, queue)

    def dead(self, task: str | Task[..., Any] | None = None, queue: str | None = None) -> list[JobInfo]:
        """Jobs that will not be tried again, in the order in which they came."""
        return _among(self._store.all_in(State.DEAD), task, queue)

    # running

    def drain(self, *, limit: int | None = None, raise_errors: bool | None = None) -> list[JobInfo]:
        """Run everything that can run now, and what follows from it, until nothing is left to do.

        Returns what ran, in the order of its end: a job that failed and was tried again is in there twice.
        What jobs raise does not come out, unless `raise_errors` is given here or set on the harness.
        """
        return self._report(self._block(self._drain, limit), raise_errors)

    async def adrain(self, *, limit: int | None = None, raise_errors: bool | None = None) -> list[JobInfo]:
        return self._report(await self._await(self._drain, limit), raise_errors)

    def advance(
        self, by: Duration, *, limit: int | None = None, raise_errors: bool | None = None
    ) -> list[JobInfo]:
        """Move the clock (seconds, `"5m"`, timedelta); what falls due by then runs at its time, in order.

        Schedules make their jobs on the way.
        """
        length = parse_duration("by", by)
        return self._report(self._block(lambda crew: self._advance(crew, length), limit), raise_errors)

    async def aadvance(
        self, by: Duration, *, limit: int | None = None, raise_errors: bool | None = None
    ) -> list[JobInfo]:
        length = parse_duration("by", by)
        return self._report(await self._await(lambda crew: self._advance(crew, length), limit), raise_errors)

    def run(self, job: JobHandle[Any] | JobInfo | str, *, raise_errors: bool | None = None) -> JobInfo:
        """Run just this job, once, and leave all others where they are."""
        id = job if isinstance(job, str) else job.id
        self._report(self._block(lambda crew: self._run_one(crew, id), 1, id), raise_errors)
        return self.app.job(id).info()

    async def arun(self, job: JobHandle[Any] | JobInfo | str, *, raise_errors: bool | None = None) -> JobInfo:
        id = job if isinstance(job, str) else job.id
        self._report(await self._await(lambda crew: self._run_one(crew, id), 1, id), raise_errors)
        return await self.app.job(id).ainfo()

    def worker(self) -> LiveWorker:
        """A worker that runs jobs by itself, in a thread, on a clock that goes by itself.

        with app.testing() as t, t.worker():
            assert send_email.enqueue("a@x.org").get(timeout=5) == 1
        """
        return LiveWorker(self.app, self._store, self._clock, isolate=self._isolate)

    # one implementation of each

    async def _drain(self, crew: Crew) -> None:
        while True:
            await crew.until_still()
            if self._store.gate.overrun:
                return
            if not self._store.is_due_for_sweep():
                return
            await self._store.sweep()
            self._store.nudge()

    async def _advance(self, crew: Crew, length: int) -> None:
        target = self._clock() + length
        self._ticking.reconcile()
        while True:
            await self._ticking.put_due()
            await self._drain(crew)
            if self._store.gate.overrun or self._clock() >= target:
                break
            times = (self._store.next_time(crew.filter), await self._ticking.next_time())
            self._clock.move_to(min([at for at in times if at is not None] + [target]))
            self._store.nudge()
        while (await self._store.sweep()).more:
            pass

    async def _run_one(self, crew: Crew, id: str) -> None:
        if not self._store.can_start(id, crew.filter):
            raise await self._why_not(crew, id)
        await crew.until_still()

    async def _why_not(self, crew: Crew, id: str) -> DrayError:
        why = await explain(self._store.view(blocking=False), id)
        if why.status is State.NOT_FOUND:
            return JobNotFound(id, f"no job {id}: {why.text}")
        text = why.text
        if why.code not in ("queue_paused", "task_paused") and why.status is State.READY:
            (found,) = await self._store.get([id])
            known = found is not None and found.job.task in crew.tasks
            text = "a limit holds it back" if known else "no task of this app has its name"
        return InvalidInput("job", id, f"it cannot run now: {text}")

    # on which loop, with which worker

    def _block(self, work: Work[None], limit: int | None, only: str | None = None) -> int:
        self._check_inside()

        async def main() -> int:
            if self._own_crew is None or not self._own_crew.current:
                old, self._own_crew = self._own_crew, None
                if old is not None:
                    await old.stop()
                self._own_crew = await self._started()
            return await self._through_gate(self._own_crew, work, limit, only)

        return self._own.run(main)

    async def _await(self, work: Work[None], limit: int | None, only: str | None = None) -> int:
        self._check_inside()
        async with self._crew_here() as crew:
            return await self._through_gate(crew, work, limit, only)

    @asynccontextmanager
    async def _crew_here(self) -> AsyncIterator[Crew]:
        """The worker of the running loop. It stays, if `async with` will be there to stop it."""
        if asyncio.get_running_loop() is not self._home:
            crew = await self._started()
            try:
                yield crew
            finally:
                await crew.stop()
            return
        if self._home_crew is None or not self._home_crew.current:
            old, self._home_crew = self._home_crew, None
            if old is not None:
                await old.stop()
            self._home_crew = await self._started()
        yield self._home_crew

    async def _started(self) -> Crew:
        crew = Crew(self.app, self._store, self._clock, isolate=self._isolate)
        await crew.start()
        return crew

    async def _through_gate(self, crew: Crew, work: Work[None], limit: int | None, only: str | None) -> int:
        """With the gate open, do it. Returns the limit that counted."""
        if self._busy:
            raise DrayError("a drain is under way already; wait for its end")
        self._busy = True
        most = self.limit if limit is None else limit
        crew.enter()
        self._store.gate.ended.clear()
        self._store.open_gate(self._store.count_unfinished() + most, only)
        try:
            await work(crew)
        finally:
            self._store.close_gate()
            self._busy = False
        return most

    def _check_inside(self) -> None:
        if self._before is None:
            raise DrayError("not in testing mode: write `with app.testing() as t:` around it")
        if self._store.gate.live:
            raise DrayError(
                "a worker runs jobs by itself here, on a clock that goes by itself: wait for a job with "
                "job.get(timeout=5)"
            )

    def _report(self, limit: int, raise_errors: bool | None) -> list[JobInfo]:
        gate = self._store.gate
        ended, gate.ended = gate.ended, []
        if gate.overrun:
            ((task, runs),) = gate.counts.most_common(1)
            raise RunsForEver(task, runs, limit)
        if self.raise_errors if raise_errors is None else raise_errors:
            _raise_first(ended)
        return [one.info for one in ended]


def _among(infos: list[JobInfo], task: str | Task[..., Any] | None, queue: str | None) -> list[JobInfo]:
    name = task.name if isinstance(task, Task) else task
    return [
        info
        for info in infos
        if (name is None or info.task == name) and (queue is None or info.queue == queue)
    ]


def _raise_first(ended: list[Ended]) -> None:
    for one in ended:
        info, error = one.info, one.error
        asked = isinstance(error, Retry) and info.status is not State.DEAD
        if not one.failed or asked:
            continue
        # A timeout stops the run from outside: what the task saw of it is not what went wrong.
        if isinstance(error, Exception) and not isinstance(error, JobStopped):
            raise error
        told = info.error
        kind, message = (told.type, told.message) if told is not None else ("failed", info.reason or "")
        raise JobFailed(info.id, kind, message, "" if told is None else told.traceback) from error
