"""Which workers run schedules, and how the schedules of the code get there when no job is run."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crew import end, until

from dray import App
from dray.schedules.api import ScheduleInfo
from dray.settings import Settings
from dray.worker.duties.duties import duties_of

CODE = """
from dray import App

app = App("shop", broker="sqlite:///{folder}/jobs.db", lease="2s")


@app.every("{every}")
@app.task
def tick() -> None: ...
"""


@pytest.mark.parametrize(
    ("mode", "schedules"),
    [
        ("default", True),
        ("thin", True),
        ("scheduler-only", True),
        ("specialized", False),
        ("job-specialized", False),
    ],
)
def test_the_mode_decides_whether_a_leader_runs_schedules_but_every_leader_does_upkeep(
    mode: Any, schedules: bool
) -> None:
    names = {duty.name for duty in duties_of(Settings(broker_url="", namespace="dray", mode=mode))}
    assert "upkeep" in names
    assert ("scheduling" in names) is schedules


class Shop:
    """`dray scheduler` on an app whose code may change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.app = App("shop", broker=f"sqlite:///{folder}/jobs.db")
        self.write("1s")
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "scheduler"]
        with (folder / "log").open("ab") as log:
            self.scheduler = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, text=True
            )

    def write(self, every: str) -> None:
        (self.folder / "shop.py").write_text(CODE.format(folder=self.folder, every=every))

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def schedule(self) -> ScheduleInfo | None:
        return next(iter(self.app.schedules.list()), None)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.scheduler.kill()
    end(shop.scheduler)
    shop.app.close()


def test_a_scheduler_without_executors_runs_what_its_code_declares_also_when_that_changes(shop: Shop) -> None:
    def has_rule(rule: str) -> bool:
        schedule = shop.schedule()
        return schedule is not None and schedule.rule == rule and schedule.run_count > 1

    until(lambda: has_rule("1s"), lambda: f"ticks\n{shop.log}")
    [worker] = shop.app.workers.list()
    assert (worker.mode, worker.executors, worker.leader) == ("scheduler-only", (), True)
    assert all(job.status == "ready" for job in shop.app.jobs.find(task="tick"))

    (shop.folder / "shop.py").write_text("this is not Python")
    shop.scheduler.send_signal(signal.SIGHUP)
    until(lambda: "were not written down" in shop.log, "the complaint")
    shop.write("2s")
    shop.scheduler.send_signal(signal.SIGHUP)
    until(lambda: has_rule("2s"), lambda: f"the new rule\n{shop.log}")

    shop.scheduler.terminate()
    assert shop.scheduler.wait(60) == 0
