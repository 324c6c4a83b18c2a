"""A run while it lives: what a `Context` shows to the task, and what its executor must know to stop it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

from dray.errors import InvalidInput
from dray.job import Outcome, Progress, Taken
from dray.worker.failure import bounded

if TYPE_CHECKING:
    from dray.app import App
    from dray.broker.verbs import Ref
    from dray.task import Task
    from dray.worker.accounting import Meter
    from dray.worker.runners import Runner
    from dray.worker.threads import Work

NOTE_MAX: Final = 1000


class Why(StrEnum):
    """Why a run was asked to stop. The first reason counts."""

    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"
    """The broker gave the job to somebody else, or will: whatever this run comes to is refused."""
    LEAVING = "leaving"
    """The worker stops: the job goes back into line as if it had not been started."""


Ended = Callable[["Live", Outcome], None]
"""Called on the event loop with what a run came to, once."""


class Interrupted(BaseException):
    """Raised by dray inside a thread whose run must stop now. Let it pass."""


class Host(Protocol):
    """Whoever runs jobs: an executor, or a child process."""

    app: App
    state: Any
    thread: int
    """The thread of its event loop."""

    def reported(self, live: Live, progress: Progress) -> None: ...
    def beaten(self, live: Live) -> None: ...
    def waits(self, live: Live, begins: bool) -> None: ...


class Live:
    """One run. Plain attributes with defaults in the class: one is made for every job."""

    why: Why | None = None
    cancelled: bool = False
    overdue: bool = False
    """Past its timeout: it may be stopped by force."""
    starts: int = 0
    """Child processes that ended before they began it."""
    stuck: bool = False
    """Past all patience."""
    away: bool = False
    """It waits for another job and does not use a slot."""
    ended: Ended | None = None
    handle: asyncio.Task[None] | None = None
    trace: str | None = None
    """The id of the trace it belongs to, where runs are traced."""
    work: Work | None = None
    """What a thread does for it just now."""
    runner: Runner
    """Where it runs."""
    meter: Meter | None = None
    """What measures it, if it is one of those that are measured."""
    nudged: float = 0.0
    """When it was last told to stop."""

    def __init__(self, host: Host, task: Task[..., Any], taken: Taken, ref: Ref, timeout: float) -> None:
        self.host, self.task, self.taken, self.ref = host, task, taken, ref
        self.app, self.state = host.app, host.state
        self.timeout = timeout
        """Seconds."""
        self.deadline = math.inf
        """By the loop's clock."""

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

    def blocks_loop(self) -> bool:
        return threading.get_ident() == self.host.thread


def _checked(progress: Progress) -> Progress:
    """A wrong value is refused in the task that gave it; in the executor nobody could tell whose it was."""
    try:
        done = float(progress.done)
        total = None if progress.total is None else float(progress.total)
    except (TypeError, ValueError, OverflowError):
        wrong = (progress.done, progress.total)
        raise InvalidInput("progress", wrong, "numbers are allowed for done and total") from None
    return Progress(done, total, bounded(str(progress.note), NOTE_MAX))
