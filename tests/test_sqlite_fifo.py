"""Wake-up calls between real processes."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from dray.broker.sqlite.fifo import Fifo, remove_stale, ring
from dray.broker.verbs import run_blocking

PRELUDE = """
import asyncio, os, sys, time
from dray.broker.sqlite.fifo import Fifo, remove_stale, ring
from dray.broker.verbs import run_blocking
folder = sys.argv[1]
def say(word): print(word, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db-bells"


@pytest.fixture
def bell(folder: Path) -> Iterator[Fifo]:
    bell = Fifo.open(folder, blocking=True)
    yield bell
    bell.close()


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait(bell: Fifo, seconds: float) -> bool:
    return run_blocking(bell.wait(seconds))


def test_a_ring_wakes_a_blocking_waiter(bell: Fifo, folder: Path) -> None:
    timer = threading.Timer(0.05, ring, (folder, bell.name))
    began = time.monotonic()
    timer.start()
    assert wait(bell, 10)
    assert 0.04 < time.monotonic() - began < 5
    timer.join()


def test_without_a_ring_it_sleeps_its_time(bell: Fifo) -> None:
    began = time.monotonic()
    assert not wait(bell, 0.05)
    assert time.monotonic() - began >= 0.05
    assert not wait(bell, -1)


def test_a_ring_before_the_wait_is_not_lost_and_rings_coalesce(bell: Fifo, folder: Path) -> None:
    for _ in range(70_000):  # more than a pipe holds
        assert ring(folder, bell.name)
    assert wait(bell, 10)
    assert not wait(bell, 0)


def test_a_signal_does_not_end_the_wait(bell: Fifo) -> None:
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    began = time.monotonic()
    assert not wait(bell, 0.1)
    assert time.monotonic() - began >= 0.1
    signal.signal(signal.SIGALRM, old)


def test_all_waiters_on_the_loop_wake_and_no_reader_stays(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        waiting = [asyncio.create_task(bell.wait(10)) for _ in range(3)]
        await asyncio.sleep(0)
        assert ring(folder, bell.name)
        assert await asyncio.gather(*waiting) == [True] * 3
        assert not await bell.wait(0.01)
        assert ring(folder, bell.name)
        assert await bell.wait(10)
        handle = bell._handle
        assert not asyncio.get_running_loop().remove_reader(handle)
        bell.close()

    asyncio.run(main())


def test_a_ring_between_looking_and_waiting_reaches_everybody(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        first = asyncio.create_task(bell.wait(10))
        await asyncio.sleep(0)
        seen = bell.heard  # a second waiter looks for work and finds none …
        ring(folder, bell.name)
        assert await first  # … the first one hears the ring …
        assert await bell.wait(10, since=seen)  # … and so does the second.
        assert not await bell.wait(0.01, since=bell.heard)
        bell.close()

    asyncio.run(main())


def test_a_cancelled_waiter_takes_no_ring_with_it(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        loop = asyncio.get_running_loop()
        for _ in range(50):
            task = asyncio.create_task(bell.wait(10))
            await asyncio.sleep(0)
            ring(folder, bell.name)
            before = bell.heard
            while bell.heard == before:  # taken from the pipe, and not yet returned
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not task.cancelled() or await bell.wait(0)
            assert not loop.remove_reader(bell._handle)
        task = asyncio.create_task(bell.wait(10))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert not await bell.wait(0.01)
        bell.close()

    asyncio.run(main())


def test_a_ring_that_finds_all_waiters_finished_is_kept(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        waiting = asyncio.create_task(bell.wait(10))
        await asyncio.sleep(0)
        # An event loop may run the timer and the reader in one turn, in this order.
        next(iter(bell._waiters)).set_result(False)
        ring(folder, bell.name)
        bell._on_ring()
        assert not await waiting
        assert await bell.wait(0)
        bell.close()

    asyncio.run(main())


def test_closing_ends_all_waits(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        waiting = [asyncio.create_task(bell.wait(60)) for _ in range(2)]
        await asyncio.sleep(0)
        bell.close()
        assert await asyncio.wait_for(asyncio.gather(*waiting), 5) == [False, False]

    asyncio.run(main())
    assert list(folder.iterdir()) == []


def test_it_works_on_one_loop_after_another(folder: Path) -> None:
    bell = Fifo.open(folder)
    for _ in range(2):
        ring(folder, bell.name)
        assert asyncio.run(asyncio.wait_for(bell.wait(10), 5))
    bell.close()


def test_it_works_under_uvloop(folder: Path) -> None:
    async def main() -> None:
        bell = Fifo.open(folder)
        waiting = [asyncio.create_task(bell.wait(10)) for _ in range(2)]
        await asyncio.sleep(0.01)
        ring(folder, bell.name)
        assert await asyncio.gather(*waiting) == [True, True]
        assert not await bell.wait(0.01)
        bell.close()

    uvloop.run(main())


def test_a_ring_reaches_only_the_bell_it_names(folder: Path) -> None:
    code = "b = Fifo.open(folder, blocking=True); say(b.name); say(run_blocking(b.wait(float(sys.argv[2]))))"
    rung, other = start(code, folder, 30), start(code, folder, 0.3)
    name, _ = heard(rung), heard(other)
    assert ring(folder, name)
    assert heard(rung) == "True"
    assert heard(other) == "False"
    rung.communicate()
    other.communicate()


def test_what_a_killed_listener_leaves_is_cleaned(folder: Path, bell: Fifo) -> None:
    code = (
        "bells = [Fifo.open(folder) for _ in range(3)]; say(' '.join(b.name for b in bells)); time.sleep(60)"
    )
    victim = start(code, folder)
    names = heard(victim).split()
    assert all(ring(folder, name) for name in names)
    assert remove_stale(folder) == 0
    victim.kill()
    victim.communicate()
    assert not ring(folder, names[0])
    assert not (folder / names[0]).exists()
    assert remove_stale(folder, limit=1) == 1
    assert remove_stale(folder) == 1
    assert [entry.name for entry in folder.iterdir()] == [bell.name]
    assert not ring(folder, names[1])


def test_a_pipe_on_its_way_up_is_not_taken_for_stale(folder: Path, bell: Fifo) -> None:
    young, old = folder / ".1-aa", folder / ".1-bb"
    for pipe in (young, old):
        os.mkfifo(pipe)
    os.utime(old, (0, 0))
    assert remove_stale(folder) == 1
    assert young.exists()
    assert not old.exists()


def test_only_pipes_are_rung_or_removed(folder: Path, bell: Fifo) -> None:
    (folder / "1-aa").write_text("precious")
    (folder / "1-bb").symlink_to(folder / bell.name)
    (folder / "notes.txt").write_text("precious")
    for name in ("1-aa", "1-bb", "notes.txt", "../jobs.db", "", ".", "1-zz"):
        assert not ring(folder, name)
    assert remove_stale(folder) == 0
    assert (folder / "1-aa").read_text() == "precious"
    assert not wait(bell, 0)


def test_it_is_private_and_close_takes_it_down(folder: Path) -> None:
    bell = Fifo.open(folder)
    assert bell.hearing
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / bell.name).stat().st_mode & 0o777 == 0o600
    assert bell.name.startswith(f"{os.getpid()}-")
    bell.close()
    bell.close()
    assert list(folder.iterdir()) == []
    assert not bell.hearing


def test_a_deleted_pipe_is_put_up_again_under_its_name(bell: Fifo, folder: Path) -> None:
    name = bell.name
    (folder / name).unlink()
    assert not ring(folder, name)
    assert not wait(bell, 0)
    assert bell.name == name
    assert ring(folder, name)
    assert wait(bell, 10)


def test_where_no_pipe_can_be_it_only_sleeps(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "missing" / "bells", Path("/proc/bells")):
        bell = Fifo.open(folder, blocking=True)
        assert not bell.hearing
        assert bell.name == ""
        began = time.monotonic()
        assert not wait(bell, 0.02)
        assert time.monotonic() - began >= 0.02
        bell.close()
        loop_bell = Fifo.open(folder)
        assert not asyncio.run(loop_bell.wait(0.01))
        loop_bell.close()
    assert remove_stale(tmp_path / "missing") == 0


def test_a_forked_child_has_another_bell_and_leaves_the_parents_alone(folder: Path) -> None:
    code = """
bell = Fifo.open(folder, blocking=True)
parent = bell.name
if not (child := os.fork()):
    assert bell.name != parent and not run_blocking(bell.wait(0))
    say(parent + " " + bell.name); assert run_blocking(bell.wait(30)); say("child woke")
    time.sleep(60)
time.sleep(60)
"""
    process = start(code, folder)
    parent, child = heard(process).split()
    assert ring(folder, parent)
    assert ring(folder, child)
    assert heard(process) == "child woke"
    process.kill()
    process.wait()
    assert not ring(folder, parent), "the child keeps its dead parent's pipe alive"
    assert ring(folder, child)
    os.kill(int(child.split("-")[0]), signal.SIGKILL)
    process.communicate()


def test_waiting_costs_no_processor_time(bell: Fifo, folder: Path) -> None:
    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return usage.ru_utime + usage.ru_stime

    async def main() -> None:
        loop_bell = Fifo.open(folder)
        await loop_bell.wait(0.5)
        loop_bell.close()

    before = spent()
    wait(bell, 0.5)
    asyncio.run(main())
    assert spent() - before < 0.05
