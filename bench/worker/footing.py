"""What is paid before and between jobs: imports, and a worker that has nothing to do."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from bench.worker.drains import run_worker, worker_command, worker_environment

TICKS = os.sysconf("SC_CLK_TCK")
STARTS = {
    "python, nothing imported": ("-c", "pass"),
    "import asyncio": ("-c", "import asyncio"),
    "import dray": ("-c", "import dray"),
    "from dray import App": ("-c", "from dray import App"),
    "dray --help": ("-m", "dray", "--help"),
}


def measure_starts(times: int) -> dict[str, float]:
    """Median milliseconds of wall time, process start included, measured in turn."""
    found: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(times + 1):  # the first time fills caches
        for name, arguments in STARTS.items():
            before = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            found[name].append((time.perf_counter() - before) * 1000)
    return {name: statistics.median(figures[1:]) for name, figures in found.items()}


@dataclass(frozen=True)
class Idle:
    """A worker tree without work."""

    processes: int
    """Supervisor, template and executors."""
    share: float
    """Of one core."""
    memory: float
    """MiB of all together, what they share counted once (PSS)."""
    started: float = 0.0
    """CPU seconds of a worker from its start to its end, with one job to run."""


def measure_idle(folder: Path, seconds: float, executors: int = 2) -> Idle:
    """A worker with two executors, watched after it has settled down."""
    folder.mkdir()
    path = folder / "idle.db"
    command = worker_command("-p", str(executors))
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=worker_environment(path), stdout=log, stderr=log)
    try:
        tree = _settled(worker.pid, executors + 2, folder / "log")
        before, start = sum(map(_cpu, tree)), time.perf_counter()
        time.sleep(seconds)
        used = sum(map(_cpu, tree)) - before
        share = used / (time.perf_counter() - start)
        idle = Idle(len(tree), share, sum(map(memory_of, tree)) / 1024)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    return replace(idle, started=_one_job(path, executors))


def _one_job(path: Path, executors: int) -> float:
    command = [sys.executable, "-m", "dray", "-A", "bench.worker.app:app", "enqueue", "noop", "''"]
    subprocess.run(command, env=worker_environment(path), check=True, capture_output=True)
    before = os.times()
    run_worker(path, "--burst", "-p", str(executors))
    after = os.times()
    return sum(after[2:4]) - sum(before[2:4])


def _settled(pid: int, count: int, log: Path) -> list[int]:
    """All processes of the tree, once they are there and have stopped starting."""
    deadline, last = time.monotonic() + 60, -1.0
    while time.monotonic() < deadline:
        tree = _tree(pid)
        used = sum(map(_cpu, tree))
        if len(tree) >= count and used - last < 0.02:
            return tree
        last = used
        time.sleep(1.0)
    raise RuntimeError(f"the worker did not settle down:\n{log.read_text()}")


def _tree(pid: int) -> list[int]:
    found = [pid]
    for one in found:  # grows while it is walked
        found += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return found


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_of(pid: int) -> int:
    """KiB; pages that several processes share are divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
