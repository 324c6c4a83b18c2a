"""`dray workers`: list workers, their tasks, and profile one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from dray.cli.formatting import TASK_NUMBERS, TASK_TITLES, WORKER_TITLES, task_row, worker_json, worker_row
from dray.cli.main import CommandGroup
from dray.cli.open_app import namespace_text, open_store
from dray.cli.output import note, say_json, show_list, show_result
from dray.cli.target import common_options, wants_json
from dray.stats.task_stats import TaskStats


@click.group("workers", cls=CommandGroup)
def workers_command() -> None:
    """See who is at work."""


@workers_command.command("ls")
@click.option("--tasks", is_flag=True, help="How each task fares instead, on all workers.")
@click.option(
    "--sort",
    type=click.Choice(["id", "latency"]),
    default="id",
    show_default=True,
    help="latency: the slowest first, beside what the same tasks take on all workers.",
)
@common_options
def ls(tasks: bool, sort: str) -> None:
    """List the workers that were heard of within two leases."""
    app = open_store()
    if tasks:
        none = "no worker has run anything yet in"
        _show_tasks(list(app.stats().tasks.values()), lambda: f"{none} {namespace_text(app)}")
        return
    found, stats = app.workers.list(), app.stats()
    against_others = {info.id: stats.against_crew(info.id) for info in found}
    if sort == "latency":
        found.sort(key=lambda info: (against_others[info.id] or 0.0, info.average or 0.0), reverse=True)
    show_list(
        found,
        WORKER_TITLES,
        lambda info: worker_row(info, against_others[info.id]),
        lambda: f"no worker is running in {namespace_text(app)}: start one with `dray worker`",
        to_json=lambda info: worker_json(info, against_others[info.id]),
    )


@workers_command.command("show")
@click.argument("worker")
@common_options
def show(worker: str) -> None:
    """Show how each task fares on one worker, also for a week after it is gone."""
    app = open_store()
    tasks = app.stats().workers.get(worker)
    if tasks is None:
        raise click.ClickException(f"no worker {worker} has told of any job: see `dray workers ls`")
    if wants_json():
        say_json(tasks)
    else:
        _show_tasks(list(tasks.values()))


@workers_command.command("profile")
@click.argument("worker")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="For how long.")
@click.option("--executor", type=int, metavar="N", help="Which of its executors; by default the busiest.")
@click.option(
    "--svg", type=click.Path(dir_okay=False, writable=True), metavar="FILE", help="Write a flame graph."
)
@common_options
def profile(worker: str, seconds: float, executor: int | None, svg: str | None) -> None:
    """Sample what an executor of a worker does, also while its event loop is blocked."""
    app = open_store()
    note(f"sampling for {seconds:g} s")
    taken = app.workers.profile(worker, seconds=seconds, executor=executor)
    if svg is not None:
        Path(svg).write_text(taken.svg(), "utf-8")
    show_result(taken, taken.text())


def _show_tasks(tasks: Sequence[TaskStats], empty: Callable[[], str] = str) -> None:
    show_list(tasks, TASK_TITLES, task_row, empty, right=TASK_NUMBERS)
