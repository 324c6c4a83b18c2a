"""`dray replay`: the call of a stored job, run in this process."""

from __future__ import annotations

import asyncio
import pdb
import traceback
from typing import Any, Final

import click

from dray.app import App
from dray.cli.durable import edited_call
from dray.cli.job_selection import unknown_job
from dray.cli.open_app import open_app
from dray.cli.output import say, say_json
from dray.cli.target import common_options, wants_json
from dray.job import Record, check_word
from dray.worker.run.replay import FITS, Replayed, replay

_TEXTS: Final = {
    "returned": "it returns {text}",
    "raised": "it raises {text}",
    "new": "{text}; --live runs new steps here",
    "waits": "{text}",
    "differs": "the code has changed: {text}",
}


@click.command("replay")
@click.argument("id")
@click.option(
    "--check",
    is_flag=True,
    help="Only tell whether the code fits the log; ends with 1 if not.",
)
@click.option("--live", is_flag=True, help="Run new steps, too. Their effects are real.")
@click.option("--from", "step", metavar="STEP", help="Forget what it remembers from this step on.")
@click.option("--edit", is_flag=True, help="Change the arguments in an editor before.")
@click.option("--pdb", "debug", is_flag=True, help="After an error, open the debugger where it was raised.")
@common_options
def replay_command(id: str, check: bool, live: bool, step: str | None, edit: bool, debug: bool) -> int:
    """Run the call of a stored job in this process, to look at it.

    Steps that the job remembers return what was recorded. Nothing is written to the broker.
    """
    check_word("id", id)
    if check and (live or edit or debug):
        raise click.UsageError("--check only looks: give it without --live, --edit and --pdb")
    app = open_app()
    payload = None
    if edit:
        args, kwargs = edited_call(app.job(id).info())
        payload = app.codecs.encode_call(tuple(args), kwargs)
    done = asyncio.run(_replay(app, id, live=live, step=step, payload=payload))
    if wants_json():
        say_json(
            {"id": id, "fits": done.kind in FITS, "kind": done.kind, "text": done.text, "steps": done.steps}
        )
    else:
        steps = f"{done.steps} remembered step{'' if done.steps == 1 else 's'}"
        say(f"{steps}; {_TEXTS[done.kind].format(text=done.text)}")
    return _finish(done, check, debug)


def _finish(done: Replayed, check: bool, debug: bool) -> int:
    if done.kind == "raised" and done.error is not None and not check:
        traceback.print_exception(done.error)
        if debug:
            pdb.post_mortem(done.error.__traceback__)
    if check:
        return 0 if done.kind in FITS else 1
    return 1 if done.kind in ("raised", "differs") else 0


async def _replay(app: App, id: str, **how: Any) -> Replayed:
    broker = await app.connect()
    try:
        found: Record | None = (await broker.get([id]))[0]
        if found is None:
            raise unknown_job(app, id)
        return await replay(app, broker, found, **how)
    finally:
        await broker.close()
