"""`dray jobs` and `dray why`: look at jobs, and act on them."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import note, say, say_fields, say_json, say_table
from dray.cli.selection import (
    Change,
    carry_out,
    change_options,
    check_selection,
    filter_options,
    of_every_state,
    read_filter,
    read_time,
    unknown_job,
)
from dray.cli.shapes import JOB_COLUMNS, job_fields, job_json, job_row
from dray.cli.target import json_option, target_options, wants_json
from dray.errors import JobNotFound
from dray.job import check_word


@click.group("jobs", cls=Suggesting)
def jobs_command() -> None:
    """List, show, cancel, retry, reschedule and delete jobs."""


@jobs_command.command("ls")
@filter_options
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most so many."
)
@target_options
@json_option
def ls(limit: int, **where: Any) -> None:
    """List jobs, by state and queue.

    Without --state, jobs of every state are listed.
    """
    app = open_store()
    found = app.jobs.find(limit=limit, **read_filter(where))
    if wants_json():
        say_json([job_json(info) for info in found])
    elif found:
        say_table(JOB_COLUMNS, [job_row(info) for info in found])
    else:
        note("no jobs" + (" fit" if read_filter(where) else f" in namespace {app.settings.namespace}"))
    if found.cursor is not None and len(found) >= limit:
        note(f"there are more than these {len(found)}: --limit shows more")


@jobs_command.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@target_options
@json_option
def show(ids: tuple[str, ...]) -> None:
    """Show everything known of jobs: call, state, times, progress, result or error.

    With --json, one id gives an object and several give a list.
    """
    app = open_store()
    infos = []
    for id in ids:
        check_word("id", id)
        try:
            infos.append(app.job(id).info())
        except JobNotFound:
            raise unknown_job(app, id) from None
    if wants_json():
        say_json(job_json(infos[0]) if len(infos) == 1 else [job_json(info) for info in infos])
        return
    for place, info in enumerate(infos):
        if place:
            say("")
        say_fields(job_fields(info))


def _change(verb: str, ids: tuple[str, ...], given: dict[str, Any], **more: Any) -> int:
    dry_run, yes, everything = given.pop("dry_run"), given.pop("yes"), given.pop("everything")
    where = read_filter(given)
    check_selection(ids, where, everything)
    if verb == "retry" and not ids:
        # Retrying also runs succeeded jobs again: by filter that has to be said.
        where.setdefault("state", "dead")
    app = open_store()
    act = partial(getattr(app.jobs, verb), **more)
    by_filter: Change = partial(act, **where) if where else of_every_state(act)
    change = partial(act, list(ids)) if ids else by_filter
    return carry_out(verb, change, dry_run=dry_run, yes=yes, by_filter=not ids)


_everything = click.option("--all", "everything", is_flag=True, help="Every job of the namespace.")
_ids = click.argument("ids", nargs=-1, metavar="[ID]...")


@jobs_command.command("cancel")
@_ids
@filter_options
@_everything
@click.option("--reason", default="cancelled", show_default=True, metavar="TEXT", help="Kept with the job.")
@change_options
@target_options
@json_option
def cancel(ids: tuple[str, ...], reason: str, **given: Any) -> int:
    """Cancel jobs, by id or by filter.

    What has not started never will; what runs is told to stop. Cancelled jobs are not retried.
    """
    return _change("cancel", ids, given, reason=reason)


@jobs_command.command("retry")
@_ids
@filter_options
@_everything
@change_options
@target_options
@json_option
def retry(ids: tuple[str, ...], **given: Any) -> int:
    """Run jobs again, by id or by filter.

    A finished job starts anew with all its retries; a delayed one is made ready now. A filter without --state
    means dead jobs.
    """
    return _change("retry", ids, given)


@jobs_command.command("delete")
@_ids
@filter_options
@_everything
@change_options
@target_options
@json_option
def delete(ids: tuple[str, ...], **given: Any) -> int:
    """Forget jobs, by id or by filter. Running ones are refused: cancel them first."""
    return _change("delete", ids, given)


@jobs_command.command("reschedule")
@_ids
@filter_options
@_everything
@click.option("--delay", metavar="DURATION", help="Start no sooner than after this time, from now.")
@click.option("--at", metavar="TIME", help="Start no sooner than then: 2027-01-31T08:00.")
@change_options
@target_options
@json_option
def reschedule(ids: tuple[str, ...], delay: str | None, at: str | None, **given: Any) -> int:
    """Set when jobs may start, by id or by filter.

    For jobs that are scheduled, retrying or ready. A time is local unless it has a zone; --delay 0 or a time
    that is past makes them ready now.
    """
    if (delay is None) == (at is None):
        raise click.UsageError("when? Give either --delay or --at")
    return _change("reschedule", ids, given, delay=delay, at=None if at is None else read_time(at))


@click.command("why")
@click.argument("id")
@target_options
@json_option
def why_command(id: str) -> int:
    """Tell why a job stands where it stands: what it waits for, who could run it, what went wrong.

    With --json: id, status, code, text, details. Ends with 1 if there is no such job.
    """
    check_word("id", id)
    app = open_store()
    why = app.job(id).why()
    if wants_json():
        say_json(why)
        return 1 if why.code == "not_found" else 0
    if why.code == "not_found":
        raise unknown_job(app, id)
    say(f"{id} is {why.status}: {why.text}")
    return 0
