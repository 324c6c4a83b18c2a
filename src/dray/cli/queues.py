"""`dray queues`: how queues stand; pause, resume, limit and empty them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar, get_args

import click

from dray.app import App
from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import note, say, say_json, say_table
from dray.cli.selection import STATES, carry_out, change_options, unknown_queue
from dray.cli.shapes import limits_text, queue_json, queue_table
from dray.cli.target import json_option, target_options, wants_json
from dray.job import Overflow
from dray.settings.forms import NONE

F = TypeVar("F", bound=Callable[..., Any])


@click.group("queues", cls=Suggesting)
def queues_command() -> None:
    """List, pause, resume, limit and purge queues."""


@queues_command.command("ls")
@target_options
@json_option
def ls() -> None:
    """List queues: jobs by state, the age of the oldest ready one, pauses and limits."""
    app = open_store()
    found = app.queues.list()
    if wants_json():
        say_json([queue_json(info) for info in found])
    elif found:
        say_table(*queue_table(found))
    else:
        note(f"no queue holds a job or a setting in namespace {app.settings.namespace}")


def _scope(command: F) -> F:
    command = click.option("--new", is_flag=True, help="Take a queue that nobody has heard of yet.")(command)
    command = click.option("--task", metavar="NAME", help="Only this task in the queue.")(command)
    return click.argument("queue")(command)


def _known(queue: str, new: bool) -> App:
    app = open_store()
    trouble = None if new else unknown_queue(app, queue)
    if trouble is not None:
        raise trouble
    return app


def _done(app: App, queue: str, text: str) -> None:
    if wants_json():
        say_json(next((queue_json(info) for info in app.queues.list() if info.name == queue), None))
    else:
        say(text)


def _named(queue: str, task: str | None) -> str:
    return f"queue {queue}" if task is None else f"task {task} in queue {queue}"


@queues_command.command("pause")
@_scope
@click.option("--reason", default="", metavar="TEXT", help="Shown to whoever asks why nothing moves.")
@target_options
@json_option
def pause(queue: str, task: str | None, new: bool, reason: str) -> None:
    """Hand out no more jobs of a queue, or of one task in it. Running jobs finish, new ones are accepted."""
    app = _known(queue, new)
    app.queues.pause(queue, task=task, reason=reason, by=user_name())
    _done(app, queue, f"{_named(queue, task)} is paused; `dray queues resume` undoes it")


def user_name() -> str:
    """Who sits at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name for this user id, as in containers
        return ""


@queues_command.command("resume")
@_scope
@target_options
@json_option
def resume(queue: str, task: str | None, new: bool) -> None:
    """Undo a pause."""
    app = _known(queue, new)
    app.queues.resume(queue, task=task)
    _done(app, queue, f"{_named(queue, task)} goes on")


def _or_none(value: str) -> str | None:
    return None if value.lower() in NONE else value


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> list[int | None] | None:
    """In a list, to tell "none" from "not given"."""
    if value is None or value.lower() in NONE:
        return None if value is None else [None]
    if not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r} is not a number from 1, or none")
    return [int(value)]


@queues_command.command("limit")
@_scope
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
    "--group-running", callback=_count, metavar="N|none", help="Jobs of one group that may run at once."
)
@target_options
@json_option
def limit(queue: str, task: str | None, new: bool, **given: Any) -> None:
    """Set limits of a queue, or of one task in it, for all workers at once. `none` takes one back.

    They win over what tasks declare. Without an option the present limits are told. --enqueue-rate,
    --max-ready, --overflow and --group-running are for whole queues only.
    """
    app = _known(queue, new)
    limits = {name: _value(value) for name, value in given.items() if value is not None}
    if limits:
        app.queues.limit(queue, task=task, **limits)
    info = next((info for info in app.queues.list() if info.name == queue), None)
    text = limits_text(info) if info is not None else ""
    _done(app, queue, f"queue {queue}: {text or 'no limits are set here'}")


def _value(given: Any) -> Any:
    return given[0] if isinstance(given, list) else _or_none(given)


@queues_command.command("purge")
@_scope
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state for state in STATES if state != "running"]),
    help="Jobs in this state; may be repeated. By default all that have not started.",
)
@change_options
@target_options
@json_option
def purge(queue: str, task: str | None, new: bool, states: tuple[str, ...], dry_run: bool, yes: bool) -> int:
    """Delete what waits in a queue. What runs goes on; what is finished stays unless --state names it."""
    app = _known(queue, new)
    chosen: dict[str, Any] = {"states": states} if states else {}
    change = partial(app.queues.purge, queue, task=task, **chosen)
    return carry_out("purge", change, dry_run=dry_run, yes=yes, by_filter=True)
