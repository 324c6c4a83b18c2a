"""`dray server`: from options to a running server."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from dray.cli.opening import open_app, point
from dray.cli.output import say
from dray.cli.target import target_options
from dray.settings import override
from dray.settings.table import TABLE
from dray.worker import logs

OPTIONS: Final = {
    "http": "HOST:PORT",
    "grpc": "HOST:PORT",
    "tls_cert": "FILE",
    "tls_key": "FILE",
    "log_level": "LEVEL",
    "log_format": "FORMAT",
}
"""Settings that are options of the command, and what stands for the value."""
PROTO: Final = Path(__file__).parents[1] / "serve" / "proto" / "dray" / "v1" / "dray.proto"


def _setting_options(command: Any) -> Any:
    for name, metavar in reversed(OPTIONS.items()):
        flag = f"--{name.replace('_', '-')}"
        command = click.option(flag, name, metavar=metavar, help=TABLE[name].help)(command)
    return command


@click.command("server")
@_setting_options
@click.option("--proto", is_flag=True, help="Print the .proto of the gRPC service, and end.")
@click.option("--insecure", is_flag=True, help="Start without keys also where other machines can reach it.")
@target_options
def server_command(proto: bool, insecure: bool, **given: Any) -> int:
    """Serve the HTTP API and, where `dray[grpc]` is installed, gRPC.

    On loopback it is open to everybody on this machine as long as there are no keys (`dray keys`); any other
    address needs some. SIGTERM or Ctrl-C finishes the requests at hand and ends streams; a second one ends at
    once.
    """
    if proto:
        say(PROTO.read_text("utf-8").rstrip())
        return 0
    chosen = {name: value for name, value in given.items() if value is not None}
    app = open_app()
    if chosen:
        point(app, override(app.loaded, chosen))
    settings = app.settings
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    logs.set_up(settings.log_level, settings.log_format)
    try:
        serving = import_module("dray.serve.server")
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: `pip install 'dray[server]'` installs what it needs") from error
    # as for workers: with logs in JSON, every line is
    tell = logging.getLogger("dray.serve").info if settings.log_format == "json" else _announce
    code: int = serving.serve(app, insecure=insecure, announce=tell)
    return code


def _announce(text: str) -> None:
    """A server goes on also when nobody reads what it says."""
    with suppress(OSError):
        say(text)
        sys.stdout.flush()
