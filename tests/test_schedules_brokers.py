"""Schedules on real brokers: SQLite, a server, a cluster. The rules are those of the tests in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import running

from dray import App, ScheduleExists, State
from dray.broker.verbs import DocWrite
from dray.client.link import Link
from dray.schedules.schedule import KIND, encode, step
from dray.schedules.store import read_schedule


@pytest.fixture(params=["sqlite", "valkey", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'db'}"
        return
    cluster = request.param == "cluster"
    with running("valkey", tmp_path / "server", cluster=cluster) as server:
        yield f"redis{'+cluster' if cluster else ''}://127.0.0.1:{server.port}"


def open_shop(url: str) -> App:
    app = App("shop", broker=url)

    @app.every("1h", name="declared")
    @app.task(queue="reports")
    def report(days: int = 1) -> int:
        return days

    return app


def test_the_life_of_a_schedule(url: str) -> None:
    app = open_shop(url)
    desk = app.schedules
    assert app.reconcile_schedules().created == ("declared",)
    made = desk.create("s", "report", cron="30 2 * * *", tz="Asia/Kolkata", args=[7])
    assert desk.get("s") == made
    with pytest.raises(ScheduleExists):
        desk.create("s", "report", every=5)
    assert desk.change("s", every="2h").rule == "2h"
    assert desk.pause("s", reason="x").paused is not None
    job = desk.trigger("s")
    assert job.status() is State.READY
    assert job.info().headers["schedule"] == "s"
    assert desk.resume("s").run_count == 1
    assert [info.name for info in desk.list()] == ["declared", "s"]
    desk.delete("s")
    assert app.reconcile_schedules().changed == ()
    assert [info.name for info in desk.list()] == ["declared"]
    app.close()


def test_of_many_that_deal_with_a_tick_one_gets_through(url: str) -> None:
    app = open_shop(url)
    app.reconcile_schedules()
    replies: list[int] = []

    async def deal_with(link: Link) -> None:
        schedule, version = await read_schedule(link.broker, "declared")
        assert schedule is not None
        assert schedule.next_run is not None
        due = step(schedule, schedule.next_run)
        assert due is not None
        barrier.wait(30)
        when = DocWrite(kind=KIND, name="declared", value=encode(due.schedule), expect_version=version)
        replies.append(len(await link.broker.put(due.jobs, when=when)))

    def rival() -> None:
        other = open_shop(url)
        other.client.block(deal_with)
        other.close()

    barrier = threading.Barrier(4)
    threads = [threading.Thread(target=rival) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [0, 0, 0, 1]
    info = app.schedules.get("declared")
    assert info.run_count == 1
    assert [found.id for found in app.jobs.find(tag="schedule:declared")] == [info.last_job]
    app.close()


def test_two_who_change_a_schedule_at_once_both_get_their_way(url: str) -> None:
    app = open_shop(url)
    app.schedules.create("s", "report", every="1h")

    def change() -> None:
        other = open_shop(url)
        for _ in range(5):
            other.schedules.trigger("s")
        other.close()

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(5):
        app.schedules.change("s", jitter=n)
    for thread in threads:
        thread.join()
    info = app.schedules.get("s")
    assert (info.run_count, info.jitter) == (15, 4)
    app.close()
