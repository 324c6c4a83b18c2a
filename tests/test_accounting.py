"""What executors note of their runs, and what supervisors make of it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from uuid_utils import uuid7
from workshop import at_work, ended, run

from dray import App
from dray.broker import connect
from dray.broker.verbs import Broker
from dray.documents.worker_registry import WorkerInfo, write_worker
from dray.job import Job, Taken
from dray.stats.tallies import OTHER, Tally, read_tallies
from dray.stats.task_stats import read_stats
from dray.worker.channel import Message, RunStatistics
from dray.worker.duties.duties import StatisticsArchive
from dray.worker.executor.accounting import (
    AT_LEAST,
    PER_SECOND,
    Account,
    Accounts,
    made_at,
    waited,
)
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.run.meter import EVERY_STEP, Meter, MeteredSteps
from dray.worker.supervisor.statistics import WorkerStatistics

NOW = 1_700_000_000_000


class Time:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# meters


async def two_steps(clock: Time, before: float, away: float, after: float) -> None:
    clock.now += before
    await asyncio.sleep(away)
    clock.now += after


def test_a_coroutine_is_measured_while_it_runs_and_not_while_it_waits() -> None:
    async def main() -> None:
        clock, cpu = Time(), Time()
        meter = Meter(clock, cpu, None)
        clock.now += 5  # it waits in line on the event loop: that is not the run
        await asyncio.create_task(MeteredSteps(two_steps(cpu, 0.5, 0.01, 0.25), meter))
        clock.now += 3
        assert meter.end() == pytest.approx(3)
        assert meter.cpu == pytest.approx(0.75)

    run(main())


def test_a_run_that_is_cancelled_is_measured_to_its_end() -> None:
    async def main() -> None:
        clock = Time()
        meter = Meter(clock, clock, None)
        task = asyncio.create_task(MeteredSteps(two_steps(clock, 0.5, 60, 0.25), meter))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert meter.end() == meter.cpu == pytest.approx(0.5)

    run(main())


def test_of_very_many_steps_some_stand_for_all() -> None:
    async def restless(cpu: Time, steps: int) -> None:
        for _ in range(steps):
            cpu.now += 0.001
            await asyncio.sleep(0)

    async def main() -> None:
        cpu = Time()
        meter = Meter(Time(), cpu, None)
        await asyncio.create_task(MeteredSteps(restless(cpu, EVERY_STEP * 4), meter))
        assert meter.cpu == pytest.approx(EVERY_STEP * 4 * 0.001, rel=0.02)

    run(main())


def test_what_is_called_in_a_thread_is_measured_there() -> None:
    meter = Meter(time.perf_counter, time.thread_time, None)

    def burn() -> int:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return threading.get_ident()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(meter.around(burn)()))
    thread.start()
    thread.join()
    assert found == [thread.ident]
    assert meter.cpu >= 0.05
    assert meter.end() >= 0.05


# accounts


def test_a_generated_id_tells_when_it_was_made_and_no_other_does() -> None:
    made = made_at(f"default:{uuid7().hex}")
    assert made is not None
    assert abs(made - time.time() * 1000) < 60_000
    for id in ("mine", "a:b", f"default:{'f' * 32}", f"default:{'x' * 12}7{'0' * 19}"):
        assert made_at(id) is None


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({"created": NOW - 2500}, 2.5),
        ({"created": NOW - 60_000, "due": NOW - 500}, 0.5),
        ({"created": NOW + 500}, 0.0),  # by another machine's clock
        ({}, None),
        ({"created": 1000}, None),
    ],
)
def test_a_wait_counts_from_enqueue_or_from_when_it_was_due(
    fields: dict[str, int], seconds: float | None
) -> None:
    assert waited(Job(id="j", task="t", **fields), NOW) == seconds  # type: ignore[arg-type]


def test_all_runs_are_counted_and_a_bounded_number_measured() -> None:
    app = App("shop", broker="memory://")
    for number in range(100):
        app.task(name=f"t{number}")(lambda: None)
    accounts = Accounts()
    books = [accounts.open(task) for task in app.tasks.values()]
    books[0].runs += 1000
    told, _ = accounts.fetch()
    assert [(name, tally.runs) for name, tally in told.items()] == [("t0", 1000)]
    assert books[0].up_to == 1000 + PER_SECOND
    for book in books:
        book.runs += 1
    assert len(accounts.fetch()[0]) == 100
    assert books[0].up_to == 1001 + AT_LEAST
    assert accounts.fetch() == ({}, 0.0)


def test_an_account_tells_only_what_is_new() -> None:
    account = Account(speculate=True)
    account.runs = 3
    account.took += [0.1, 0.2]
    tally = account.fetch(PER_SECOND)
    assert tally is not None
    assert (tally.runs, tally.took.weight, tally.speculate) == (3, 2, True)
    assert account.fetch(PER_SECOND) is None


def test_an_executor_tells_of_coroutines_threads_and_failures(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path}/q.db", retries=0)
    said: list[Message] = []

    @app.task
    async def nap() -> None:
        await asyncio.sleep(0.05)

    @app.task
    def toil() -> None:
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass

    @app.task
    async def fail() -> None:
        raise ValueError

    async def main() -> None:
        broker = await app.connect()
        async with at_work(app, broker, send=said.append):
            jobs = [await task.aenqueue() for task in (nap, nap, toil, fail)]
            for job in jobs:
                await ended(broker, job.id)
        await broker.close()

    run(main())
    books = WorkerStatistics("w")
    for message in said:
        if isinstance(message, RunStatistics):
            books.add(message)
    told = books._tallies
    assert {name: (tally.runs, tally.failed, tally.metered) for name, tally in told.items()} == {
        "nap": (2, 0, 2),
        "toil": (1, 0, 1),
        "fail": (1, 1, 1),
    }
    assert told["nap"].took.average >= 0.05 > told["nap"].cpu
    assert told["toil"].cpu >= 0.02
    assert told["fail"].took.weight == 0
    assert told["nap"].waited.weight == 2
    assert books.average is not None


# a worker's books


async def open_line(tmp_path: Path) -> tuple[Broker, RetryingBroker]:
    broker = await connect(f"sqlite:///{tmp_path}/q.db", "shop")
    return broker, RetryingBroker(broker, 60)


def measured(runs: int, lag: float = 0.0) -> RunStatistics:
    return RunStatistics({"mail": Tally(runs=runs)}, lag)


def test_books_are_written_when_something_is_new_and_again_when_a_write_failed(tmp_path: Path) -> None:
    async def main() -> None:
        broker, line = await open_line(tmp_path)
        books = WorkerStatistics("ann")
        await books.write(line)
        assert (await read_tallies(broker))[0] == {}
        books.add(measured(2))
        books.add_stall("mail", 1.5)
        away = RetryingBroker(_Away(), 60)  # type: ignore[arg-type]
        with pytest.raises(OSError, match="away"):
            await books.write(away)
        await books.write(line)
        mail = (await read_stats(broker)).tasks["mail"]
        assert (mail.runs, mail.stalls, mail.stalled) == (2, 1, 1.5)
        await broker.close()

    run(main())


class _Away:
    def clock(self) -> int:
        return 0

    async def doc(self, *_: Any, **__: Any) -> None:
        raise OSError("away")


def test_what_a_dead_worker_counted_is_taken_over_once(tmp_path: Path) -> None:
    async def main() -> None:
        broker, line = await open_line(tmp_path)
        ann, bob = WorkerStatistics("ann"), WorkerStatistics("bob")
        for books in (ann, bob):
            books.add(measured(3))
            await books.write(line)
        await write_worker(broker, WorkerInfo(id="bob", host="h", pid=1, started=0, seen=0), 60_000)
        archive = StatisticsArchive(lease=0)
        await asyncio.sleep(0.01)
        for _ in range(3):
            await archive.step(line)
            assert (await read_stats(broker)).tasks["mail"].runs == 6
        workers, past, _ = await read_tallies(broker)
        assert set(workers) == {"bob"}
        assert (past.tasks["mail"].runs, past.taken_over) == (3, ())
        ann.add(measured(4))  # it was only out of touch: what it told before is not counted twice
        await ann.write(line)
        assert (await read_stats(broker)).tasks["mail"].runs == 10
        await broker.close()

    run(main())


def test_a_late_event_loop_is_remembered_for_a_minute() -> None:
    clock = Time()
    books = WorkerStatistics("ann", clock)
    books.add(measured(1, lag=0.7))
    books.add(measured(1, lag=0.2))
    assert books.lag == 0.7
    clock.now += 61
    assert books.lag == 0.0
    assert books.stalls == 0
    assert books.average is None


def test_a_document_tells_of_so_many_tasks_and_of_the_rest_together() -> None:
    books = WorkerStatistics("ann")
    for number in range(600):
        books.add(RunStatistics({f"t{number}": Tally(runs=number)}, 0.0))
    tasks = books.document(0).tasks
    assert len(tasks) == 501
    assert tasks[OTHER].runs == sum(range(500, 600))


def test_a_meter_of_a_second_run_knows_no_wait() -> None:
    accounts = Accounts(wall=lambda: NOW)
    job = Job(id="j", task="t", created=NOW - 1000)
    assert accounts.meter(Taken(job, 1)).waited == 1.0
    assert accounts.meter(Taken(job, 2)).waited is None
