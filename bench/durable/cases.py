"""Batches of jobs through a real worker, with the server's CPU time and commands before and after."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.durable.app import STEPS
from bench.peers.servers import Server
from dray import App

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Plan:
    jobs: int
    """Durable jobs in a round; there are `STEPS` times as many plain ones."""
    rounds: int
    sleepers: int
    watch: float
    """Seconds for which commands are counted while all jobs sleep."""


FULL = Plan(jobs=500, rounds=5, sleepers=100_000, watch=20.0)
QUICK = Plan(jobs=200, rounds=3, sleepers=10_000, watch=10.0)
TINY = Plan(jobs=20, rounds=1, sleepers=100, watch=2.0)


@dataclass(frozen=True)
class Costs:
    """Server CPU in microseconds."""

    plain: list[float]
    """Of `STEPS` plain jobs, put, run and settled, by round."""
    durable: list[float]
    """Of one job of `STEPS` steps, by round."""
    sleepers: int
    idle_commands: float
    """Commands in a second while nothing but sleeping jobs is there, with one worker."""
    base_commands: float
    """The same with no job at all."""


@contextmanager
def worker(url: str) -> Iterator[None]:
    command = [sys.executable, "-m", "dray", "-A", "bench.durable.app:app", "worker", "-p", "1", "-c", "32"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "BENCH_BROKER": url},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


class Bench:
    def __init__(self, server: Server) -> None:
        self._server = server
        self.app = App("durable", namespace="dray", broker=server.url, accept_unknown_tasks=True)

    def _info(self, section: str) -> dict[str, str]:
        lines = self._server.ask("INFO", section).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def _cpu(self) -> float:
        info = self._info("cpu")
        return (float(info["used_cpu_user"]) + float(info["used_cpu_sys"])) * 1e6

    def _commands(self) -> int:
        return int(self._info("stats")["total_commands_processed"])

    def _cost(self, task: str, count: int) -> float:
        before = self._cpu()
        self.app.enqueue_many([self.app.using().call(task, n) for n in range(count)])
        self._until(lambda: not self._unfinished())
        return self._cpu() - before

    def _unfinished(self) -> int:
        return sum(
            number
            for queue in self.app.queues.list()
            for state, number in queue.counts.items()
            if not state.finished
        )

    def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            time.sleep(0.05)

    def measure(self, plan: Plan) -> Costs:
        plain, durable = [], []
        for name in ("plain", "steps"):
            self._cost(name, 20)
        base = self._idle(plan.watch)
        for _ in range(plan.rounds):
            plain.append(self._cost("plain", plan.jobs * STEPS) / plan.jobs)
            durable.append(self._cost("steps", plan.jobs) / plan.jobs)
        for first in range(0, plan.sleepers, 1000):
            calls = [self.app.using().call("nap", n) for n in range(first, min(first + 1000, plan.sleepers))]
            self.app.enqueue_many(calls)
        self._until(lambda: self._asleep() >= plan.sleepers)
        time.sleep(2)
        return Costs(plain, durable, plan.sleepers, self._idle(plan.watch), base)

    def _asleep(self) -> int:
        return sum(queue.counts.get("scheduled", 0) for queue in self.app.queues.list())  # type: ignore[call-overload]

    def _idle(self, seconds: float) -> float:
        before = self._commands()
        time.sleep(seconds)
        return (self._commands() - before) / seconds
