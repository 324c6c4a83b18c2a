"""What the processes of a worker are told at birth: one environment variable each.

Not the command line: settings hold passwords, and every user of a machine can read command lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping
from typing import ClassVar, Self

import msgspec

from dray.errors import DrayError
from dray.settings import Settings


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    VARIABLE: ClassVar[str]
    MODULE: ClassVar[str]

    app: str
    """`module:attribute`."""
    settings: Settings
    folder: str
    """Where modules of the app are found, beside what is installed."""

    def command(self) -> list[str]:
        """What to start."""
        return [sys.executable, "-m", self.MODULE]

    def environ(self) -> dict[str, str]:
        """What to add to the environment it is started with."""
        return {self.VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] | None = None) -> Self:
        """Read it, and take it out of the environment: nothing that a task starts is to see it."""
        text = (os.environ if environ is None else environ).pop(cls.VARIABLE, None)
        if text is None:
            raise DrayError(f"{cls.MODULE} is started by dray itself (no {cls.VARIABLE} in the environment)")
        return msgspec.json.decode(text, type=cls)


class ExecutorConfig(_Told, frozen=True, kw_only=True):
    """For `dray.worker.process`. All its file descriptors are to be inherited (`pass_fds`)."""

    VARIABLE: ClassVar[str] = "DRAY_EXECUTOR"
    MODULE: ClassVar[str] = "dray.worker.process"

    channel: int
    """File descriptor of the socket to the supervisor."""
    worker: str
    number: int
    started: int | None = None
    """When the worker was started, by the broker's clock."""
    burst: bool = False
    pulse: int
    """File descriptor of the page for signs of life (`Pulse(fd)`)."""
    stacks: int
    """File descriptor of the file that stacks are written to on SIGUSR1."""
    pace: int | None = None
    """File descriptor of the page with the worker's rate, if it has one (`Pace(rate, fd)`)."""

    @property
    def fds(self) -> tuple[int, ...]:
        return self.channel, self.pulse, self.stacks, *(() if self.pace is None else (self.pace,))


class ChildConfig(_Told, frozen=True, kw_only=True):
    """For `dray.worker.child`."""

    VARIABLE: ClassVar[str] = "DRAY_EXECUTOR_CHILD"
    MODULE: ClassVar[str] = "dray.worker.child"

    channel: int
    """File descriptor of the socket to the executor."""
    parent: int
    """Process id of the executor."""
    path: list[str] = []
    """The executor's `sys.path`."""


class DeclareConfig(_Told, frozen=True, kw_only=True):
    """For `dray.worker.declare`."""

    VARIABLE: ClassVar[str] = "DRAY_DECLARE"
    MODULE: ClassVar[str] = "dray.worker.declare"

    parent: int
    """Process id of the supervisor."""
    started: int
    """When the worker was started, by the broker's clock."""
