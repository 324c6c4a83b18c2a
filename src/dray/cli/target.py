"""Options that commands share: the app, the broker, the namespace, `--json`, and settings as options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from dray.settings.table import TABLE

F = TypeVar("F", bound=Callable[..., Any])

REACHING: Final = "dray.reaching"
"""In the context's `meta`: the broker's URL, and the time of the first attempt to reach it."""
SETTINGS: Final = {
    "queues": ("-Q", "NAMES"),
    "concurrency": ("-c", "N"),
    "processes": ("-p", "N"),
    "rate": (None, "RATE"),
    "mode": (None, "MODE"),
    "scheduler": (None, "on|off"),
    "tasks": (None, "NAMES"),
    "priorities": (None, "LIST"),
    "max_jobs_per_process": (None, "N"),
    "max_memory": (None, "SIZE"),
    "lease": (None, "DURATION"),
    "stall_limit": (None, "DURATION"),
    "shutdown_grace": (None, "DURATION"),
    "metrics": (None, "HOST:PORT"),
    "http": (None, "HOST:PORT"),
    "grpc": (None, "HOST:PORT"),
    "tls_cert": (None, "FILE"),
    "tls_key": (None, "FILE"),
    "log_level": (None, "LEVEL"),
    "log_format": (None, "FORMAT"),
    "log_output": (None, "WHERE"),
    "log_file": (None, "FILE"),
}
"""Settings that are options of a command → short flag, and the placeholder of the value."""
LOG_SETTINGS: Final = ("log_level", "log_format", "log_output", "log_file")


def add_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """One decorator for several options, in their order."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def setting_options(*names: str) -> Callable[[F], F]:
    """An option for each setting; the settings check the values, all at once."""
    options = []
    for name in names:
        short, metavar = SETTINGS[name]
        flags = [f"--{name.replace('_', '-')}", *([short] if short else [])]
        options.append(click.option(*flags, name, metavar=metavar, help=TABLE[name].help))
    return add_options(*options)


def _remember(ctx: click.Context, param: click.Parameter, value: object) -> None:
    """Keep the value in `meta`, which all contexts share: options stand before or after the command."""
    if value:
        ctx.meta[f"dray.{param.name}"] = value


def _option(*names: str, **more: Any) -> Callable[[F], F]:
    return click.option(*names, expose_value=False, callback=_remember, **more)


target_options = add_options(
    _option(
        "-A", "--app", metavar="MODULE:ATTR", help="The app; else DRAY_APP or `app` in the settings file."
    ),
    _option("--broker", metavar="URL", help="Broker to use instead of the configured one."),
    _option("--namespace", metavar="NAME", help="Namespace on the broker; by default the app's name."),
)
json_option = _option("--json", is_flag=True, help="Print JSON instead of text.")
common_options = add_options(target_options, json_option)
limit_option = click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=50, show_default=True, help="At most so many."
)


def chosen(name: str) -> str | None:
    """The value of `--app`, `--broker` or `--namespace`, anywhere on the command line."""
    value: str | None = click.get_current_context().meta.get(f"dray.{name}")
    return value


def wants_json() -> bool:
    return bool(click.get_current_context().meta.get("dray.json"))
