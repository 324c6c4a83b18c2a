"""`dray workers`: who is at work."""

from __future__ import annotations

import click

from dray.cli.main import Suggesting
from dray.cli.opening import open_store
from dray.cli.output import note, say_json, say_table
from dray.cli.shapes import WORKER_COLUMNS, worker_json, worker_row
from dray.cli.target import json_option, target_options, wants_json


@click.group("workers", cls=Suggesting)
def workers_command() -> None:
    """See who is at work."""


@workers_command.command("ls")
@target_options
@json_option
def ls() -> None:
    """List the workers that were heard of within two leases."""
    app = open_store()
    found = app.workers.list()
    if wants_json():
        say_json([worker_json(info) for info in found])
    elif found:
        say_table(WORKER_COLUMNS, [worker_row(info) for info in found])
    else:
        note(f"no worker is running in namespace {app.settings.namespace}: start one with `dray worker`")
