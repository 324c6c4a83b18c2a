"""`dray jobs` and `dray why`: look at jobs, and act on them."""

from __future__ import annotations

import json
import shlex
from functools import partial
from typing import Any

import click

from dray.cli.durable import continue_command, rerun_command, say_steps, with_steps
from dray.cli.formatting import JOB_TITLES, job_fields, job_row
from dray.cli.job_selection import (
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
from dray.cli.main import CommandGroup
from dray.cli.open_app import namespace_text, open_store
from dray.cli.output import counted, note, say, say_fields, say_json, show_list
from dray.cli.target import common_options, limit_option, wants_json
from dray.errors import JobNotFound
from dray.job import check_word


@click.group("jobs", cls=CommandGroup)
def jobs_command() -> None:
    """List, show, cancel, retry, rerun, reschedule and delete jobs."""


@jobs_command.command("ls")
@filter_options
@limit_option
@click.option("--cursor", metavar="CURSOR", help="Go on where an earlier list ended, as it said.")
@common_options
def ls(limit: int, cursor: str | None, **where: Any) -> None:
    """List jobs, those that were enqueued last first.

    Without --state, jobs of every state are listed. If there are more than --limit, the last line (on stderr;
    with --json an object of shown, total and cursor) tells how many there are, where that is known, and the
    --cursor to go on with.
    """
    app = open_store()
    chosen = read_filter(where)
    found = app.jobs.find(limit=limit, cursor=cursor, **chosen)
    none = "no jobs" if cursor is None else "no more jobs"
    show_list(
        found, JOB_TITLES, job_row, lambda: f"{none} fit" if chosen else f"{none} in {namespace_text(app)}"
    )
    if found.cursor is not None and len(found) >= limit:
        _note_more(len(found), app.jobs.count(**chosen), found.cursor)


def _note_more(shown: int, total: int | None, cursor: str) -> None:
    if wants_json():
        note(json.dumps({"shown": shown, "total": total, "cursor": cursor}))
        return
    some = counted(shown, "job", "jobs")
    known = f"{some}, not all" if total is None else f"{shown:,} of {counted(total, 'job', 'jobs')}"
    note(f"{known}: --cursor {shlex.quote(cursor)} shows the next, --limit more at once")


@jobs_command.command("show")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@common_options
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
        shown = [with_steps(app, info) for info in infos]
        say_json(shown[0] if len(shown) == 1 else shown)
        return
    for place, info in enumerate(infos):
        if place:
            say("")
        say_fields(job_fields(info))
        if info.log_entries:
            say_steps(app, info.id)


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
@click.option(
    "--force", is_flag=True, help="Stop what runs at once; a job in a process of its own is killed."
)
@change_options
@common_options
def cancel(ids: tuple[str, ...], reason: str, force: bool, **given: Any) -> int:
    """Cancel jobs, by id or by filter.

    What has not started never will; what runs is told to stop. Cancelled jobs are not retried.
    """
    return _change("cancel", ids, given, reason=reason, force=force)


@jobs_command.command("retry")
@_ids
@filter_options
@_everything
@change_options
@common_options
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
@common_options
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
@common_options
def reschedule(ids: tuple[str, ...], delay: str | None, at: str | None, **given: Any) -> int:
    """Set when jobs may start, by id or by filter.

    For jobs that are scheduled, retrying or ready. A time is local unless it has a zone; --delay 0 or a time
    that is past makes them ready now.
    """
    if (delay is None) == (at is None):
        raise click.UsageError("when? Give either --delay or --at")
    return _change("reschedule", ids, given, delay=delay, at=None if at is None else read_time(at))


jobs_command.add_command(continue_command)
jobs_command.add_command(rerun_command)


@click.command("why")
@click.argument("id")
@common_options
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
