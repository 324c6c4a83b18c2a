"""One run while it lives: what its `Context` shows to the task, and what the executor needs to stop it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from dray.durable.copying import RERUN_FROM
from dray.errors import InvalidInput
from dray.job import Outcome, Progress, Taken

if TYPE_CHECKING:
    from dray.app import App
    from dray.broker.verbs import Ref
    from dray.task import Task
    from dray.worker.run.durable_run import DurableRun
    from dray.worker.run.meter import Meter
    from dray.worker.run.operations import RunSteps
    from dray.worker.run.perform import Runner
    from dray.worker.run.requests import Request
    from dray.worker.run.threads import Work

NOTE_MAX: Final = 1000


class StopReason(StrEnum):
    """Why a run was asked to stop. The first reason counts."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    DEADLINE = "deadline"
    LOST = "lost"
    """The run is not valid at the broker any more: its outcome will be refused."""
    LEAVING = "leaving"
    """The worker stops: the job goes back into line as if it had not been started."""


Ended = Callable[["RunState", Outcome], None]
"""Called once on the event loop with the outcome of a run."""


class Interrupted(BaseException):
    """Raised by dray inside a thread whose run must stop now. Let it pass."""


class Suspended(BaseException):
    """Raised by dray inside a plain task whose job sleeps or waits from now on. Let it pass."""


class RunHost(Protocol):
    """The process that runs jobs: an executor, or a child process."""

    app: App
    state: Any
    """What the app's lifespan yielded."""
    thread: int
    """The thread of its event loop."""

    def reported(self, run: RunState, progress: Progress) -> None: ...
    def beaten(self, run: RunState) -> None: ...
    def waits(self, run: RunState, begins: bool) -> None: ...
    def open_steps(self, run: RunState) -> RunSteps: ...
    async def ask(self, run: RunState, request: Request) -> Any: ...


class RunState:
    """One run. Times are by the loop's clock. Defaults are class attributes: one is made for every job."""

    stop_reason: StopReason | None = None
    cancelled: bool = False
    """It was asked to stop, for whatever reason: what `ctx.cancelled` shows."""
    overdue: bool = False
    """Past its timeout or deadline, or cancelled and out of patience: it may be stopped by force."""
    forced: bool = False
    """Cancelled with `force=True`: no patience."""
    heeded: bool = False
    """The task has seen that it should stop, and is trusted to."""
    failed_starts: int = 0
    """Child processes that ended before they began it."""
    stuck: bool = False
    """It did not stop within the patience."""
    away: bool = False
    """It waits for another job and does not use a slot."""
    off_loop: bool = False
    """It runs in a thread or in a child process of its own."""
    ended: Ended | None = None
    handle: asyncio.Task[None] | None = None
    trace: str | None = None
    """The id of its trace, where runs are traced."""
    work: Work | None = None
    """The work that a thread does for it now."""
    runner: Runner
    meter: Meter | None = None
    """Set for the sample of runs that are measured."""
    durable: DurableRun | None = None
    """Its log and operations, if it has any."""
    _steps: RunSteps | None = None
    steps_run: int = 0
    steps_replayed: int = 0
    """Steps whose value or error was remembered."""
    began: float = 0.0
    asked: float = 0.0
    """When it was last asked to stop."""
    deadline: float = math.inf
    """The job's deadline."""
    stop_at: float = math.inf
    """When its timeout or deadline stops it; once overdue, when the patience ends."""

    def __init__(self, host: RunHost, task: Task[..., Any], taken: Taken, ref: Ref, timeout: float) -> None:
        self.host, self.task, self.taken, self.ref = host, task, taken, ref
        self.app, self.state = host.app, host.state
        self.timeout = timeout
        """Seconds."""

    def restart_timeout(self, now: float) -> None:
        """The timeout counts from now; the deadline stays."""
        self.stop_at = min(now + self.timeout, self.deadline)

    def report(self, progress: Progress) -> None:
        self.host.reported(self, _checked(progress))

    def beat(self) -> None:
        self.host.beaten(self)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        if self.away:
            yield
            return
        self.away = True
        self.host.waits(self, True)
        try:
            yield
        finally:
            self.away = False
            self.host.waits(self, False)

    def steps(self) -> RunSteps:
        if self._steps is None:
            self._steps = self.host.open_steps(self)
            self.durable = self._steps.durable
        return self._steps

    @property
    def replaying(self) -> bool:
        return self.durable is not None and self.durable.journal.replaying

    @property
    def has_log(self) -> bool:
        """Its log must be read before the task begins."""
        taken = self.taken
        return taken.memos > 0 or taken.undo is not None or RERUN_FROM in taken.job.headers

    def blocks_loop(self) -> bool:
        return threading.get_ident() == self.host.thread


def _checked(progress: Progress) -> Progress:
    """Refuse a wrong value here, in the task that gave it: later its origin is not known."""
    try:
        done = float(progress.done)
        total = None if progress.total is None else float(progress.total)
    except (TypeError, ValueError, OverflowError):
        wrong = (progress.done, progress.total)
        raise InvalidInput("progress", wrong, "numbers are allowed for done and total") from None
    return Progress(done, total, bounded(str(progress.note), NOTE_MAX), progress.data)


def bounded(text: str, most: int) -> str:
    """At most `most` characters, without the middle; what UTF-8 cannot carry is escaped."""
    if len(text) > most:
        head = most // 3
        gap = "\n[…]\n"
        text = text[:head] + gap + text[len(text) - (most - head - len(gap)) :]
    try:
        text.encode()
    except UnicodeEncodeError:
        text = text.encode(errors="backslashreplace").decode()[:most]
    return text
