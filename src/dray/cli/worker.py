"""`dray worker` and `dray scheduler`: from options to a running worker."""

from __future__ import annotations

import difflib
import logging
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, TypeVar

import click

from dray.cli.opening import needed_app_path, open_store, options
from dray.cli.output import note, say
from dray.cli.probe import Probed, probe
from dray.cli.target import target_options
from dray.fitness import unfit
from dray.settings import Settings, override
from dray.settings.table import TABLE
from dray.worker import logs
from dray.worker.supervisor import Render, run_worker

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS: Final = {
    "queues": ("-Q", "NAMES"),
    "concurrency": ("-c", "N"),
    "processes": ("-p", "N"),
    "rate": (None, "RATE"),
    "mode": (None, "MODE"),
    "tasks": (None, "NAMES"),
    "priorities": (None, "LIST"),
    "max_jobs_per_process": (None, "N"),
    "max_memory": (None, "SIZE"),
    "lease": (None, "DURATION"),
    "stall_limit": (None, "DURATION"),
    "shutdown_grace": (None, "DURATION"),
    "metrics": (None, "HOST:PORT"),
    "log_level": (None, "LEVEL"),
    "log_format": (None, "FORMAT"),
}
"""Settings that are options of the command: letter, and what stands for the value."""
SCHEDULER_OPTIONS: Final = ("lease", "shutdown_grace", "metrics", "log_level", "log_format")

_log: Final = logging.getLogger("dray.worker")


def _setting_options(*names: str) -> Callable[[F], F]:
    """An option for each setting; the settings check the values, all at once."""

    def add(command: F) -> F:
        for name in reversed(names):
            letter, metavar = OPTIONS[name]
            flags = [f"--{name.replace('_', '-')}", *([letter] if letter else [])]
            command = click.option(*flags, name, metavar=metavar, help=TABLE[name].help)(command)
        return command

    return add


@click.command("worker")
@_setting_options(*OPTIONS)
@click.option("--burst", is_flag=True, help="Stop when nothing is left to run.")
@click.option("--reload", is_flag=True, help="Restart the executors when Python files here change.")
@click.option("--check", is_flag=True, help="Run none: tell whether those of this machine are at work.")
@target_options
def worker_command(burst: bool, reload: bool, check: bool, **given: Any) -> int:
    """Run a worker: a supervisor and its executor processes.

    The first SIGTERM or Ctrl-C stops taking jobs and lets running ones finish for the shutdown grace, then
    hands them back; a second one hands them back at once. Lists are separated by commas.
    """
    if check:
        return _check()
    return _run(given, burst=burst, reload=reload)


@click.command("scheduler")
@_setting_options(*SCHEDULER_OPTIONS)
@target_options
def scheduler_command(**given: Any) -> int:
    """Run schedules and recovery only, no jobs: the same as `dray worker --mode scheduler-only`."""
    return _run({**given, "mode": "scheduler-only"}, burst=False, reload=False)


def _run(given: dict[str, Any], *, burst: bool, reload: bool) -> int:
    chosen = options() | {name: value for name, value in given.items() if value is not None}
    path = needed_app_path()
    probed = probe(path)
    settings = override(probed.loaded, chosen).settings
    if settings.broker_url.startswith("memory:"):
        raise click.ClickException(
            "memory:// lives inside one process: a worker would never see what others enqueue; "
            "use sqlite:///path (the default) or a server, or `app.testing()` to run jobs in tests"
        )
    if burst and not settings.runs_jobs:
        raise click.ClickException("--burst: mode scheduler-only runs no jobs, and so never ends by itself")
    _check_tasks(settings, probed)
    logs.set_up(settings.log_level, settings.log_format)
    as_json = settings.log_format == "json"  # then every line is, for who reads both streams as one
    tell: Callable[[str], None] = _log.info if as_json else _announce
    _mention_unserved(settings, probed, _log.warning if as_json else note, chosen="queues" in chosen)
    render = None if settings.metrics is None else _renderer()
    return run_worker(path, settings, burst=burst, reload=reload, announce=tell, render=render)


def _renderer() -> Render:
    try:
        render: Render = import_module("dray.observe.metrics").of_worker
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--metrics: {error}: `pip install 'dray[server]'` installs what it needs"
        ) from error
    return render


def _check() -> int:
    """For health checks of containers and the like."""
    app, host = open_store(), socket.gethostname()
    here = [worker for worker in app.workers.list() if worker.host == host]
    if not here:
        raise click.ClickException(f"no worker of this machine ({host}) was heard of lately")
    now, well = app.now(), True
    for worker in here:
        reason = unfit(worker, now)
        well = well and reason is None
        say(f"{worker.id}: {'at work' if reason is None else reason}")
    return 0 if well else 1


def _announce(text: str) -> None:
    """A worker works on also when nobody reads what it says."""
    with suppress(OSError):
        say(text)
        sys.stdout.flush()


def _check_tasks(settings: Settings, probed: Probed) -> None:
    for name in settings.tasks or ():
        if name not in probed.tasks:
            near = difflib.get_close_matches(name, probed.tasks, n=2, cutoff=0.5)
            known = f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(probed.tasks)}"
            raise click.ClickException(f"tasks: the app has no task named {name!r}; {known}")


def _mention_unserved(
    settings: Settings, probed: Probed, tell: Callable[[str], None], *, chosen: bool
) -> None:
    """Tasks whose queue this worker leaves alone: forgotten, unless somebody said `-Q` just now."""
    left = sorted({queue for queue in probed.tasks.values() if queue not in settings.queues})
    if left and settings.runs_jobs and settings.tasks is None and not chosen:
        tell(f"note: this worker does not serve queue {', '.join(left)}, which the app's tasks use (-Q)")
