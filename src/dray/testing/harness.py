"""`app.testing()`: run an app's jobs inside a test, on the real code, on a clock that the test moves.

    with app.testing() as t:
        job = send_email.enqueue("a@x.org")
        t.drain()
        assert job.get(timeout=0) == 1

The executor, retries, timeouts, limits and middleware are those of a real worker. The differences: the broker
is always in memory, `advance` moves its clock, backoffs have no jitter, and jobs run when the test says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Final, Literal, Self, TypeVar

from dray.app import App
from dray.broker import Broker
from dray.client.client import Client
from dray.context import Retry
from dray.duration import parse_duration
from dray.errors import DrayError, InvalidInput, JobFailed, JobNotFound, JobStopped
from dray.handle import JobHandle
from dray.info import JobInfo, moment
from dray.job import State
from dray.options import Duration
from dray.task import Task
from dray.testing.in_process_worker import InProcessWorker
from dray.testing.live_worker import LiveWorker
from dray.testing.loops import PrivateLoop
from dray.testing.memory_store import Clock, FinishedRun, HarnessStore
from dray.testing.ticker import HarnessScheduler
from dray.why import explain

LIMIT: Final = 10_000
T = TypeVar("T")
Work = Callable[[InProcessWorker], Coroutine[Any, Any, T]]


class RunsForEver(DrayError):
    """Jobs enqueue jobs without end; `task` is the one that ran most often."""

    def __init__(self, task: str, runs: int, limit: int) -> None:
        super().__init__(
            f"no end in sight: task {task!r} has run {runs:,} times in one go, and there is more to run. "
            f"Does it enqueue itself, or retry without a delay? If it is meant to, give a higher limit= "
            f"(now {limit:,})"
        )
        self.task, self.runs = task, runs


class Harness:
    """An app in testing mode, inside `with app.testing() as t:` or `async with`.

    `name` blocks and `aname` is awaited, as everywhere. Awaited methods run jobs on the test's event loop,
    blocking methods on a private loop.
    """

    def __init__(
        self, app: App, *, isolate: bool = False, limit: int = LIMIT, raise_errors: bool = False
    ) -> None:
        self.app, self.limit, self.raise_errors = app, limit, raise_errors
        self._isolate = isolate
        self._clock = Clock()
        self._store = HarnessStore(app, self._clock)
        self._scheduler = HarnessScheduler(app, self._store, self._clock)
        self._private_loop = PrivateLoop()
        self._home: asyncio.AbstractEventLoop | None = None
        """The loop of `async with`: its worker can be stopped at the end."""
        self._workers: dict[Literal["private", "home"], InProcessWorker] = {}
        self._before: tuple[Client, Callable[[], int]] | None = None
        self._busy = False

    def __repr__(self) -> str:
        return f"<testing of {self.app.name}, at {self.now:%Y-%m-%d %H:%M:%S} UTC>"

    # entering and leaving

    def __enter__(self) -> Self:
        if self._before is not None or self._store.control.closed_for_good:
            raise DrayError("this was entered before: call app.testing() for another one")
        self._before = (self.app.client, self.app.clock)
        self.app.client, self.app.clock = Client(self._open, wait_together=False), self._clock
        self._scheduler.reconcile()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._store.close_for_good()
            if worker := self._workers.pop("private", None):
                self._private_loop.run(worker.stop)
        finally:
            try:
                self._private_loop.close()
            finally:
                self._restore()

    async def __aenter__(self) -> Self:
        self.__enter__()
        self._home = asyncio.get_running_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            self._store.close_for_good()
            if worker := self._workers.pop("home", None):
                await worker.stop()
        finally:
            self.__exit__()

    async def _open(self, blocking: bool) -> Broker:
        return self._store.view(blocking=blocking)

    def _restore(self) -> None:
        if self._before is not None:
            ours = self.app.client
            self.app.client, self.app.clock = self._before
            self._before = None
            ours.close()

    # jobs and clock

    @property
    def now(self) -> datetime:
        """The time on the test's clock. Only `advance` moves it."""
        return moment(self._clock())

    def enqueued(self, task: str | Task[..., Any] | None = None, queue: str | None = None) -> list[JobInfo]:
        """Unfinished jobs, in the order they were enqueued."""
        unfinished = (state for state in State if not state.finished)
        return _among(self._store.all_in(*unfinished), task, queue)

    def dead(self, task: str | Task[..., Any] | None = None, queue: str | None = None) -> list[JobInfo]:
        """Dead jobs, in the order they were enqueued."""
        return _among(self._store.all_in(State.DEAD), task, queue)

    # running

    def drain(self, *, limit: int | None = None, raise_errors: bool | None = None) -> list[JobInfo]:
        """Run every job that can run now, and the jobs that follow from them, until nothing is left to do.

        Returns the runs in the order they ended: a job that failed and was retried is listed twice. Errors of
        jobs are not raised, unless `raise_errors` is given here or set on the harness.
        """
        return self._report(self._block(self._drain, limit), raise_errors)

    async def adrain(self, *, limit: int | None = None, raise_errors: bool | None = None) -> list[JobInfo]:
        return self._report(await self._await(self._drain, limit), raise_errors)

    def advance(
        self, by: Duration, *, limit: int | None = None, raise_errors: bool | None = None
    ) -> list[JobInfo]:
        """Move the clock (seconds, `"5m"`, timedelta); jobs and schedules due by then run at their times."""
        length = parse_duration("by", by)
        return self._report(self._block(lambda worker: self._advance(worker, length), limit), raise_errors)

    async def aadvance(
        self, by: Duration, *, limit: int | None = None, raise_errors: bool | None = None
    ) -> list[JobInfo]:
        length = parse_duration("by", by)
        return self._report(
            await self._await(lambda worker: self._advance(worker, length), limit), raise_errors
        )

    def run(self, job: JobHandle[Any] | JobInfo | str, *, raise_errors: bool | None = None) -> JobInfo:
        """Run only this job, once."""
        id = job if isinstance(job, str) else job.id
        self._report(self._block(lambda worker: self._run_one(worker, id), 1, id), raise_errors)
        return self.app.job(id).info()

    async def arun(self, job: JobHandle[Any] | JobInfo | str, *, raise_errors: bool | None = None) -> JobInfo:
        id = job if isinstance(job, str) else job.id
        self._report(await self._await(lambda worker: self._run_one(worker, id), 1, id), raise_errors)
        return await self.app.job(id).ainfo()

    def worker(self) -> LiveWorker:
        """A worker that runs jobs by itself, in a thread, on the real clock.

        with app.testing() as t, t.worker():
            assert send_email.enqueue("a@x.org").get(timeout=5) == 1
        """
        return LiveWorker(self.app, self._store, self._clock, isolate=self._isolate)

    # implementation, on any loop

    async def _drain(self, worker: InProcessWorker) -> None:
        while True:
            await worker.until_idle()
            if self._store.control.overrun or not self._store.is_due_for_sweep():
                return
            await self._store.sweep()
            self._store.wake_all()

    async def _advance(self, worker: InProcessWorker, length: int) -> None:
        target = self._clock() + length
        self._scheduler.reconcile()
        while True:
            await self._scheduler.put_due()
            await self._drain(worker)
            if self._store.control.overrun or self._clock() >= target:
                break
            due, tick = self._store.next_time(worker.filter), await self._scheduler.next_time()
            self._clock.move_to(max(self._clock(), min(at for at in (due, tick, target) if at is not None)))
            if due is not None and due <= self._clock():
                self._store.wake_all()
        while (await self._store.sweep()).more:
            pass

    async def _run_one(self, worker: InProcessWorker, id: str) -> None:
        if not self._store.can_start(id, worker.filter):
            raise await self._why_not(worker, id)
        await worker.until_idle()

    async def _why_not(self, worker: InProcessWorker, id: str) -> DrayError:
        why = await explain(self._store.view(blocking=False), id)
        if why.status is State.NOT_FOUND:
            return JobNotFound(id, f"no job {id}: {why.text}")
        text = why.text
        if why.code not in ("queue_paused", "task_paused") and why.status is State.READY:
            (found,) = await self._store.get([id])
            known = found is not None and found.job.task in worker.tasks
            text = "a limit holds it back" if known else "no task of this app has its name"
        return InvalidInput("job", id, f"it cannot run now: {text}")

    # the loop and its worker

    def _block(self, work: Work[None], limit: int | None, only: str | None = None) -> int:
        self._check_inside()

        async def main() -> int:
            return await self._with_runs(await self._worker_of("private"), work, limit, only)

        return self._private_loop.run(main)

    async def _await(self, work: Work[None], limit: int | None, only: str | None = None) -> int:
        self._check_inside()
        if asyncio.get_running_loop() is self._home:
            return await self._with_runs(await self._worker_of("home"), work, limit, only)
        worker = await self._start_worker()
        try:
            return await self._with_runs(worker, work, limit, only)
        finally:
            await worker.stop()

    async def _worker_of(self, loop: Literal["private", "home"]) -> InProcessWorker:
        """The worker that stays on this loop; a new one if the app got more tasks or middleware meanwhile."""
        worker = self._workers.pop(loop, None)
        if worker is not None and not worker.current:
            await worker.stop()
            worker = None
        self._workers[loop] = worker or await self._start_worker()
        return self._workers[loop]

    async def _start_worker(self) -> InProcessWorker:
        worker = InProcessWorker(self.app, self._store, self._clock, isolate=self._isolate)
        await worker.start()
        return worker

    async def _with_runs(
        self, worker: InProcessWorker, work: Work[None], limit: int | None, only: str | None
    ) -> int:
        """Allow runs, and do the work. Returns the limit that applied."""
        if self._busy:
            raise DrayError("a drain is under way already; wait for its end")
        self._busy = True
        most = self.limit if limit is None else limit
        worker.enter()
        self._store.control.ended.clear()
        self._store.allow_runs(self._store.count_unfinished() + most, only)
        try:
            await work(worker)
        finally:
            self._store.stop_runs()
            self._busy = False
        return most

    def _check_inside(self) -> None:
        if self._before is None:
            raise DrayError("not in testing mode: write `with app.testing() as t:` around it")
        if self._store.control.live:
            raise DrayError(
                "a worker runs jobs by itself here, on a clock that goes by itself: wait for a job with "
                "job.get(timeout=5)"
            )

    def _report(self, limit: int, raise_errors: bool | None) -> list[JobInfo]:
        control = self._store.control
        ended, control.ended = control.ended, []
        if control.overrun:
            ((task, runs),) = control.counts.most_common(1)
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


def _raise_first(ended: list[FinishedRun]) -> None:
    for one in ended:
        info, error = one.info, one.error
        asked_to_retry = isinstance(error, Retry) and info.status is not State.DEAD
        if not one.failed or asked_to_retry:
            continue
        # A timeout stops the run from outside: the exception inside the task is not the cause.
        if isinstance(error, Exception) and not isinstance(error, JobStopped):
            raise error
        if info.error is None:
            raise JobFailed(info.id, "failed", info.reason or "", "") from error
        raise JobFailed(info.id, info.error.type, info.error.message, info.error.traceback) from error
