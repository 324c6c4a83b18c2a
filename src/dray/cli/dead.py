"""`dray dead`: jobs that will not be retried by themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import note, say_json, say_table
from dray.cli.selection import carry_out, change_options, check_selection
from dray.cli.shapes import DEAD_COLUMNS, dead_row, job_json
from dray.cli.target import json_option, target_options, wants_json

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead", cls=Suggesting)
def dead_command() -> None:
    """List, replay and purge dead jobs."""


def _which(command: F) -> F:
    for option in (
        click.option(
            "--older", metavar="DURATION", help="Only those that died at least so long ago: 7d, 12h."
        ),
        click.option("--queue", metavar="NAME", help="Only of this queue."),
        click.option("--task", metavar="NAME", help="Only of this task."),
    ):
        command = option(command)
    return command


@dead_command.command("ls")
@_which
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most so many."
)
@target_options
@json_option
def ls(limit: int, **which: Any) -> None:
    """List dead jobs and why they died."""
    app = open_store()
    found = app.dead.list(limit=limit + 1, **which)
    if wants_json():
        say_json([job_json(info) for info in found[:limit]])
    elif found:
        say_table(DEAD_COLUMNS, [dead_row(info) for info in found[:limit]])
    else:
        note("no dead jobs" + (" fit" if any(which.values()) else ""))
    if len(found) > limit:
        note(f"there are more than these {limit}: --limit shows more")


def _change(verb: str, ids: tuple[str, ...], given: dict[str, Any]) -> int:
    dry_run, yes, everything = given.pop("dry_run"), given.pop("yes"), given.pop("everything")
    which = {name: value for name, value in given.items() if value is not None}
    check_selection(ids, which, everything)
    app = open_store()
    change = getattr(app.dead, verb)
    change = partial(change, list(ids)) if ids else partial(change, **which)
    return carry_out(verb, change, dry_run=dry_run, yes=yes, by_filter=not ids)


_everything = click.option("--all", "everything", is_flag=True, help="Every dead job of the namespace.")
_ids = click.argument("ids", nargs=-1, metavar="[ID]...")


@dead_command.command("replay")
@_ids
@_which
@_everything
@change_options
@target_options
@json_option
def replay(ids: tuple[str, ...], **given: Any) -> int:
    """Run dead jobs again, by id or by filter, with all their retries."""
    return _change("replay", ids, given)


@dead_command.command("purge")
@_ids
@_which
@_everything
@change_options
@target_options
@json_option
def purge(ids: tuple[str, ...], **given: Any) -> int:
    """Forget dead jobs, by id or by filter."""
    return _change("purge", ids, given)
