"""A lone worker that sweeps once an hour, and jobs that fall due: only `take` makes them ready."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from bench.lateness.app import PAIR
from bench.measure import percentile
from dray import App, Call
from dray.client.link import Link

CHUNK = 5_000
URGENT_EVERY = 0.05


@dataclass(frozen=True)
class Plan:
    """How much of each."""

    single: int
    seconds: int
    burst: int


FULL, QUICK, TINY = Plan(200, 10, 100_000), Plan(40, 3, 20_000), Plan(3, 1, 300)


@dataclass(frozen=True)
class Late:
    """Lateness of one case, in seconds."""

    case: str
    jobs: int
    median: float
    p99: float
    worst: float


def late(case: str, figures: list[float]) -> Late:
    return Late(case, len(figures), percentile(figures, 50), percentile(figures, 99), max(figures))


class Bench:
    """One store, one worker, and a producer."""

    def __init__(self, url: str, marks: Path) -> None:
        self.marks = marks
        self.app = App("lateness", namespace="dray", broker=url)
        self._seen = 0

    def call(self, wanted: float, *, delayed: bool = True, priority: int = 5) -> Call[None]:
        named = self.app.using(priority=priority)
        if delayed:
            named = self.app.using(at=datetime.fromtimestamp(wanted, UTC), priority=priority)
        return named.call("mark", wanted)

    def put(self, calls: list[Call[None]]) -> None:
        for first in range(0, len(calls), CHUNK):
            self.app.enqueue_many(calls[first : first + CHUNK])

    def started(self, count: int, seconds: float = 600) -> list[tuple[float, float]]:
        """The next `count` starts: when each should have been, and was."""
        end = time.monotonic() + seconds
        while self._size() < (self._seen + count) * PAIR.size:
            if time.monotonic() > end:
                raise RuntimeError(f"{self._size() // PAIR.size - self._seen} of {count} jobs have started")
            time.sleep(0.002)
        data = self.marks.read_bytes()[self._seen * PAIR.size : (self._seen + count) * PAIR.size]
        self._seen += count
        return [(wanted, at) for wanted, at in PAIR.iter_unpack(data)]

    def _size(self) -> int:
        return self.marks.stat().st_size if self.marks.exists() else 0

    def measure(self, plan: Plan, shown: Callable[[str], None]) -> list[Late]:
        shown("idle")
        self.put([self.call(time.time(), delayed=False)])
        self.started(1)
        found = [late("a job that is ready at once (idle)", self._single(plan.single, 0))]
        shown("one delayed job at a time")
        found.append(late("one delayed job at a time", self._single(plan.single, 0.2)))
        shown("1,000 a second")
        first = time.time() + 2
        calls = [self.call(first + n / 1000) for n in range(1000 * plan.seconds)]
        self.put(calls)
        found.append(late("1,000 due per second", [at - due for due, at in self.started(len(calls))]))
        shown("burst")
        return [*found, *self._burst(plan.burst)]

    def _single(self, count: int, delay: float) -> list[float]:
        figures = []
        for _ in range(count):
            wanted = time.time() + delay
            self.put([self.call(wanted, delayed=delay > 0)])
            [(_, at)] = self.started(1)
            figures.append(at - wanted)
            time.sleep(0.02)
        return figures

    def _burst(self, count: int) -> list[Late]:
        """All due within one second; meanwhile urgent jobs are put, which are to start at once."""
        began = time.time()
        due = began + 3 + count / 1_500
        self.put([self.call(due + n / count) for n in range(count)])
        early = due - time.time()
        if early < 0:
            raise RuntimeError(
                f"putting {count} jobs took {time.time() - began:.0f} s: too long for this plan"
            )
        cursor, _ = self.app.client.block(_promoted, None)
        time.sleep(max(0.0, due - time.time()))
        urgent, started = 0, 0
        while started < count and time.time() < due + 300:
            self.put([self.call(-time.time(), delayed=False, priority=0)])
            urgent += 1
            time.sleep(URGENT_EVERY)
            started = self._size() // PAIR.size - self._seen
        starts = self.started(count + urgent)
        _, ready = self.app.client.block(_promoted, cursor)
        # The longest overdue is made ready first, so the order of promotion is that of the due times.
        made_ready = [max(0.0, at - due - n / count) for n, at in enumerate(ready)]
        return [
            late(f"{count:,} due in one second: to ready", made_ready),
            late(f"{count:,} due in one second: to start", [at - one for one, at in starts if one > 0]),
            late("urgent jobs put meanwhile: to start", [at + one for one, at in starts if one < 0]),
        ]


async def _promoted(link: Link, cursor: dict[str, int] | None) -> tuple[dict[str, int], list[float]]:
    """When jobs became ready since then, by the feed."""
    found: list[float] = []
    while True:
        feed = await link.broker.events(cursor, limit=1000)
        cursor = feed.cursor
        for entry in feed.entries:
            found += [entry.at / 1000 for event in entry.events if event.kind == "promoted"]
        if not feed.entries:
            return cursor, found


@contextmanager
def worker(url: str, marks: Path) -> Iterator[None]:
    """One worker with one executor; no upkeep helps it."""
    paths = {"PYTHONPATH": str(Path(__file__).parents[2]), "BENCH_BROKER": url, "BENCH_MARKS": str(marks)}
    command = [sys.executable, "-m", "dray", "-A", "bench.lateness.app:app", "worker"]
    log = marks.with_suffix(".log").open("wb")
    process = subprocess.Popen(
        [*command, "--processes", "1", "--concurrency", "100"],
        env={**os.environ, **paths, "DRAY_SWEEP_INTERVAL": "1h"},
        stdout=log,
        stderr=log,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)
        log.close()
