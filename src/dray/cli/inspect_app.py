"""Ask an app for its settings and tasks, in a process of its own.

A worker's supervisor runs no user code, but what the app says in code (`App("shop", broker=…)`) counts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from dray.errors import AppNotFound, DrayError, InvalidSettings
from dray.loading import load_app
from dray.settings import Loaded, Settings


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What an app says of itself; or, in `error`, why it cannot."""

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


def probe(path: str) -> Probed:
    """Import the app at `module:attribute` in a child, and hear what it says."""
    ours, theirs = os.pipe()
    try:
        command = [sys.executable, "-m", "dray.cli.probe", path, str(theirs)]
        # What the app prints when it is imported, every executor prints as well.
        child = subprocess.Popen(command, pass_fds=(theirs,), stdout=subprocess.DEVNULL)  # noqa: S603
        os.close(theirs)
        with open(ours, "rb", closefd=False) as answer:
            reply = answer.read()
        code = child.wait()
    finally:
        os.close(ours)
    if not reply:
        raise AppNotFound(f"importing {path!r} ended the process (exit code {code}) before it was done")
    return msgspec.msgpack.decode(reply, type=Probed)


def answer(path: str) -> Probed:
    """What is sent back."""
    try:
        app = load_app(path)
    except (AppNotFound, InvalidSettings) as error:
        return Probed(error=str(error))
    except DrayError as error:
        return Probed(error=f"{path}: {error}")
    return Probed(
        settings=app.settings,
        origins=app.loaded.origins,
        folder=str(app.loaded.folder),
        tasks={name: task.options.queue or "default" for name, task in app.tasks.items()},
    )


def _main() -> None:
    path, descriptor = sys.argv[1:]
    data = msgspec.msgpack.encode(answer(path))
    with open(int(descriptor), "wb") as pipe:  # noqa: PTH123 (a descriptor)
        pipe.write(data)


if __name__ == "__main__":
    _main()
