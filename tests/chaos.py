"""Real producers and workers under SIGKILL, counted from outside.

Four producers enqueue jobs in batches of random size, each job under its own id, and write down what was
acknowledged. Workers run them; every run appends its number to a ledger, a file that no part of dray knows.
Meanwhile a killer sends SIGKILL to executors, their children, supervisors and producers, which are started
again. A reader follows the broker's feed and counts completions. When all is over, every job that was
acknowledged must have run, must be recorded as succeeded, and must have been completed exactly once.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from dray import App
from dray.broker.verbs import Feed, run_blocking

PRODUCERS = 4
LEASE = 2.0

APP = '''
import os
from dray import App

url = os.environ["CHAOS_BROKER"]
app = App("chaos", broker=url, lease="{lease}s", max_crashes=10_000, backoff="fixed:50ms")
ledger = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.task
async def quick(n: int) -> int:
    os.write(ledger, b"%d\\n" % n)
    return n


@app.task
def plain(n: int) -> int:
    os.write(ledger, b"%d\\n" % n)
    return n


@app.task(isolate="process")
def alone(n: int) -> int:
    os.write(ledger, b"%d\\n" % n)
    return n


@app.task(retries=1)
async def second(n: int) -> int:
    """Fails the first time."""
    from dray import current

    os.write(ledger, b"%d\\n" % n)
    if current().attempt == 1:
        raise ValueError("try again")
    return n
'''

PRODUCER = """
import os, random, sys, time
from dray import BrokerAway
from chaos_app import alone, app, plain, quick, second

first, last, acknowledged, seed = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
dice = random.Random(f"{seed}:{first}:{os.getpid()}")
log = open(acknowledged, "a+")
log.seek(0)
n = max([first, *(int(line) + 1 for line in log.read().split())])
while n < last:
    size = min(dice.choice([1, 1, 5, 50]), last - n)
    calls = []
    for number in range(n, n + size):
        task = alone if number % 200 == 0 else second if number % 50 == 1 else plain if number % 2 else quick
        calls.append(task.using(id=f"job-{number}").call(number))
    try:
        app.enqueue_many(calls)
    except BrokerAway:
        time.sleep(0.05)
        continue
    n += size
    print(n - 1, file=log, flush=True)
    time.sleep(dice.uniform(0, 2 * float(os.environ["CHAOS_PACE"]) * size))
"""


@dataclass
class Report:
    """What was counted, and from where."""

    jobs: int
    ran: Counter[int] = field(default_factory=Counter)
    """Runs per job, from the ledger."""
    completed: Counter[str] = field(default_factory=Counter)
    """Completions per job, from the feed."""
    states: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    gaps: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Chaos:
    """One run, on whatever broker the URL names."""

    app_text, producer_text = APP, PRODUCER

    def __init__(self, folder: Path, url: str, jobs: int, seed: int, killing: float) -> None:
        self.folder, self.url, self.jobs, self.killing = folder, url, jobs, killing
        self.dice, self.seed = random.Random(seed), seed
        self.ledger = folder / "ledger"
        self.report = Report(jobs)
        self.environment = {
            **os.environ,
            "CHAOS_BROKER": url,
            "CHAOS_LEDGER": str(self.ledger),
            # Jobs come in for most of the time in which the killer is about.
            "CHAOS_PACE": str(0.6 * killing * PRODUCERS / jobs),
            "PYTHONPATH": str(folder),
        }
        self.producers: dict[int, subprocess.Popen[bytes]] = {}
        self.workers: list[subprocess.Popen[bytes]] = []
        self.app = App("chaos", broker=url)
        self.over = threading.Event()

    def run(self, patience: float) -> Report:
        begin = time.monotonic()
        (self.folder / "chaos_app.py").write_text(self.app_text.format(lease=LEASE))
        (self.folder / "producer.py").write_text(self.producer_text)
        reader = threading.Thread(target=self._follow)
        try:
            reader.start()
            self.workers = [self._worker() for _ in range(2)]
            self.producers = {n: self._producer(n) for n in range(PRODUCERS)}
            self._kill_for(self.killing)
            self._finish(begin + patience)
        finally:
            self._stop_everything()
            time.sleep(0.2)
            self.over.set()
            reader.join(30)
        self._count()
        self.report.seconds = time.monotonic() - begin
        return self.report

    # actors

    def _worker(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dray", "-A", "chaos_app:app", "worker", "-p", "2", "-c", "16"]
        with (self.folder / "workers.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _producer(self, number: int) -> subprocess.Popen[bytes]:
        share = self.jobs // PRODUCERS
        first = number * share
        last = self.jobs if number == PRODUCERS - 1 else first + share
        acknowledged = self.folder / f"acknowledged-{number}"
        command = [sys.executable, "producer.py", str(first), str(last), str(acknowledged), str(self.seed)]
        with (self.folder / "producers.log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def _follow(self) -> None:
        """Count completions as the broker tells them, without ever falling behind."""
        broker = run_blocking(self.app.connect(blocking=True))
        cursor: dict[str, int] = {}
        while True:
            last = self.over.is_set()
            feed: Feed = run_blocking(broker.events(cursor, limit=5000))
            cursor = feed.cursor
            self.report.gaps += len(feed.gaps)
            for entry in feed.entries:
                self.report.completed.update(event.id for event in entry.events if event.kind == "succeeded")
            if not feed.entries:
                if last:
                    break
                self.over.wait(0.05)
        run_blocking(broker.close())

    # the killer

    def _kill_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        owed = ["supervisor", "executor", "producer"]
        while (now := time.monotonic()) < end or (
            owed and now < end + 60
        ):  # a busy machine starts workers late
            time.sleep(self.dice.uniform(0.05, 0.6))
            self._restart()
            kinds = ["executor", "child", "supervisor", "producer", "template"]
            kind = self.dice.choices(kinds, [12, 3, 3, 4, 2])[0]
            if owed:  # no run is without one of each, whatever the dice say
                kind = owed[-1]
            victim = self._victim(kind)
            if victim is not None:
                owed = [one for one in owed if one != kind]
                os.kill(victim, signal.SIGKILL)
                self.report.kills[kind] += 1

    def _victim(self, kind: str) -> int | None:
        if kind == "producer":
            running = [one.pid for one in self.producers.values() if one.poll() is None]
        else:
            running = [one.pid for one in self.workers if one.poll() is None]
            if kind == "template":
                running = [child for pid in running for child in templates_of(pid)]
            elif kind != "supervisor":
                running = [child for pid in running for child in executors_of(pid)]
            if kind == "child":
                running = [child for pid in running for child in children_of(pid)]
        return self.dice.choice(running) if running else None

    def _restart(self) -> None:
        self.workers = [one if one.poll() is None else self._worker() for one in self.workers]
        for number, one in list(self.producers.items()):
            if one.poll() not in (None, 0):
                self.producers[number] = self._producer(number)

    # the end

    def _finish(self, deadline: float) -> None:
        while True:
            self._restart()
            done = all(one.poll() == 0 for one in self.producers.values())
            if done and len(self.report.completed) >= self.jobs:
                return
            if time.monotonic() > deadline:
                return
            time.sleep(0.1)

    def _stop_everything(self) -> None:
        everyone = [*self.workers, *self.producers.values()]
        for one in everyone:
            if one.poll() is None:
                one.send_signal(signal.SIGTERM)
        for one in everyone:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                self.report.problems.append(f"{one.args!r} did not stop")
                one.kill()
                one.wait()

    def _count(self) -> None:
        self.report.ran = Counter(int(line) for line in self.ledger.read_text().split())
        for first in range(0, self.jobs, 500):
            broker = run_blocking(self.app.connect(blocking=True))
            records = run_blocking(
                broker.get([f"job-{n}" for n in range(first, min(first + 500, self.jobs))])
            )
            self.report.states.update("missing" if one is None else str(one.state) for one in records)
            if first == 0:
                self.report.problems += run_blocking(broker.audit())
            run_blocking(broker.close())
        self.app.close()


def templates_of(supervisor: int) -> list[int]:
    """The process that executors are forked from: the only child without a group of its own."""
    return [child for child in children_of(supervisor) if not leads_group(child)]


def executors_of(supervisor: int) -> list[int]:
    parents = [supervisor, *templates_of(supervisor)]
    return [child for parent in parents for child in children_of(parent) if leads_group(child)]


def leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return True  # it has just ended


def children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
