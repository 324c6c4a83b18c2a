"""The rate of a worker: shared by its executors, never exceeded, and used up where there is work."""

from __future__ import annotations

import fcntl
import math
import multiprocessing
from collections.abc import Iterator
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from shell import Shell
from workshop import at_work, run, until

from dray.app import App
from dray.broker.actions import Query
from dray.job import State
from dray.policy import Rate
from dray.worker.shared_memory import WorkerRate


@pytest.fixture
def pace() -> Iterator[WorkerRate]:
    pace = WorkerRate.make("2/h+3")
    yield pace
    pace.close()


def test_what_was_reserved_counts_and_what_was_given_back_does_not(pace: WorkerRate) -> None:
    assert pace.wait() == math.inf
    assert (pace.available(), pace.reserve(2), pace.available()) == (3, 2, 1)
    assert pace.reserve(9) == 1
    assert pace.reserve(1) == 0
    assert 1790 < pace.wait() <= 1800
    pace.give_back(2)
    pace.give_back(0)
    assert pace.available() == 2


def test_whoever_is_in_the_way_costs_a_try_and_no_waiting(pace: WorkerRate) -> None:
    forking = multiprocessing.get_context("fork")
    holds, let_go = forking.Event(), forking.Event()
    other = forking.Process(target=_hold, args=(pace.fd, holds, let_go))
    other.start()
    try:
        assert holds.wait(30)
        assert pace.reserve(1) == 0
        pace.give_back(1)
        assert pace.available() == 3
    finally:
        let_go.set()
        other.join()
    assert pace.reserve(1) == 1


def _hold(fd: int, holds: Event, let_go: Event) -> None:
    fcntl.lockf(fd, fcntl.LOCK_EX)
    holds.set()
    let_go.wait(30)


def test_an_executor_keeps_to_the_pace_and_uses_it(tmp_path: Path) -> None:
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db", concurrency=8, rate="40/s+2")

    @app.task
    async def quick() -> None: ...

    async def main() -> list[int]:
        broker, pace = await app.connect(), WorkerRate.make("40/s+2")
        await broker.put([app.job_builder.build(quick.call()) for _ in range(30)])
        async with at_work(app, broker, rate=pace):
            await until(lambda: _done(app) == 30)
        records = (await broker.find(Query(state=State.SUCCEEDED), limit=100)).records
        pace.close()
        await broker.close()
        return sorted(record.started or 0 for record in records)

    keeps_to("40/s+2", run(main()), slack=250)


def test_all_processes_of_a_worker_keep_to_one_pace(shell: Shell) -> None:
    ids = [shell.enqueue("add", n) for n in range(20)]
    ended = shell.spawn("worker", "-p", "2", "-c", "4", "--rate", "20/s+3", "--burst")
    assert "2 processes × 4 jobs, at most 20/s+3" in ended.out
    app = shell.app()
    starts = [info.started_at.timestamp() * 1000 for id in ids if (info := app.job(id).info()).started_at]
    app.close()
    assert len(starts) == 20
    keeps_to("20/s+3", sorted(round(start) for start in starts), slack=400)


def keeps_to(text: str, starts: list[int], slack: int) -> None:
    """In no stretch more than the rate allows.

    Starts are told by the clock of the broker, which a job that was paid for may reach late.
    By so many milliseconds (`slack`) two of them may come nearer to each other.
    """
    rate = Rate.parse(text)
    for first, since in enumerate(starts):
        for last in range(first, len(starts)):
            assert (last - first + 1 - rate.burst) * rate.interval <= (starts[last] - since + slack) * 1000


def _done(app: App) -> int:
    return len(app.jobs.find(state="succeeded"))
