"""An executor process, with the test in the supervisor's place."""

from __future__ import annotations

import os
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from test_child_main import gone

from dray.handle import JobHandle
from dray.job import State
from dray.loading import load_app
from dray.worker.channel import (
    Broken,
    FromExecutor,
    Message,
    Retiring,
    RunCounts,
    Started,
    Stop,
    Stuck,
    frame,
)
from dray.worker.config import ExecutorConfig
from dray.worker.executor.executor_main import BROKEN, ENDED, ORPHANED
from dray.worker.shared_memory import SharedHeartbeat

M = TypeVar("M", bound=Message)
PATIENCE = 30.0

TASKS = """
import asyncio, os, signal, sys, time, pathlib
from dray.app import App
from dray.context import Context

app = App("{name}", broker="sqlite:///{folder}/q.db", lease="20s", concurrency=4)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

@app.lifespan
async def resources():
    yield {"loop": type(asyncio.get_running_loop()).__module__}
    pathlib.Path("{folder}/closed").write_text("x")

@app.task
async def double(x: int) -> int:
    return 2 * x

@app.task
async def whereabouts(ctx: Context) -> list:
    return [ctx.state["loop"], os.getpid(), "DRAY_EXECUTOR" in os.environ]

@app.task
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)

@app.task
async def block(seconds: float) -> None:
    time.sleep(seconds)

@app.task(timeout=0.2, retries=0)
def sleep_in_c(seconds: float) -> None:
    time.sleep(seconds)

@app.task(isolate="process")
def isolated(seconds: float) -> int:
    pathlib.Path("{folder}/isolated").write_text(str(os.getpid()))
    time.sleep(seconds)
    return os.getpid()

@app.task
async def stray_exit() -> str:
    async def leave():
        sys.exit(3)
    leaving = asyncio.create_task(leave())
    await asyncio.sleep(0.2)
    assert leaving.done()
    return "still here"
"""


class Supervised:
    """One executor process and its supervisor's ends of everything."""

    def __init__(self, folder: Path, source: str = TASKS, broken: str = "", **settings: Any) -> None:
        self.name = f"shop_{folder.name.replace('-', '_')}"
        file = folder / f"{self.name}.py"
        file.write_text(source.replace("{name}", self.name).replace("{folder}", str(folder)))
        self.app = load_app(f"{self.name}:app", folder)
        sys.path.remove(str(folder))
        if broken:
            file.write_text(broken)
        loaded = msgspec.structs.replace(self.app.settings, **settings)
        self.messages: list[Message] = []
        self.pulse = SharedHeartbeat.make()
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close)
        self._line, theirs = socket.socketpair()
        self._received = b""
        config = ExecutorConfig(
            app=f"{self.name}:app",
            settings=loaded,
            folder=str(folder),
            worker="w",
            number=3,
            channel=theirs.fileno(),
            heartbeat=self.pulse.fd,
            stacks=self._stacks.fileno(),
        )
        self.log = folder / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                config.command(),
                env={**os.environ, **config.environ()},
                pass_fds=config.fds,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        theirs.close()

    def hear(self, kind: type[M], seconds: float = PATIENCE) -> M:
        """The next message of a kind."""
        end = time.monotonic() + seconds
        while True:
            for place, message in enumerate(self.messages):
                if isinstance(message, kind):
                    del self.messages[: place + 1]
                    return message
            left = end - time.monotonic()
            assert left > 0, f"no {kind.__name__}; {self.log.read_text()}"
            if select.select([self._line], [], [], left)[0]:
                data = self._line.recv(65536)
                assert data, f"the process hung up; {self.log.read_text()}"
                self._received += data
                self._cut()

    def _cut(self) -> None:
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "big")
            if len(self._received) < 4 + size:
                return
            self.messages.append(msgspec.msgpack.decode(self._received[4 : 4 + size], type=FromExecutor))
            self._received = self._received[4 + size :]

    def say(self, message: Message) -> None:
        self._line.sendall(frame(message))

    def hang_up(self) -> None:
        self._line.close()

    def stacks(self) -> str:
        self._stacks.seek(0)
        return self._stacks.read().decode()

    def exit_code(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)

    def enqueue(self, task: str, *args: Any) -> JobHandle[Any]:
        return self.app.tasks[task].enqueue(*args)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._line.close()
        self._stacks.close()
        self.pulse.close()
        self.app.close()


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    made: list[Supervised] = []

    def make(**options: Any) -> Supervised:
        made.append(Supervised(tmp_path, **options))
        return made[-1]

    before = signal.getsignal(signal.SIGTERM)
    yield make
    signal.signal(signal.SIGTERM, before)
    for one in made:
        one.close()


Start = Callable[..., Supervised]


def test_it_runs_jobs_and_tells_its_supervisor(start: Start, tmp_path: Path) -> None:
    one = start()
    started = one.hear(Started)
    assert started.session == "w/3.1"
    assert started.tasks["double"] == (str(tmp_path / f"{one.name}.py"), started.tasks["double"][1])
    assert one.enqueue("double", 4).get(timeout=PATIENCE) == 8
    loop, pid, told = one.enqueue("whereabouts").get(timeout=PATIENCE)
    assert loop.startswith("uvloop")
    assert pid == one.process.pid
    assert not told, "what it was told at birth, passwords and all, is left in its environment"
    until(lambda: one.pulse.read("tried"))
    assert one.hear(RunCounts).succeeded >= 1
    one.say(Stop(30_000))
    assert one.exit_code() == ENDED
    assert (tmp_path / "closed").exists(), "the lifespan was not left"


LONG_SCHEDULE = """
@app.every("1h", args=["x" * 3000])
@app.task
def long(text: str) -> None: ...
"""


def test_a_schedule_that_the_worker_cannot_write_does_not_keep_it_from_jobs(start: Start) -> None:
    one = start(source=TASKS + LONG_SCHEDULE, max_payload=2000)
    assert one.enqueue("double", 4).get(timeout=PATIENCE) == 8
    assert "could not be written" in one.log.read_text()


def test_an_app_that_cannot_be_imported_is_told_with_the_reason(start: Start) -> None:
    one = start(broken="import nothing_of_that_name")
    broken = one.hear(Broken)
    assert "nothing_of_that_name" in broken.reason
    assert one.exit_code() == BROKEN


def test_an_app_whose_module_exits_is_told(start: Start) -> None:
    one = start(broken="import sys; sys.exit('not today')")
    assert "not today" in one.hear(Broken).reason
    assert one.exit_code() == BROKEN


def test_a_lifespan_that_fails_is_told_with_the_reason(start: Start) -> None:
    source = TASKS.replace(
        "async def resources():", "async def resources():\n    raise OSError('no database')"
    )
    one = start(source=source)
    assert "no database" in one.hear(Broken).reason
    assert one.exit_code() == BROKEN


def test_signals_are_not_for_it(start: Start) -> None:
    one = start()
    one.hear(Started)
    job = one.enqueue("sleep", 0.5)
    until(lambda: job.status() == State.RUNNING)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
        one.process.send_signal(number)
    job.get(timeout=PATIENCE)
    assert one.process.poll() is None


def test_its_stacks_can_be_read_while_its_loop_is_blocked(start: Start) -> None:
    one = start()
    one.hear(Started)
    job = one.enqueue("block", 60.0)
    until(lambda: job.status() == State.RUNNING)
    beat = one.pulse.read("beat")
    time.sleep(1)
    one.process.send_signal(signal.SIGUSR1)
    until(lambda: "in block" in one.stacks())
    assert one.pulse.read("beat") - beat < 1_500_000_000
    left = (one.pulse.read("deadline") - time.monotonic_ns()) / 1e9
    assert 200 < left < 310, "the deadline of a job that blocks at once must be there before it does"


@pytest.mark.parametrize("task", ["sleep", "block"])
def test_without_a_supervisor_it_ends_even_if_its_loop_is_blocked(start: Start, task: str) -> None:
    one = start()
    one.hear(Started)
    job = one.enqueue(task, 60.0)
    until(lambda: job.status() == State.RUNNING)
    one.hang_up()
    assert one.exit_code(15) == ORPHANED


def test_its_children_die_with_it(start: Start, tmp_path: Path) -> None:
    one = start()
    one.hear(Started)
    one.enqueue("isolated", 60.0)
    note = tmp_path / "isolated"
    until(lambda: note.exists() and note.read_text())
    one.process.kill()
    until(lambda: gone(int(note.read_text())))


def test_isolated_jobs_run_in_a_process_of_their_own(start: Start) -> None:
    one = start()
    one.hear(Started)
    assert one.enqueue("isolated", 0.0).get(timeout=PATIENCE) != one.process.pid


def test_a_stray_exit_does_not_end_it(start: Start) -> None:
    one = start()
    one.hear(Started)
    assert one.enqueue("stray_exit").get(timeout=PATIENCE) == "still here"
    assert one.enqueue("double", 1).get(timeout=PATIENCE) == 2


def test_a_thread_that_hangs_is_told_as_stuck(start: Start) -> None:
    one = start()
    one.hear(Started)
    job = one.enqueue("sleep_in_c", 60.0)
    assert "sleep_in_c" in one.hear(Retiring).reason
    (outcome,) = one.hear(Stuck).outcomes
    assert outcome.id == job.id
    assert one.process.poll() is None
    one.say(Stop(0))
    assert one.exit_code() == ENDED


def test_a_stop_without_grace_gives_back_and_ends(start: Start) -> None:
    one = start()
    one.hear(Started)
    job = one.enqueue("sleep", 60.0)
    until(lambda: job.status() == State.RUNNING)
    one.say(Stop(0))
    assert one.exit_code() == ENDED
    assert job.status() == State.READY


def test_a_store_that_is_somebody_elses_is_told(start: Start, tmp_path: Path) -> None:
    store = tmp_path / "notes.txt"
    store.write_text("these are my notes, not your jobs\n" * 100)
    one = start(broker_url=f"sqlite:///{store}")
    assert "notes.txt" in one.hear(Broken).reason
    assert one.exit_code() == BROKEN


def test_it_waits_for_a_store_that_is_locked(start: Start, tmp_path: Path) -> None:
    lock = sqlite3.connect(tmp_path / "locked.db", isolation_level=None)
    lock.execute("BEGIN EXCLUSIVE")
    one = start(broker_url=f"sqlite:///{tmp_path}/locked.db?timeout=100ms")
    until(lambda: "no contact with the broker" in one.log.read_text())
    lock.close()
    one.hear(Started)
    assert "the broker is back" in one.log.read_text()
