"""`dray dead`: jobs that will not be retried by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from dray.cli.formatting import DEAD_TITLES, dead_row
from dray.cli.job_selection import carry_out, change_options, check_selection
from dray.cli.main import CommandGroup
from dray.cli.open_app import open_store
from dray.cli.output import note, show_list
from dray.cli.target import add_options, common_options, limit_option


@click.group("dead", cls=CommandGroup)
def dead_command() -> None:
    """List, replay and purge dead jobs."""


_filter_options = add_options(
    click.option("--task", metavar="NAME", help="Only of this task."),
    click.option("--queue", metavar="NAME", help="Only of this queue."),
    click.option("--older", metavar="DURATION", help="Only those that died at least so long ago: 7d, 12h."),
)


@dead_command.command("ls")
@_filter_options
@limit_option
@common_options
def ls(limit: int, **which: Any) -> None:
    """List dead jobs and why they died."""
    app = open_store()
    found = app.dead.list(limit=limit + 1, **which)
    none = "no dead jobs fit" if any(which.values()) else "no dead jobs"
    show_list(found[:limit], DEAD_TITLES, dead_row, lambda: none)
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
@_filter_options
@_everything
@change_options
@common_options
def replay(ids: tuple[str, ...], **given: Any) -> int:
    """Run dead jobs again, by id or by filter, with all their retries."""
    return _change("replay", ids, given)


@dead_command.command("purge")
@_ids
@_filter_options
@_everything
@change_options
@common_options
def purge(ids: tuple[str, ...], **given: Any) -> int:
    """Forget dead jobs, by id or by filter."""
    return _change("purge", ids, given)
