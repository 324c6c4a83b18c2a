"""Starts a child process of an executor, talks to it, and notices its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol, cast

from dray.settings import Settings
from dray.worker.channel import Frames, Message, frame
from dray.worker.config import ChildConfig
from dray.worker.run.child_main import FromChild, decode_report

LAST_WORDS: Final = 0.25
"""Seconds of silence after the end of a process until its messages count as all read."""


class ChildListener(Protocol):
    """Receives the messages of a child process, and once, at its end, the exit code."""

    def hear(self, message: FromChild) -> None: ...
    def gone(self, code: int | None) -> None: ...


class ChildProcess(Protocol):
    pid: int

    async def start(self) -> None:
        """Raises `OSError` if no process can be started."""
        ...

    def send(self, message: Message) -> None: ...

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        ...


Spawn = Callable[[ChildListener], ChildProcess]


class SpawnedChild(asyncio.Protocol):
    """One child process with the app in it."""

    def __init__(self, listener: ChildListener, app: str, settings: Settings, folder: Path) -> None:
        self._listener, self._app, self._settings, self._folder = listener, app, settings, folder
        self.pid = 0
        self._exit_code: int | None = None
        self._closed = self._over = self._doomed = False
        self._timer: asyncio.TimerHandle | None = None
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            config = ChildConfig(
                app=self._app,
                settings=self._settings,
                folder=str(self._folder),
                channel=theirs.fileno(),
                parent=os.getpid(),
                path=sys.path,
            )
            # In a session of its own: killed with all that a job started, and not reached by Ctrl-C.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 (quick, and our own program)
                config.command(),
                env={**os.environ, **config.environ()},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.pid = self._process.pid
        if self._doomed:
            self.kill()
        threading.Thread(target=self._wait, args=(self._process,), name="dray child", daemon=True).start()
        ours.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=ours)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread: the end of the socket is no sign, because a job may have forked and left it open."""
        code = process.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited, code)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are, without saying so

    def send(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(frame(message))

    def data_received(self, data: bytes) -> None:
        if self._exit_code is not None:
            self._conclude_later()
        for body in self._frames.feed(data):
            self._listener.hear(decode_report(body))

    def kill(self) -> None:
        self._doomed = True
        if self._process is not None and self._exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # its end

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._closed = True
        if self._exit_code is not None:
            self._conclude()
        else:
            self.kill()  # it cannot be reached any more

    def _exited(self, code: int) -> None:
        self._exit_code = code
        if self._closed:
            self._conclude()
        else:
            self._conclude_later()

    def _conclude_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(LAST_WORDS, self._conclude)

    def _conclude(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over:
            return
        self._over = True
        if self._transport is not None:
            self._transport.abort()
        self._listener.gone(self._exit_code)


def spawner(app: str, settings: Settings, folder: Path) -> Spawn:
    """Makes child processes that run the tasks of this app (`module:attribute`)."""
    return lambda listener: SpawnedChild(listener, app, settings, folder)


def how_it_ended(code: int | None) -> str:
    """`killed by SIGSEGV`, `ended with exit code 3`."""
    if code is None:
        return "is gone"
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
