"""A worker in another language serves queues: in good order, and under SIGKILL."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import node_worker
import pytest
from node_worker import Process
from redis_server import free_port, wait_until

from dray.app import App
from dray.errors import JobFailed
from dray.handle import gather

JOBS = 300
KILLS = 10
SHOP = """
from dray.app import App

app = App("shop", broker="sqlite:///{path}", accept_unknown_tasks=True, lease="2s")
"""
CHAOS = """
import { appendFileSync } from 'node:fs';
import { Worker } from './worker.js';

const note = (line) => appendFileSync(process.env.NOTES, `${JSON.stringify(line)}\\n`);
const tasks = {
  'count.up': async ([n], { pause }, { job }) => {
    note({ what: 'start', n, pid: process.pid });
    await new Promise((resolve) => setTimeout(resolve, pause * 1000));
    if (n % 10 === 3 && job.attempt === 1) throw new Error('the first attempt of every tenth fails');
    return n * 2;
  },
};
const onSettled = (job, method, state) => {
  if (method === 'Ack') note({ what: state, n: JSON.parse(job.args_json)[0], pid: process.pid });
};
const worker = new Worker({ address: process.env.DRAY_GRPC, tasks, lease: 1, concurrency: 4, onSettled });
process.once('SIGTERM', () => worker.stop(5));
console.log('ready');
await worker.run();
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP.format(path=tmp_path / "jobs.db"))
    return node_worker.unpacked(tmp_path / "worker")


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}", max_crashes=20)
    yield app
    app.close()


def test_the_example_counts_words_rejects_and_stops_when_told(folder: Path, app: App, tmp_path: Path) -> None:
    server = node_worker.server(tmp_path, "shop:app", "127.0.0.1:0", tmp_path / "server.log")
    address = server.says("grpc://").split("grpc://")[1].split(",")[0]
    worker = Process(
        [node_worker.program("node"), "main.js"], folder, tmp_path / "worker.log", DRAY_GRPC=address
    )
    try:
        node = app.using(queue="node")
        assert node.enqueue("words.count", "how many words").get(timeout=60) == 3
        with pytest.raises(JobFailed, match="a text is needed"):
            node.enqueue("words.count", 7).get(timeout=60)
        slow = node.enqueue("words.each", "a b c d e f g h", pause=0.05)
        wait_until(lambda: slow.info().progress or slow.status().finished, "it tells nothing")
        told = slow.info().progress
        assert told is None or told.total == 8
        assert slow.get(timeout=60) == list("ABCDEFGH")
        last = node.enqueue("words.each", "a b c", pause=0.3)
        wait_until(lambda: last.info().progress, "it does not start")  # running may mean: on its way
        assert worker.end() == 0
        assert last.get(timeout=5) == ["A", "B", "C"], "what ran when it was told to stop was finished"
    finally:
        worker.kill()
        assert server.end() == 0


def test_no_job_is_lost_and_no_completion_counts_twice_when_workers_are_killed(
    folder: Path, app: App, tmp_path: Path
) -> None:
    (folder / "chaos.js").write_text(CHAOS)
    notes, address = tmp_path / "notes", f"127.0.0.1:{free_port()}"
    notes.touch()
    seed = random.randrange(1_000_000)
    dice = random.Random(seed)
    calls = [
        app.using(backoff="fixed:0.1").call("count.up", n, pause=dice.choice((0.01, 0.03, 0.15)))
        for n in range(JOBS)
    ]
    crew = Crew(folder, tmp_path, address, notes)
    try:
        cursor = app.events.read().cursor
        jobs = app.enqueue_many(calls)
        crew.start()
        for kill in range(KILLS):
            crew.strike(dice, after=(kill + 1) * JOBS // (KILLS + 2))
        assert gather(jobs, timeout=120) == [n * 2 for n in range(JOBS)], f"seed {seed}"
    finally:
        crew.end()
    succeeded = Counter(
        event.id
        for entry in app.events.read(cursor, limit=10_000).entries
        for event in entry.events
        if event.kind == "succeeded"
    )
    assert succeeded == {job.id: 1 for job in jobs}, f"seed {seed}"
    acks = Counter(n for what, n in crew.noted() if what == "STATE_SUCCEEDED")
    assert set(acks.values()) == {1}, f"seed {seed}: two workers were told that they completed the same job"
    assert len(acks) >= JOBS - 4 * KILLS, f"seed {seed}"
    starts = Counter(n for what, n in crew.noted() if what == "start")
    assert set(starts) == set(range(JOBS))
    assert sum(starts.values()) > JOBS + JOBS // 10, (
        f"seed {seed}: nobody was killed in the middle of anything"
    )


def test_a_frozen_worker_loses_its_jobs_and_what_it_says_later_does_not_count(
    folder: Path, app: App, tmp_path: Path
) -> None:
    (folder / "chaos.js").write_text(CHAOS)
    notes = tmp_path / "notes"
    notes.touch()
    crew = Crew(folder, tmp_path, f"127.0.0.1:{free_port()}", notes)
    try:
        crew.start(workers=1)
        jobs = app.enqueue_many([app.using().call("count.up", n, pause=0.5) for n in (1, 2, 4, 5)])
        wait_until(lambda: len(crew.noted()) == 4, "they do not start")
        (frozen,) = crew.workers
        frozen.process.send_signal(signal.SIGSTOP)
        crew.hire()
        assert gather(jobs, timeout=60) == [2, 4, 8, 10]
        said = len(crew.noted())
        frozen.process.send_signal(signal.SIGCONT)
        later = app.enqueue_many([app.using().call("count.up", n, pause=0.1) for n in range(20, 28)])
        assert gather(later, timeout=60)
        wait_until(lambda: len(crew.finished()) == 12, "not all are acked")
        assert len(crew.noted()) > said
    finally:
        crew.end()
    acks = Counter(n for what, n in crew.noted() if what == "STATE_SUCCEEDED")
    assert set(acks.values()) == {1}, "the frozen worker was answered that it completed jobs of another"
    assert [job.info().failures for job in jobs] == [0] * 4


class Crew:
    """Workers and their server."""

    def __init__(self, folder: Path, home: Path, address: str, notes: Path) -> None:
        self._folder, self._home, self._address, self._notes = folder, home, address, notes
        self.workers: list[Process] = []
        self._number = 0

    def start(self, workers: int = 3) -> None:
        self._server = node_worker.server(self._home, "shop:app", self._address, self._home / "server.log")
        self._server.says("grpc://")
        for _ in range(workers):
            self.hire()

    def hire(self) -> None:
        self._number += 1
        log = self._home / f"worker-{self._number}.log"
        environ = {"DRAY_GRPC": self._address, "NOTES": str(self._notes)}
        self.workers.append(Process([node_worker.program("node"), "chaos.js"], self._folder, log, **environ))

    def noted(self) -> list[tuple[str, int]]:
        lines = [json.loads(line) for line in self._notes.read_text().splitlines()]
        return [(line["what"], line["n"]) for line in lines]

    def finished(self) -> set[int]:
        return {n for what, n in self.noted() if what == "STATE_SUCCEEDED"}

    def _busy(self) -> list[int]:
        """Processes in the middle of a job."""
        lines = [json.loads(line) for line in self._notes.read_text().splitlines()]
        open = Counter(line["pid"] for line in lines if line["what"] == "start")
        open.subtract(line["pid"] for line in lines if line["what"] != "start")
        return [pid for pid, count in open.items() if count > 0]

    def strike(self, dice: random.Random, after: int) -> None:
        """Once so many jobs are finished, kill one that is at work and hire another; once, the server too."""
        wait_until(lambda: len(self.finished()) >= after, "the work does not go on", 120)
        victim = self._victim(dice)
        victim.kill()
        self.workers.remove(victim)
        if self._number == 3 + KILLS // 2:
            self._server.kill()
            self._server = node_worker.server(
                self._home, "shop:app", self._address, self._home / "server-2.log"
            )
            self._server.says("grpc://")
        self.hire()

    def _victim(self, dice: random.Random) -> Process:
        end = time.monotonic() + 60
        while True:
            busy = self._busy()
            at_work = [worker for worker in self.workers if worker.process.pid in busy]
            if at_work:
                return dice.choice(at_work)
            assert time.monotonic() < end, "nobody works"
            time.sleep(0.005)

    def end(self) -> None:
        try:
            for worker in self.workers:
                worker.says("ready")  # before, a signal would end it in no order at all
            codes = [worker.end() for worker in self.workers]
            assert self._server.end() == 0
            assert codes == [0] * len(codes)
        finally:
            for process in (*self.workers, self._server):
                process.kill()
