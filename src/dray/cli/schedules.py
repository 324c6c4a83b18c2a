"""`dray schedules`: list, create, change, pause, trigger and delete schedules."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click

from dray.cli.enqueue import check_call, option_flags, read_flags, read_keywords, read_value
from dray.cli.main import CommandGroup
from dray.cli.open_app import namespace_text, open_app, open_store
from dray.cli.output import (
    age,
    brief,
    note,
    one_line,
    plain,
    say_fields,
    say_json,
    show_list,
    show_result,
    user_name,
)
from dray.cli.target import common_options, wants_json
from dray.errors import InvalidInput, UnknownTaskWarning
from dray.job import State
from dray.options import SCHEDULE_OPTIONS
from dray.schedules.api import ScheduleInfo
from dray.schedules.decorators import TICK_OPTIONS

F = TypeVar("F", bound=Callable[..., Any])
TITLES = ("SCHEDULE", "TASK", "RULE", "NEXT", "LAST", "RUNS", "STATE", "NOTE")
UPCOMING = 5


@click.group("schedules", cls=CommandGroup)
def schedules_command() -> None:
    """List, make, change, pause, trigger and delete schedules."""


@schedules_command.command("ls")
@common_options
def ls() -> None:
    """List schedules: what they run, when next, when last, and what went wrong."""
    app = open_store()
    show_list(
        app.schedules.list(),
        TITLES,
        _row,
        lambda: f"no schedules in {namespace_text(app)}; those in code appear when a worker starts",
    )


@schedules_command.command("show")
@click.argument("name")
@click.option(
    "--count", type=click.IntRange(0, 100), default=UPCOMING, show_default=True, help="Next runs to show."
)
@common_options
def show(name: str, count: int) -> None:
    """Show everything known of a schedule, and its next runs."""
    info = open_store().schedules.get(name)
    if wants_json():
        say_json(plain(info) | {"upcoming": _upcoming(info, count)})
        return
    say_fields([(label, text) for label, text in _fields(info, count) if text])


def _rule_options(command: F) -> F:
    """The options that `create` and `change` share."""
    command = option_flags(TICK_OPTIONS | SCHEDULE_OPTIONS)(command)
    for option in (
        click.option(
            "-k", "--kwargs", multiple=True, metavar="NAME=VALUE", help="A keyword argument of the jobs."
        ),
        click.option("--every", metavar="DURATION", help="An interval instead: 30s, 5m, 1h30m."),
        click.option("--tz", metavar="ZONE", help="Time zone of --cron, such as Europe/London; else UTC."),
        click.option("--cron", metavar="EXPR", help="Five fields, six with seconds first, or @daily."),
    ):
        command = option(command)
    return command


@schedules_command.command("create")
@click.argument("name")
@click.argument("task")
@click.argument("args", nargs=-1, metavar="[ARG]...")
@_rule_options
@click.option("--unknown", is_flag=True, help="Also if the app has no such task.")
@common_options
def create(name: str, task: str, args: tuple[str, ...], unknown: bool, **given: Any) -> None:
    """Make a schedule NAME that runs TASK by --cron or --every.

    Each ARG is read as JSON; what is not JSON is taken as text, as with `dray enqueue`.
    """
    values, options = [read_value(text) for text in args], _read_options(given)
    app = open_store(must_exist=False) if unknown else open_app()
    if not unknown:
        check_call(app, task, values, options.get("kwargs", {}))
    with warnings.catch_warnings(), _argument_errors():
        warnings.simplefilter("ignore", UnknownTaskWarning)  # --unknown said it
        info = app.schedules.create(name, task, args=values, **options)
    show_result(info, f"schedule {name} is made: {info.description}; {_next(info)}")


@schedules_command.command("change")
@click.argument("name")
@_rule_options
@click.option(
    "--arg", "args", multiple=True, metavar="ARG", help="The jobs' arguments anew; may be repeated."
)
@common_options
def change(name: str, args: tuple[str, ...], **given: Any) -> None:
    """Change what the options say of a schedule, and leave the rest.

    One that the app's code declares is changed there.
    """
    options = _read_options(given)
    if args:
        options["args"] = [read_value(text) for text in args]
    if not options:
        raise click.UsageError("change what? Give --cron, --every or another option")
    app = open_store()
    with _argument_errors():
        info = app.schedules.change(name, **options)
    show_result(info, f"schedule {name} is changed: {info.description}; {_next(info)}")


@schedules_command.command("pause")
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Shown in lists of schedules.")
@common_options
def pause(name: str, reason: str) -> None:
    """Make no jobs of a schedule until it is resumed."""
    info = open_store().schedules.pause(name, reason=reason, by=user_name())
    show_result(info, f"schedule {name} is paused; `dray schedules resume {name}` undoes it")


@schedules_command.command("resume")
@click.argument("name")
@common_options
def resume(name: str) -> None:
    """Undo a pause. What was due meanwhile is not made up for."""
    info = open_store().schedules.resume(name)
    show_result(info, f"schedule {name} goes on; {_next(info)}")


@schedules_command.command("trigger")
@click.argument("name")
@common_options
def trigger(name: str) -> None:
    """Enqueue one job of a schedule now, and print its id. Its next run stays where it is."""
    job = open_store().schedules.trigger(name)
    show_result({"id": job.id, "schedule": name}, job.id)


@schedules_command.command("delete")
@click.argument("name")
@common_options
def delete(name: str) -> None:
    """Forget a schedule. Its jobs stay."""
    app = open_store()
    origin = app.schedules.get(name).origin
    app.schedules.delete(name)
    show_result({"name": name, "deleted": True}, f"schedule {name} is deleted")
    if origin == "code" and not wants_json():
        note("the app's code declares it: it comes back when a worker starts, unless it is taken out there")


@contextmanager
def _argument_errors() -> Iterator[None]:
    """Show arguments that do not fit the task as a message, not as a traceback."""
    try:
        yield
    except TypeError as error:
        raise click.ClickException(str(error)) from error


def _read_options(given: dict[str, Any]) -> dict[str, Any]:
    options = read_flags(given)
    if "kwargs" in options:
        options["kwargs"] = read_keywords(options["kwargs"])
    return options


# rows and fields


def _row(info: ScheduleInfo) -> list[str]:
    state = "paused" if info.paused is not None else ""
    return [
        info.name,
        info.task,
        _rule(info),
        age(info.next_run),
        age(info.last_run),
        str(info.run_count),
        state,
        one_line(_remark(info), 100),
    ]


def _remark(info: ScheduleInfo) -> str:
    if info.last_error is None and info.last_status is State.DEAD:
        return f"its last job is dead: dray jobs show {info.last_job}"
    return info.last_error or info.description


def _rule(info: ScheduleInfo) -> str:
    if info.kind == "every":
        return f"every {info.rule}"
    return info.rule if info.tz == "UTC" else f"{info.rule} {info.tz}"


def _next(info: ScheduleInfo) -> str:
    if info.paused is not None:
        return "it is paused"
    return "it never runs again" if info.next_run is None else f"next run {_stamp(info.next_run, info.tz)}"


def _upcoming(info: ScheduleInfo, count: int) -> list[datetime]:
    try:
        return info.upcoming(count)
    except InvalidInput as error:  # a zone that is known where it was made, but not here
        note(str(error))
        return []


def _stamp(at: datetime | None, tz: str | None) -> str:
    """The time in the zone of the rule, or in UTC where that zone is not known."""
    if at is None:
        return ""
    there = at
    if tz is not None:
        with suppress(ZoneInfoNotFoundError):
            there = at.astimezone(ZoneInfo(tz))
    return f"{there:%Y-%m-%d %H:%M:%S %Z} ({age(at)})"


def _fields(info: ScheduleInfo, count: int) -> list[tuple[str, str]]:
    paused = info.paused
    args = [brief(value, 500) for value in info.args or ()]
    args += [f"{name}={brief(value, 500)}" for name, value in (info.kwargs or {}).items()]
    unreadable = "…" if info.args is None else ", ".join(args)
    pause = "" if paused is None else f"since {_stamp(paused.at, None)} {paused.by} {paused.reason}".rstrip()
    upcoming = [_stamp(at, info.tz) for at in _upcoming(info, count)]
    catch_up = f"{info.catch_up}, up to {info.catch_up_cap}" if info.catch_up == "all" else info.catch_up
    return [
        ("schedule", info.name),
        ("rule", f"{_rule(info)} ({info.description})"),
        ("call", f"{info.task}({unreadable})"),
        ("queue", f"{info.queue}, priority {info.priority}"),
        ("declared", "in code" if info.origin == "code" else "at run time"),
        ("paused", pause),
        ("jitter", f"{info.jitter:g} s" if info.jitter else ""),
        ("catch up", catch_up),
        ("overlap", info.overlap),
        ("runs", str(info.run_count)),
        ("last run", _stamp(info.last_run, info.tz)),
        ("last job", " ".join(filter(None, (info.last_job, info.last_status)))),
        ("last error", info.last_error or ""),
        ("next runs" if len(upcoming) > 1 else "next run", "\n".join(upcoming)),
    ]
