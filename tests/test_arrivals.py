"""Jobs accepted by task, queue and source: every one counts once, whoever enqueues it and whatever is cut."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from crew import until
from shell import Shell

from dray import App
from dray.broker.memory.broker import MemoryBroker
from dray.broker.verbs import run_blocking
from dray.errors import BrokerAway, DuplicateJob, QueueFull
from dray.job import Job
from dray.observe import metrics
from dray.schedules.cron import Every
from dray.schedules.schedule import KIND as SCHEDULE
from dray.schedules.schedule import NEWS, Schedule, encode
from dray.stats.arrivals import EVERY, KIND, SOURCE, TOKENS, Arrivals, read_arrivals
from dray.stats.tallies import MOST_TASKS, OTHER
from dray.worker.duties.ticker import Ticker
from dray.worker.retrying_broker import RetryingBroker

CODE = """
import os, sys
from dray import App
app = App("shop", broker="sqlite:///jobs.db")

@app.task
def work(n: int) -> None: ...

if __name__ == "__main__":
    for n in range(int(sys.argv[1])):
        work.enqueue(n)
"""


def make(url: str) -> App:
    app = App("shop", broker=url)

    @app.task
    def work(n: int) -> None: ...

    @app.task(queue="mail")
    def send() -> None: ...

    return app


def test_every_way_to_enqueue_counts_once_and_what_was_not_accepted_does_not() -> None:
    app = make("memory://")
    work: Any = app.tasks["work"]
    work.enqueue(1)
    app.enqueue_many([work.call(n) for n in range(5)])
    asyncio.run(work.aenqueue(2))
    app.enqueue("send")
    app.queues.limit("tight", max_ready=1, overflow="raise")
    work.using(key="k", queue="keys").enqueue(1)
    assert work.using(key="k", queue="keys").enqueue(1).duplicate
    with pytest.raises(DuplicateJob):
        work.using(key="k", queue="keys", on_duplicate="raise").enqueue(1)
    work.using(queue="tight").enqueue(1)
    with pytest.raises(QueueFull):
        work.using(queue="tight").enqueue(2)
    app.jobs.cancel(task="send")
    app.jobs.retry(task="send")  # no arrival: it was accepted before
    told = app.stats()
    assert told.accepted == {
        "work": {"default": {"python": 7}, "keys": {"python": 1}, "tight": {"python": 1}},
        "send": {"mail": {"python": 1}},
    }
    assert (told.tasks["work"].accepted, told.tasks["work"].runs) == (9, 0)
    text = metrics(app)
    assert 'dray_jobs_accepted_total{queue="default",source="python",task="work"} 7.0' in text


def test_threads_lose_no_count() -> None:
    app = make("memory://")

    def enqueue() -> None:
        for n in range(200):
            app.tasks["work"].enqueue(n)

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert app.stats().accepted == {"work": {"default": {"python": 1600}}}


def test_the_source_is_that_of_the_call() -> None:
    app = make("memory://")
    before = SOURCE.set("cli")
    app.tasks["work"].enqueue(1)
    SOURCE.reset(before)
    app.tasks["work"].enqueue(2)
    assert app.stats().accepted == {"work": {"default": {"cli": 1, "python": 1}}}


def test_a_command_called_in_a_program_leaves_the_source_of_the_program_alone(shell: Shell) -> None:
    shell.run("enqueue", "add", "1")
    assert SOURCE.get() == "python"


class Cut(MemoryBroker):
    """Its replies to writes of documents get lost, while `cut` says so."""

    cut = 0

    async def doc(self, kind: str, name: str, *given: Any, **more: Any) -> Any:
        reply = await super().doc(kind, name, *given, **more)
        if given and self.cut:
            self.cut -= 1
            raise BrokerAway("cut")
        return reply


def test_a_write_whose_reply_was_lost_counts_once() -> None:
    async def play() -> None:
        broker, arrivals = Cut(), Arrivals()
        for n in range(20):
            arrivals.add("work", "default")
            if n % 2:
                broker.cut = 1
                with pytest.raises(BrokerAway):
                    await arrivals.write(broker)
                arrivals.add("work", "default")  # meanwhile
            await arrivals.write(broker)
        assert await read_arrivals(broker) == {"work": {"default": {"python": 30}}}

    asyncio.run(play())


def test_many_producers_add_to_each_others_counts() -> None:
    async def play() -> None:
        broker, all = MemoryBroker(), [Arrivals() for _ in range(40)]
        for one in all:
            for _ in range(3):
                one.add("work", "default")
        await asyncio.gather(*(one.write(broker) for one in all))
        assert await read_arrivals(broker) == {"work": {"default": {"python": 120}}}
        assert all[0]._sent is None

    asyncio.run(play())


def test_the_documents_are_bounded_and_what_cannot_be_read_is_written_anew() -> None:
    async def play() -> None:
        broker, arrivals = MemoryBroker(), Arrivals()
        arrivals._shard = "0"
        await broker.doc(KIND, "0", b"\xc1")
        for n in range(MOST_TASKS + 10):
            arrivals.add(f"t{n}", "default")
        await arrivals.write(broker)
        counts = await read_arrivals(broker)
        assert (len(counts), counts[OTHER]) == (MOST_TASKS + 1, {"default": {"python": 10}})
        for _ in range(TOKENS + 5):
            arrivals.add("t0", "default")
            await arrivals.write(broker)
        assert (await read_arrivals(broker))["t0"] == {"default": {"python": TOKENS + 6}}
        [doc] = await broker.docs(KIND)
        assert len(doc.value) < 64_000

    asyncio.run(play())


def test_jobs_of_schedules_are_told_as_such() -> None:
    async def play() -> None:
        broker, arrivals = MemoryBroker(), Arrivals()
        schedule = Schedule(
            name="s", task="t", rule=Every(1000), job=Job(id="", task="t", queue="q"), next_run=broker.clock()
        )
        await broker.doc(SCHEDULE, "s", encode(schedule))
        await broker.doc(*NEWS, b"")
        await Ticker(30_000, arrivals=arrivals).step(RetryingBroker(broker, 30.0))
        await arrivals.write(broker)
        assert await read_arrivals(broker) == {"t": {"q": {"schedule": 1}}}

    asyncio.run(play())


# real processes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(CODE)
    return tmp_path


def counts(folder: Path) -> dict[str, dict[str, dict[str, int]]]:
    app = App("shop", broker=f"sqlite:///{folder}/jobs.db")
    try:
        return app.stats().accepted
    finally:
        app.close()


def test_a_program_that_ends_has_told_everything_and_so_has_the_command_line(folder: Path) -> None:
    subprocess.run([sys.executable, "shop.py", "25"], cwd=folder, check=True, timeout=60)
    command = [sys.executable, "-m", "dray", "-A", "shop:app", "enqueue", "work", "1"]
    subprocess.run(command, cwd=folder, check=True, timeout=60, capture_output=True)
    assert counts(folder) == {"work": {"default": {"python": 25, "cli": 1}}}


def test_a_program_that_goes_on_tells_by_itself_and_opens_nothing_while_it_enqueues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.stats.arrivals.EVERY", 0.2)
    app = make(f"sqlite:///{tmp_path}/jobs.db")
    app.tasks["work"].enqueue(1)
    until(lambda: counts(tmp_path) == {"work": {"default": {"python": 1}}}, "the count")
    until(lambda: app.client.arrivals._thread is None, "the thread to end")
    app.tasks["work"].enqueue(2)
    until(lambda: counts(tmp_path) == {"work": {"default": {"python": 2}}}, "the count")
    app.close()
    assert EVERY >= 5


def test_a_store_that_was_removed_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    app = make(f"sqlite:///{path}")
    app.tasks["work"].enqueue(1)
    for file in tmp_path.glob("jobs.db*"):
        if file.is_file():
            file.unlink()
    app.client.arrivals._write_now()
    app.close()
    assert not path.exists()


def test_a_forked_child_tells_only_of_its_own(folder: Path) -> None:
    code = """
import os, shop
shop.work.enqueue(1)
if not (child := os.fork()):
    shop.work.enqueue(2)
    shop.app.client.arrivals._write_now()
    os._exit(0)
os.waitpid(child, 0)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=folder, check=True, timeout=60)
    assert counts(folder) == {"work": {"default": {"python": 2}}}


def test_what_a_killed_process_had_not_told_is_all_that_is_missing(folder: Path) -> None:
    code = "import os, shop, signal\nshop.work.enqueue(1)\nshop.app.stats()\nshop.work.enqueue(2)\n"
    code += "os.kill(os.getpid(), signal.SIGKILL)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert counts(folder) == {"work": {"default": {"python": 1}}}


def test_a_broker_that_is_away_at_the_end_costs_no_error() -> None:
    arrivals = Arrivals(_away)
    arrivals.add("t", "q")
    arrivals._write_now()
    assert arrivals._sent is None
    assert arrivals._new == {("t", "q", "python"): 1}
    broker = MemoryBroker()
    run_blocking(arrivals.write(broker))
    assert run_blocking(read_arrivals(broker)) == {"t": {"q": {"python": 1}}}


async def _away() -> Any:
    raise BrokerAway("away")
