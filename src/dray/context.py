"""The running job, seen from inside: `Context`, a parameter of the task, or `dray.current()`.

@app.task
def resize(ctx: Context, path: str) -> None:
    for n, tile in enumerate(tiles(path)):
        ctx.check()                          # stops here if the job was cancelled
        ctx.progress(n, 64, note=tile.name)
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from dray.durable.calls import BlockingOperations, Operations, Steps
from dray.durable.direct import DirectSteps
from dray.duration import parse_duration
from dray.errors import DrayError, JobStopped, TaskExit
from dray.job import Error, Job, OutcomeKind, Progress, Suspension, Taken, check_progress_data

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle


class Running(Protocol):
    """The run behind a context, as an executor, a child process or a test provides it."""

    app: App
    taken: Taken
    state: Any
    """The value that the app's lifespan yielded."""
    cancelled: bool
    """The run should stop: cancelled, timed out, taken over, or the worker stops."""
    heeded: bool
    """The task has read `cancelled` when it was true."""

    def report(self, progress: Progress) -> None:
        """Pass progress on; may be called from any thread, at any rate."""
        ...

    def beat(self) -> None:
        """The task is alive: its timeout counts from now."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """While inside, the run waits for another job and does not use a slot."""
        ...

    def blocks_loop(self) -> bool:
        """True if blocking here would block the event loop that all jobs share."""
        ...

    def steps(self) -> Steps:
        """Its durable part, made at the first call."""
        ...

    @property
    def replaying(self) -> bool:
        """It repeats what an earlier run of the job has done."""
        ...


class Retry(TaskExit):
    """Raise it to try the job again after `delay` (seconds, `"5m"`, timedelta), else after its usual backoff.

    It counts as a failed attempt: with no retries left the job is dead.
    """

    def __init__(self, reason: str = "", *, delay: str | float | timedelta | None = None) -> None:
        super().__init__(reason or "the task asked to be tried again")
        self.delay = None if delay is None else parse_duration("delay", delay)
        """Milliseconds."""


class Reject(TaskExit):
    """Raise it to make the job dead at once, whatever retries it has left."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class EndRun(BaseException):
    """Raised by dray inside its own tasks: the run ends like this. Let it pass."""

    def __init__(
        self,
        kind: OutcomeKind,
        reason: str | None = None,
        *,
        error: Error | None = None,
        suspend: Suspension | None = None,
    ) -> None:
        super().__init__(reason)
        self.kind, self.reason, self.error, self.suspend = kind, reason, error, suspend


CURRENT: Final[ContextVar[Running | None]] = ContextVar("dray.current", default=None)
"""The run that this code belongs to; executors, children and tests set it."""


class Context(Operations):
    """One run of one job, seen from inside. The durable operations are described in docs/durable.md."""

    __slots__ = ("_running",)

    def __init__(self, running: Running) -> None:
        self._running = running

    @property
    def job(self) -> JobHandle[Any]:
        """The job itself, as a handle: `ctx.job.id`, `ctx.job.info()`."""
        running = self._running
        return running.app.handle(running.taken.job.id, running.taken.job.task, running.taken.job.queue)

    @property
    def task(self) -> str:
        return self._running.taken.job.task

    @property
    def queue(self) -> str:
        return self._running.taken.job.queue

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1. A crash of a worker does not use one up."""
        return self._running.taken.attempt

    @property
    def run(self) -> int:
        """Which start of the job this is, from 1; counts crashes too."""
        return self._running.taken.run

    @property
    def tags(self) -> tuple[str, ...]:
        return self._running.taken.job.tags

    @property
    def headers(self) -> dict[str, str]:
        """Texts that travel with the job: options of the call, enqueue middleware."""
        return dict(self._running.taken.job.headers)

    @property
    def app(self) -> App:
        return self._running.app

    @property
    def state(self) -> Any:
        """The value that the app's lifespan yielded in this worker process."""
        return self._running.state

    @property
    def cancelled(self) -> bool:
        """The job should stop: it was cancelled, or its time is up."""
        if self._running.cancelled:
            self._running.heeded = True
        return self._running.cancelled

    def check(self) -> None:
        """Raise `JobStopped` if the job should stop; let it pass through, so that the run ends."""
        if self.cancelled:
            raise JobStopped(self._running.taken.job.id, "the job was asked to stop")

    def progress(
        self,
        done: float,
        total: float | None = None,
        note: str = "",
        *,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Report how far it is, with `data` that JSON can hold, up to 4 KiB. `job.info()`, the command line
        and the server show it."""
        self._running.report(Progress(done, total, note, check_progress_data(data)))

    def heartbeat(self) -> None:
        """Report that it is alive: the timeout counts from now."""
        self._running.beat()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job id, task and attempt; silent while the job replays its steps."""
        job = self._running.taken.job
        extra = {"job": job.id, "task": job.task, "attempt": self._running.taken.attempt}
        return _JobLogger(logging.getLogger(f"dray.task.{job.task}"), extra, self._running)

    @property
    def blocking(self) -> BlockingOperations:
        """The durable operations, typed for plain tasks: `ctx.blocking.step(f, x)` is the value itself."""
        return BlockingOperations(self._running.steps)

    def _steps(self) -> Steps:
        return self._running.steps()


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    def __init__(self, logger: logging.Logger, extra: Mapping[str, object], running: Running) -> None:
        super().__init__(logger, extra)
        self._running = running

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 (a name of logging)
        return not self._running.replaying and super().isEnabledFor(level)


def current() -> Context:
    """The context of the job that is running here."""
    running = CURRENT.get()
    if running is None:
        raise DrayError("no job is running here: dray.current() works inside a task")
    return Context(running)


class _Detached:
    """A run of no job, for a task that is called directly."""

    def __init__(self, app: App, task: str) -> None:
        self.app, self.state, self.cancelled, self.heeded = app, None, False, False
        self.taken = Taken(Job(id="none", task=task), 1)

    def report(self, progress: Progress) -> None:
        """No one reads it."""

    def beat(self) -> None:
        """It has no timeout."""

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def blocks_loop(self) -> bool:
        return False

    def steps(self) -> Steps:
        return DirectSteps(self.app.tasks, self.app.tasks[self.taken.job.task].is_async)

    @property
    def replaying(self) -> bool:
        return False


def detached(app: App, task: str) -> Context:
    """The context of a task that is called directly, like any function."""
    return Context(_Detached(app, task))
