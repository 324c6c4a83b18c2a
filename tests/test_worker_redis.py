"""A whole worker on a server that is stopped, frozen, emptied, cut off: it goes on by itself, and once.

Every start of a job appends a line to a file, so that nothing rests on what the worker says of itself.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis_proxy import proxy
from redis_server import Server, running, wait_until

from dray import App, BrokerAway, BrokerFull, gather

PATIENCE = 60.0

APP = """
import asyncio, os, time
from dray import App

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="2s")
runs = os.open(os.environ["SHOP_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task
async def quick(n: int) -> int:
    os.write(runs, b"%d\\n" % n)
    return n


@app.task
async def nap(n: int, seconds: float) -> int:
    os.write(runs, b"%d\\n" % n)
    await asyncio.sleep(seconds)
    return n


@app.task
def plain(n: int) -> int:
    os.write(runs, b"%d\\n" % n)
    return n


@app.task(isolate="process")
def alone(n: int) -> int:
    os.write(runs, b"%d\\n" % n)
    return os.getpid()
"""


class Shop:
    """A worker, and an app beside it that enqueues."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._runs = folder / "runs"
        self.app = App("shop", broker=url, lease="2s")
        for name in ("quick", "nap", "plain", "alone"):
            self.app.task(name=name)(_never)

    @contextmanager
    def at_work(self, url: str | None = None) -> Iterator[subprocess.Popen[bytes]]:
        (self.folder / "shop.py").write_text(APP)
        environment = {**os.environ, "SHOP_BROKER": url or self.url, "SHOP_RUNS": str(self._runs)}
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "2", "-c", "8"]
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            yield worker
            assert worker.poll() is None, self.log
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(PATIENCE)
            self.app.close()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    @property
    def runs(self) -> Counter[int]:
        text = self._runs.read_text() if self._runs.exists() else ""
        return Counter(int(line) for line in text.split())

    def wait_for_run(self, n: int) -> None:
        wait_until(lambda: self.runs[n], f"job {n} did not start\n{self.log}", PATIENCE)

    def serves(self, n: int) -> None:
        """The worker takes jobs."""
        assert self.app.tasks["quick"].enqueue(n).get(timeout=PATIENCE) == n


def _never(*_: int) -> int:
    raise AssertionError("it runs in the worker")


@pytest.fixture(params=["valkey", "valkey cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    kind, _, cluster = request.param.partition(" ")
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with running(kind, tmp_path / "server", *options, cluster=bool(cluster)) as server:
        yield server


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Shop:
    return Shop(tmp_path, f"redis://127.0.0.1:{server.port}?timeout=5s")


def test_every_kind_of_task_runs_on_a_server(shop: Shop) -> None:
    tasks = shop.app.tasks
    with shop.at_work() as worker:
        jobs = [tasks[name].enqueue(n) for n, name in enumerate(("quick", "plain", "alone"))]
        jobs.append(tasks["nap"].enqueue(3, 0.01))
        results = gather(jobs, timeout=PATIENCE)
        assert results[:2] == [0, 1]
        assert results[2] != worker.pid
        assert results[3] == 3
        (info,) = shop.app.workers.list()
        assert [name for name in info.tasks if not name.startswith("dray.")] == [
            "alone",
            "nap",
            "plain",
            "quick",
        ]
    assert shop.app.workers.list() == []


def test_a_cancel_reaches_a_running_job_within_a_second_or_so(shop: Shop) -> None:
    with shop.at_work():
        job = shop.app.tasks["nap"].enqueue(1, 600.0)
        shop.wait_for_run(1)
        assert job.cancel()
        wait_until(lambda: job.status() == "cancelled", "it was not cancelled", PATIENCE)


def test_a_server_that_comes_back_with_its_data_finds_everybody_at_work(shop: Shop, server: Server) -> None:
    with shop.at_work():
        shop.serves(0)
        running_job = shop.app.tasks["nap"].enqueue(1, 1.5)
        shop.wait_for_run(1)
        server.stop()
        time.sleep(2.5)  # the job ends meanwhile; its outcome must wait, and is told once
        with pytest.raises(BrokerAway):
            shop.app.tasks["quick"].enqueue(2)
        server.start()
        if "cluster" in str(server.options):
            server.wait_for_cluster()
        assert running_job.get(timeout=PATIENCE) == 1
        shop.serves(3)
    assert shop.runs[1] <= 2
    assert running_job.info().runs == shop.runs[1]


def test_a_server_that_lost_everything_is_served_again(shop: Shop, server: Server) -> None:
    with shop.at_work():
        shop.serves(0)
        shop.app.tasks["nap"].enqueue(1, 1.0)
        shop.wait_for_run(1)
        server.command("FLUSHALL")
        server.command("SCRIPT", "FLUSH")
        shop.serves(2)
        shop.serves(3)


def test_a_server_that_stands_still_for_longer_than_a_lease_loses_nothing(shop: Shop, server: Server) -> None:
    with shop.at_work():
        shop.serves(0)
        job = shop.app.tasks["nap"].enqueue(1, 1.0)
        shop.wait_for_run(1)
        server.signal(signal.SIGSTOP)
        time.sleep(4.0)  # two leases
        server.signal(signal.SIGCONT)
        assert job.get(timeout=PATIENCE) == 1
        shop.serves(2)
    assert job.info().runs == shop.runs[1]


def test_a_server_without_memory_refuses_producers_and_the_worker_goes_on_later(
    shop: Shop, server: Server
) -> None:
    with shop.at_work():
        shop.serves(0)
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(BrokerFull, match="memory"):
            shop.app.tasks["quick"].enqueue(1)
        server.command("CONFIG", "SET", "maxmemory", "0")
        shop.serves(2)


def test_connections_that_are_cut_again_and_again_cost_no_job(tmp_path: Path) -> None:
    """In the middle of replies too: what was done is not done again, what was not is."""
    dice = random.Random(1)
    with running("valkey", tmp_path / "server") as server, proxy(server.port) as wire:
        shop = Shop(tmp_path, f"redis://127.0.0.1:{server.port}")
        with shop.at_work(f"redis://127.0.0.1:{wire.port}?timeout=2s"):
            shop.serves(0)
            jobs = []
            for n in range(1, 61):
                jobs += shop.app.enqueue_many(
                    shop.app.tasks[name].call(n * 10 + k) for k, name in enumerate(("quick", "plain"))
                )
                if n % 2:
                    wire.cut()
                else:
                    wire.cut_replies_after(dice.randint(0, 200))
                time.sleep(0.02)
            results = gather(jobs, timeout=PATIENCE)
        assert results == [n * 10 + k for n in range(1, 61) for k in range(2)]
        assert [job.info().runs for job in jobs] == [shop.runs[result] for result in results]
