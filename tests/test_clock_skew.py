"""Machines whose clocks differ: warned about, and everything happens at its time by the broker's clock."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import end, until
from redis_server import Server, need, running

from dray import App
from dray.broker.memory import MemoryBroker
from dray.documents.worker_registry import SKEWED
from dray.schedules.schedule import SCHEDULE_HEADER
from dray.worker.supervisor.heartbeats import ClockSkew

NOW = 1_800_000_000_000
HOUR = 3600
SHIFT = """
import os, time
by = float(os.environ.get("CLOCK_IS_OFF_BY", "0"))
wall, wall_ns = time.time, time.time_ns
time.time = lambda: wall() + by
time.time_ns = lambda: wall_ns() + int(by * 1e9)
"""
APP = """
import os, time
from dray import App, Context, Retry

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="2s")
log = os.open(os.environ["SHOP_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def tell(what: str) -> None:
    os.write(log, f"{what} {time.monotonic()}\\n".encode())


@app.task
async def shaky(ctx: Context) -> None:
    tell(f"shaky-{ctx.attempt}")
    if ctx.attempt == 1:
        await asked.using(delay=1).aenqueue()
        raise Retry(delay=1)


@app.task(isolate="process")
def alone(ctx: Context) -> None:
    tell(f"alone-{ctx.attempt}")
    if ctx.attempt == 1:
        raise Retry(delay=1)


@app.task
def asked() -> None:
    tell("asked")


@app.every("1s")
@app.task
def ticking() -> None:
    tell("ticking")
"""


class Shop:
    """A worker whose clock is off, an app beside it whose clock is right."""

    def __init__(self, folder: Path, server: Server, off_by: int) -> None:
        self.folder, self.url = folder, f"redis://127.0.0.1:{server.port}"
        (folder / "shop.py").write_text(APP)
        (folder / "sitecustomize.py").write_text(SHIFT)
        self.app = App("shop", broker=self.url)
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(folder),
            "CLOCK_IS_OFF_BY": str(off_by),
            "SHOP_BROKER": self.url,
            "SHOP_LOG": str(folder / "told"),
        }
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1"]
        with (folder / "log").open("ab") as log:
            self.worker = subprocess.Popen(
                command, cwd=folder, env=self.environment, stdout=log, stderr=log, text=True
            )

    def told(self) -> dict[str, float]:
        """What began, and when first, by a clock that all processes share."""
        path, found = self.folder / "told", dict[str, float]()
        for line in path.read_text().splitlines() if path.exists() else ():
            what, at = line.split()
            found.setdefault(what, float(at))
        return found


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    need("valkey")
    with running("valkey", tmp_path / "server") as server:
        shop = Shop(tmp_path, server, request.param)
        try:
            yield shop
        finally:
            shop.worker.kill()
            end(shop.worker)
            shop.app.close()


def test_a_worker_whose_clock_is_off_is_warned_about_and_does_everything_in_time(shop: Shop) -> None:
    off = float(shop.environment["CLOCK_IS_OFF_BY"])
    [info] = until(lambda: [one for one in shop.app.workers.list() if one.tasks], "the worker")
    assert abs(info.skew - off * 1000) < SKEWED
    now = shop.app.now()
    assert now - 60_000 < info.started <= info.seen <= now + 1000
    way = "ahead of" if off > 0 else "behind"
    assert f"3600.0 s {way} the broker's" in (shop.folder / "log").read_text()

    shaky, alone = shop.app.enqueue("shaky"), shop.app.enqueue("alone")
    wanted = {"shaky-1", "shaky-2", "alone-1", "alone-2", "asked", "ticking"}
    until(lambda: wanted <= shop.told().keys(), "all that is to happen")
    told = shop.told()
    # By its own clock it would be an hour late, or at once.
    for first, second in (("shaky-1", "shaky-2"), ("alone-1", "alone-2"), ("shaky-1", "asked")):
        assert told[second] - told[first] > 0.9
    for job in (shaky, alone):
        assert job.get(timeout=60) is None
    ticks = [job for job in shop.app.jobs.find(task="ticking") if job.headers.get(SCHEDULE_HEADER)]
    assert ticks
    for tick in ticks:
        assert tick.created_at is not None
        assert abs(tick.created_at.timestamp() * 1000 - shop.app.now()) < 120_000


def test_it_is_told_once_and_again_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    wall = NOW / 1000
    skew = ClockSkew(MemoryBroker("dray", clock=lambda: NOW), wall=lambda: wall)
    for ahead, shown in ((0.0, 0), (0.3, 0), (0.9, 900), (-0.2, -200)):
        wall = NOW / 1000 + ahead
        assert skew.measure() == shown
    assert caplog.messages == []
    for ahead in (5.0, 5.2, 4.9, 5.4):  # clocks are never quite the same twice
        wall = NOW / 1000 + ahead
        assert skew.measure() == 5000
    assert len(caplog.messages) == 1
    assert "5.0 s ahead of" in caplog.messages[0]
    wall = NOW / 1000 - 61
    assert skew.measure() == -61_000
    assert "61.0 s behind" in caplog.messages[1]
    wall = NOW / 1000
    assert skew.measure() == 0
    assert skew.measure() == 0
    assert caplog.messages[2:] == ["the clock of this machine agrees with the broker's again"]
