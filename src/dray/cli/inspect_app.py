"""Read the settings and tasks of an app in a child process.

A worker's supervisor runs no user code, but needs the settings given in code (`App("shop", broker=…)`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from dray.errors import AppNotFound, DrayError, InvalidSettings
from dray.loading import load_app
from dray.settings import Loaded, Settings
from dray.worker.process import can_fork, die_with, fork, look_like


class AppFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and tasks of an app; or, in `error`, why it cannot be imported."""

    settings: Settings | None = None
    origins: dict[str, str] = {}
    folder: str = "."
    tasks: dict[str, str] = {}
    """Task → the queue its jobs go to."""
    error: str = ""

    @property
    def loaded(self) -> Loaded:
        if self.settings is None:
            raise AppNotFound(self.error)
        return Loaded(self.settings, self.origins, Path(self.folder))


def probe(path: str) -> AppFacts:
    """Import the app at `module:attribute` in a child process, and return its facts."""
    ours, theirs = os.pipe()
    try:
        child = (_Forked if can_fork() else _Spawned)(path, theirs)
        os.close(theirs)
        try:
            with open(ours, "rb", closefd=False) as answer:
                reply = answer.read()
            code = child.wait()
        except BaseException:  # interrupted
            child.end()
            raise
    finally:
        os.close(ours)
    if not reply:
        raise AppNotFound(f"importing {path!r} ended the process (exit code {code}) before it was done")
    return msgspec.msgpack.decode(reply, type=AppFacts)


class _Spawned:
    def __init__(self, path: str, descriptor: int) -> None:
        command = [sys.executable, "-m", __name__, path, str(descriptor), str(os.getpid())]
        self._process = subprocess.Popen(command, pass_fds=(descriptor,))  # noqa: S603 (our own program)
        self.wait = self._process.wait

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class _Forked:
    """A child that need not import dray again."""

    def __init__(self, path: str, descriptor: int) -> None:
        parent, self._pid = os.getpid(), fork()
        if self._pid == 0:
            try:
                look_like(sys.modules[__name__])
                _answer(path, descriptor, parent)
                sys.stderr.flush()
                os._exit(0)
            finally:  # whatever the app raises ends here
                os._exit(1)

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def end(self) -> None:
        with suppress(ProcessLookupError, ChildProcessError):  # an interrupted `wait` has seen its end
            os.kill(self._pid, signal.SIGKILL)
            self.wait()


def read_app(path: str) -> AppFacts:
    try:
        app = load_app(path)
    except (AppNotFound, InvalidSettings) as error:
        return AppFacts(error=str(error))
    except DrayError as error:
        return AppFacts(error=f"{path}: {error}")
    return AppFacts(
        settings=app.settings,
        origins=app.loaded.origins,
        folder=str(app.loaded.folder),
        tasks={name: task.options.queue or "default" for name, task in app.tasks.items()},
    )


def _answer(path: str, descriptor: int, parent: int) -> None:
    die_with(parent)
    with open(os.devnull, "wb") as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 1)  # every executor prints again what the app prints on import
    data = msgspec.msgpack.encode(read_app(path))
    with suppress(BrokenPipeError), open(descriptor, "wb") as pipe:
        pipe.write(data)  # unless the parent is gone


if __name__ == "__main__":
    _answer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
