"""`dray demo`: a tour of dray; the code is in `dray.demo`."""

from __future__ import annotations

from importlib import import_module

import click

from dray.cli.target import json_option, wants_json


@click.command("demo")
@click.option("--keep", is_flag=True, help="Keep the folder with the jobs, and say how to look into it.")
@click.option("--ui", is_flag=True, help="Keep it, and go on as `dray dev`: with the dashboard on it.")
@json_option
def demo_command(keep: bool, ui: bool) -> int:
    """See it work: a tour that ends by itself.

    A real worker on the embedded broker in a temporary folder gets some hundred jobs: quick, urgent, delayed,
    failing, cancelled, dead, and some whose process is killed under them. Takes about ten seconds and leaves
    nothing behind. Ends with 1 if anything did not go as it must.
    """
    if ui and wants_json():
        raise click.UsageError("--ui is for people: it does not go with --json")
    code: int = import_module("dray.demo").run(keep=keep, json=wants_json(), ui=ui)
    return code
