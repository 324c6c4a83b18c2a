"""The worker of the tour: a real `dray worker` in processes of its own, and the accident one of them has."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import Final

from dray.app import App
from dray.demo.place import Place
from dray.demo.trouble import Trouble
from dray.roster import ExecutorInfo

EXECUTORS: Final = 2
CONCURRENCY: Final = 4
PATIENCE: Final = 10.0
"""Seconds that the worker gets to end in good order."""
LAST_LINES: Final = 15


class Crew:
    """One worker, from its start to its end, however the tour ends."""

    def __init__(self, app: App, place: Place) -> None:
        self._app, self._place = app, place
        self._process: subprocess.Popen[bytes] | None = None
        self.executors: tuple[ExecutorInfo, ...] = ()
        self._numbers: set[int] = set()

    def start(self) -> int:
        """Start `dray worker`; returns its pid."""
        command = [sys.executable, "-m", "dray", "worker"]
        command += ["-p", str(EXECUTORS), "-c", str(CONCURRENCY), "--shutdown-grace", "5s"]
        with self._place.log.open("wb") as log:
            # A session of its own: Ctrl-C reaches only the tour, which then stops its worker itself.
            self._process = subprocess.Popen(  # noqa: S603 (our own program)
                command,
                cwd=self._place.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._process.pid

    async def look(self) -> None:
        """Read the roster anew, and make sure that the worker lives."""
        if self._process is None:
            return
        code = self._process.poll()
        if code is not None:
            raise Trouble(f"the worker ended by itself, with exit code {code}{self.last_words()}")
        found = await self._app.workers.alist()
        self.executors = found[0].executors if found else ()
        self._numbers.update(executor.number for executor in self.executors)

    def executor_of(self, session: str | None) -> ExecutorInfo | None:
        return next((one for one in self.executors if one.session == session), None)

    @property
    def complete(self) -> bool:
        """Every executor lives and has a session."""
        sessions = [one for one in self.executors if one.session is not None and _lives(one.pid)]
        return len(sessions) == EXECUTORS

    @property
    def replaced(self) -> int:
        """How many executors were started beyond the first ones."""
        return len(self._numbers) - EXECUTORS

    async def stop(self) -> int:
        """Stop it as one stops a worker, with SIGTERM; returns its exit code."""
        assert self._process is not None  # noqa: S101 (it was started)
        self._process.terminate()
        code = await self._end_within(PATIENCE)
        if code is None:
            raise Trouble(f"the worker did not stop within {PATIENCE:g} s of SIGTERM{self.last_words()}")
        return code

    async def dismiss(self) -> None:
        """Make sure that none of its processes is left, whatever happened."""
        if self._process is None:
            return
        for number, patience in ((signal.SIGTERM, 0.2), (signal.SIGTERM, PATIENCE), (signal.SIGKILL, 1.0)):
            if self._process.poll() is None:
                self._process.send_signal(number)
                await self._end_within(patience)
        deadline = time.monotonic() + PATIENCE
        while any(_lives(one.pid) for one in self.executors) and time.monotonic() < deadline:  # noqa: ASYNC110 (not our children)
            await asyncio.sleep(0.02)  # they notice that their supervisor is gone, and end by themselves

    def last_words(self) -> str:
        """The end of the worker's log, for a message."""
        try:
            lines = self._place.log.read_text("utf-8", "replace").splitlines()
        except OSError:
            return ""
        return "".join(f"\n  | {line}" for line in lines[-LAST_LINES:])

    async def _end_within(self, seconds: float) -> int | None:
        assert self._process is not None  # noqa: S101 (it was started)
        deadline = time.monotonic() + seconds
        while (code := self._process.poll()) is None and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return code


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
