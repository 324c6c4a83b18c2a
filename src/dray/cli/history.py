"""`dray history`: search what happened, statistics over time, errors by fingerprint."""

from __future__ import annotations

import json
import shlex

import click

from dray.cli.main import CommandGroup
from dray.cli.open_app import open_store
from dray.cli.output import age, brief, note, one_line, plain, say, say_fields, say_json, show_list, stamp
from dray.cli.target import common_options, limit_option, wants_json
from dray.history.broker_view import ErrorGroup, TaskSummary
from dray.history.search import Attempt, HistoryJob, JobHistory

JOB_TITLES = ("ID", "TASK", "QUEUE", "STATE", "TRY", "CHANGED", "TOOK", "NOTE")
ERROR_TITLES = ("FINGERPRINT", "COUNT", "24 HOURS", "LAST", "FIRST", "TASK", "ERROR")
STATS_TITLES = ("TASK", "SUCCEEDED", "FAILED", "OTHER", "P50", "P95", "WAIT P95")
ATTEMPT_TITLES = ("RUN", "OUTCOME", "STARTED", "TOOK", "WORKER", "ERROR")
BARS = "▁▂▃▄▅▆▇█"
_window = click.option(
    "--window", metavar="DURATION", default="24h", show_default=True, help="How far back: 1h, 7d."
)


@click.group("history", cls=CommandGroup)
def history_command() -> None:
    """Search what happened to jobs; errors and statistics."""


@history_command.command("search")
@click.argument("query", nargs=-1, metavar="[QUERY]...")
@limit_option
@click.option("--cursor", metavar="CURSOR", help="Go on from an earlier page.")
@common_options
def search(query: tuple[str, ...], limit: int, cursor: str | None) -> None:
    """Find jobs, the newest change first.

    Fields: id task queue state tag key group parent worker type fingerprint error arg.NAME after before, with
    * and ? in tasks and queues; other words are searched for in all texts of a job.

    For example: dray history search 'task:email.*' state:dead 'error:"timed out"' arg.user_id:42 after:1d
    """
    page = open_store().history.search(_joined(query), limit=min(limit, 1000), cursor=cursor)
    show_list(page, JOB_TITLES, job_row, lambda: "nothing fits", right=("TRY", "TOOK"))
    if page.cursor is not None and wants_json():
        note(json.dumps({"shown": len(page), "cursor": page.cursor}))
    elif page.cursor is not None:
        note(f"there are more: --cursor {shlex.quote(page.cursor)} shows the next")


def _joined(query: tuple[str, ...]) -> str:
    """The shell took quotes away: a value with spaces gets them back."""
    return " ".join(map(_quoted, query)) if len(query) > 1 else "".join(query)


def _quoted(part: str) -> str:
    if " " not in part or '"' in part:
        return part
    field, colon, value = part.partition(":")
    return f'{field}:"{value}"' if colon and " " not in field else f'"{part}"'


def job_row(job: HistoryJob) -> list[str]:
    changed = job.finished_at or job.started_at or job.created_at
    error = f"{job.error_type}: {job.error}" if job.error_type else job.reason or job.description
    tries = str(job.attempt)
    return [job.id, job.task, job.queue, job.state, tries, age(changed), _took(job), one_line(error, 80)]


def _took(run: HistoryJob | Attempt) -> str:
    end = run.finished_at if isinstance(run, HistoryJob) else run.ended_at
    return "" if end is None or run.started_at is None else f"{(end - run.started_at).total_seconds():.3f}s"


@history_command.command("show")
@click.argument("id")
@common_options
def show(id: str) -> None:
    """Show one job: its call, its result or error, every attempt and event."""
    found = open_store().history.job(id)
    if wants_json():
        say_json(found)
        return
    for job in found.jobs:
        say_fields(_fields(job))
        say("")
    show_list(found.attempts, ATTEMPT_TITLES, attempt_row, lambda: "no attempts are recorded")
    _say_events(found)


def _fields(job: HistoryJob) -> list[tuple[str, str]]:
    fields = [
        ("id", job.id),
        ("task", job.task),
        ("state", job.state),
        ("reason", job.reason or ""),
        ("queue", job.queue),
        ("created", stamp(job.created_at)),
        ("finished", stamp(job.finished_at)),
        ("arguments", "" if job.args is None else brief(job.args, 2000)),
        ("result", "" if job.result is None else brief(job.result, 2000)),
        ("tags", ", ".join(job.tags)),
        ("error", f"{job.error_type}: {job.error}\n{job.traceback or ''}" if job.error_type else ""),
    ]
    return [(name, value) for name, value in fields if value]


def attempt_row(run: Attempt) -> list[str]:
    error = f"{run.error_type}: {run.error}" if run.error_type else ""
    started = stamp(run.started_at)
    return [str(run.run), run.outcome, started, _took(run), run.worker or "", one_line(error, 80)]


def _say_events(found: JobHistory) -> None:
    say("")
    for event in found.events:
        say(
            f"{event.at:%Y-%m-%d %H:%M:%S.%f}"[:-3]
            + f"  {event.kind}"
            + (f" (run {event.run})" if event.run else "")
        )


@history_command.command("errors")
@_window
@limit_option
@common_options
def errors(window: str, limit: int) -> None:
    """List errors by fingerprint: how often, when first and last."""
    found = open_store().history.errors(window, limit=min(limit, 1000))
    show_list(found, ERROR_TITLES, error_row, lambda: "no errors", right=("COUNT",))
    if found.note:
        note(found.note)


def error_row(group: ErrorGroup) -> list[str]:
    error = one_line(f"{group.type}: {group.message}", 80)
    last, first = age(group.last_seen), age(group.first_seen)
    return [group.fingerprint, f"{group.count:,}", sparkline(group.hours), last, first, group.task, error]


def sparkline(counts: list[int]) -> str:
    """Counts as bars of eight heights.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(" " if not count else BARS[max(0, count * len(BARS) // most - 1)] for count in counts)


@history_command.command("stats")
@_window
@common_options
def stats(window: str) -> None:
    """Count runs of each task within a time, and how long they took."""
    found = open_store().history.stats(window)
    if wants_json():
        say_json(plain(found))
    else:
        show_list(found.tasks, STATS_TITLES, stats_row, lambda: "no run has ended", right=STATS_TITLES[1:])
    if found.note:
        note(found.note)


def stats_row(one: TaskSummary) -> list[str]:
    times = [f"{seconds:.3f}s" for seconds in (one.took_p50, one.took_p95, one.waited_p95)]
    return [one.task, *(f"{count:,}" for count in (one.succeeded, one.failed, one.other)), *times]
