"""`dray enqueue`: a job from the shell."""

from __future__ import annotations

import json
import warnings
from difflib import get_close_matches
from typing import Any

import click

from dray.app import App
from dray.cli.opening import open_app, open_store
from dray.cli.output import note, say, say_json
from dray.cli.selection import read_time
from dray.cli.target import json_option, target_options, wants_json
from dray.duration import parse_duration
from dray.errors import (
    DecodeError,
    JobCancelled,
    JobFailed,
    JobTimeout,
    UnknownTask,
    UnknownTaskWarning,
)
from dray.handle import JobHandle

FAILED, NOT_YET = 1, 3


@click.command("enqueue")
@click.argument("task")
@click.argument("args", nargs=-1, metavar="[ARG]...")
@click.option(
    "-k",
    "--kwargs",
    multiple=True,
    metavar="NAME=VALUE",
    help="A keyword argument, or a JSON object of several.",
)
@click.option("--queue", metavar="NAME", help="Another queue than the task's own.")
@click.option("--priority", metavar="0-9|NAME", help="0 runs first; high is 1, normal 5, low 9.")
@click.option("--delay", metavar="DURATION", help="Start no sooner than after this time.")
@click.option(
    "--at", metavar="TIME", help="Start no sooner than then: 2027-01-31T08:00, local unless it has a zone."
)
@click.option("--key", metavar="KEY", help="One unfinished job per key and queue.")
@click.option("--id", metavar="ID", help="The job's id, instead of a generated one.")
@click.option("--group", metavar="GROUP", help="Groups of a queue take turns.")
@click.option("--retries", type=click.IntRange(0, 1_000_000), help="Attempts after the first.")
@click.option("--job-timeout", metavar="DURATION", help="How long the job may run; 0 means no limit.")
@click.option("--ttl", metavar="DURATION", help="Dead as expired if not started within this time.")
@click.option("--once", metavar="DURATION", help="For how long after success the key or id stays taken.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="May be repeated.")
@click.option("--unknown", is_flag=True, help="Enqueue also if the app has no such task.")
@click.option("--wait", is_flag=True, help="Wait for the end and print the result.")
@click.option("--timeout", metavar="DURATION", help="With --wait: give up waiting after this time.")
@target_options
@json_option
def enqueue_command(
    task: str,
    args: tuple[str, ...],
    kwargs: tuple[str, ...],
    unknown: bool,
    wait: bool,
    timeout: str | None,
    **given: Any,
) -> int:
    """Enqueue a job of TASK and print its id.

    Each ARG is read as JSON; what is not JSON is taken as text: `dray enqueue send a@x.org 3 '{"a": 1}'`
    sends a text, a number and an object. Quote twice to send the text "3": '"3"'. What begins with a dash
    goes after --.

    Ends with 0 when it is enqueued (with --wait: when it succeeded), 1 when it failed, 3 when --timeout is
    over before it is finished.
    """
    values = [read_value(text) for text in args]
    named = read_keywords(kwargs)
    options = _options(given)
    seconds = None if timeout is None else parse_duration("timeout", timeout) / 1000
    if seconds is not None and not wait:
        raise click.UsageError("--timeout is for --wait; --job-timeout limits the job itself")
    app = open_store(must_exist=False) if unknown else open_app()
    if not unknown:
        check_call(app, task, values, named)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnknownTaskWarning)  # --unknown said it
        job = app.using(**options).enqueue(task, *values, **named)
    return _result(job, seconds) if wait else _told(job)


def read_value(text: str) -> Any:
    """JSON, or else the text itself."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(word: str) -> None:
    """NaN and Infinity are Python's, not JSON's."""
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


def _options(given: dict[str, Any]) -> Any:
    options = {name: value for name, value in given.items() if value not in (None, ())}
    if "job_timeout" in options:
        options["timeout"] = options.pop("job_timeout")
    if str(options.get("priority", "")).isdigit():
        options["priority"] = int(options["priority"])
    if "at" in options:
        options["at"] = read_time(options["at"])
    return options


def check_call(app: App, name: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    """Refuse here what would fail in the worker: an unknown task, arguments that do not fit."""
    task = app.tasks.get(name)
    if task is None:
        known = sorted(app.tasks)
        error = UnknownTask(name, get_close_matches(name, known, n=2, cutoff=0.5), known)
        raise click.ClickException(f"{error} (--unknown enqueues it all the same)")
    try:
        task.hints.check(tuple(args), kwargs)
        app.codecs.decode_call(app.codecs.encode_call(tuple(args), kwargs), task.hints)
    except (TypeError, DecodeError) as error:
        raise click.ClickException(f"task {name}: {error}") from error


def _told(job: JobHandle[Any]) -> int:
    status = job.status()
    if wants_json():
        say_json({"id": job.id, "status": status, "duplicate": job.duplicate})
        return 0
    if job.duplicate:
        note(f"its key or id is taken by a job that is {status}: nothing was enqueued")
    say(job.id)
    return 0


def _result(job: JobHandle[Any], seconds: float | None) -> int:
    out: dict[str, Any] = {"id": job.id, "duplicate": job.duplicate}
    if not wants_json():
        note(f"{job.id}: waiting")
    code = 0
    try:
        out["result"] = job.get(seconds)
        if not wants_json():
            say_json(out["result"])
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
