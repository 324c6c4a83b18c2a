"""`dray flows`: list flows, draw one, cancel it, run its dead nodes again."""

from __future__ import annotations

from typing import Any

import click

from dray.cli.flow_tree import tree
from dray.cli.main import CommandGroup
from dray.cli.open_app import namespace_text, open_store
from dray.cli.output import age, note, one_line, plain, say, say_json, show_list, show_result
from dray.cli.target import common_options, wants_json
from dray.flows.api import FlowSummary
from dray.flows.handle import FlowHandle
from dray.flows.reading import FlowState
from dray.job import check_word

TITLES = ("ID", "NAME", "STATE", "NODES", "CREATED", "ENDED", "NOTE")
STATES = [state.value for state in FlowState if state is not FlowState.NOT_FOUND]


@click.group("flows", cls=CommandGroup)
def flows_command() -> None:
    """List, show, cancel and retry flows."""


@flows_command.command("ls")
@click.option("--state", type=click.Choice(STATES), help="Only flows in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option("--cursor", help="Go on where an earlier list ended.")
@common_options
def ls(state: str | None, limit: int, cursor: str | None) -> None:
    """List flows, the newest first."""
    app = open_store()
    found, following = app.flows.find(state, limit=limit, cursor=cursor)
    show_list(found, TITLES, _row, lambda: f"no flows in {namespace_text(app)}", right=("NODES",))
    if following is not None:
        note(f"there are more: --cursor {following}")


def _row(flow: FlowSummary) -> list[str]:
    ended = "" if flow.finished_at is None else age(flow.finished_at)
    note_ = one_line(flow.reason or flow.key or "")
    return [flow.id, flow.name, str(flow.status), str(flow.nodes), age(flow.created_at), ended, note_]


def _handle(id: str) -> FlowHandle[Any]:
    return open_store().flows.get(check_word("id", id))


@flows_command.command("show")
@click.argument("id")
@common_options
def show(id: str) -> None:
    """Draw a flow: its nodes, what depends on what, and how each stands."""
    info = _handle(id).info()
    if wants_json():
        say_json(plain(info))
        return
    for line in tree(info):
        say(line)


@flows_command.command("cancel")
@click.argument("id")
@click.option("--reason", default="cancelled", show_default=True, metavar="TEXT", help="Kept with the jobs.")
@common_options
def cancel(id: str, reason: str) -> None:
    """Cancel a flow: what has not started never will, what runs is asked to stop."""
    changed = _handle(id).cancel(reason)
    text = f"flow {id} is cancelled" if changed else f"flow {id} had ended already"
    show_result({"id": id, "changed": changed}, text)


@flows_command.command("retry")
@click.argument("id")
@common_options
def retry(id: str) -> None:
    """Run the dead nodes of a flow again; what was cancelled because of them is revived."""
    changed = _handle(id).retry()
    text = f"the dead nodes of flow {id} run again" if changed else f"flow {id} has nothing to run again"
    show_result({"id": id, "changed": changed}, text)
