"""A broker that lost all its data: workers notice, put declared schedules back, and say what happened."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crew import end, until
from redis_server import Server, need, running

from dray import App
from dray.broker import Broker, connect
from dray.broker.memory.broker import MemoryBroker
from dray.broker.redis import RedisBroker
from dray.broker.sqlite import SqliteBroker
from dray.broker.verbs import Beat, run_blocking
from dray.documents.data_loss import DataLossDetector, StoreIdentity, read_store_identity
from dray.observe import metrics

CODE = """
import os
from pathlib import Path
from dray import App, Context

app = App("shop", broker=os.environ["SHOP_BROKER"], lease="2s", heartbeat="500ms")


@app.every("1s")
@app.task
def tick(ctx: Context) -> None:
    with Path("ticks").open("a") as file:
        file.write(ctx.headers["tick"] + "\\n")


@app.cron("0 0 1 1 *")
@app.task
def yearly() -> None: ...


@app.cron("0 0 1 1 *", name="paused")
@app.task
def other() -> None: ...
"""


def lose_all(broker: MemoryBroker) -> None:
    broker._store.docs.clear()


async def births(broker: Broker) -> StoreIdentity:
    birth = await read_store_identity(broker)
    assert birth is not None
    return birth


def test_a_worker_notices_a_loss_once_and_every_loss_is_counted() -> None:
    async def play() -> None:
        broker, watch = MemoryBroker(), DataLossDetector()
        assert [await watch.look(broker) for _ in range(3)] == [False] * 3
        assert (await births(broker)).lost is None
        for losses in (1, 2):
            lose_all(broker)
            assert [await watch.look(broker) for _ in range(3)] == [True, False, False]
            birth = await births(broker)
            assert (birth.losses, birth.lost) == (losses, birth.at)

    asyncio.run(play())


def test_all_workers_notice_and_a_loss_counts_once_also_if_a_new_worker_was_first_to_write() -> None:
    async def play() -> None:
        broker, one, other = MemoryBroker(), DataLossDetector(), DataLossDetector()
        await one.look(broker)
        await other.look(broker)
        lose_all(broker)
        newcomer = DataLossDetector()
        assert not await newcomer.look(broker)
        assert await one.look(broker)
        assert await other.look(broker)
        assert not await newcomer.look(broker)
        assert (await births(broker)).losses == 1

    asyncio.run(play())


def test_a_birth_that_cannot_be_read_is_no_loss() -> None:
    async def play() -> None:
        broker, watch = MemoryBroker(), DataLossDetector()
        await watch.look(broker)
        await broker.doc("recovery", "birth", b"\xc1")
        assert not await watch.look(broker)

    asyncio.run(play())


@contextmanager
def store(kind: str, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """A store's URL, and a way to lose all that is in it."""
    if kind == "sqlite":
        path = folder / "jobs.db"

        def replaced() -> None:
            fresh = folder / "fresh.db"
            run_blocking(run_blocking(SqliteBroker.open(f"sqlite:///{fresh}", blocking=True)).close())
            fresh.replace(path)

        yield f"sqlite:///{path}", replaced
        return
    need("valkey")
    with running("valkey", folder / "server", cluster=kind == "cluster") as server:
        scheme = "redis+cluster" if kind == "cluster" else "redis"
        yield f"{scheme}://127.0.0.1:{server.port}", lambda: lose_data(server, kind)


def lose_data(server: Server, kind: str) -> None:
    if kind == "restart":
        server.stop()
        server.start()
    else:
        server.command("FLUSHALL")


@pytest.mark.parametrize("kind", ["redis", "cluster", "sqlite"])
def test_versions_and_epochs_are_not_used_again_after_a_loss(tmp_path: Path, kind: str) -> None:
    async def numbers(broker: Broker) -> tuple[int, int]:
        doc = (await broker.doc("note", "n", b"")).doc
        [heard] = await broker.renew([Beat("ann", 1000)])
        assert doc is not None
        return doc.version, heard.epoch

    async def play(url: str, lose: Callable[[], None]) -> None:
        before = await connect(url)
        first = [await numbers(before) for _ in range(3)][-1]
        await before.close()
        await asyncio.sleep(0.005)  # the numbers begin with the time, in milliseconds
        lose()
        after = await connect(url)
        version, epoch = await numbers(after)
        await after.close()
        assert version > first[0]
        assert epoch > first[1]

    with store(kind, tmp_path) as (url, lose):
        asyncio.run(play(url, lose))


class Shop:
    """A worker or scheduler of an app with declared schedules."""

    def __init__(self, folder: Path, url: str, *command: str) -> None:
        self.folder = folder
        (folder / "shop.py").write_text(CODE)
        self.app = App("shop", broker=url)
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "dray", "-A", "shop:app", *command],
                cwd=folder,
                env=os.environ | {"SHOP_BROKER": url},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
            )

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def schedules(self) -> dict[str, int]:
        return {one.name: one.run_count for one in self.app.schedules.list()}

    def ticks(self) -> list[str]:
        file = self.folder / "ticks"
        return file.read_text().split() if file.exists() else []

    def close(self) -> None:
        self.process.kill()
        end(self.process)
        self.app.close()


@contextmanager
def shop(folder: Path, url: str, *command: str) -> Iterator[Shop]:
    shop = Shop(folder, url, *command)
    try:
        yield shop
    finally:
        shop.close()


@pytest.mark.parametrize("kind", ["flush", "restart", "cluster", "sqlite"])
def test_a_worker_puts_its_schedules_back_and_no_tick_comes_twice(tmp_path: Path, kind: str) -> None:
    with store(kind, tmp_path) as (url, lose), shop(tmp_path, url, "worker", "-p", "2") as worker:
        until(lambda: len(worker.ticks()) > 2, lambda: f"ticks\n{worker.log}")
        lose()
        until(lambda: "has lost its data" in worker.log, lambda: f"the complaint\n{worker.log}")
        until(
            lambda: set(worker.schedules()) == {"tick", "yearly", "paused"},
            lambda: f"schedules\n{worker.log}",
        )
        ticked = len(worker.ticks())
        until(lambda: len(worker.ticks()) > ticked + 2, lambda: f"ticks after it\n{worker.log}")
        assert Counter(worker.ticks()).most_common(1)[0][1] == 1
        assert worker.schedules()["tick"] < len(worker.ticks())  # counted anew
        assert worker.log.count("has lost its data") == 1
        assert "dray_data_losses_total 1.0" in metrics(worker.app)


def test_a_scheduler_without_executors_puts_them_back_too_and_leaves_alone_what_a_user_deleted(
    tmp_path: Path,
) -> None:
    with store("flush", tmp_path) as (url, lose), shop(tmp_path, url, "scheduler") as scheduler:
        until(lambda: scheduler.schedules().get("tick", 0) > 0, lambda: f"ticks\n{scheduler.log}")
        scheduler.app.schedules.delete("yearly")
        scheduler.app.schedules.pause("paused")
        before = scheduler.schedules()["tick"]
        until(lambda: scheduler.schedules()["tick"] > before + 4, "some looks of the worker")
        assert set(scheduler.schedules()) == {"tick", "paused"}
        assert scheduler.app.schedules.get("paused").paused is not None
        assert "has lost its data" not in scheduler.log
        lose()
        until(
            lambda: set(scheduler.schedules()) == {"tick", "yearly", "paused"}, f"schedules\n{scheduler.log}"
        )
        until(lambda: scheduler.schedules()["tick"] > 0, lambda: f"ticks\n{scheduler.log}")


def test_the_doctor_tells_of_a_loss(tmp_path: Path) -> None:
    need("valkey")
    with store("flush", tmp_path) as (url, lose):
        watch, broker = DataLossDetector(), run_blocking(RedisBroker.open(url, "shop", blocking=True))
        run_blocking(watch.look(broker))
        lose()
        assert run_blocking(watch.look(broker))
        run_blocking(broker.close())
        command = [sys.executable, "-m", "dray", "--broker", url, "--namespace", "shop", "doctor"]
        told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
        assert "the broker lost all its data" in told
        assert "FLUSHALL" in told
