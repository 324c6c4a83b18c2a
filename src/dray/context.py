"""What a running job can see and say: `Context`, handed to a task that asks for it, or `dray.current()`.

@app.task
def resize(ctx: Context, path: str) -> None:
    for n, tile in enumerate(tiles(path)):
        ctx.check()                          # stop here if somebody cancelled the job
        ctx.progress(n, 64, note=tile.name)
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Protocol

from dray.duration import parse_duration
from dray.errors import DrayError, JobStopped, TaskExit
from dray.job import Job, Progress, Taken

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle


class Running(Protocol):
    """The run behind a context: what whoever runs the job (executor, child process, test) provides."""

    app: App
    taken: Taken
    state: Any
    """What the app's lifespan yielded."""
    cancelled: bool
    """Somebody wants it to stop: cancelled, timed out, taken over, or the worker is leaving."""

    def report(self, progress: Progress) -> None:
        """Pass progress on; may be called from any thread, as often as the task likes."""
        ...

    def beat(self) -> None:
        """The task is alive: its timeout counts from now."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """While inside, the run waits for another job and does not use a slot."""
        ...

    def blocks_loop(self) -> bool:
        """Whether blocking here would block the event loop that all jobs share."""
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


CURRENT: Final[ContextVar[Running | None]] = ContextVar("dray.current", default=None)
"""The run that the code at hand belongs to. Set by whoever runs jobs."""


class Context:
    """One run of one job, seen from inside."""

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
        """What enqueue middleware sent along."""
        return dict(self._running.taken.job.headers)

    @property
    def app(self) -> App:
        return self._running.app

    @property
    def state(self) -> Any:
        """What the app's lifespan yielded in this worker process."""
        return self._running.state

    @property
    def cancelled(self) -> bool:
        """Whether the job should stop: it was cancelled, or its time is up."""
        return self._running.cancelled

    def check(self) -> None:
        """Raise `JobStopped` if the job should stop; let it pass through, so that the run ends."""
        if self._running.cancelled:
            raise JobStopped(self._running.taken.job.id, "the job was asked to stop")

    def progress(self, done: float, total: float | None = None, note: str = "") -> None:
        """Say how far it is; shown by `job.info()`, the command line and the dashboard."""
        self._running.report(Progress(done, total, note))

    def heartbeat(self) -> None:
        """Say that it is alive: the timeout counts from now."""
        self._running.beat()

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry job id, task and attempt."""
        job = self._running.taken.job
        extra = {"job": job.id, "task": job.task, "attempt": self._running.taken.attempt}
        return logging.LoggerAdapter(logging.getLogger(f"dray.task.{job.task}"), extra)


def current() -> Context:
    """The context of the job that is running here."""
    running = CURRENT.get()
    if running is None:
        raise DrayError("no job is running here: dray.current() works inside a task")
    return Context(running)


class _Detached:
    """A run of no job, for a task that is called directly."""

    def __init__(self, app: App, task: str) -> None:
        self.app, self.state, self.cancelled = app, None, False
        self.taken = Taken(Job(id="none", task=task), 1)

    def report(self, progress: Progress) -> None:
        """Nobody is there to be told."""

    def beat(self) -> None:
        """Nobody waits."""

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    def blocks_loop(self) -> bool:
        return False


def detached(app: App, task: str) -> Context:
    """What a task that is called directly, like any function, gets as its context."""
    return Context(_Detached(app, task))
