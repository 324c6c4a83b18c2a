"""One executor process as its supervisor sees it: start, messages, signs of life, stop, kill."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dray.documents.worker_registry import ExecutorInfo
from dray.job import Outcome
from dray.settings import Settings
from dray.worker import shared_memory as clock
from dray.worker.channel import (
    Broken,
    Channel,
    FromExecutor,
    Message,
    Retiring,
    RunCounts,
    SessionLapsed,
    Started,
    Stop,
    Stuck,
)
from dray.worker.config import DeclareConfig, ExecutorConfig
from dray.worker.process import reap
from dray.worker.shared_memory import SharedHeartbeat, SleepSign, WorkerRate, unnamed_file
from dray.worker.supervisor.template import ForkedExecutor, Template

LAST_MESSAGES: Final = 0.5
"""Seconds to wait for the messages of a process that has ended: they are in the socket already."""
DUMP_WAIT: Final = 1.0
STACKS_MAX: Final = 1 << 20
"""Bytes of stacks after which the file is truncated."""
SILENCE: Final = 2_500_000_000
"""Nanoseconds: an event loop that has not turned for ten beats does not answer."""
LINGER: Final = 5_000_000_000
"""Nanoseconds that a process may live on after it closed its channel or said that it cannot start."""
START_PATIENCE: Final = 5
"""Stall limits that may pass before it has started: importing an app may load a large model."""
CLOSING: Final = 15_000_000_000
"""Nanoseconds that an executor without jobs may take to end."""


class Launch(msgspec.Struct, frozen=True):
    """A command line and its environment; None: that of the supervisor."""

    command: Sequence[str]
    environment: Mapping[str, str] | None = None


class SpawnedExecutor:
    """An executor process that is a child of the supervisor."""

    def __init__(self, launch: Launch, fds: tuple[int, ...]) -> None:
        # A process group of its own: Ctrl-C in a terminal reaches only the supervisor, and processes that
        # jobs have started are killed with the executor.
        self._process = subprocess.Popen(  # noqa: S603 (our own program)
            list(launch.command),
            env=launch.environment,
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            process_group=0,
        )
        self.pid = self._process.pid

    def reap(self) -> int:
        """The exit code, once it has ended."""
        if self._process.returncode is None:
            with contextlib.suppress(ChildProcessError):  # reaped elsewhere: it has ended
                self._process.returncode = reap(self.pid)
        return self._process.wait()

    def wait(self) -> None:
        self._process.wait()


Plan = Callable[[int, int, int, int], SpawnedExecutor | ForkedExecutor]
"""Starts an executor, given its number and its descriptors: channel, heartbeat, stacks."""


def plan_executors(
    app_path: str,
    settings: Settings,
    worker: str,
    *,
    burst: bool,
    started: Callable[[], int],
    template: Template | None,
) -> Plan:
    """Executors that run the tasks of an app, found from the folder the worker was started in."""
    folder = str(Path.cwd())
    rate = None if settings.rate is None else WorkerRate.make(settings.rate).fd
    sleep = SleepSign.make().fd if settings.concurrency is None else None

    def plan(number: int, channel: int, heartbeat: int, stacks: int) -> SpawnedExecutor | ForkedExecutor:
        config = ExecutorConfig(
            app=app_path,
            settings=settings,
            folder=folder,
            worker=worker,
            number=number,
            started=started(),
            burst=burst,
            channel=channel,
            heartbeat=heartbeat,
            stacks=stacks,
            rate=rate,
            sleep=sleep,
        )
        forked = None if template is None else template.start(config)
        return forked or SpawnedExecutor(
            Launch(config.command(), {**os.environ, **config.environ()}), config.fds
        )

    return plan


def launch_declarer(app_path: str, settings: Settings, started: int) -> Launch:
    """A process that writes the schedules that an app's code declares, and ends."""
    config = DeclareConfig(
        app=app_path, settings=settings, folder=str(Path.cwd()), parent=os.getpid(), started=started
    )
    return Launch(config.command(), {**os.environ, **config.environ()})


class ExecutorProcess:
    """One process, made by `await ExecutorProcess.start(...)`; it never starts twice."""

    def __init__(self, number: int, heard: Callable[[ExecutorProcess, Message], None]) -> None:
        self.number = number
        self.pid = 0
        self.born = clock.now()
        self.session: str | None = None
        self.epoch = 0
        self.former: list[str] = []
        """Sessions that lapsed: released once the executor has surely dropped their jobs."""
        self.tasks: dict[str, tuple[str, int]] = {}
        self.broken: str | None = None
        self.counted = RunCounts(0, 0, 0)
        self.stuck: list[Outcome] = []
        self.stopping = False
        self.killing = False
        """It is about to be killed, or was."""
        self.exit_code: int | None = None
        self.started = asyncio.Event()
        self.leaving = asyncio.Event()
        """It has ended, or takes no more jobs: its slot needs another one."""
        self.ended = asyncio.Event()
        self._heard = heard
        self._closed = asyncio.Event()
        self._closed_at = 0
        self._channel = Channel(FromExecutor, self._hear, self._close)  # type: ignore[arg-type]
        self._heartbeat = SharedHeartbeat.make()
        self._stacks = unnamed_file("dray-stacks")
        self._process: SpawnedExecutor | ForkedExecutor | None = None
        self._pidfd: int | None = None

    @classmethod
    async def start(
        cls, number: int, plan: Plan, heard: Callable[[ExecutorProcess, Message], None]
    ) -> ExecutorProcess:
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
        self._process = plan(self.number, channel, self._heartbeat.fd, self._stacks)
        self.pid = self._process.pid
        self._watch_exit()

    def _watch_exit(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):  # not Linux, or too old: a thread waits instead
            if not isinstance(self._process, SpawnedExecutor):
                raise  # only its parent could wait for it
            threading.Thread(target=self._wait_in_thread, args=(loop,), daemon=True).start()
            return
        loop.add_reader(self._pidfd, self._exited)

    def _wait_in_thread(self, loop: asyncio.AbstractEventLoop) -> None:
        assert isinstance(self._process, SpawnedExecutor)  # noqa: S101 (others need a pidfd)
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._exited)

    def _exited(self) -> None:
        assert self._process is not None  # noqa: S101 (for the type checker)
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self.exit_code = self._process.reap()
        self.leaving.set()
        self.ended.set()

    # messages from it

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
                self.leaving.set()
            case Stuck():
                self.stuck = message.outcomes
            case RunCounts():
                self.counted = message
        self._heard(self, message)

    def _close(self) -> None:
        self._closed_at = clock.now()
        self._closed.set()

    async def wait_ended(self) -> None:
        """Wait until it has ended and its last messages are read."""
        await self.ended.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_MESSAGES):
                await self._closed.wait()

    # messages to it

    def send(self, message: Message) -> None:
        self._channel.send(message)

    def stop(self, grace: int) -> None:
        self.stopping = True
        self.send(Stop(grace))

    def lapse(self) -> None:
        """Its session is gone from the broker: it opens another one, and sends `Started` again."""
        if self.session is not None:
            self.send(SessionLapsed(self.session))
            self.former.append(self.session)
            self.session = None

    def profile(self, number: int, milliseconds: int) -> None:
        """Have it sample its own stacks; the profile goes to the broker under this number."""
        self._heartbeat.write("profile_ms", milliseconds)
        self._heartbeat.write("profile", number)

    async def dump(self) -> str:
        """The stacks of all its threads; empty if it does not even answer a signal."""
        handle = self._stacks
        before = os.fstat(handle).st_size
        if before > STACKS_MAX:
            os.ftruncate(handle, 0)
            before = os.lseek(handle, 0, os.SEEK_SET)  # the executor shares this file offset
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
        self.killing = True
        self._kill_group()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> bool:
        if self.ended.is_set() or self._process is None:
            return False
        # Only `_exited` reaps it, so the pid is still its own.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True

    def _kill_group(self) -> None:
        if self.pid and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    # its state

    @property
    def orderly(self) -> bool:
        """It ended with exit code 0: the jobs it still held are not suspect."""
        return self.exit_code == 0

    @property
    def running(self) -> int:
        return self._heartbeat.read("running")

    def silence(self, now: int, since: int = 0) -> int:
        """Nanoseconds for which its event loop has not turned, counted from `since` at the earliest."""
        return max(0, now - max(self._heartbeat.read("beat"), self.born, since))

    def reason_to_kill(self, now: int, stall_limit: int, since: int = 0) -> str | None:
        """The reason for which it must be killed; None: it is well. `stall_limit` in nanoseconds."""
        silence = self.silence(now, since)
        if silence > self._patience(stall_limit):
            return f"its event loop has not turned for {silence / 1e9:.1f} s"
        deadline = self._heartbeat.read("deadline")
        if deadline and now > deadline and silence > SILENCE and not self._closing:
            return f"a job is past its timeout, and its event loop has not turned for {silence / 1e9:.1f} s"
        if self._closed_at and now - self._closed_at > LINGER:
            return "it closed its channel and did not end"
        if self.broken is not None and now - self.born > LINGER:
            return "it cannot start and did not end"
        return None

    @property
    def _closing(self) -> bool:
        """It is done with its jobs; the end of the app's lifespan may take a while."""
        return (self.stopping or self.leaving.is_set()) and self.counted.running == 0

    def _patience(self, stall_limit: int) -> int:
        if not self.started.is_set():
            return START_PATIENCE * stall_limit
        return max(stall_limit, CLOSING) if self._closing else stall_limit

    def info(self, now: int) -> ExecutorInfo:
        tried = self._heartbeat.read("tried")
        return ExecutorInfo(
            number=self.number,
            pid=self.pid,
            session=self.session,
            running=self.running,
            succeeded=self.counted.succeeded,
            failed=self.counted.failed,
            beat_age=self.silence(now) // 1_000_000,
            slots=self._heartbeat.read("slots"),
            tried_age=max(0, now - tried) // 1_000_000 if tried else None,
        )

    def close(self) -> None:
        """Close channel and files, once it has ended."""
        self._channel.close()
        self._heartbeat.close()
        os.close(self._stacks)
