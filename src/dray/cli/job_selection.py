"""Changes to jobs by id or by filter: dry run, confirmation, progress, and the report."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol

import click

from dray.admin.selection import ChangeResult, OnProgress
from dray.app import App
from dray.broker.verbs import PAGE_MAX
from dray.cli.errors import CodedError, did_you_mean
from dray.cli.output import counted, note, progress_bar, say, say_json
from dray.cli.target import add_options, wants_json
from dray.duration import parse_duration
from dray.errors import InvalidInput, near_names
from dray.job import State, check_word, queue_of
from dray.settings.queue_choice import is_pattern

STATES = [state.value for state in State if state is not State.NOT_FOUND]
_NEARBY = 2_000
"""Jobs that are searched for ids like an unknown one."""


class Change(Protocol):
    """A change of the admin API, bound to its jobs."""

    def __call__(self, *, dry_run: bool, progress: OnProgress | None) -> ChangeResult: ...


filter_options = add_options(
    click.option("--state", type=click.Choice(STATES), help="Only jobs in this state."),
    click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
    click.option("--task", metavar="NAME", help="Only jobs of this task."),
    click.option("--tag", metavar="TAG", help="Only jobs with this tag."),
    click.option("--priority", metavar="0-9|NAME", help="Only this priority; a name means its band."),
    click.option("--group", metavar="GROUP", help="Only jobs of this group."),
    click.option("--key", metavar="KEY", help="Only jobs with this key."),
    click.option("--parent", metavar="ID", help="Only jobs that this job enqueued."),
    click.option(
        "--since",
        metavar="DURATION|TIME",
        help="Only jobs created since then: 30m, 2d, or 2027-01-31T08:00.",
    ),
)
change_options = add_options(
    click.option("--dry-run", is_flag=True, help="Only tell what would be changed."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask before a change by filter."),
)


def read_filter(given: dict[str, Any]) -> dict[str, Any]:
    """The filters that were given; a priority as number where it is one."""
    where = {name: value for name, value in given.items() if value is not None}
    priority = where.get("priority")
    if isinstance(priority, str) and priority.isdigit():
        where["priority"] = int(priority)
    if "since" in where:
        where["since"] = _read_since(where["since"])
    return where


def _read_since(text: str) -> str | datetime:
    """A duration before now, or a time."""
    try:
        parse_duration("since", text)
        return text
    except InvalidInput:
        return read_time(text, "--since", "a duration like 30m, or ")


def read_time(text: str, option: str = "--at", or_else: str = "") -> datetime:
    """A time as people write it; local unless it has a zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not {or_else}a time like 2027-01-31T08:00 or 2027-01-31T08:00+01:00"
        raise click.BadParameter(message, param_hint=option) from None


def check_selection(ids: Sequence[str], where: dict[str, Any], everything: bool) -> None:
    """Exactly one of: ids, a filter, `--all`."""
    for id in ids:
        check_word("id", id)
    if ids and (where or everything):
        raise click.UsageError("give either ids or a filter, not both")
    if not ids and not where and not everything:
        raise click.UsageError("which jobs? Give ids, a filter such as --queue or --state, or --all")


def of_every_state(change: Callable[..., ChangeResult]) -> Change:
    """A change to all jobs, made state by state, because the admin API requires a filter."""

    def all_of_them(*, dry_run: bool, progress: OnProgress | None) -> ChangeResult:
        ids: list[str] = []
        for state in STATES:
            before = len(ids)
            count = None if progress is None else partial(_add, progress, before)
            ids += change(state=state, dry_run=dry_run, progress=count).ids
        return ChangeResult(ids=ids, refused={}, dry_run=dry_run)

    return all_of_them


def _add(progress: OnProgress, before: int, done: int) -> None:
    progress(before + done)


def carry_out(verb: str, change: Change, *, dry_run: bool, yes: bool, by_filter: bool) -> int:
    """Make the change and print it; by filter only after a confirmation that names the number of jobs."""
    if by_filter and not dry_run and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"say --yes to {verb} by filter without being asked, or --dry-run to look")
        with progress_bar("counting") as count:
            found = len(change(dry_run=True, progress=count))
        if not found:
            return _report(verb, change(dry_run=True, progress=None))
        click.confirm(f"{verb} {counted(found, 'job', 'jobs')}?", abort=True, err=True)
    with progress_bar(verb) as count:
        changed = change(dry_run=dry_run, progress=count)
    return _report(verb, changed)


def _report(verb: str, changed: ChangeResult) -> int:
    """Print the changes; the exit code is 1 if a named job was refused."""
    if wants_json():
        say_json(
            {
                "changed": len(changed),
                "ids": changed.ids,
                "refused": changed.refused,
                "dry_run": changed.dry_run,
            }
        )
        return 1 if changed.refused else 0
    would = "would " if changed.dry_run else ""
    say(f"{would}{verb}: {len(changed)} {'job' if len(changed) == 1 else 'jobs'}")
    for id, reason in list(changed.refused.items())[:20]:
        note(f"  {id}: {reason}")
    if len(changed.refused) > 20:
        note(f"  … and {counted(len(changed.refused) - 20, 'more was', 'more were')} refused")
    return 1 if changed.refused else 0


def unknown_job(app: App, id: str) -> click.ClickException:
    """The error for an unknown id, with similar ids."""
    near = _like(id, _some_ids(app, queue_of(id)))
    hint = f"\n  did you mean {' or '.join(near)}?" if near else ""
    text = f"no job {id}: it never was, it was deleted, or its record is not kept any more{hint}"
    return CodedError(text, "job_not_found")


def _some_ids(app: App, queue: str | None) -> Iterable[str]:
    cursor, seen = None, 0
    while seen < _NEARBY:
        found = app.jobs.find(queue=queue, limit=min(PAGE_MAX, _NEARBY), cursor=cursor)
        yield from (info.id for info in found)
        seen += PAGE_MAX
        cursor = found.cursor
        if cursor is None:
            return


def _like(id: str, known: Iterable[str]) -> list[str]:
    known = list(known)
    parts = [other for other in known if len(id) >= 4 and id in other]
    return parts[:3] or near_names(id, known, 2, 0.8)


def check_queue(app: App, name: str) -> None:
    """Refuse a queue that has no jobs, no settings, no worker and no task."""
    known = {info.name for info in app.queues.list()}
    served = {queue for worker in app.workers.list() for queue in worker.queues}
    known |= {queue for queue in served if not is_pattern(queue)}
    known |= {task.options.queue or "default" for task in app.tasks.values()}
    if name in known:
        return
    hint = did_you_mean(name, known, f"known are: {', '.join(sorted(known)) or 'none'}")
    raise CodedError(f"no queue is named {name!r}; {hint} (--new takes it all the same)", "unknown_queue")
