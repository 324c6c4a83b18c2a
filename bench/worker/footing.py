"""What is paid before and between jobs: imports, and a worker that has nothing to do."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.worker.drains import worker_command, worker_environment

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
    """Supervisor and executors."""
    share: float
    """Of one core."""
    memory: float
    """Resident megabytes of all together."""


def measure_idle(folder: Path, seconds: float, executors: int = 2) -> Idle:
    """A worker with two executors, watched after it has settled down."""
    folder.mkdir()
    path = folder / "idle.db"
    command = worker_command("-p", str(executors))
    with (folder / "log").open("wb") as log:
        worker = subprocess.Popen(command, env=worker_environment(path), stdout=log, stderr=log)
    try:
        tree = _settled(worker.pid, executors + 1, folder / "log")
        before, start = sum(map(_cpu, tree)), time.perf_counter()
        time.sleep(seconds)
        used = sum(map(_cpu, tree)) - before
        share = used / (time.perf_counter() - start)
        return Idle(len(tree), share, sum(map(_resident, tree)) / 1e6)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)


def _settled(pid: int, count: int, log: Path) -> list[int]:
    """All processes of the tree, once they are there and have stopped starting."""
    deadline, last = time.monotonic() + 60, -1.0
    while time.monotonic() < deadline:
        tree = [pid, *_children(pid)]
        used = sum(map(_cpu, tree))
        if len(tree) >= count and used - last < 0.02:
            return tree
        last = used
        time.sleep(1.0)
    raise RuntimeError(f"the worker did not settle down:\n{log.read_text()}")


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
