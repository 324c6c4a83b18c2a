"""`dray queues`: list queues; pause, resume, limit and purge them."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import click

from dray.app import App
from dray.cli.formatting import QUEUE_TITLES, limits_text, queue_json, queue_row, shown_states
from dray.cli.job_selection import STATES, carry_out, change_options, check_queue
from dray.cli.main import CommandGroup
from dray.cli.open_app import namespace_text, open_store
from dray.cli.output import note, show_list, show_result, user_name
from dray.cli.target import add_options, common_options, wants_json
from dray.documents.queue_state import describe_unserved, unserved
from dray.job import Overflow
from dray.settings.forms import NONE


@click.group("queues", cls=CommandGroup)
def queues_command() -> None:
    """List, pause, resume, limit and purge queues."""


@queues_command.command("ls")
@common_options
def ls() -> None:
    """List queues: jobs by state, the age of the oldest ready one, workers, pauses and limits."""
    app = open_store()
    found, workers = app.queues.list(), app.workers.list()
    states = shown_states(found)
    counts = [state.upper() for state in states]
    show_list(
        found,
        ["QUEUE", *counts, *QUEUE_TITLES],
        lambda info: queue_row(info, workers, states),
        lambda: f"no queue holds a job or a setting in {namespace_text(app)}",
        to_json=lambda info: queue_json(info, workers),
        right=counts,
    )
    for info in unserved(found, workers):
        note(describe_unserved(info, workers))


_scope_options = add_options(
    click.argument("queue"),
    click.option("--task", metavar="NAME", help="Only this task in the queue."),
    click.option("--new", is_flag=True, help="Also for a queue that the broker does not know yet."),
)


def _open(queue: str, new: bool) -> App:
    app = open_store()
    if not new:
        check_queue(app, queue)
    return app


def _show(app: App, queue: str, text: str) -> None:
    found = [info for info in app.queues.list() if info.name == queue] if wants_json() else []
    show_result(queue_json(found[0], app.workers.list()) if found else None, text)


def _named(queue: str, task: str | None) -> str:
    return f"queue {queue}" if task is None else f"task {task} in queue {queue}"


@queues_command.command("pause")
@_scope_options
@click.option("--reason", default="", metavar="TEXT", help="Shown by `dray why` and in lists.")
@common_options
def pause(queue: str, task: str | None, new: bool, reason: str) -> None:
    """Hand out no more jobs of a queue, or of one task in it. Running jobs finish, new ones are accepted."""
    app = _open(queue, new)
    app.queues.pause(queue, task=task, reason=reason, by=user_name())
    _show(app, queue, f"{_named(queue, task)} is paused; `dray queues resume` undoes it")


@queues_command.command("resume")
@_scope_options
@common_options
def resume(queue: str, task: str | None, new: bool) -> None:
    """Undo a pause."""
    app = _open(queue, new)
    app.queues.resume(queue, task=task)
    _show(app, queue, f"{_named(queue, task)} goes on")


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int | None] | None:
    """A count in a list, which distinguishes "none" from "not given"."""
    if value is None or value.lower() in NONE:
        return None if value is None else [None]
    if not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a number from 1, or none")
    return [int(value)]


@queues_command.command("limit")
@_scope_options
@click.option("--rate", metavar="RATE|none", help="Starts per time: 100/m, 5/s, 1000/h+50 (with a burst).")
@click.option(
    "--enqueue-rate",
    metavar="RATE|none",
    help="Jobs accepted per time; more are refused, or wait (--overflow).",
)
@click.option(
    "--max-running", callback=_count, metavar="N|none", help="Jobs that may run at once, on all workers."
)
@click.option(
    "--max-ready", callback=_count, metavar="N|none", help="Jobs that may be ready; more are refused."
)
@click.option(
    "--overflow",
    type=click.Choice([*get_args(Overflow), "none"]),
    help="What becomes of jobs beyond --max-ready; `wait` is for --enqueue-rate as well.",
)
@click.option(
    "--dedicated/--not-dedicated",
    default=None,
    help="Served only by workers whose -Q has its name; or by any again.",
)
@click.option(
    "--group-running", callback=_count, metavar="N|none", help="Jobs of one group that may run at once."
)
@common_options
def limit(queue: str, task: str | None, new: bool, **given: Any) -> None:
    """Set limits of a queue, or of one task in it, for all workers at once. `none` takes one back.

    They win over what tasks declare. Without an option the present limits are told. --enqueue-rate,
    --max-ready, --overflow, --group-running and --dedicated are for whole queues only.
    """
    app = _open(queue, new)
    limits = {name: _value(value) for name, value in given.items() if value is not None}
    if limits:
        app.queues.limit(queue, task=task, **limits)
    info = next((info for info in app.queues.list() if info.name == queue), None)
    text = limits_text(info) if info is not None else ""
    _show(app, queue, f"queue {queue}: {text or 'no limits are set here'}")


def _value(given: Any) -> Any:
    if isinstance(given, list):
        return given[0]
    return None if isinstance(given, str) and given.lower() in NONE else given


@queues_command.command("purge")
@_scope_options
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state for state in STATES if state != "running"]),
    help="Jobs in this state; may be repeated. By default all that have not started.",
)
@change_options
@common_options
def purge(queue: str, task: str | None, new: bool, states: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Delete what waits in a queue. What runs goes on; what is finished stays unless --state names it."""
    app = _open(queue, new)
    chosen: dict[str, Any] = {"states": states} if states else {}
    change = partial(app.queues.purge, queue, task=task, **chosen)
    return carry_out("purge", change, dry_run=dry_run, yes=yes, by_filter=True)
