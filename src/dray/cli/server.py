"""`dray server`: from options to a running server."""

from __future__ import annotations

import logging
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click

from dray.cli.open_app import open_app, point
from dray.cli.output import announce, say
from dray.cli.target import LOG_SETTINGS, setting_options, target_options
from dray.settings import override
from dray.worker import logs

OPTIONS: Final = ("http", "grpc", "tls_cert", "tls_key", *LOG_SETTINGS)
PROTO: Final = Path(__file__).parents[1] / "serve" / "proto" / "dray" / "v1" / "dray.proto"


@click.command("server")
@setting_options(*OPTIONS)
@click.option("--proto", is_flag=True, help="Print the .proto of the gRPC service, and end.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Start without keys also where other machines can reach it; once there was a key, it is needed.",
)
@target_options
def server_command(proto: bool, insecure: bool, **given: Any) -> int:
    """Serve the HTTP API, the dashboard at / and, where `dray[grpc]` is installed, gRPC.

    On loopback it is open to everybody on this machine until there is a key (`dray keys`), and never again
    without; any other address needs keys. SIGTERM or Ctrl-C finishes the requests at hand and ends streams; a
    second one ends at once.
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
    logs.set_up(settings, strict=True)
    try:
        serving = import_module("dray.serve.server")
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error}: `pip install 'dray[server]'` installs what it needs") from error
    # With logs in JSON, every line is, as for workers.
    say_ready = logging.getLogger("dray.serve").info if settings.log_format == "json" else announce
    code: int = serving.serve(app, insecure=insecure, announce=say_ready)
    return code
