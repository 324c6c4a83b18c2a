"""Changes to jobs: by id or by filter, with a dry run, a question before, and progress meanwhile."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar

import click

from dray.app import App
from dray.broker.verbs import PAGE_MAX
from dray.cli.output import note, progress_bar, say, say_json
from dray.cli.target import wants_json
from dray.job import State, check_word, queue_of
from dray.operate import Changed, Progressed

F = TypeVar("F", bound=Callable[..., Any])
STATES = [state.value for state in State if state is not State.NOT_FOUND]
_NEARBY = 2_000
"""How many jobs are looked at for ids like the one that is unknown."""


class Change(Protocol):
    """A change that `operate` makes, bound to what it is made to."""

    def __call__(self, *, dry_run: bool, progress: Progressed | None) -> Changed: ...


def filter_options(command: F) -> F:
    """Add `--state --queue --task --tag --priority --group --key`."""
    for option in reversed(
        (
            click.option("--state", type=click.Choice(STATES), help="Only jobs in this state."),
            click.option("--queue", metavar="NAME", help="Only jobs of this queue."),
            click.option("--task", metavar="NAME", help="Only jobs of this task."),
            click.option("--tag", metavar="TAG", help="Only jobs with this tag."),
            click.option("--priority", metavar="0-9|NAME", help="Only this priority; a name means its band."),
            click.option("--group", metavar="GROUP", help="Only jobs of this group."),
            click.option("--key", metavar="KEY", help="Only jobs with this key."),
        )
    ):
        command = option(command)
    return command


def change_options(command: F) -> F:
    """Add `--dry-run` and `--yes`."""
    command = click.option("-y", "--yes", is_flag=True, help="Do not ask before a change by filter.")(command)
    return click.option("--dry-run", is_flag=True, help="Only tell what would be changed.")(command)


def read_filter(given: dict[str, Any]) -> dict[str, Any]:
    """The filters that were given; a priority as number where it is one."""
    where = {name: value for name, value in given.items() if value is not None}
    priority = where.get("priority")
    if isinstance(priority, str) and priority.isdigit():
        where["priority"] = int(priority)
    return where


def read_time(text: str) -> datetime:
    """A time as people write it; local unless it has a zone."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not a time like 2027-01-31T08:00 or 2027-01-31T08:00+01:00"
        raise click.BadParameter(message, param_hint="--at") from None


def check_selection(ids: Sequence[str], where: dict[str, Any], everything: bool) -> None:
    """Either ids or a filter or, in so many words, everything."""
    for id in ids:
        check_word("id", id)
    if ids and (where or everything):
        raise click.UsageError("give either ids or a filter, not both")
    if not ids and not where and not everything:
        raise click.UsageError("which jobs? Give ids, a filter such as --queue or --state, or --all")


def of_every_state(change: Callable[..., Changed]) -> Change:
    """A change to all jobs there are: `operate` wants a filter, so it is made state by state."""

    def all_of_them(*, dry_run: bool, progress: Progressed | None) -> Changed:
        ids: list[str] = []
        for state in STATES:
            before = len(ids)
            count = None if progress is None else partial(_add, progress, before)
            ids += change(state=state, dry_run=dry_run, progress=count).ids
        return Changed(ids=ids, refused={}, dry_run=dry_run)

    return all_of_them


def _add(progress: Progressed, before: int, done: int) -> None:
    progress(before + done)


def carry_out(verb: str, change: Change, *, dry_run: bool, yes: bool, by_filter: bool) -> int:
    """Make the change (by filter: after telling how much that is, and asking) and say what was done."""
    if by_filter and not dry_run and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"say --yes to {verb} by filter without being asked, or --dry-run to look")
        with progress_bar("counting") as count:
            found = len(change(dry_run=True, progress=count))
        if not found:
            return tell(verb, change(dry_run=True, progress=None))
        click.confirm(f"{verb} {found} job{'s' if found != 1 else ''}?", abort=True, err=True)
    with progress_bar(verb) as count:
        changed = change(dry_run=dry_run, progress=count)
    return tell(verb, changed)


def tell(verb: str, changed: Changed) -> int:
    """What was done, and 1 if something that was named could not be."""
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
    say(f"{would}{verb}: {len(changed)} job{'s' if len(changed) != 1 else ''}")
    for id, reason in list(changed.refused.items())[:20]:
        note(f"  {id}: {reason}")
    if len(changed.refused) > 20:
        note(f"  … and {len(changed.refused) - 20} more were refused")
    return 1 if changed.refused else 0


def unknown_job(app: App, id: str) -> click.ClickException:
    """The error for an id the broker does not know, with ids that look like it."""
    near = _like(id, _some_ids(app, queue_of(id)))
    hint = f"\n  did you mean {' or '.join(near)}?" if near else ""
    return click.ClickException(
        f"no job {id}: it never was, it was deleted, or its record is not kept any more{hint}"
    )


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
    return parts[:3] or difflib.get_close_matches(id, known, n=2, cutoff=0.8)


def unknown_queue(app: App, name: str) -> click.ClickException | None:
    """The error for a queue that nobody has heard of; None if it is known."""
    known = {info.name for info in app.queues.list()}
    known |= {queue for worker in app.workers.list() for queue in worker.queues}
    known |= {task.options.queue or "default" for task in app.tasks.values()}
    if name in known:
        return None
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = (
        f"did you mean {' or '.join(near)}?" if near else f"known are: {', '.join(sorted(known)) or 'none'}"
    )
    return click.ClickException(f"no queue is named {name!r}; {hint} (--new takes it all the same)")
