"""`dray dev`: a worker that reloads, the scheduler and the server with the dashboard, in one command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Final

import click

from dray.cli.inspect_app import probe
from dray.cli.open_app import needed_app_path, options
from dray.cli.output import say
from dray.cli.target import target_options
from dray.settings import override
from dray.worker.supervisor.watchers import CodeChanges

LOOK_EVERY: Final = 1.0
STOP_SECONDS: Final = 15.0
COLORS: Final = {"worker": "cyan", "server": "magenta"}
_JOB: Final = re.compile(r"^(\S+ )(\w+)( +)(dray\.worker: )?(.*)$")
_LEVELS: Final = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red"}


@click.command("dev")
@click.option(
    "--http", default="127.0.0.1:8000", show_default=True, metavar="HOST:PORT", help="The dashboard."
)
@click.option("-c", "--concurrency", default="8", show_default=True, help="Jobs that run at a time.")
@target_options
def dev_command(http: str, concurrency: str) -> int:
    """Run everything on a laptop: a worker, schedules, and the server with the dashboard.

    The worker and the server start anew when Python files here change. Ctrl-C ends all.
    """
    path = needed_app_path()
    if find_spec("uvicorn") is None:
        raise click.ClickException("the dashboard needs more: `pip install 'dray[server]'`")
    loaded = override(probe(path).loaded, options())
    if loaded.settings.broker_url.startswith("memory:"):
        raise click.ClickException("memory:// lives inside one process: use sqlite:///path, the default")
    common = [*_target(path), "--log-level", "info", "--log-output", "stderr"]
    worker = ["worker", "--reload", "-p", "1", "-c", concurrency, *common]
    server = ["server", "--http", http, "--grpc", "127.0.0.1:0", *common]
    say(f"dray dev: app {path}, broker {loaded.settings.broker_url}; Ctrl-C ends all")
    return _run({"worker": worker, "server": server})


def _target(path: str) -> list[str]:
    given = options()
    named = {"--broker": given.get("broker_url"), "--namespace": given.get("namespace")}
    return ["-A", path, *(str(part) for flag, value in named.items() if value for part in (flag, value))]


def _run(commands: dict[str, list[str]]) -> int:
    """Keep all commands running until a signal, or until one of them fails.

    The worker watches the code itself. A server that broken code has ended waits for the next change.
    """
    code, changes = CodeChanges(Path.cwd()), 0
    running = {name: _start(name, command) for name, command in commands.items()}
    try:
        with _signals() as stopped:
            while not stopped.wait(LOOK_EVERY):
                ended = {name for name, process in running.items() if process.poll() is not None}
                if "worker" in ended or (ended and not changes):
                    click.secho(f"dray dev: the {min(ended)} ended: everything stops", err=True, fg="red")
                    return 1
                if changed := code.changed():
                    changes += 1
                    _line("server", f"{changed[0].name} changed: starts anew")
                    _stop([running["server"]])
                    running["server"] = _start("server", commands["server"])
        return 0
    finally:
        _stop(list(running.values()))
        say("dray dev: stopped")


@contextmanager
def _signals() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(name: str, command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a command in a group of its own: Ctrl-C reaches us, and we stop it."""
    process = subprocess.Popen(  # noqa: S603 (our own command)
        [sys.executable, "-m", "dray", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    threading.Thread(target=_pass_on, args=(name, process.stdout), daemon=True).start()
    return process


def _pass_on(name: str, output: IO[str] | None) -> None:
    with output or nullcontext(()) as lines:
        for line in lines:
            _line(name, line.rstrip("\n"))


def _line(name: str, text: str) -> None:
    """One line of a command, its level and outcome in colour on a terminal."""
    if name == "server" and (address := re.search(r"(https?://\S+)/api,", text)):
        text = click.style(f"dashboard: {address[1]}", bold=True)
    elif found := _JOB.match(text):
        color = _LEVELS.get(found[2]) or ("green" if " succeeded in " in text else None)
        text = click.style(found[1], dim=True) + click.style(found[5], fg=color)
    click.echo(f"{click.style(f'{name:>6} │', fg=COLORS[name])} {text}")


def _stop(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    for process in processes:
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
