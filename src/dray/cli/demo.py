"""`dray demo`: the tour. Everything about it is in `dray.demo`."""

from __future__ import annotations

from importlib import import_module

import click


@click.command("demo", context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def demo_command(args: tuple[str, ...]) -> int:
    """See it work: a tour that ends by itself."""
    code: int = import_module("dray.demo").run(list(args))
    return code
