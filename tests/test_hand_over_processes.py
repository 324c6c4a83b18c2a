"""Jobs that are handed over to sleepers which are frozen, killed or cut off at that moment.

Every start of a job appends a line to a file, so that nothing rests on what the worker says of itself. The
lease is long: what runs again soon does not do so because a lease ran out.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis_server import Server, running, wait_until

from dray import App
from dray.broker import connect
from dray.broker.redis.broker import RedisBroker
from dray.broker.redis.router import command
from dray.broker.redis.wait import SLICE
from dray.broker.verbs import run_blocking
from dray.handle import JobHandle

PATIENCE = 60.0
LEASE = "120s"

APP = f"""
import asyncio, os, time
from dray import App

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="{LEASE}")
runs = os.open(os.environ["SHOP_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task
async def quick(n: int) -> int:
    os.write(runs, b"%d %d\\n" % (n, os.getpid()))
    return n


@app.task
async def nap(n: int) -> None:
    os.write(runs, b"%d %d\\n" % (n, os.getpid()))
    await asyncio.sleep(3600)


@app.task
async def block(n: int) -> int:
    os.write(runs, b"%d %d\\n" % (n, os.getpid()))
    time.sleep(4)
    return n
"""


class Shop:
    """Workers of one executor each, and an app that enqueues."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._runs = folder / "runs"
        (folder / "shop.py").write_text(APP)
        self.app = App("shop", broker=url, lease=LEASE)
        for name in ("quick", "nap", "block"):
            self.app.task(name=name)(_never)

    @contextmanager
    def worker(self) -> Iterator[None]:
        environment = {**os.environ, "SHOP_BROKER": self.url, "SHOP_RUNS": str(self._runs)}
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1", "-c", "8"]
        with (self.folder / "log").open("ab") as log:
            worker = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        try:
            yield
            assert worker.poll() is None, self.log
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait(PATIENCE)

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def starts(self, n: int) -> list[int]:
        """The processes in which a job was started."""
        text = self._runs.read_text() if self._runs.exists() else ""
        return [int(pid) for number, pid in (line.split() for line in text.splitlines()) if int(number) == n]

    def enqueue(self, n: int) -> JobHandle[int]:
        return self.app.tasks["quick"].enqueue(n)

    def executor(self, n: int) -> int:
        """The process of the executor that offers a take, found by a job; it is asleep again."""
        assert self.enqueue(n).get(timeout=PATIENCE) == n
        wait_until(lambda: self.offering() == 1, f"the executor does not sleep\n{self.log}", PATIENCE)
        return self.starts(n)[0]

    def offering(self) -> int:
        """The number of sleepers that offer a take."""
        broker = run_blocking(connect(self.url, self.app.settings.namespace, blocking=True))
        assert isinstance(broker, RedisBroker)
        core = broker._core
        key = core.keys.queue("default") + "sleep"
        stored = run_blocking(core.call(command(key, "HVALS", key)))
        run_blocking(broker.close())
        return sum(b" request=" in one for one in stored)


def _never(*_: int) -> int:
    raise AssertionError("it runs in the worker")


@pytest.fixture(params=["valkey", "redis", "valkey cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    kind, _, cluster = request.param.partition(" ")
    with running(kind, tmp_path / "server", cluster=bool(cluster)) as server:
        yield server


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path, f"redis://127.0.0.1:{server.port}?timeout=5s")
    yield shop
    shop.app.close()


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_frozen_sleeper_gives_up_its_job_soon_and_never_runs_it(shop: Shop) -> None:
    """The other worker has a run, and so offers no take."""
    with shop.worker():
        nap = shop.app.tasks["nap"].enqueue(0)
        wait_until(lambda: bool(shop.starts(0)), f"the first worker does not run\n{shop.log}", PATIENCE)
        [other] = shop.starts(0)
        with shop.worker():
            wait_until(lambda: shop.offering() == 1, f"the second does not sleep\n{shop.log}", PATIENCE)
            sleeper = shop.executor(1)
            assert sleeper != other
            with frozen(sleeper):
                job, began = shop.enqueue(2), time.monotonic()
                assert job.status() == "running"
                assert job.get(timeout=PATIENCE) == 2
                print(f"it ran elsewhere after {time.monotonic() - began:.2f} s")
            assert shop.starts(2) == [other]
            info = job.info()
            assert (info.runs, info.crashes) == (2, 0)
            wait_until(lambda: shop.offering() == 1, f"the sleeper does not go on\n{shop.log}", PATIENCE)
            assert shop.executor(3) == sleeper
            assert shop.starts(2) == [other]
        nap.cancel()


def test_a_sleeper_that_is_killed_with_a_job_on_its_way_loses_nothing(shop: Shop) -> None:
    with shop.worker():
        sleeper = shop.executor(0)
        os.kill(sleeper, signal.SIGSTOP)
        job = shop.enqueue(1)
        wait_until(lambda: job.status() == "running", f"it was not handed over\n{shop.log}", PATIENCE)
        os.kill(sleeper, signal.SIGKILL)
        assert job.get(timeout=PATIENCE) == 1
        [pid] = shop.starts(1)
        assert pid != sleeper
        assert job.info().runs == 2


def test_a_job_that_blocks_the_event_loop_at_once_is_not_withdrawn(shop: Shop) -> None:
    with shop.worker():
        shop.executor(0)
        job = shop.app.tasks["block"].enqueue(1)
        assert job.get(timeout=PATIENCE) == 1
        assert (len(shop.starts(1)), job.info().runs) == (1, 1)


def test_lone_jobs_in_a_row_all_run_also_after_a_backlog(shop: Shop) -> None:
    """An executor that breaks off a wait and begins the next stays registered as asleep."""
    backlog = [shop.enqueue(n) for n in range(30)]
    with shop.worker():
        assert [job.get(timeout=PATIENCE) for job in backlog] == list(range(30))
        waits = []
        for n in range(100, 110):
            began = time.monotonic()
            assert shop.enqueue(n).get(timeout=PATIENCE) == n
            waits.append(time.monotonic() - began)
            wait_until(lambda: shop.offering() == 1, f"the executor does not sleep\n{shop.log}", PATIENCE)
        assert sorted(waits)[5] < SLICE, f"a wake-up was lost: {waits}"
