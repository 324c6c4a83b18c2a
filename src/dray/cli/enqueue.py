"""`dray enqueue`: a job from the shell."""

from __future__ import annotations

import json
import math
import re
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, get_args

import click

from dray.app import App
from dray.cli.errors import CodedError
from dray.cli.job_selection import read_time
from dray.cli.open_app import open_app, open_store
from dray.cli.output import note, say, say_json
from dray.cli.target import common_options, wants_json
from dray.duration import format_duration, parse_duration
from dray.errors import (
    DecodeError,
    JobCancelled,
    JobFailed,
    JobTimeout,
    ResultGone,
    UnknownTask,
    UnknownTaskWarning,
    near_names,
)
from dray.handle import JobHandle
from dray.options import CALL_OPTIONS, RETRIES_MAX, Option
from dray.schedules.schedule import CATCH_UP_MAX, CatchUp, Overlap

F = TypeVar("F", bound=Callable[..., Any])
FAILED, NOT_YET = 1, 3
_FLAGS: Final = {"timeout": "--job-timeout", "tags": "--tag"}
"""Flags that differ from the option: `--timeout` limits the waiting for a result."""
_TYPES: Final[dict[str, click.ParamType[Any]]] = {
    "retries": click.IntRange(0, RETRIES_MAX),
    "catch_up": click.Choice(get_args(CatchUp)),
    "catch_up_cap": click.IntRange(1, CATCH_UP_MAX),
    "overlap": click.Choice(get_args(Overlap)),
}
PATIENCE: Final = 2.0
"""Seconds of waiting before the reason is printed."""


class NegativeNumbers(click.Command):
    """A command whose arguments may be negative numbers, not only options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        valued = {name for option in self.params if _takes_value(option) for name in option.opts}
        marked, before = [], ""
        for place, arg in enumerate(args):
            if arg == "--":
                marked += args[place:]
                break
            number = _NEGATIVE.fullmatch(arg) is not None and before not in valued
            marked.append(_MARK + arg if number else arg)
            before = arg
        return super().parse_args(ctx, marked)


_NEGATIVE: Final = re.compile(r"-([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MARK: Final = "\0"
"""Stands before a negative number while click parses options."""


def _takes_value(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and not option.is_flag


def option_flags(options: Mapping[str, Option]) -> Callable[[F], F]:
    """A flag for each of these options that the command line may set."""

    def decorate(command: F) -> F:
        for option in reversed(list(options.values())):
            if option.metavar:
                flag = _FLAGS.get(option.name, f"--{option.name.replace('_', '-')}")
                several = option.name == "tags"
                command = click.option(
                    *(flag, option.name),
                    type=_TYPES.get(option.name),
                    metavar=None if option.name in _TYPES else option.metavar,
                    multiple=several,
                    help=option.help + (" May be repeated." if several else ""),
                )(command)
        return command

    return decorate


def read_flags(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given by `option_flags`, for `using`."""
    options = {name: value for name, value in given.items() if value not in (None, ())}
    if str(options.get("priority", "")).isdigit():
        options["priority"] = int(options["priority"])
    if "at" in options:
        options["at"] = read_time(options["at"])
    return options


@click.command("enqueue", cls=NegativeNumbers)
@click.argument("task")
@click.argument("args", nargs=-1, metavar="[ARG]...")
@click.option(
    "-k",
    "--kwargs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A keyword argument, or a JSON object of several.",
)
@option_flags(CALL_OPTIONS)
@click.option("--unknown", is_flag=True, help="Enqueue also if the app has no such task.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@click.option(
    "--timeout", "patience", metavar="DURATION", help="With --wait: give up waiting after this time."
)
@common_options
def enqueue_command(
    task: str,
    args: tuple[str, ...],
    kwargs: tuple[str, ...],
    unknown: bool,
    wait: bool,
    patience: str | None,
    **given: Any,
) -> int:
    """Enqueue a job of TASK and print its id.

    Each ARG is read as JSON; what is not JSON is taken as text: `dray enqueue send a@x.org 3 '{"a": 1}'`
    sends a text, a number and an object. Quote twice to send the text "3": '"3"'. Text that begins with a
    dash goes after --; negative numbers need not.

    With --wait, the command prints after two seconds why the job has not ended yet, and again when that
    changes.

    Ends with 0 when it is enqueued (with --wait: when it succeeded), 1 when it failed, 3 when --timeout is
    over before it is finished.
    """
    values = [read_value(text.removeprefix(_MARK)) for text in args]
    named = read_keywords(kwargs)
    options: Any = read_flags(given)
    seconds = None if patience is None else parse_duration("timeout", patience) / 1000
    if seconds is not None and not wait:
        raise click.UsageError("--timeout is for --wait; --job-timeout limits the job itself")
    app = open_store(must_exist=False) if unknown else open_app()
    if not unknown:
        check_call(app, task, values, named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTaskWarning)  # --unknown said it
        job = app.using(**options).enqueue(task, *values, **named)
    return _wait_for_result(job, seconds) if wait else _show_id(job)


def read_value(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        if text[:1] in ("{", "["):
            note(f"{text!r} looks like JSON but is not ({error}): it is taken as text")
        return text


def _refuse(word: str) -> None:
    """NaN and Infinity are not JSON."""
    raise ValueError(word)


def read_keywords(given: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` each, or a JSON object of several."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        whole = read_value(text) if text.lstrip().startswith("{") else None
        if isinstance(whole, dict):
            more = whole
        elif equals and name.isidentifier():
            more = {name: read_value(value)}
        else:
            raise click.BadParameter(f"{text!r} is not name=value or a JSON object", param_hint="--kwargs")
        for name in more:
            if name in found:
                raise click.BadParameter(f"{name} is given twice", param_hint="--kwargs")
        found |= more
    return found


def check_call(app: App, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse a call that would fail in the worker: an unknown task, arguments that do not fit."""
    task = app.tasks.get(name)
    if task is None:
        known = sorted(app.tasks)
        error = UnknownTask(name, near_names(name, known), known)
        raise CodedError(f"{error} (--unknown enqueues it all the same)", "unknown_task")
    try:
        task.hints.check(tuple(args), kwargs)
        app.codecs.decode_call(app.codecs.encode_call(tuple(args), kwargs), task.hints)
    except (TypeError, DecodeError) as error:
        raise CodedError(f"task {name}: {error}", "invalid_arguments") from error


def _show_id(job: JobHandle[Any]) -> int:
    status = job.status()
    if wants_json():
        say_json({"id": job.id, "status": status, "duplicate": job.duplicate})
        return 0
    if job.duplicate:
        note(f"its key or id is taken by a job that is {status}: nothing was enqueued")
    say(job.id)
    return 0


def _result_with_reasons(job: JobHandle[Any], seconds: float | None) -> Any:
    """The result. Meanwhile prints the reason for the waiting whenever it changes."""
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    printed = ""
    while True:
        left = deadline - time.monotonic()
        try:
            return job.get(min(PATIENCE, max(0.0, left)))
        except JobTimeout:
            if seconds is not None and left <= PATIENCE:
                length = format_duration(round(seconds * 1000))
                text = f"job {job.id} was still {job.status()} after {length}; it goes on"
                raise JobTimeout(job.id, text) from None
        why = job.why()
        # Changed numbers (jobs ahead, seconds, progress) are not worth a line.
        if (news := re.sub(r"[0-9]+", "#", why.text)) != printed and not why.status.finished:
            printed = news
            note(f"{job.id} is {why.status}: {why.text}")


def _wait_for_result(job: JobHandle[Any], seconds: float | None) -> int:
    out: dict[str, Any] = {"id": job.id, "duplicate": job.duplicate}
    if not wants_json():
        note(f"{job.id}: waiting")
    code = 0
    try:
        out["result"] = _result_with_reasons(job, seconds)
        if not wants_json():
            say_json(out["result"])
    except ResultGone as error:
        out["no_result"] = str(error)
        note(str(error))
    except JobFailed as error:
        code = FAILED
        out["error"] = {"type": error.type, "message": error.message, "traceback": error.traceback}
        note(f"{error}\n{error.traceback}".rstrip())
    except JobCancelled as error:
        code = FAILED
        note(str(error))
    except JobTimeout as error:
        code = NOT_YET
        note(f"{error}; `dray why {job.id}` tells why")
    if wants_json():
        say_json(out | {"status": job.status()})
    return code
