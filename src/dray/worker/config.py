"""The configuration of each process that a worker starts, passed in one environment variable.

Not on the command line: settings hold passwords, and every user of a machine can read command lines.
"""

from __future__ import annotations

import os
import sys
from collections.abc import MutableMapping, Sequence
from typing import ClassVar, Self

import msgspec

from dray.errors import DrayError
from dray.settings import Settings


class _ProcessConfig(msgspec.Struct, frozen=True, kw_only=True):
    VARIABLE: ClassVar[str]
    MODULE: ClassVar[str]

    app: str
    """`module:attribute`."""
    settings: Settings
    folder: str
    """Where the app's modules are imported from, beside installed packages."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", self.MODULE]

    def environ(self) -> dict[str, str]:
        return {self.VARIABLE: msgspec.json.encode(self).decode()}

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str] | None = None) -> Self:
        """Read it and remove it from the environment, so that programs started by tasks do not see it."""
        text = (os.environ if environ is None else environ).pop(cls.VARIABLE, None)
        if text is None:
            raise DrayError(f"{cls.MODULE} is started by dray itself (no {cls.VARIABLE} in the environment)")
        return msgspec.json.decode(text, type=cls)


class ExecutorConfig(_ProcessConfig, frozen=True, kw_only=True):
    """For `dray.worker.executor.executor_main`. All its file descriptors must be inherited (`pass_fds`)."""

    VARIABLE: ClassVar[str] = "DRAY_EXECUTOR"
    MODULE: ClassVar[str] = "dray.worker.executor.executor_main"

    channel: int
    """File descriptor of the socket to the supervisor."""
    worker: str
    number: int
    started: int | None = None
    """Start of the worker, by the broker's clock."""
    burst: bool = False
    heartbeat: int
    """File descriptor of the page for signs of life (`SharedHeartbeat(fd)`)."""
    stacks: int
    """File descriptor of the file that stacks are written to on SIGUSR1."""
    rate: int | None = None
    """File descriptor of the page with the worker's rate, if it has one (`WorkerRate(rate, fd)`)."""
    sleep: int | None = None
    """File descriptor of the page that shows when executors sleep (`SleepSign(fd)`), if they adapt."""

    DESCRIPTORS: ClassVar = ("channel", "heartbeat", "stacks", "rate", "sleep")

    @property
    def fds(self) -> tuple[int, ...]:
        """The file descriptors that it has, in the order of `DESCRIPTORS`."""
        return tuple(fd for name in self.DESCRIPTORS if (fd := getattr(self, name)) is not None)

    def with_fds(self, fds: Sequence[int]) -> Self:
        """With other numbers for the same files, as they are in another process."""
        names = [name for name in self.DESCRIPTORS if getattr(self, name) is not None]
        return msgspec.structs.replace(self, **dict(zip(names, fds, strict=True)))


class ChildConfig(_ProcessConfig, frozen=True, kw_only=True):
    """For `dray.worker.run.child_main`."""

    VARIABLE: ClassVar[str] = "DRAY_EXECUTOR_CHILD"
    MODULE: ClassVar[str] = "dray.worker.run.child_main"

    channel: int
    """File descriptor of the socket to the executor."""
    parent: int
    """Process id of the executor."""
    path: list[str] = []
    """The executor's `sys.path`."""


class DeclareConfig(_ProcessConfig, frozen=True, kw_only=True):
    """For `dray.worker.duties.declare`."""

    VARIABLE: ClassVar[str] = "DRAY_DECLARE"
    MODULE: ClassVar[str] = "dray.worker.duties.declare"

    parent: int
    """Process id of the supervisor."""
    started: int
    """Start of the worker, by the broker's clock."""
