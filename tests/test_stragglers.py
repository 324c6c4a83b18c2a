"""Stragglers, stalls and statistics on whole workers: real processes, counted from outside."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import freeze, until
from test_worker_processes import Site, alive, ends

from dray.job import State
from dray.stats.task_stats import TaskStats

APP = '''
import asyncio, os, time
from pathlib import Path
from dray import App

app = App("shop", broker={url!r})
FOLDER = Path({folder!r})


def note(word):
    handle = os.open(FOLDER / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{{word}} {{os.getpid()}} {{time.time()}}\\n".encode())
    os.close(handle)


@app.task(speculate=True, timeout=600)
async def fetch(name: str, slow: bool = False) -> int:
    """A slow one is slow where it runs first."""
    note(name)
    try:
        (FOLDER / f"first-{{name}}").touch(exist_ok=False)
    except FileExistsError:
        slow = False
    await asyncio.sleep(300 if slow else 0.01)
    return os.getpid()


@app.task(speculate=True, timeout=600)
def compute(name: str, slow: bool = False) -> int:
    note(name)
    try:
        (FOLDER / f"first-{{name}}").touch(exist_ok=False)
    except FileExistsError:
        slow = False
    until = time.monotonic() + (300 if slow else 0.005)
    while time.monotonic() < until:
        time.sleep(0.001)
    return os.getpid()


@app.task
async def block(name: str, seconds: float) -> None:
    note(name)
    time.sleep(seconds)


@app.task(isolate="process")
def swell(name: str, mebibytes: int) -> int:
    until = time.process_time() + 0.05
    while time.process_time() < until:
        pass
    return len(bytearray(mebibytes << 20))


@app.task(retries=0)
def fail(name: str) -> None:
    raise ValueError(name)
'''


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, APP)
    yield site
    site.close()


def told(site: Site, task: str) -> TaskStats:
    return site.app.stats().tasks.get(task, TaskStats(task=task))


def warm_up(site: Site, task: str, runs: int = 60) -> None:
    """Enough runs to know what is usual."""
    ids = [site.enqueue(task, f"{task}{n}") for n in range(runs)]
    for id in ids:
        site.reaches(id)
    until(lambda: told(site, task).runs >= runs, "the statistics to be told")


def start_two(site: Site) -> None:
    for _ in range(2):
        site.start(processes=1, lease=3000)
    site.at_work(executors=2, workers=2)


def test_a_straggler_is_won_by_its_second_run_and_completes_once(site: Site) -> None:
    tasks = ("fetch", "compute")  # on the event loop, and in a thread
    start_two(site)
    for task in tasks:
        warm_up(site, task)
    ids = {task: site.enqueue(task, f"slow-{task}", True) for task in tasks}
    for task, id in ids.items():
        record = site.reaches(id)
        (first, _), (second, _) = site.begun(f"slow-{task}", 2)
        assert first != second
        assert site.app.job(id).get(timeout=5) == second
        assert (record.run, record.settled, record.failures) == (2, 2, 0)
        until(lambda: told(site, task).won, "the win to be counted")  # noqa: B023
        stats = told(site, task)
        assert (stats.launched, stats.won, stats.wasted, stats.speculate) == (1, 1, 0, True)
    # The losers were stopped at once: their slots are free long before they would have ended.
    until(
        lambda: sum(info.running for info in site.roster()) == 0,
        lambda: f"the losers to stop:\n{site.logs()}",
    )
    assert [len(site.runs(f"slow-{task}")) for task in tasks] == [2, 2]
    for worker in site.workers:
        worker.terminate()
        assert ends(worker, site) == 0


def test_the_first_worker_dies_in_between_and_the_second_run_goes_on(site: Site) -> None:
    start_two(site)
    warm_up(site, "fetch")
    id = site.enqueue("fetch", "slow", True)
    ((first, _),) = site.begun("slow", 1)
    freeze(first, site.path)  # slow in another way: it does not even notice that it has lost
    site.reaches(id)
    os.kill(first, signal.SIGKILL)
    until(lambda: not alive(first), "it to die")
    second = site.runs("slow")[1][0]
    assert site.app.job(id).get(timeout=5) == second != first
    site.at_work(executors=2, workers=2)
    again = site.enqueue("fetch", "after")
    site.reaches(again)
    assert len(site.runs("slow")) == 2
    assert site.state(id) is State.SUCCEEDED


def test_a_stalled_event_loop_is_named_and_counted_and_all_is_told_of_each_task(site: Site) -> None:
    site.start(processes=1, lease=3000)
    (info,) = site.at_work(executors=1)
    blocked = site.enqueue("block", "b", 2.5)
    site.reaches(blocked)
    swelled = site.enqueue("swell", "s", 64)
    site.reaches(swelled)
    failed = site.enqueue("fail", "f")
    site.reaches(failed, State.DEAD)
    assert "task block keeps the event loop of executor 1" in site.log()
    assert 'shop.py", line' in site.log()
    until(lambda: told(site, "fail").failed, "the statistics")
    until(lambda: told(site, "block").stalls, "the stall to be counted")
    block = told(site, "block")
    assert (block.stalls, block.runs, block.failed) == (1, 1, 0)
    assert block.stalled > 1
    assert block.duration.average > 2.4
    assert block.cpu is not None
    assert block.cpu < 1  # it slept
    swell = told(site, "swell")
    assert swell.memory is not None
    assert swell.memory > 64 << 20
    assert swell.cpu is not None
    assert swell.cpu > 0.04
    assert told(site, "block").memory is None
    assert (told(site, "fail").runs, told(site, "fail").failed, told(site, "fail").samples) == (1, 1, 0)
    assert swell.wait.longest >= 0
    (info,) = until(lambda: [one for one in site.roster() if one.stalls], "the roster to tell")
    assert info.average is not None
    assert info.lag > 1
    assert set(site.app.stats().workers[info.id]) == {"block", "swell", "fail"}
