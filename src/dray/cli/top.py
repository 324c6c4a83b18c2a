"""`dray top`: queues, workers, jobs and errors, live in the terminal."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Final

import click
import msgspec

from dray.app import App
from dray.cli.open_app import open_store
from dray.cli.output import on_terminal, user_name
from dray.cli.target import target_options
from dray.cli.top_view import STATES, VIEWS, Screen, Snapshot, View, lines
from dray.errors import DrayError, JobNotFound
from dray.info import JobInfo
from dray.job import State

JOBS_SHOWN: Final = 200
ERRORS_EVERY: Final = 5.0
"""Seconds between readings of errors, which look at many jobs."""
_KEYS: Final = {
    "up": ("\x1b[A", "\x1bOA", "k"),
    "down": ("\x1b[B", "\x1bOB", "j"),
    "pageup": ("\x1b[5~",),
    "pagedown": ("\x1b[6~",),
    "back": ("\x1b", "\x7f"),
    "tab": ("\t",),
    "enter": ("\r", "\n"),
    "q": ("\x03",),
}
_NAMES: Final = {sent: name for name, keys in _KEYS.items() for sent in keys}
"""What a terminal sends → the name of the key."""
_FILTERS: Final = (None, *STATES, State.SUCCEEDED, State.CANCELLED)


@click.command("top")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 60),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Read the broker this often.",
)
@target_options
def top_command(interval: float) -> None:
    """Watch queues, workers, jobs and errors live."""
    if not (on_terminal(sys.stdout) and sys.stdin.isatty()):
        raise click.ClickException(
            "dray top needs a terminal; `dray queues ls`, `dray workers ls` and `dray jobs ls` do not"
        )
    app = open_store()
    Top(app, interval).run()


class Reader:
    """Reads snapshots in a thread, so that keys are answered also while the broker is slow or away."""

    def __init__(self, app: App, screen: Screen, interval: float) -> None:
        self._app, self._screen, self._interval = app, screen, interval
        self.now = Snapshot()
        self.before: Snapshot | None = None
        self._errors_at = float("-inf")
        self._wanted, self._over = threading.Event(), False
        self.changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dray-top", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Read now: the person looks at something else."""
        self._wanted.set()

    def stop(self) -> None:
        self._over = True
        self._wanted.set()
        self._thread.join(2)

    def _run(self) -> None:
        while not self._over:
            try:
                found = self._read()
                if found.at - self.now.at >= self._interval / 2:  # a hurried one is no base for rates
                    self.before = self.now if self.now.at else None
                self.now = found
            except (DrayError, OSError) as error:
                self.now = msgspec.structs.replace(self.now, away=str(error).partition("\n")[0])
            self.changed.set()
            self._wanted.wait(self._interval)
            self._wanted.clear()

    def _read(self) -> Snapshot:
        app, screen, stats = self._app, self._screen, self._app.stats()
        errors = self.now.errors
        if time.monotonic() >= self._errors_at + ERRORS_EVERY:
            errors, self._errors_at = list(app.history.errors("24h", limit=100)), time.monotonic()
        jobs: list[JobInfo] = self.now.jobs
        if screen.view == "jobs":
            jobs = app.jobs.find(limit=JOBS_SHOWN, queue=screen.queue, state=screen.state)
        job, why = None, ""
        if screen.job is not None:
            with contextlib.suppress(JobNotFound):
                handle = app.job(screen.job)
                job, why = handle.info(), str(handle.why())
        return Snapshot(
            at=time.monotonic(),
            queues=app.queues.list(),
            workers=app.workers.list(),
            jobs=list(jobs),
            errors=errors,
            runs=sum(task.runs for task in stats.tasks.values()),
            failed=sum(task.failed for task in stats.tasks.values()),
            job=job,
            why=why,
        )


class Top:
    """Draws snapshots and answers keys."""

    def __init__(self, app: App, interval: float) -> None:
        self._app, self.screen = app, Screen()
        self.reader = Reader(app, self.screen, interval)
        self._title = app.settings.namespace

    def run(self) -> None:
        live = import_module("rich.live").Live
        console = import_module("rich.console").Console()
        self.reader.start()
        try:
            with (
                _single_keys(),
                live(console=console, screen=True, auto_refresh=False, transient=True) as shown,
            ):
                while True:
                    shown.update(self._drawing(console.width, console.height), refresh=True)
                    key = _read_key(0.2)
                    if key is not None and not self.answer(key):
                        return
        finally:
            self.reader.stop()

    def _drawing(self, width: int, height: int) -> object:
        text = import_module("rich.text").Text
        found = lines(self.screen, self.reader.now, self.reader.before, self._title, width, height)
        whole = text("\n".join(found), no_wrap=True, overflow="crop")
        whole.stylize("bold", 0, len(found[0]))
        start = len(found[0]) + len(found[1]) + 2
        whole.stylize("reverse", start, start + len(found[2]))
        return whole

    def answer(self, key: str) -> bool:
        """Do what a key asks for; False ends the view."""
        screen = self.screen
        if screen.asking:
            action, screen.asking = screen.asking, ""
            screen.message = self._act(action) if key == "y" else "nothing was changed"
            return True
        if key == "q":
            return False
        screen.message = ""
        match key:
            case "tab":
                self._show(
                    VIEWS[(VIEWS.index(screen.view) + 1) % len(VIEWS)] if screen.view in VIEWS else "jobs"
                )
            case "1" | "2" | "3" | "4":
                self._show(VIEWS[int(key) - 1])
            case "up" | "down" | "pageup" | "pagedown":
                self._move({"up": -1, "down": 1, "pageup": -10, "pagedown": 10}[key])
            case "enter":
                self._open()
            case "back":
                self._show("jobs" if screen.view == "job" else "queues")
            case "f" if screen.view == "jobs":
                screen.state = _FILTERS[(_FILTERS.index(screen.state) + 1) % len(_FILTERS)]
                self._show("jobs", keep=True)
            case "p" | "c" | "r":
                self._ask(key)
        return True

    def _show(self, view: View, *, keep: bool = False) -> None:
        screen = self.screen
        if view != "jobs" or (screen.view != "job" and not keep):
            screen.queue, screen.state = (screen.queue, screen.state) if view == "job" else (None, None)
        screen.view, screen.row = view, 0
        screen.job = screen.job if view == "job" else None
        self.reader.hurry()

    def _move(self, by: int) -> None:
        now, view = self.reader.now, self.screen.view
        most = 10_000 if view == "job" else len(getattr(now, view)) - 1
        self.screen.row = max(0, min(self.screen.row + by, most))

    def _open(self) -> None:
        screen, now = self.screen, self.reader.now
        if screen.view == "queues" and screen.row < len(now.queues):
            queue = now.queues[screen.row].name
            self._show("jobs")
            screen.queue = queue
        elif screen.view == "workers":
            self._show("jobs")
            screen.state = State.RUNNING
        elif screen.view == "jobs" and screen.row < len(now.jobs):
            self._open_job(now.jobs[screen.row].id)
        elif screen.view == "errors" and screen.row < len(now.errors):
            self._open_job(now.errors[screen.row].last_job)

    def _open_job(self, id: str) -> None:
        self.screen.job = id
        self._show("job")

    def _ask(self, key: str) -> None:
        """Every change is confirmed: a wrong key must not cancel a job."""
        screen, now = self.screen, self.reader.now
        if key == "p" and screen.view == "queues" and screen.row < len(now.queues):
            queue = now.queues[screen.row]
            screen.asking = f"{'pause' if queue.paused is None else 'resume'} {queue.name}"
        elif key in "cr" and (id := self._chosen_job()) is not None:
            screen.asking = f"{'cancel' if key == 'c' else 'retry'} {id}"

    def _chosen_job(self) -> str | None:
        screen, now = self.screen, self.reader.now
        if screen.view == "jobs" and screen.row < len(now.jobs):
            return now.jobs[screen.row].id
        return screen.job if screen.view == "job" else None

    def _act(self, action: str) -> str:
        verb, _, target = action.partition(" ")
        try:
            if verb == "pause":
                self._app.queues.pause(target, by=user_name())
            elif verb == "resume":
                self._app.queues.resume(target)
            else:
                done = getattr(self._app.jobs, verb)([target])
                if target in done.refused:
                    return f"{action}: {done.refused[target]}"
        except DrayError as error:
            return f"{action}: {error}"
        finally:
            self.reader.hurry()
        return f"{action}: done"


@contextlib.contextmanager
def _single_keys() -> Iterator[None]:
    """The terminal hands over each key at once, and does not print it."""
    termios, tty = import_module("termios"), import_module("tty")
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _read_key(timeout: float) -> str | None:
    """The name of the next key, or the key itself; None after the timeout."""
    if not select.select([sys.stdin], [], [], timeout)[0]:
        return None
    text = os.read(sys.stdin.fileno(), 16).decode(errors="replace")
    return _NAMES.get(text, text[:1]) if text else "q"
