"""What an executor tells its supervisor: each thing once, or when it changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from dray.job import Outcome
from dray.task import Task
from dray.worker.accounting import Accounts
from dray.worker.channel import Counted, Idle, Measured, Message, Retiring, Started, Stuck
from dray.worker.places import place_of

LAG: Final = 0.1
"""Seconds by which an event loop may be late without a word about it."""
Say = Callable[[Message], None]


class Voice:
    def __init__(self, say: Say | None) -> None:
        self._say: Say = say or (lambda message: None)
        self.heard = say is not None
        """Whether there is a supervisor."""
        self._counted = Counted(0, 0, 0)
        self._idle: bool | None = None
        self._stuck = False

    def started(self, session: str, epoch: int, tasks: Mapping[str, Task[..., Any]]) -> None:
        places = {name: place_of(task.function) for name, task in tasks.items()}
        self._say(Started(session, epoch, places))

    def retiring(self, reason: str) -> None:
        self._say(Retiring(reason))

    def stuck(self, outcomes: Callable[[], list[Outcome]]) -> None:
        if not self._stuck:
            self._stuck = True
            self._say(Stuck(outcomes()))

    def counted(self, succeeded: int, failed: int, running: int) -> None:
        counted = Counted(succeeded, failed, running)
        if counted != self._counted:
            self._counted = counted
            self._say(counted)

    def measured(self, accounts: Accounts) -> None:
        tallies, lag = accounts.fetch()
        if tallies or lag > LAG:
            self._say(Measured(tallies, lag))

    def idle(self, idle: bool) -> None:
        if idle is not self._idle:
            self._idle = idle
            self._say(Idle(idle))
