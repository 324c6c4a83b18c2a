"""Child processes of an executor: started when needed, kept warm for a while, killed when they must be."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

from dray.job import Error, Outcome
from dray.settings import Settings
from dray.worker.child import (
    Beaten,
    Begun,
    Do,
    Done,
    Frames,
    Halt,
    Ready,
    Said,
    Unfit,
    Waits,
    decode_word,
    framed,
)
from dray.worker.config import ChildConfig
from dray.worker.live import Ended, Live, Why
from dray.worker.run import Judge

KEEP_IDLE: Final = 60.0
KILL_AFTER: Final = 1.0
"""Seconds between asking a job to stop and killing its process."""
MOST_STARTS: Final = 3
"""How many children that are killed while they start a run gets over before that counts as its failure."""
LAST_WORDS: Final = 0.25
"""Seconds without a word after a process has ended before what it sent counts as read."""

log = logging.getLogger("dray.worker")


class NotStarted(Exception):
    """A child process could not import the app or enter its lifespan; the job was not begun."""


class _Child(asyncio.Protocol):
    """One child process, seen from its executor."""

    def __init__(
        self, judge: Judge, ended: Callable[[_Child], None], again: Callable[[Live, Ended], None]
    ) -> None:
        self.judge, self._ended, self._again = judge, ended, again
        self.live: Live | None = None
        self.tell: Ended | None = None
        self.sent = self.begun = False
        """Whether the job at hand is on its way to the process, and whether that has begun it."""
        self.jobs = 0
        self.unfit = ""
        self.exit_code: int | None = None
        self.closed = False
        self.timer: asyncio.TimerHandle | None = None
        self._ready = False
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._loop = asyncio.get_running_loop()

    async def start(self, app: str, settings: Settings, folder: Path) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            config = ChildConfig(
                app=app,
                settings=settings,
                folder=str(folder),
                channel=theirs.fileno(),
                parent=os.getpid(),
                path=sys.path,
            )
            # A session of its own: what a job has started can be killed with it, and Ctrl-C is not for it.
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 (quick, and our own program)
                config.command(),
                env={**os.environ, **config.environ()},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        threading.Thread(target=self._wait, args=(self._process,), name="dray child", daemon=True).start()
        ours.setblocking(False)
        await self._loop.create_connection(lambda: self, sock=ours)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        """In a thread. The end of the socket would not do: a job may have forked and left it open there."""
        code = process.wait()
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._exited, code)

    # its life

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's are, without saying so
        self._send_job()

    def begin(self, live: Live, tell: Ended) -> None:
        self.live, self.tell, self.sent, self.begun = live, tell, False, False
        self.jobs += 1
        self._cancel_timer()
        self._send_job()

    def _send_job(self) -> None:
        if self._ready and self._transport is not None and self.live is not None and not self.sent:
            self.sent = True
            self._transport.write(framed(Do(self.live.taken, self.live.timeout, self.judge.now())))

    def halt(self) -> None:
        """Ask the job to stop; once, then its process is killed."""
        live = self.live
        if live is None or live.why is None:
            return
        if not self.sent:
            self._finish(live, self.judge.stopped(live))
            return
        if self._transport is not None:
            self._transport.write(framed(Halt(live.why, live.overdue)))
        if self.timer is None:
            patience = 0.0 if live.why is Why.LOST else KILL_AFTER
            self.timer = self._loop.call_later(patience, self.kill)

    def kill(self) -> None:
        """The process, and whatever it has started."""
        self.timer = None
        if self._process is not None and self.exit_code is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def rest(self) -> None:
        self.timer = self._loop.call_later(KEEP_IDLE, self.kill)

    def _cancel_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # what it says

    def data_received(self, data: bytes) -> None:
        if self.exit_code is not None:
            self._conclude_later()
        for body in self._frames.feed(data):
            word = decode_word(body)
            live = self.live
            if isinstance(word, Ready):
                self._ready = True
                self._send_job()
            elif isinstance(word, Unfit):
                self.unfit = word.reason
            elif live is None:
                continue
            elif isinstance(word, Begun):
                self.begun = True
            elif isinstance(word, Done):
                if live.meter is not None:
                    live.meter.took, live.meter.cpu, live.meter.memory = word.took, word.cpu, word.memory
                self._finish(live, word.outcome)
            elif isinstance(word, Said):
                live.report(word.progress)
            elif isinstance(word, Beaten):
                live.beat()
            elif isinstance(word, Waits) and word.begins is not live.away:
                live.away = word.begins
                live.host.waits(live, word.begins)

    def _finish(self, live: Live, outcome: Outcome) -> None:
        tell, self.live, self.tell = self.tell, None, None
        self._cancel_timer()
        if live.away:
            live.away = False
            live.host.waits(live, False)
        self._ended(self)
        if tell is not None:
            tell(live, outcome)

    # its end

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.closed = True
        if self.exit_code is not None:
            self.conclude()
        else:
            self.kill()  # it cannot be told anything any more

    def _exited(self, code: int) -> None:
        self.exit_code = code
        self._cancel_timer()
        if self.closed:
            self.conclude()
        else:
            self._conclude_later()

    def _conclude_later(self) -> None:
        self._cancel_timer()
        self.timer = self._loop.call_later(LAST_WORDS, self.conclude)

    def conclude(self) -> None:
        self._cancel_timer()
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
        live, tell = self.live, self.tell
        if live is None or tell is None:
            self._ended(self)
        elif self._is_innocent(live):
            live.starts += 1
            self.live = self.tell = None
            self._ended(self)
            self._again(live, tell)
        else:
            self._finish(live, self._last_outcome(live))

    def _is_innocent(self, live: Live) -> bool:
        """Whether the process ended before the job began, through no fault of its own: then it gets another.

        Either it had ended in its sleep, which nobody had noticed yet, or it was killed while it started.
        """
        if self.begun or live.why is not None:
            return False
        asleep = self.sent and self.jobs > 1
        killed = not self.unfit and self.exit_code is not None and self.exit_code < 0
        return asleep or (killed and live.starts < MOST_STARTS)

    def _last_outcome(self, live: Live) -> Outcome:
        judge, code = self.judge, self.exit_code
        if live.why is not None:
            return judge.stopped(live)
        how = how_it_ended(code)
        if self.begun:
            return judge.crashed(live, f"its process {how}")
        reason = self.unfit or f"it {how} while it started"
        return judge.by_the_rules(
            live, NotStarted(reason), Error("NotStarted", f"the child process could not start: {reason}")
        )


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


class Children:
    """A `Runner` that gives each job a process of its own, for as long as it runs."""

    def __init__(
        self, judge: Judge, app: str, settings: Settings, folder: Path, *, recycle: int | None = None
    ) -> None:
        self._judge, self._app, self._settings, self._folder = judge, app, settings, folder
        self._recycle = settings.max_jobs_per_process if recycle is None else recycle
        self._loop = asyncio.get_running_loop()
        self._idle: list[_Child] = []
        self._busy: dict[Live, _Child] = {}
        self._starting: dict[asyncio.Task[None], None] = {}

    def start(self, live: Live, ended: Ended) -> None:
        child = self._idle.pop() if self._idle else self._new()
        self._busy[live] = child
        child.begin(live, ended)

    def _new(self) -> _Child:
        child = _Child(self._judge, self._freed, self.start)
        task = self._loop.create_task(self._start(child))
        self._starting[task] = None
        task.add_done_callback(lambda done: self._starting.pop(done, None))
        return child

    async def _start(self, child: _Child) -> None:
        try:
            await child.start(self._app, self._settings, self._folder)
        except OSError as error:
            log.exception("no child process can be started")
            child.unfit = str(error)
            child.conclude()

    def _freed(self, child: _Child) -> None:
        """Its job has ended, or the process has."""
        for live, busy in list(self._busy.items()):
            if busy is child:
                del self._busy[live]
        if child in self._idle:
            self._idle.remove(child)
        if child.closed or child.exit_code is not None:
            return
        if self._recycle is not None and child.jobs >= self._recycle:
            child.kill()
        else:
            self._idle.append(child)
            child.rest()

    def stop(self, live: Live) -> None:
        child = self._busy.get(live)
        if child is not None:
            child.halt()

    def close(self) -> None:
        for child in [*self._idle, *self._busy.values()]:
            child.kill()
