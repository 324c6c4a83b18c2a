"""A child process of an executor: `python -m dray.worker.child`. Runs one job at a time, and can be killed.

For jobs with `isolate="process"`, and for those that a worker died of. It imports the app and enters its
lifespan like an executor, but talks only to its executor: over a socket pair, in frames of MessagePack.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import random
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from dray.app import App
from dray.job import Outcome, Progress, Taken
from dray.loading import load_app
from dray.settings import Settings
from dray.worker import logs
from dray.worker.config import ChildConfig
from dray.worker.failure import describe
from dray.worker.guard import die_with
from dray.worker.live import Live, Why
from dray.worker.loops import new_event_loop, run_to_end
from dray.worker.memory import forget_peak, peak_memory
from dray.worker.run import Judge
from dray.worker.runners import OnLoop, Runner
from dray.worker.threads import Threads

_LENGTH: Final = 4
FLUSH: Final = 5.0
"""Seconds that a span may take on its way out."""


class Word(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Base of what executor and child say to each other."""


# executor → child


class Do(Word, frozen=True, tag=True, array_like=True):
    """Run this job."""

    taken: Taken
    timeout: float
    """Seconds. The executor keeps the time; the child needs it for words."""
    now: int
    """The broker's time, which a child has no other way to know."""


class Halt(Word, frozen=True, tag=True, array_like=True):
    """Ask the job to stop."""

    why: Why
    overdue: bool


# child → executor


class Ready(Word, frozen=True, tag=True, array_like=True):
    """The app is imported, its lifespan entered."""


class Unfit(Word, frozen=True, tag=True, array_like=True):
    """It could not start."""

    reason: str


class Begun(Word, frozen=True, tag=True, array_like=True):
    """The job is about to run: from here on, the end of the process is its doing."""


class Done(Word, frozen=True, tag=True, array_like=True):
    """What the job came to, and what it cost."""

    outcome: Outcome
    took: float
    """Seconds, like the next."""
    cpu: float
    memory: int
    """Bytes: the most that this process used meanwhile."""


class Said(Word, frozen=True, tag=True, array_like=True):
    progress: Progress


class Beaten(Word, frozen=True, tag=True, array_like=True):
    """The job said that it is alive."""


class Waits(Word, frozen=True, tag=True, array_like=True):
    """The job began, or ended, to wait for another job."""

    begins: bool


FromChild = Ready | Unfit | Begun | Done | Said | Beaten | Waits
FromExecutor = Do | Halt

_encode = msgspec.msgpack.Encoder().encode
decode_order = msgspec.msgpack.Decoder(FromExecutor).decode
decode_word = msgspec.msgpack.Decoder(FromChild).decode


def framed(word: Word) -> bytes:
    body = _encode(word)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames:
    """Cuts a stream of bytes into frames."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        self._received += data
        bodies = []
        while len(self._received) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._received[:_LENGTH], "big")
            if len(self._received) < end:
                break
            bodies.append(bytes(self._received[_LENGTH:end]))
            del self._received[:end]
        return bodies


class Child:
    """Runs what it is told, on its event loop or in a thread."""

    def __init__(self, app: App, settings: Settings, connection: socket.socket) -> None:
        self.app, self.state, self.thread = app, None, threading.get_ident()
        self._settings, self._connection = settings, connection
        self._sending = threading.Lock()
        self._live: Live | None = None
        self._ahead = 0
        """Milliseconds by which the broker's clock is ahead of our steady one."""
        self._use = Use()
        self._judge: Judge
        self._on_loop: Runner
        self._threads: Runner

    async def main(self) -> None:
        loop = asyncio.get_running_loop()
        async with self.app.open_lifespan() as state:
            self.state = state
            dice = random.Random()  # noqa: S311 (jitter)
            judge = self._judge = Judge(self.app, self._settings, self._clock, dice.random)
            threads = self._threads = Threads(judge)
            self._on_loop = OnLoop(judge, threads.call, threads)
            threading.Thread(target=self._read, args=(loop,), name="dray orders", daemon=True).start()
            self.send(Ready())
            await loop.create_future()  # it ends by being killed, or with its executor

    def _clock(self) -> int:
        return self._ahead + _steady()

    def _do(self, order: Do) -> None:
        self._ahead = order.now - _steady()
        taken = order.taken
        task = self.app.tasks[taken.job.task]
        live = self._live = Live(self, task, taken, (taken.job.id, taken.run), order.timeout)
        live.runner = self._on_loop if task.is_async or self._judge.middleware else self._threads
        self.send(Begun())
        self._use = Use()
        live.runner.start(live, self._ended)

    def _ended(self, live: Live, outcome: Outcome) -> None:
        self._live = None
        self.send(Done(outcome, *self._use.so_far()))
        if self.app.tracing is not None:  # it will be killed sooner or later: nothing may lie around
            asyncio.get_running_loop().run_in_executor(None, self.app.tracing.flush, FLUSH)

    def _halt(self, order: Halt) -> None:
        live = self._live
        if live is not None:
            live.why, live.cancelled = order.why, True
            live.overdue = live.overdue or order.overdue
            live.runner.stop(live)

    # the executor's ear and mouth; a task may call these from any thread

    def reported(self, live: Live, progress: Progress) -> None:
        self.send(Said(progress))

    def beaten(self, live: Live) -> None:
        self.send(Beaten())

    def waits(self, live: Live, begins: bool) -> None:
        self.send(Waits(begins))

    def send(self, word: Word) -> None:
        with self._sending:
            self._connection.sendall(framed(word))

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: the end of the executor is noticed even while a job blocks the loop."""
        frames = Frames()
        while data := _receive(self._connection):
            for body in frames.feed(data):
                order = decode_order(body)
                if isinstance(order, Do):
                    loop.call_soon_threadsafe(self._do, order)
                else:
                    loop.call_soon_threadsafe(self._halt, order)
        os._exit(1)


class Use:
    """What this process, and what its job has started and seen to its end, uses from now on."""

    def __init__(self) -> None:
        forget_peak()
        self._began, self._cpu = time.perf_counter(), _cpu_time()

    def so_far(self) -> tuple[float, float, int]:
        """Seconds, CPU seconds, and the most bytes at a time."""
        return time.perf_counter() - self._began, _cpu_time() - self._cpu, peak_memory()


def _cpu_time() -> float:
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in use)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except OSError:
        return b""


def _steady() -> int:
    return time.monotonic_ns() // 1_000_000


def main() -> None:
    config = ChildConfig.from_environ()
    die_with(config.parent)
    signal.signal(signal.SIGINT, lambda *_: None)
    faulthandler.enable()
    connection = socket.socket(fileno=config.channel)
    os.set_inheritable(config.channel, False)
    sys.path[:] = config.path
    try:
        app = load_app(config.app, Path(config.folder))
        app.use(msgspec.structs.replace(app.loaded, settings=config.settings))
        logs.set_up(config.settings.log_level, config.settings.log_format)
        run_to_end(new_event_loop(), Child(app, config.settings, connection).main())
    except BaseException as error:
        told = describe(error)
        connection.sendall(framed(Unfit(f"{told.type}: {told.message}\n{told.traceback}"[-2000:])))
    os._exit(1)


if __name__ == "__main__":
    main()
