"""Runs the subjects in turns, each with a fresh server and worker, and compares them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers import envs, servers

HERE = Path(__file__).parent
CASES = {"chord": 1000, "chain": 100}
GOALS = {("chord", "celery"): 10.0, ("chain", "celery"): 10.0, ("chain", "bullmq"): 2.0}
"""How many times as fast dray has to be."""
WARM_UP = 3.0
PATIENCE = 300


class Subject:
    """A program that takes part: how its worker and its client are started."""

    def __init__(self, name: str) -> None:
        self.name = name
        if name == "dray":
            python = sys.executable
            self.worker = [python, "-m", "dray", "-A", "subject_dray:app", "worker", "-p", "1", "-c", "100"]
            self.client = [python, "subject_dray.py"]
        elif name == "celery":
            binaries = envs.make("celery") / "bin"
            self.worker = [str(binaries / "celery"), "-A", "subject_celery", "worker", "-l", "error"]
            self.worker += ["--without-gossip", "--without-mingle", "--without-heartbeat", "-O", "fair"]
            self.client = [str(binaries / "python"), "subject_celery.py"]
        else:
            folder = envs.make("bullmq")
            os.environ["NODE_PATH"] = str(folder / "node_modules")
            self.client = ["node", "subject_bullmq.cjs"]
            self.worker = [*self.client, "work"]

    def measure(self, program: str) -> dict[str, float]:
        """Seconds of each case, on a fresh server."""
        with servers.running(program) as server:
            environ = {**os.environ, "BENCH_URL": f"{server.url}/0"}
            with _worker(self.worker, environ):
                return {case: self._client(case, size, environ) for case, size in CASES.items()}

    def _client(self, case: str, size: int, environ: dict[str, str]) -> float:
        command = [*self.client, case, str(size)]
        done = subprocess.run(
            command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        return float(done.stdout.split()[-1])


@contextmanager
def _worker(command: list[str], environ: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        command, cwd=HERE, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    time.sleep(WARM_UP)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def run(rounds: int) -> tuple[str, dict[str, dict[str, float]]]:
    """Markdown, and the best seconds of each subject and case."""
    program = servers.find("redis")
    subjects, absent = _subjects()
    best: dict[str, dict[str, float]] = {subject.name: {} for subject in subjects}
    for _ in range(rounds):
        for subject in subjects:
            for case, seconds in subject.measure(program).items():
                best[subject.name][case] = min(seconds, best[subject.name].get(case, seconds))
    return _table(best, absent), best


def _subjects() -> tuple[list[Subject], dict[str, str]]:
    found, absent = [], {}
    for name in ("dray", "celery", "bullmq"):
        try:
            found.append(Subject(name))
        except envs.NotInstalled as error:
            absent[name] = str(error).splitlines()[-1]
    return found, absent


def _table(best: dict[str, dict[str, float]], absent: dict[str, str]) -> str:
    lines = ["| case | subject | seconds | dray is … times as fast | goal |", "|---|---|--:|--:|--:|"]
    for case, size in CASES.items():
        for name, seconds in best.items():
            ratio = seconds[case] / best["dray"][case]
            goal = GOALS.get((case, name))
            said = "" if goal is None else f"{goal:g} {'met' if ratio >= goal else 'missed'}"
            lines.append(f"| {case} of {size} | {name} | {seconds[case]:.3f} | {ratio:.1f} | {said} |")
    lines += [f"\n{name} did not take part: {why}" for name, why in absent.items()]
    return "\n".join(lines) + "\n"
