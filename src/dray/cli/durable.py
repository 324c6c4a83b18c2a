"""Durable jobs: `dray send`, `dray jobs continue` and `rerun`, the steps in `dray jobs show`."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from dray.app import App
from dray.cli.errors import CodedError
from dray.cli.job_selection import unknown_job
from dray.cli.open_app import open_store
from dray.cli.output import brief, moment_of, plain, say, say_json, stamp
from dray.cli.target import common_options, wants_json
from dray.durable.steps import StepInfo
from dray.errors import CodecError, JobNotFound
from dray.info import JobInfo
from dray.job import check_word


@click.command("send")
@click.argument("id", metavar="JOB")
@click.argument("event")
@click.argument("value", required=False, metavar="[JSON]")
@click.option("--id", "message", metavar="ID", help="The id of the message: it is sent once only.")
@common_options
def send_command(id: str, event: str, value: str | None, message: str | None) -> int:
    """Send an event to a durable job, which receives it by ctx.event().

    JSON is the value; a text that is no JSON is sent as it is. The job keeps the event until it waits for it.
    """
    check_word("id", id)
    app = open_store()
    try:
        accepted = app.job(id).send(event, _value(value), id=message)
    except JobNotFound:
        raise unknown_job(app, id) from None
    if wants_json():
        say_json({"id": id, "event": event, "accepted": accepted})
    else:
        say(f"sent {event} to {id}" if accepted else f"{event} was sent to {id} before, with this id")
    return 0


def _value(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


@click.command("continue")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@common_options
def continue_command(ids: tuple[str, ...]) -> int:
    """Go on with jobs that are parked because their code has changed.

    What they remember counts as it is; `dray why ID` shows the difference. Ends with 1 if one is not parked.
    """
    app = open_store()
    going = {}
    for id in ids:
        check_word("id", id)
        try:
            going[id] = app.job(id).resume()
        except JobNotFound:
            raise unknown_job(app, id) from None
    if wants_json():
        say_json([{"id": id, "changed": changed} for id, changed in going.items()])
    else:
        for id, changed in going.items():
            say(f"{id} goes on" if changed else f"{id} is not parked")
    return 0 if all(going.values()) else 1


@click.command("rerun")
@click.argument("id")
@click.option("--from", "step", metavar="STEP", help="Keep what it remembers of the steps before this one.")
@click.option("--edit", is_flag=True, help="Change the arguments in an editor before.")
@common_options
def rerun_command(id: str, step: str | None, edit: bool) -> int:
    """Run the call of a job again, as a new job; `dray jobs show` lists the steps."""
    check_word("id", id)
    app = open_store()
    try:
        info = app.job(id).info()
    except JobNotFound:
        raise unknown_job(app, id) from None
    args, kwargs = edited_call(info) if edit else (None, None)
    again = app.job(id).rerun(step=step, args=args, kwargs=kwargs)
    if wants_json():
        say_json({"id": again.id, "rerun_of": id})
    else:
        say(again.id)
    return 0


def edited_call(info: JobInfo) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a job as a person changed them, in the editor."""
    call = {"args": plain(info.args or ()), "kwargs": plain(info.kwargs or {})}
    text = click.edit(json.dumps(call, indent=2) + "\n", extension=".json")
    if text is None:
        raise click.Abort
    try:
        changed = msgspec.json.decode(text, type=_Call)
    except msgspec.MsgspecError as error:
        raise CodedError(f"no object of args and kwargs: {error}", "invalid_args") from None
    return changed.args, changed.kwargs


class _Call(msgspec.Struct, forbid_unknown_fields=True):
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


# steps


def with_steps(app: App, info: JobInfo) -> Any:
    shown = plain(info)
    if info.log_entries:
        shown["steps"] = [_step_json(app, step) for step in app.job(info.id).steps()]
    return shown


def _step_json(app: App, step: StepInfo) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(step)
    shown["value"] = _step_value(app, step)
    shown["at"] = plain(moment_of(step.at))
    shown["until"] = None if step.until is None else plain(moment_of(step.until))
    return shown


def _step_value(app: App, step: StepInfo) -> Any:
    if step.value is None:
        return None
    try:
        return plain(app.codecs.decode_value(step.value))
    except CodecError:
        return "(cannot be read here)"


def say_steps(app: App, id: str) -> None:
    say("steps")
    for step in app.job(id).steps():
        say(f"  {step.id}{step.arguments}  {_step_text(app, step)}")


def _step_text(app: App, step: StepInfo) -> str:
    parts: list[str] = [step.status]
    if step.value is not None:
        parts.append(f"→ {brief(_step_value(app, step), 100)}")
    if step.error is not None:
        parts.append(f"{step.error.type}: {step.error.message}")
    if step.until is not None:
        parts.append(f"until {stamp(moment_of(step.until))}")
    if step.job is not None:
        parts.append(f"as {step.job}")
    if step.undo is not None:
        parts.append(f"undo: {step.undo}")
    return ", ".join(parts)
