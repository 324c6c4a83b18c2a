"""How processes of a worker are started: their command line, and what they are told at birth."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from dray.settings import Settings
from dray.worker.config import DeclareConfig, ExecutorConfig
from dray.worker.executors import Launch, Plan
from dray.worker.pace import Pace


def plan_for(
    app_path: str, settings: Settings, worker: str, *, burst: bool, started: Callable[[], int]
) -> Plan:
    """Executors that run the tasks of an app, found from the folder the worker was started in."""
    folder = str(Path.cwd())
    pace = None if settings.rate is None else Pace.make(settings.rate)

    def plan(number: int, channel: int, pulse: int, stacks: int) -> Launch:
        config = ExecutorConfig(
            app=app_path,
            settings=settings,
            folder=folder,
            worker=worker,
            number=number,
            started=started(),
            burst=burst,
            channel=channel,
            pulse=pulse,
            stacks=stacks,
            pace=None if pace is None else pace.fd,
        )
        shared = () if pace is None else (pace.fd,)
        return Launch(config.command(), {**os.environ, **config.environ()}, shared)

    return plan


def declarer_for(app_path: str, settings: Settings, started: int) -> Launch:
    """A process that writes down the schedules that an app's code declares, and ends."""
    config = DeclareConfig(
        app=app_path, settings=settings, folder=str(Path.cwd()), parent=os.getpid(), started=started
    )
    return Launch(config.command(), {**os.environ, **config.environ()})
