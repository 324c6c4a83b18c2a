"""A slow worker beside a fast one, and slow runs among fast ones: on real workers, SQLite and Valkey."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.flow.straggler_app import make
from bench.measure import percentile
from bench.peers import servers
from bench.report import change, table
from dray import App, JobInfo

SLOTS = 4
PACES = (0.1, 0.5)
"""Seconds that a job takes on each of two workers: one is five times slower."""
STRAGGLES = 12.0
"""Seconds that the first run of a straggler takes."""
USUAL = 0.02
"""Seconds that all other runs take there."""
SHARE = 0.02
WARM = 100
PATIENCE = 120.0


def run(quick: bool, folder: Path) -> tuple[str, dict[str, Any]]:
    jobs, tail = (480, 400) if quick else (1920, 1000)
    figures: dict[str, Any] = {}
    with servers.running(servers.find("valkey")) as server:
        for name, url in (("SQLite", f"sqlite:///{folder}/flow.db"), ("Valkey", server.url)):
            split = measure_split(url, jobs)
            alone, twice = (measure_tail(url, task, tail) for task in ("alone", "twice"))
            figures[name] = {"split": split, "alone": alone, "twice": twice}
    return text(figures), figures


def text(figures: dict[str, Any]) -> str:
    splits = table(
        (
            "two workers, one 5× slower",
            "jobs",
            "taken by the slow one",
            "seconds",
            "ideal",
            "over",
            "over what its jobs took",
        ),
        [
            (
                name,
                one["jobs"],
                one["slow"],
                f"{one['seconds']:.2f}",
                f"{one['ideal']:.2f}",
                change(one["seconds"] / one["ideal"] - 1),
                change(one["seconds"] / one["possible"] - 1),
            )
            for name, one in ((name, parts["split"]) for name, parts in figures.items())
        ],
    )
    tails = table(
        (
            "2 % stragglers",
            "jobs",
            "p50",
            "p99 alone",
            "p99 with second runs",
            "shorter by",
            "launched",
            "won",
        ),
        [
            (
                name,
                parts["twice"]["jobs"],
                f"{parts['twice']['p50']:.2f} s",
                f"{parts['alone']['p99']:.2f} s",
                f"{parts['twice']['p99']:.2f} s",
                f"{parts['alone']['p99'] / parts['twice']['p99']:.1f}×",
                parts["twice"]["launched"],
                parts["twice"]["won"],
            )
            for name, parts in figures.items()
        ],
    )
    return f"{splits}\n{tails}"


@contextmanager
def workers(url: str, paces: tuple[float, ...]) -> Iterator[App]:
    """One worker for each pace, all at work; an app to talk to them."""
    command = [sys.executable, "-m", "dray", "-A", "bench.flow.straggler_app:app", "worker", "-p", "1"]
    command += ["-c", str(SLOTS)]
    shared = {"BENCH_BROKER": url, "DRAY_LEASE": "3s", "DRAY_LOG_LEVEL": "error"}
    home = str(Path(__file__).parents[2])
    app = make(url)
    with ExitStack() as stack:
        stack.callback(app.close)
        for pace in paces:
            environment = {**os.environ, **shared, "BENCH_PACE": str(pace), "PYTHONPATH": home}
            worker = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
            stack.callback(worker.wait)
            stack.callback(worker.terminate)
        wait_for(lambda: len([one for one in app.workers.list() if one.tasks]) == len(paces))
        yield app


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("it did not come true in time")
        time.sleep(0.1)


def runs_of(app: App, task: str) -> int:
    told = app.stats().tasks.get(task)
    return 0 if told is None else told.runs


def ended(app: App, ids: list[str]) -> list[JobInfo]:
    wait_for(lambda: not any(app.jobs.find(state=state, limit=1) for state in ("ready", "running")))
    return [app.job(id).info() for id in ids]


def measure_split(url: str, jobs: int) -> dict[str, Any]:
    """All jobs are there before anybody may start: how long until the last one has ended."""
    with workers(url, PACES) as app:
        app.queues.pause("default")
        calls = [app.call("work", number) for number in range(jobs)]
        ids = [job.id for job in app.enqueue_many(calls)]
        app.queues.resume("default")
        infos = ended(app, ids)
        wait_for(lambda: runs_of(app, "work") >= jobs)
        stats = app.stats()
    slow, fast = sorted((told["work"] for told in stats.workers.values()), key=lambda one: one.runs)
    took = (fast.duration.average, slow.duration.average)
    return {
        "jobs": jobs,
        "slow": slow.runs,
        "seconds": span(infos),
        "ideal": jobs / sum(SLOTS / pace for pace in PACES),
        "possible": jobs / sum(SLOTS / seconds for seconds in took),
    }


def span(infos: list[JobInfo]) -> float:
    starts = [info.started_at for info in infos if info.started_at is not None]
    ends = [info.finished_at for info in infos if info.finished_at is not None]
    return (max(ends) - min(starts)).total_seconds()


def measure_tail(url: str, task: str, jobs: int) -> dict[str, Any]:
    """From enqueue to end, where one in fifty straggles in its first run."""
    with workers(url, (USUAL,) * 4) as app:
        warm = [app.call(task, USUAL) for _ in range(WARM)]
        ended(app, [job.id for job in app.enqueue_many(warm)])
        wait_for(lambda: runs_of(app, task) >= WARM)
        every = round(1 / SHARE)
        calls = [app.call(task, STRAGGLES if n % every == 0 else USUAL) for n in range(jobs)]
        infos = ended(app, [job.id for job in app.enqueue_many(calls)])
        time.sleep(2.5)  # the outcomes of second runs are counted a moment later
        stats = app.stats().tasks[task]
    took = [
        (info.finished_at - info.created_at).total_seconds()
        for info in infos
        if info.finished_at is not None and info.created_at is not None
    ]
    return {
        "jobs": jobs,
        "p50": percentile(took, 50),
        "p99": percentile(took, 99),
        "launched": stats.launched,
        "won": stats.won,
        "wasted": stats.wasted,
    }
