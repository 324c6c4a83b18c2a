"""The history under fire: leaders are killed at random; no event is missing, and none counts twice."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer
from redis_server import running

from dray import App
from dray.duration import DAY
from dray.history.database import open_database

SEED = int(os.environ.get("DRAY_CHAOS_SEED", str(time.time_ns() % 1_000_000)))
SECONDS = float(os.environ.get("DRAY_HISTORY_SECONDS", "12"))
PATIENCE = 60.0

TASKS = """
import random

from dray import App

app = App("fire")


@app.task
async def quick(n: int) -> int:
    return n


@app.task(retries=5, backoff="fixed:50ms,jitter=0")
def unlucky(n: int) -> int:
    if random.random() < 0.3:
        raise ValueError(f"not yet {n}")
    return n
"""
FAST = {
    "DRAY_LEASE": "1s",
    "DRAY_SWEEP_INTERVAL": "100ms",
    "DRAY_PROCESSES": "1",
    "DRAY_CONCURRENCY": "16",
    "DRAY_LOG_LEVEL": "error",
}


class Fire:
    """Two workers, one of which leads; the test kills the leader, and starts another worker in its place."""

    def __init__(self, folder: Path, broker: str, history: str) -> None:
        (folder / "fire.py").write_text(TASKS)
        own = {name: text for name, text in os.environ.items() if not name.startswith("DRAY_")}
        urls = {"DRAY_BROKER_URL": broker, "DRAY_HISTORY_URL": history, "DRAY_APP": "fire:app"}
        self._environ = own | FAST | urls
        self._folder, self.workers = folder, list[subprocess.Popen[bytes]]()
        self.log = folder / "workers.log"
        self.kills = 0

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "dray", "worker"]
            worker = subprocess.Popen(command, cwd=self._folder, env=self._environ, stdout=log, stderr=log)
        self.workers.append(worker)

    def kill_leader(self, app: App) -> None:
        leaders = {worker.pid for worker in app.workers.list() if worker.leader}
        victims = [worker for worker in self.workers if worker.pid in leaders and worker.poll() is None]
        for victim in victims:
            victim.kill()
            victim.wait()
            self.workers.remove(victim)
            self.kills += 1
            self.start()

    def stop(self) -> None:
        for worker in self.workers:
            worker.send_signal(signal.SIGTERM)
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(30)
            worker.kill()
            worker.wait()


@pytest.fixture(params=["sqlite to postgres", "valkey to sqlite"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    if request.param == "sqlite to postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        yield f"sqlite:///{tmp_path}/fire.db?timeout=30s", server.url()
        return
    with running("valkey", tmp_path / "server") as valkey:
        yield f"redis://127.0.0.1:{valkey.port}", f"sqlite:///{tmp_path}/history.db"


def wait_until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.2)


def fetch(url: str, statement: str) -> list[tuple[object, ...]]:
    database = open_database(url)
    try:
        return database.fetch(statement)
    finally:
        database.close()


Event = tuple[str, int, str, int]


def read_feed(app: App, cursor: dict[str, int], seen: Counter[Event]) -> dict[str, int]:
    while True:
        feed = app.events.read(cursor)
        assert not feed.gaps, "the test itself is too slow"
        for entry in feed.entries:
            seen.update((event.id, event.run, event.kind, entry.at) for event in entry.events if event.id)
        cursor = dict(feed.cursor)
        if not feed.entries:
            return cursor


@pytest.mark.timeout(400)
def test_no_event_is_missing_or_double_though_leaders_are_killed(
    urls: tuple[str, str], tmp_path: Path
) -> None:
    broker, history = urls
    chance, fire = random.Random(SEED), Fire(tmp_path, broker, history)
    app = App("fire", broker=broker)
    seen: Counter[Event] = Counter()
    cursor: dict[str, int] = {}
    made = 0
    fire.start()
    fire.start()
    try:
        end, next_kill = time.monotonic() + SECONDS, time.monotonic() + 3
        while time.monotonic() < end or fire.kills < 3:
            for task in ("quick", "unlucky"):
                app.enqueue_many([app.call(task, made + n) for n in range(20)])
                made += 20
            time.sleep(0.1)
            cursor = read_feed(app, cursor, seen)
            if time.monotonic() > next_kill:
                fire.kill_leader(app)
                next_kill = time.monotonic() + chance.uniform(0.2, 2.0)
        wait_until(
            lambda: not any(app.jobs.count(state=state) for state in ("ready", "running", "retrying")),
            lambda: f"seed {SEED}: {app.queues.list()} {app.workers.list()} {fire.log.read_text()[-3000:]}",
        )
        cursor = read_feed(app, cursor, seen)
        wait_until(
            lambda: fetch(history, "SELECT count(*) FROM events")[0][0] == len(seen),
            lambda: f"seed {SEED}: of {len(seen)} events {fetch(history, 'SELECT count(*) FROM events')}",
        )
    finally:
        fire.stop()
        app.close()
    assert fire.kills >= 3, fire.log.read_text()
    recorded = set(fetch(history, "SELECT id, run, kind, at FROM events"))
    assert recorded == set(seen), f"seed {SEED}"
    assert fetch(history, "SELECT count(*) FROM gaps WHERE until > 0") == [(0,)]
    runs = Counter(kind for _, _, kind, _ in seen if kind in ("succeeded", "retried", "died"))
    summed = fetch(history, f"SELECT sum(succeeded), sum(failed) FROM rollups WHERE unit = {DAY}")[0]
    assert summed[0] == runs["succeeded"]
    assert summed[1] == runs["retried"] + runs["died"]
    assert fetch(history, "SELECT count(*) FROM jobs WHERE state IN ('succeeded', 'dead')") == [(made,)]
    (failed,) = fetch(history, "SELECT sum(count) FROM errors")
    assert failed[0] == runs["retried"] + runs["died"]
