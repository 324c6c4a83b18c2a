"""`dray workers`: who is at work."""

from __future__ import annotations

import click

from dray.app import App
from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import note, say_json, say_table
from dray.cli.shapes import WORKER_COLUMNS, worker_json, worker_row
from dray.cli.shapes_stats import TASK_COLUMNS, task_json, task_row
from dray.cli.target import json_option, target_options, wants_json


@click.group("workers", cls=Suggesting)
def workers_command() -> None:
    """See who is at work."""


@workers_command.command("ls")
@click.option("--tasks", is_flag=True, help="How each task fares instead, on all workers.")
@target_options
@json_option
def ls(tasks: bool) -> None:
    """List the workers that were heard of within two leases."""
    app = open_store()
    if tasks:
        _tasks(app)
        return
    found = app.workers.list()
    if wants_json():
        say_json([worker_json(info) for info in found])
    elif found:
        say_table(WORKER_COLUMNS, [worker_row(info) for info in found])
    else:
        note(f"no worker is running in namespace {app.settings.namespace}: start one with `dray worker`")


@workers_command.command("show")
@click.argument("worker")
@target_options
@json_option
def show(worker: str) -> None:
    """Show how each task fares on one worker, also for a week after it is gone."""
    app = open_store()
    told = app.stats().workers.get(worker)
    if told is None:
        raise click.ClickException(f"no worker {worker} has told of any job: see `dray workers ls`")
    if wants_json():
        say_json({name: task_json(stats) for name, stats in told.items()})
    else:
        say_table(TASK_COLUMNS, [task_row(stats) for stats in told.values()])


def _tasks(app: App) -> None:
    told = app.stats().tasks
    if wants_json():
        say_json([task_json(stats) for stats in told.values()])
    elif told:
        say_table(TASK_COLUMNS, [task_row(stats) for stats in told.values()])
    else:
        note(f"no worker has run anything yet in namespace {app.settings.namespace}")
