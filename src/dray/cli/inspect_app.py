"""Read the settings and tasks of an app in a child process.

A worker's supervisor runs no user code, but needs the settings given in code (`App("shop", broker=…)`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from dray.errors import AppNotFound, DrayError, InvalidSettings
from dray.loading import load_app
from dray.settings import Loaded, Settings
from dray.worker.process import die_with


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
        command = [sys.executable, "-m", "dray.cli.inspect_app", path, str(theirs), str(os.getpid())]
        # Every executor prints again what the app prints on import.
        child = subprocess.Popen(command, pass_fds=(theirs,), stdout=subprocess.DEVNULL)  # noqa: S603
        os.close(theirs)
        try:
            with open(ours, "rb", closefd=False) as answer:
                reply = answer.read()
            code = child.wait()
        except BaseException:  # interrupted
            child.kill()
            child.wait()
            raise
    finally:
        os.close(ours)
    if not reply:
        raise AppNotFound(f"importing {path!r} ended the process (exit code {code}) before it was done")
    return msgspec.msgpack.decode(reply, type=AppFacts)


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


def _main() -> None:
    path, descriptor, parent = sys.argv[1:]
    die_with(int(parent))
    data = msgspec.msgpack.encode(read_app(path))
    with suppress(BrokenPipeError), open(int(descriptor), "wb") as pipe:  # noqa: PTH123 (a descriptor)
        pipe.write(data)  # unless the parent is gone


if __name__ == "__main__":
    _main()
