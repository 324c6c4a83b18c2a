"""Real workers that drain a store, against a bare loop that executes the very same SQL in batches.

A worker is a `dray worker --burst` with one executor: supervisor, duties, leases and all. Its time runs from
the start of the first job to the end of the last, as the broker wrote them; starting Python is not in it.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.measure import Measurement, Parameters, Sample
from bench.sqlite.cases import open_session, succeed, take
from bench.sqlite.script import Play, Script, play_bare, record
from bench.sqlite.store import Supply, copy, sync
from bench.worker.plan import Plan
from dray import App

BARE, DRAY = "bare", "dray"
PAYLOAD = "x" * 90
CONCURRENCY: dict[str, tuple[int, tuple[str, ...]]] = {"32": (32, ("-c", "32")), "100": (100, ("-c", "100"))}
"""What is shown → how many jobs at once, and the worker's options; the bare loop's batches are as large."""


class Drains:
    """Stores full of no-ops, and the measurements on them."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        folder.mkdir()

    def measurements(self) -> list[Measurement]:
        return [one for kind in ("async", "sync") for one in self._of(kind)]

    def _of(self, kind: str) -> list[Measurement]:
        base = self._folder / f"{kind}.db"
        fill(base, "noop" if kind == "async" else "plain_noop", self._plan.jobs)
        measured: list[Measurement] = []
        for shown, (slots, options) in CONCURRENCY.items():
            script = self._script(copy(base, self._folder / "recorded.db"), slots)
            parameters: Parameters = {"tasks": kind, "concurrency": shown}
            work: dict[str, Callable[[int], Sample]] = {
                BARE: partial(self._bare, base, script),
                DRAY: partial(self._dray, base, options),
            }
            measured += [Measurement("drain", parameters, subject, run) for subject, run in work.items()]
        return measured

    def _script(self, path: Path, batch: int) -> Script:
        def work(play: Play, supply: Supply) -> int:
            for first in range(0, self._plan.jobs, batch):
                taken = take(play, supply, min(batch, self._plan.jobs - first))
                play("settle", supply.session, [succeed(one, supply) for one in taken])
            return self._plan.jobs

        return record(path, Supply(), [(False, open_session), (True, work)])

    def _bare(self, base: Path, script: Script, round: int) -> Sample:
        return play_bare(copy(base, self._folder / "bare.db"), script)

    def _dray(self, base: Path, options: tuple[str, ...], round: int) -> Sample:
        path = copy(base, self._folder / "dray.db")
        run_worker(path, "-p", "1", "--burst", *options)
        return drained(path, self._plan.jobs)


def fill(path: Path, task: str, count: int) -> None:
    """A new file with so many calls of one task."""
    app = App("bench", namespace="dray", broker=f"sqlite:///{path}")
    app.enqueue_many(app.call(task, PAYLOAD) for _ in range(count))
    app.close()
    sync(path)


def worker_command(*options: str) -> list[str]:
    return [sys.executable, "-m", "dray", "-A", "bench.worker.app:app", "worker", *options]


def worker_environment(path: Path) -> dict[str, str]:
    return {**os.environ, "BENCH_BROKER": f"sqlite:///{path}", "PYTHONPATH": str(Path(__file__).parents[2])}


def run_worker(path: Path, *options: str) -> None:
    done = subprocess.run(
        worker_command(*options), env=worker_environment(path), capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise RuntimeError(f"the worker failed:\n{done.stdout}{done.stderr}")


def drained(path: Path, count: int) -> Sample:
    """How long it took, by the times that the broker itself wrote down."""
    database = sqlite3.connect(path)
    try:
        columns = "COUNT(finished), MIN(started), MAX(finished)"
        done, first, last = database.execute(f"SELECT {columns} FROM jobs").fetchone()
    finally:
        database.close()
    if done != count:
        raise RuntimeError(f"{done} of {count} jobs were drained")
    return Sample(max(1, last - first) / 1000, count)
