"""One executor process, seen from outside: started, heard, watched, stopped, killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

import msgspec

from dray.job import Outcome
from dray.roster import ExecutorInfo
from dray.worker import pulse as clock
from dray.worker.channel import (
    Broken,
    Channel,
    Counted,
    FromExecutor,
    Lapsed,
    Message,
    Retiring,
    Started,
    Stop,
    Stuck,
)
from dray.worker.pulse import Pulse

LAST_WORDS: Final = 0.5
"""Seconds to wait for messages of a process that has ended; they are in the socket already."""
DUMP_WAIT: Final = 1.0
STACKS_MAX: Final = 1 << 20
"""Bytes of stacks after which the file is begun anew."""
SILENCE: Final = 2_500_000_000
"""Nanoseconds: an event loop that has not turned for ten beats does not answer."""
LINGER: Final = 5_000_000_000
"""Nanoseconds that a process may live on after it closed its channel or said that it cannot start."""
START_PATIENCE: Final = 5
"""So many stall limits may pass before it has started: importing an app may mean to load a large model."""
CLOSING: Final = 15_000_000_000
"""Nanoseconds that it may take to end once it runs nothing any more."""


class Launch(msgspec.Struct, frozen=True):
    """A command line, and the environment it is started in; None: ours."""

    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    fds: tuple[int, ...] = ()
    """What it inherits beside channel, pulse and stacks."""


Plan = Callable[[int, int, int, int], Launch]
"""How to start an executor, given its number and the file descriptors it inherits: channel, pulse, stacks."""


class Executor:
    """One process. Make it with `await Executor.start(...)`; it never starts twice."""

    def __init__(self, number: int, heard: Callable[[Executor, Message], None]) -> None:
        self.number = number
        self.pid = 0
        self.born = clock.now()
        self.session: str | None = None
        self.epoch = 0
        self.former: list[str] = []
        """Sessions it gave up: released once it has surely dropped what they held."""
        self.tasks: dict[str, tuple[str, int]] = {}
        self.broken: str | None = None
        self.counted = Counted(0, 0, 0)
        self.stuck: list[Outcome] = []
        self.stopping = False
        self.doomed = False
        """It is about to be killed, or was."""
        self.exit_code: int | None = None
        self.started = asyncio.Event()
        self.vacant = asyncio.Event()
        """It has ended, or takes no more jobs: its post is to be filled again."""
        self.ended = asyncio.Event()
        self._heard = heard
        self._silent = asyncio.Event()
        self._silent_since = 0
        self._channel = Channel(FromExecutor, self._hear, self._close)  # type: ignore[arg-type]
        self._pulse = Pulse.make()
        self._stacks: IO[bytes] = tempfile.TemporaryFile(prefix="dray-stacks-")  # noqa: SIM115
        self._process: subprocess.Popen[bytes] | None = None
        self._pidfd: int | None = None

    @classmethod
    async def start(cls, number: int, plan: Plan, heard: Callable[[Executor, Message], None]) -> Executor:
        executor = cls(number, heard)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                executor._launch(plan, theirs.fileno())
            ours.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: executor._channel, sock=ours)
        except BaseException:
            executor.kill()
            ours.close()
            executor.close()
            raise
        return executor

    def _launch(self, plan: Plan, channel: int) -> None:
        fds = (channel, self._pulse.fd, self._stacks.fileno())
        launch = plan(self.number, *fds)
        # A group of its own: Ctrl-C in a terminal reaches only the supervisor, and whatever a job of it
        # has started can be killed with it.
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            list(launch.command),
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            pass_fds=(*fds, *launch.fds),
            process_group=0,
        )
        self.pid = self._process.pid
        self._watch_exit()

    def _watch_exit(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or too old: a thread waits instead
            threading.Thread(target=self._wait_in_thread, args=(loop,), daemon=True).start()
            return
        loop.add_reader(self._pidfd, self._exited)

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._process is not None  # noqa: S101 (for the type checker)
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody asks any more
            loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        assert self._process is not None  # noqa: S101 (for the type checker)
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
            seen = None
            with contextlib.suppress(ChildProcessError):  # whoever reaped it, it has ended
                seen = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
            if seen is not None and (seen.si_code != os.CLD_EXITED or seen.si_status != 0):
                # Before it is reaped, so that the number is still its own: what its jobs have started
                # must not go on while they run again elsewhere.
                self._kill_group()
        self.exit_code = self._process.wait()
        self.vacant.set()
        self.ended.set()

    # what it says

    def _hear(self, message: Message) -> None:
        match message:
            case Started():
                if self.session not in (None, message.session):
                    self.former.append(str(self.session))
                self.session, self.epoch, self.tasks = message.session, message.epoch, message.tasks
                self.started.set()
            case Broken():
                self.broken = message.reason
            case Retiring():
                self.vacant.set()
            case Stuck():
                self.stuck = message.outcomes
            case Counted():
                self.counted = message
        self._heard(self, message)

    def _close(self) -> None:
        self._silent_since = clock.now()
        self._silent.set()

    async def last_words(self) -> None:
        """Wait until it has ended and all it said is heard."""
        await self.ended.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._silent.wait()

    # what is said to it

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def stop(self, grace: int) -> None:
        self.stopping = True
        self.send(Stop(grace))

    def lapse(self) -> None:
        """Its session is gone. It goes on under a new name, which it will tell."""
        if self.session is not None:
            self.send(Lapsed(self.session))
            self.former.append(self.session)
            self.session = None

    async def dump(self) -> str:
        """The stacks of all its threads; empty if it does not even answer a signal."""
        handle = self._stacks.fileno()
        before = os.fstat(handle).st_size
        if before > STACKS_MAX:
            os.ftruncate(handle, 0)
            before = os.lseek(handle, 0, os.SEEK_SET)  # the executor writes where this stands: it is one file
        if not self._signal(signal.SIGUSR1):
            return ""
        size, deadline = before, clock.now() + int(DUMP_WAIT * 1e9)
        while clock.now() < deadline:
            await asyncio.sleep(0.05)
            seen, size = size, os.fstat(handle).st_size
            if size > before and seen == size:  # it has stopped growing
                break
        return os.pread(handle, size - before, before).decode(errors="replace")

    def kill(self) -> None:
        self.doomed = True
        self._kill_group()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        if self.ended.is_set() or self._process is None:
            return False
        # Not `Popen.send_signal`, which may reap it: only `_exited` does, so the number is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True

    def _kill_group(self) -> None:
        if self.pid and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    # how it fares

    @property
    def orderly(self) -> bool:
        """Whether it ended as it should: then what it still held is not suspect."""
        return self.exit_code == 0

    @property
    def running(self) -> int:
        return self._pulse.read("running")

    def silence(self, now: int, since: int = 0) -> int:
        """Nanoseconds for which its loop has not turned, counted from `since` at the earliest."""
        return max(0, now - max(self._pulse.read("beat"), self.born, since))

    def trouble(self, now: int, stall_limit: int, since: int = 0) -> str | None:
        """Why it has to be killed, if it has to. `stall_limit` in nanoseconds."""
        silence = self.silence(now, since)
        if silence > self._patience(stall_limit):
            return f"its event loop has not turned for {silence / 1e9:.1f} s"
        deadline = self._pulse.read("deadline")
        if deadline and now > deadline and silence > SILENCE and not self._closing:
            return f"a job is past its timeout, and its event loop has not turned for {silence / 1e9:.1f} s"
        if self._silent_since and now - self._silent_since > LINGER:
            return "it closed its channel and did not end"
        if self.broken is not None and now - self.born > LINGER:
            return "it cannot start and did not end"
        return None

    @property
    def _closing(self) -> bool:
        """It is done with its jobs, and the app's own end (its lifespan) may take a while."""
        return (self.stopping or self.vacant.is_set()) and self.counted.running == 0

    def _patience(self, stall_limit: int) -> int:
        if not self.started.is_set():
            return START_PATIENCE * stall_limit
        return max(stall_limit, CLOSING) if self._closing else stall_limit

    def info(self, now: int) -> ExecutorInfo:
        tried = self._pulse.read("tried")
        return ExecutorInfo(
            number=self.number,
            pid=self.pid,
            session=self.session,
            running=self.running,
            succeeded=self.counted.succeeded,
            failed=self.counted.failed,
            beat_age=self.silence(now) // 1_000_000,
            tried_age=max(0, now - tried) // 1_000_000 if tried else None,
        )

    def close(self) -> None:
        """Let go of what it was watched with, once it has ended."""
        self._channel.close()
        self._pulse.close()
        self._stacks.close()
