"""The example of the documentation, as written, through a real worker on every broker."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis_server import running, three_primaries

from dray import App, JobHandle, State

SHOP = """
import asyncio, os
from dray import App, Context

app = App("shop", broker=os.environ["SHOP_BROKER"], sweep_interval="200ms", lease="10s")


def charge_card(id: str) -> str:
    return f"payment-{id}"


def refund(payment: str) -> None:
    with open(os.environ["SHOP_NOTES"], "a") as notes:
        notes.write(f"refunded {payment}\\n")


async def render(page: int) -> str:
    return f"page {page}"


@app.task(queue="parcels")
def ship(id: str, payment: str) -> str:
    return f"{id} paid by {payment}"


@app.task(timeout="5m")
async def order(ctx: Context, id: str, nap: str = "1.2s") -> str:
    charge = await ctx.step(charge_card, id, undo=refund)
    await ctx.sleep(nap)
    ok = await ctx.event("approved", timeout="7d")
    parts = await asyncio.gather(*(ctx.step(render, p, key=p) for p in (1, 2, 3)))
    shipped = await ctx.call(ship.call(id, charge))
    return f"{shipped}, {ok['by']}, {len(parts)} pages"


@app.task
def plain(ctx: Context, id: str) -> str:
    charge = ctx.blocking.step(charge_card, id, undo=refund)
    ctx.blocking.sleep("1.2s")
    ok = ctx.blocking.event("approved", timeout="7d")
    shipped = ctx.blocking.call(ship.call(id, charge))
    return f"{shipped}, {ok['by']}"


@app.task
async def late(ctx: Context) -> str:
    await ctx.event("never", timeout="1.2s")
    return "not reached"
"""


@pytest.fixture(scope="module", params=["sqlite", "valkey", "three primaries"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("broker")
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'shop.db'}"
    elif request.param == "valkey":
        with running("valkey", folder) as server:
            yield f"redis://127.0.0.1:{server.port}"
    else:
        with three_primaries("valkey", folder / "nodes") as nodes:
            yield "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def is_waiting(job: JobHandle[Any]) -> bool:
    return job.status() is State.WAITING


class Shop:
    """The app as a client sees it, and the notes that its undos take."""

    def __init__(self, app: App, notes: Path) -> None:
        self.app, self._notes = app, notes

    def notes(self) -> list[str]:
        return self._notes.read_text().splitlines() if self._notes.exists() else []

    def wait(self, condition: Callable[[], object]) -> None:
        """Until the condition holds; the test's own timeout ends it otherwise."""
        while not condition():
            time.sleep(0.02)


@contextmanager
def worker(url: str, folder: Path) -> Iterator[Shop]:
    (folder / "durable_broker_shop.py").write_text(SHOP)
    notes = folder / "notes"
    environ = {**os.environ, "SHOP_BROKER": url, "SHOP_NOTES": str(notes)}
    command = [sys.executable, "-m", "dray", "-A", "durable_broker_shop:app", "worker", "-p", "1"]
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    app = App("shop", broker=url)
    try:
        yield Shop(app, notes)
    finally:
        app.close()
        process.terminate()
        process.wait(60)


@pytest.mark.timeout(240)
def test_the_example_runs_as_written(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path) as shop:
        jobs: dict[str, Any] = {name: shop.app.enqueue(name, "42") for name in ("order", "plain")}
        late = shop.app.enqueue("late")
        for job in jobs.values():
            shop.wait(partial(is_waiting, job))
            assert job.why().code == "waits_for_event"
            assert job.send("approved", {"by": "ann"}, id="m")
            assert not job.send("approved", {"by": "ann"}, id="m")
        assert jobs["order"].get(60) == "42 paid by payment-42, ann, 3 pages"
        assert jobs["plain"].get(60) == "42 paid by payment-42, ann"
        shop.wait(lambda: late.status().finished)
        assert late.status() is State.DEAD
        assert "did not arrive in time" in (late.info().reason or "")
        assert [step.status for step in jobs["order"].steps()] == ["done", "sleeping", *["done"] * 5]
        assert shop.notes() == []


@pytest.mark.timeout(240)
def test_a_sleeping_job_is_undone_when_it_is_cancelled(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path) as shop:
        job = shop.app.enqueue("order", "43", "1h")
        shop.wait(lambda: job.status() is State.SCHEDULED)
        assert job.why().code == "sleeping"
        assert job.cancel("enough")
        shop.wait(lambda: job.status().finished)
        assert job.status() is State.CANCELLED
        assert job.info().reason == "enough"
        assert shop.notes() == ["refunded payment-43"]
        assert job.retry()
        shop.wait(lambda: job.status() is State.SCHEDULED)
        assert [step.id for step in job.steps()] == ["charge_card", "sleep()"]
        job.cancel(force=True)


@pytest.mark.timeout(240)
def test_a_rerun_from_a_step_takes_the_log_along(url: str, tmp_path: Path) -> None:
    with worker(url, tmp_path) as shop:
        job = shop.app.enqueue("order", "44")
        job.send("approved", {"by": "ann"})
        assert job.get(60).startswith("44 paid by payment-44")
        again = job.rerun(step="event(approved)", args=["45"])
        again.send("approved", {"by": "bob"})
        assert again.get(60) == "45 paid by payment-44, bob, 3 pages"
        assert again.info().rerun_of == job.id
