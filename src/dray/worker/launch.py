"""How an executor process is started: its command line, and what it is told at birth."""

from __future__ import annotations

import os
from pathlib import Path

from dray.settings import Settings
from dray.worker.config import ExecutorConfig
from dray.worker.executors import Launch, Plan
from dray.worker.pace import Pace


def plan_for(app_path: str, settings: Settings, worker: str, *, burst: bool) -> Plan:
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
            burst=burst,
            channel=channel,
            pulse=pulse,
            stacks=stacks,
            pace=None if pace is None else pace.fd,
        )
        shared = () if pace is None else (pace.fd,)
        return Launch(config.command(), {**os.environ, **config.environ()}, shared)

    return plan
