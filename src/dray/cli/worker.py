"""`dray worker` and `dray scheduler`: from options to a running worker."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import click

from dray.cli.errors import did_you_mean
from dray.cli.inspect_app import AppFacts, probe
from dray.cli.open_app import needed_app_path, open_store, options
from dray.cli.output import announce, note, say
from dray.cli.target import LOG_SETTINGS, setting_options, target_options
from dray.documents.worker_registry import not_ready
from dray.loading import without_tasks
from dray.settings import Settings, override
from dray.settings.queue_choice import place
from dray.worker import logs
from dray.worker.supervisor.report import Render
from dray.worker.supervisor.supervisor import run_worker
from dray.worker.supervisor.template import Template

OPTIONS: Final = (
    *("queues", "concurrency", "processes", "rate", "mode", "scheduler", "tasks", "priorities"),
    *("max_jobs_per_process", "max_memory", "lease", "stall_limit", "shutdown_grace", "metrics"),
    *LOG_SETTINGS,
)
"""Settings that are options of the command."""
SCHEDULER_OPTIONS: Final = ("lease", "shutdown_grace", "metrics", *LOG_SETTINGS)
quiet_option = click.option(
    "-q", "--quiet", is_flag=True, help="Log warnings and failures only: --log-level warning, no greeting."
)

_log: Final = logging.getLogger("dray.worker")


@click.command("worker")
@setting_options(*OPTIONS)
@click.option("--burst", is_flag=True, help="Stop when nothing is left to run.")
@click.option("--reload", is_flag=True, help="Restart the executors when Python files here change.")
@click.option("--check", is_flag=True, help="Run none: tell whether those of this machine are at work.")
@quiet_option
@target_options
def worker_command(burst: bool, reload: bool, check: bool, quiet: bool, **given: Any) -> int:
    """Run a worker: a supervisor and its executor processes.

    The first SIGTERM or Ctrl-C stops taking jobs and lets running ones finish for the shutdown grace, then
    hands them back; a second one hands them back at once. Lists are separated by commas.

    Without -Q it serves the queues that the app's tasks name, and default, taking turns. -Q high,low serves
    these two, strictly in this order; -Q all, or -Q 'tenant-*', every queue that matches, taking turns. A
    dedicated queue is served only if -Q has its name.
    """
    if check:
        return _check()
    return _run(given, burst=burst, reload=reload, quiet=quiet)


@click.command("scheduler")
@setting_options(*SCHEDULER_OPTIONS)
@quiet_option
@target_options
def scheduler_command(quiet: bool, **given: Any) -> int:
    """Run schedules and recovery only, no jobs: the same as `dray worker --mode scheduler-only`."""
    return _run({**given, "mode": "scheduler-only"}, burst=False, reload=False, quiet=quiet)


def _run(given: dict[str, Any], *, burst: bool, reload: bool, quiet: bool) -> int:
    chosen = options() | {name: value for name, value in given.items() if value is not None}
    if quiet and "log_level" in chosen:
        raise click.UsageError("--quiet means --log-level warning: give one of the two")
    if quiet:
        chosen["log_level"] = "warning"
    path = needed_app_path()
    probed = probe(path)
    loaded = override(probed.loaded, chosen)
    loaded.check_place()
    settings = loaded.settings
    if settings.broker_url.startswith("memory:"):
        raise click.ClickException(
            "memory:// lives inside one process: a worker would never see what others enqueue; "
            "use sqlite:///path (the default) or a server, or `app.testing()` to run jobs in tests"
        )
    if burst and not settings.runs_jobs:
        raise click.ClickException("--burst: mode scheduler-only runs no jobs, and so never ends by itself")
    _check_tasks(settings, probed)
    template = _template(settings)
    logs.set_up(settings, strict=True)
    as_json = settings.log_format == "json"  # then every line is, on both streams
    say_ready: Callable[[str], None] = _log.info if as_json or quiet else announce
    warn: Callable[[str], None] = _log.warning if as_json else note
    if settings.runs_jobs and not probed.tasks:
        warn(f"warning: {without_tasks(path)}")
    _mention_unserved(settings, probed, warn, chosen="queues" in chosen)
    render = None if settings.metrics is None else _renderer()
    return run_worker(
        path, settings, burst=burst, reload=reload, announce=say_ready, render=render, template=template
    )


def _template(settings: Settings) -> Template | None:
    """The process that executors are forked from, before there are log handlers, which they would inherit."""
    made = Template.fork(settings) if settings.runs_jobs else None
    if made is not None:
        click.get_current_context().call_on_close(made.close)
    return made


def _renderer() -> Render:
    try:
        render: Render = import_module("dray.observe.metrics").of_worker
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"--metrics: {error}: `pip install 'dray[server]'` installs what it needs"
        ) from error
    return render


def _check() -> int:
    """`--check`, for health checks of containers."""
    app, host = open_store(), socket.gethostname()
    here = [worker for worker in app.workers.list() if worker.host == host]
    if not here:
        raise click.ClickException(f"no worker of this machine ({host}) was heard of lately")
    now, well = app.now(), True
    for worker in here:
        reason = not_ready(worker, now)
        well = well and reason is None
        say(f"{worker.id}: {'at work' if reason is None else reason}")
    return 0 if well else 1


def _check_tasks(settings: Settings, probed: AppFacts) -> None:
    for name in settings.tasks or ():
        if name not in probed.tasks:
            known = did_you_mean(name, probed.tasks, f"known are: {', '.join(probed.tasks)}")
            raise click.ClickException(f"tasks: the app has no task named {name!r}; {known}")


def _mention_unserved(
    settings: Settings, probed: AppFacts, warn: Callable[[str], None], *, chosen: bool
) -> None:
    """Mention tasks whose queue this worker does not serve, unless `-Q` chose that."""
    if not settings.queues or not settings.runs_jobs or settings.tasks is not None or chosen:
        return
    used = sorted(set(probed.tasks.values()))
    left = [queue for queue in used if place(settings.queues, (), queue) is None]
    if left:
        queues = f"queue{'s' if len(left) > 1 else ''} {', '.join(left)}"
        warn(f"note: this worker does not serve {queues}, which the app's tasks use (-Q)")
