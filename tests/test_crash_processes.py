"""Real workers that are killed with hundreds of jobs in hand: how soon all run again, and at what cost.

Every start of a job appends a line to a file, so that nothing rests on what the worker says of itself.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import until
from redis_server import running

from dray import App, gather
from dray.job import State

PATIENCE = 120.0
LEASE = 3.0
SOON = 5.0
"""Seconds in which all jobs of a dead executor have started again; of a whole worker, after the lease."""

APP = """
import asyncio, os, time
from pathlib import Path
from dray import App

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="3s")
here = Path(os.environ["SHOP_FOLDER"])
runs = os.open(here / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(n):
    os.write(runs, b"%d %d %f\\n" % (n, os.getpid(), time.time()))


@app.task(timeout=600)
async def hold(n: int) -> int:
    note(n)
    while not (here / "let go").exists():
        await asyncio.sleep(0.2)
    return n


@app.task
async def doze(n: int) -> int:
    note(n)
    await asyncio.sleep(0.5)
    return n


@app.task(timeout=600)
def hold_in_thread(n: int) -> int:
    note(n)
    while not (here / "let go").exists():
        time.sleep(0.2)
    return n


@app.task(timeout=600, max_crashes=2)
async def poison(n: int) -> None:
    note(n)
    os._exit(3)
"""


class Site:
    """An app, the workers that serve it, and what they were seen to use."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "shop.py").write_text(APP)
        self.app = App("shop", broker=url, lease=LEASE)
        for name in ("hold", "hold_in_thread", "doze", "poison"):
            self.app.task(name=name, timeout=600, max_crashes=2)(_never)
        self.workers: list[subprocess.Popen[bytes]] = []

    def start(self, concurrency: int | str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "SHOP_BROKER": self.url, "SHOP_FOLDER": str(self.folder)}
        command = [
            sys.executable,
            "-m",
            "dray",
            "-A",
            "shop:app",
            "worker",
            "-p",
            "1",
            "-c",
            str(concurrency),
        ]
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        self.workers.append(worker)
        return worker

    def enqueue(self, count: int) -> list[str]:
        calls = [self.app.tasks["hold" if n % 10 else "hold_in_thread"].call(n) for n in range(count)]
        return [job.id for job in self.app.enqueue_many(calls)]

    def starts(self) -> Counter[int]:
        return Counter(n for n, _, _ in self.lines())

    def lines(self) -> list[tuple[int, int, float]]:
        path = self.folder / "runs"
        found = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(n), int(pid), float(at)) for n, pid, at in found]

    def all_started(self, count: int, times: int) -> float:
        """When the last of them started for that time."""

        def enough() -> bool:
            starts = self.starts()
            return all(starts[n] >= times for n in range(count))

        until(enough, f"{count} jobs to start {times} times", PATIENCE)
        when: dict[int, list[float]] = {}
        for n, _, at in self.lines():
            when.setdefault(n, []).append(at)
        return max(sorted(times_of)[times - 1] for n, times_of in when.items() if n < count)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()[-4000:]

    def let_go(self) -> None:
        (self.folder / "let go").touch()

    def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                for pid in [*tree(worker.pid), worker.pid]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            worker.wait(PATIENCE)
        self.app.close()


class Watch(threading.Thread):
    """Looks at a process and all below it until it is told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._over = pid, threading.Event()
        self.processes = self.memory = 0
        """The most at a time; memory in pages."""
        self.seen: set[int] = set()

    def run(self) -> None:
        while not self._over.wait(0.05):
            found = tree(self._pid)
            self.seen |= set(found)
            self.processes = max(self.processes, len(found))
            self.memory = max(self.memory, memory_of([self._pid, *found]))

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


def tree(pid: int) -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text().rpartition(")")[2].split()
            if words[0] != "Z":
                parents.setdefault(int(words[1]), []).append(int(path.parent.name))
    found, left = [], [pid]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


def memory_of(pids: list[int]) -> int:
    """Pages that these use in all, shared ones divided among those that share them."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total


def _never(n: int) -> int:
    raise AssertionError("it runs in the worker")


@pytest.fixture(params=["sqlite", "redis"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
        if request.param == "redis":
            server = stack.enter_context(running("redis", tmp_path / "server"))
            url = f"redis://127.0.0.1:{server.port}"
        site = Site(tmp_path, url)
        stack.callback(site.close)
        yield site


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_all_jobs_of_a_killed_executor_soon_run_again_in_one_process(site: Site, count: int) -> None:
    ids, began = site.enqueue(count), time.time()
    worker = site.start(count)
    usual = site.all_started(count, 1) - began  # how long starting a process takes here, and more
    template, executor = tree(worker.pid)
    before = memory_of([worker.pid, template, executor])
    with Watch(worker.pid) as watch:
        killed = time.time()
        os.kill(executor, signal.SIGKILL)
        took = site.all_started(count, 2) - killed
    assert took < max(SOON, 2 * usual), f"{took:.1f} s; usually {usual:.1f} s\n{site.log}"
    assert watch.processes <= 4, "the template, an executor that starts, and one child"
    assert watch.memory < 2 * before
    assert len({pid for _, pid, _ in site.lines()}) == 2
    site.let_go()
    assert sorted(gather([site.app.job(id) for id in ids], timeout=PATIENCE)) == list(range(count))
    assert set(site.starts().values()) == {2}


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.timeout(600)
def test_all_jobs_of_a_killed_worker_run_again_soon_after_its_lease(site: Site, count: int) -> None:
    ids, began = site.enqueue(count), time.time()
    worker = site.start(count)
    usual = site.all_started(count, 1) - began
    before = memory_of([worker.pid, *tree(worker.pid)])
    other = site.start(count)
    until(lambda: len(site.app.workers.list()) == 2, "two workers", PATIENCE)
    with Watch(other.pid) as watch:
        killed = time.time()
        for pid in [worker.pid, *tree(worker.pid)]:
            os.kill(pid, signal.SIGKILL)
        took = site.all_started(count, 2) - killed
    assert took < LEASE + max(SOON, 2 * usual), f"{took:.1f} s; usually {usual:.1f} s\n{site.log}"
    assert watch.processes <= 4
    assert watch.memory < 2 * before
    site.let_go()
    assert sorted(gather([site.app.job(id) for id in ids], timeout=PATIENCE)) == list(range(count))
    assert set(site.starts().values()) == {2}


@pytest.mark.timeout(600)
def test_a_poison_job_among_many_is_found_with_few_processes_and_hurts_no_other(site: Site) -> None:
    count = 40
    ids = site.enqueue(count)
    worker = site.start(count + 1)
    site.all_started(count, 1)
    with Watch(worker.pid) as watch:
        bad = site.app.tasks["poison"].enqueue(count)
        until(lambda: bad.status() == State.DEAD, "it to be dead", PATIENCE)
    assert "poison: it crashed 2 times while running alone" in str(bad.info().reason)
    rounds = math.ceil(math.log2(count + 1))
    assert len(watch.seen) <= 2 + 2 * rounds + 2, site.log
    site.let_go()
    assert sorted(gather([site.app.job(id) for id in ids], timeout=PATIENCE)) == list(range(count))
    assert all(site.app.job(id).info().crashes == 0 for id in ids)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_executor_that_grew_is_killed_and_every_job_runs_to_its_end(site: Site) -> None:
    count = 12_000
    ids = [job.id for job in site.app.enqueue_many(site.app.tasks["doze"].call(n) for n in range(count))]
    worker = site.start("auto")

    def running() -> int:
        return sum(info.running for info in site.app.workers.list())

    until(lambda: running() > 500, lambda: f"500 jobs at a time: {running()}\n{site.log}", PATIENCE)
    _, executor = tree(worker.pid)  # beside the template
    os.kill(executor, signal.SIGKILL)
    until(lambda: len(site.starts()) == count, lambda: f"all to start\n{site.log}", PATIENCE)
    assert sorted(gather([site.app.job(id) for id in ids], timeout=PATIENCE)) == list(range(count))
    again = sum(times > 1 for times in site.starts().values())
    assert again > 300, "it held many when it was killed"
    assert max(site.starts().values()) == 2
