"""What a command works on: `-A/--app`, `--broker` and `--namespace`, before or after the command's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

REACHING: Final = "dray.reaching"
"""In the context's `meta`: the broker's URL, and since when it is being reached."""


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """`meta` is shared by all contexts of a call, and the option nearest to the end wins."""
    if value:
        ctx.meta[f"dray.{param.name}"] = value


def _option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, **more)


def target_options(command: F) -> F:
    """Add `-A/--app`, `--broker` and `--namespace`."""
    for option in (
        _option("--namespace", metavar="NAME", help="Namespace on the broker; by default the app's name."),
        _option("--broker", metavar="URL", help="Broker to use instead of the configured one."),
        _option(
            "-A", "--app", metavar="MODULE:ATTR", help="The app; else DRAY_APP or `app` in the settings file."
        ),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Add `--json`."""
    return _option("--json", is_flag=True, help="Print JSON instead of text.")(command)


def chosen(name: str) -> str | None:
    """The value of `app`, `broker` or `namespace`, wherever on the command line it stood."""
    value: str | None = click.get_current_context().meta.get(f"dray.{name}")
    return value


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get("dray.json"))
