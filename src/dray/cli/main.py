"""The root command: the list of commands, errors and exit codes.

A command's module is loaded when it is called, so that `dray --help` is quick.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Final, TextIO

import click

from dray.cli.errors import as_json, did_you_mean, error_message, has_json_flag
from dray.cli.output import said_json, say_json
from dray.cli.target import REACHING, json_option, target_options
from dray.errors import BrokerAway, BrokerError, DrayError, InvalidSettings
from dray.settings import hide_password

COMMANDS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Run": {
        "worker": ("worker", "Run a worker."),
        "scheduler": ("worker", "Run schedules and recovery only, no jobs."),
        "server": ("server", "Serve the HTTP API and the dashboard."),
        "dev": ("dev", "Run worker, schedules and dashboard on a laptop."),
        "init": ("init", "Write a starter app."),
        "demo": ("demo", "See it work: a tour that ends by itself."),
    },
    "Jobs": {
        "enqueue": ("enqueue", "Enqueue a job from the shell."),
        "jobs": ("jobs", "List, show, cancel, retry, rerun, reschedule and delete jobs."),
        "send": ("durable", "Send an event to a durable job."),
        "replay": ("replay", "Run the call of a stored job in this process."),
        "why": ("jobs", "Tell why a job stands where it stands."),
        "dead": ("dead", "List, replay and purge dead jobs."),
        "flows": ("flows", "List, show, cancel and retry flows."),
        "history": ("history", "Search what happened to jobs; errors and statistics."),
    },
    "Operate": {
        "queues": ("queues", "List, pause, resume, limit and purge queues."),
        "workers": ("workers", "See who is at work."),
        "top": ("top", "Watch queues, workers, jobs and errors live."),
        "schedules": ("schedules", "List, make, change, pause, trigger and delete schedules."),
        "keys": ("keys", "Make, list and revoke keys of the server."),
    },
    "Check": {
        "doctor": ("doctor", "Find what is wrong or risky, and what to do."),
        "bench": ("bench", "Measure the configured broker quickly."),
    },
}
"""Section → command → the module it is in, and its line in `dray --help`."""

COMMAND_MODULES: Final = {name: entry for section in COMMANDS.values() for name, entry in section.items()}

PIPE_CLOSED: Final = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
INTERRUPTED: Final = 128 + signal.SIGINT


class PipeClosed(Exception):
    """The reader of our output has ended (`dray jobs ls | head`)."""


class CommandGroup(click.Group):
    """A group that suggests the nearest command for a mistyped one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name == "list" and self.get_command(ctx, "ls") is not None:
            args = ["ls", *args[1:]]
        elif not name.startswith("-") and self.get_command(ctx, name) is None:
            hint = did_you_mean(name, self.list_commands(ctx), f"`{ctx.command_path} --help` lists them")
            raise click.UsageError(f"no command is named {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)


class Root(CommandGroup):
    """Finds commands by name and loads their module when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMAND_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMAND_MODULES:
            return None
        module = import_module(f"dray.cli.{COMMAND_MODULES[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMAND_MODULES))
        for section, commands in COMMANDS.items():
            with formatter.section(section):
                formatter.write_dl([(name.ljust(width), entry[1]) for name, entry in commands.items()])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            # Before click handles it and ends with 1, as if something had failed.
            raise PipeClosed from error
        except BrokerError as error:
            url, began = ctx.meta.get(REACHING, (None, 0.0))
            if url is None:
                raise
            raise BrokerUnavailable(error, url, time.monotonic() - began) from error


class BrokerUnavailable(click.ClickException):
    """An error of the broker, with its URL, the time it was tried, and advice."""

    def __init__(self, error: BrokerError, url: str, seconds: float) -> None:
        self.cause = error
        lines = [str(error), f"  broker: {hide_password(url)} (tried for {seconds:.1f} s)"]
        if isinstance(error, BrokerAway):
            lines.append("  is it running and reachable from here? `dray doctor` looks closer;")
            lines.append("  --broker URL or DRAY_BROKER_URL names another one")
        super().__init__("\n".join(lines))


def _print_version(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        click.echo(f"dray {import_module('dray').__version__}")
        ctx.exit()


@click.command(
    cls=Root,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Without -A, commands that look and act (jobs, dead, queues, workers, schedules, doctor) need a "
    "broker only.",
)
@target_options
@json_option
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def cli() -> None:
    """dray: a distributed task queue for Python.

    Settings come from options, DRAY_* variables, dray.toml or [tool.dray] in pyproject.toml.
    """


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 well, 1 failed, 2 called wrongly."""
    _never_fail_to_print(sys.stdout, sys.stderr)
    given = list(sys.argv[1:] if args is None else args)
    said_json.clear()
    with warnings.catch_warnings():
        warnings.showwarning = _WarningPrinter()
        try:
            result = cli.main(args=args, prog_name="dray", standalone_mode=False)
            sys.stdout.flush()
        except (PipeClosed, BrokenPipeError):
            _discard_stdout()
            return PIPE_CLOSED
        except click.exceptions.Exit as end:
            return end.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("dray: stopped", err=True)
            return INTERRUPTED
        except (click.ClickException, DrayError, OSError) as error:
            return _report(error, given)
        except UnicodeEncodeError as error:
            # Bytes of the command line that are not text, and got as far as the broker.
            return _report(click.UsageError(f"{error.object!r} is not text in UTF-8"), given)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _report(error: click.ClickException | DrayError | OSError, args: Sequence[str]) -> int:
    if os.environ.get("DRAY_DEBUG", "") not in ("", "0"):
        traceback.print_exception(error)
    # A group without a command prints its help. Older versions of click do that themselves.
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
        click.echo(str(error), err=True)
        return 2
    if isinstance(error, click.UsageError):
        context = error.ctx
        if context is not None:
            click.echo(context.get_usage(), err=True)
            click.echo(f"`{context.command_path} --help` tells more.\n", err=True)
    text = error_message(error, args)
    if has_json_flag(args) and not said_json:
        say_json(as_json(error, text))
    click.secho(f"dray: {text}", err=True, fg="red", color=False if "NO_COLOR" in os.environ else None)
    if isinstance(error, click.ClickException):
        return error.exit_code
    return 2 if isinstance(error, InvalidSettings) else 1


class _WarningPrinter:
    """Prints a warning as one line, and each text only once; those of user code look as usual."""

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._process, self._usual = os.getpid(), warnings.showwarning

    def __call__(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if os.getpid() != self._process:  # a forked executor
            self._usual(message, category, filename, lineno, file, line)
        elif str(message) not in self._shown:
            self._shown.add(str(message))
            click.echo(f"dray: warning: {message}", err=True)


def _never_fail_to_print(*streams: object) -> None:
    """Print the number of a character that the terminal cannot show, instead of failing."""
    for stream in streams:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _discard_stdout() -> None:
    """Redirect stdout, so that the interpreter's last flush does not fail again."""
    with suppress(OSError, ValueError):
        handle = os.open(os.devnull, os.O_WRONLY)
        os.dup2(handle, sys.stdout.fileno())
        os.close(handle)
