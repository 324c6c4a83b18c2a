"""What one sees of the tour while it goes on: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, TextIO

from dray.cli.output import harmless, on_terminal
from dray.job import Progress, State
from dray.roster import ExecutorInfo

STYLES: Final = {
    "demo": "bold",
    "broker": "cyan",
    "worker": "cyan",
    "put": "blue",
    "progress": "cyan",
    "done": "green",
    "result": "green",
    "retry": "yellow",
    "cancel": "magenta",
    "dead": "red",
    "crash": "bold red",
    "kill": "bold red",
}
BARS: Final = {
    State.SCHEDULED: "blue",
    State.READY: "blue",
    State.RUNNING: "cyan",
    State.RETRYING: "yellow",
    State.SUCCEEDED: "green",
    State.CANCELLED: "magenta",
    State.DEAD: "red",
}
"""The states there are bars for, in the order of a job's life."""


class Picture(NamedTuple):
    """How things stand."""

    counts: Mapping[State, int]
    executors: Sequence[ExecutorInfo]
    progress: Mapping[str, Progress]


class View(AbstractContextManager["View"], Protocol):
    """Where the tour shows itself."""

    def say(self, word: str, text: str) -> None:
        """A line about something that happened."""
        ...

    def draw(self, picture: Picture) -> None:
        """How things stand now."""
        ...


def choose_view(*, json: bool, began: float) -> View:
    """With JSON to come, stdout belongs to it: then the view is on stderr, if there is somebody to see it."""
    stream = sys.stderr if json else sys.stdout
    if on_terminal(stream):
        return LiveView(stream, began)
    return SilentView() if json else PlainView(stream, began)


class SilentView:
    """Nobody looks."""

    def __enter__(self) -> SilentView:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, word: str, text: str) -> None:
        return None

    def draw(self, picture: Picture) -> None:
        return None


class PlainView(SilentView):
    """Lines that read well in a log: no control characters, nothing that rewrites itself."""

    def __init__(self, stream: TextIO, began: float) -> None:
        self._stream, self._began = stream, began

    def say(self, word: str, text: str) -> None:
        line = f"{time.monotonic() - self._began:5.1f}s  {word:<8}  {harmless(text)}"
        print(line, file=self._stream, flush=True)


class LiveView:
    """The lines in colour, and below them the picture, drawn again as it changes."""

    def __init__(self, stream: TextIO, began: float) -> None:
        # By name and only here: who has no terminal never pays for loading it.
        self._console: Any = import_module("rich.console").Console(file=stream, highlight=False)
        self._live: Any = import_module("rich.live").Live(
            console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
        )
        self._began = began

    def __enter__(self) -> LiveView:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.update("", refresh=True)
        self._live.stop()

    def say(self, word: str, text: str) -> None:
        line = _grid(3)
        line.add_row(
            _text(f"{time.monotonic() - self._began:5.1f}s", "dim"),
            _text(f"{word:<8}", STYLES.get(word, "")),
            _text(harmless(text)),
        )
        self._console.print(line)

    def draw(self, picture: Picture) -> None:
        total = sum(picture.counts.values())
        bars = _grid(3)
        bar = import_module("rich.progress_bar").ProgressBar
        for state, color in BARS.items():
            count = picture.counts.get(state, 0)
            shown = bar(
                total=max(total, 1), completed=count, width=None, complete_style=color, finished_style=color
            )
            bars.add_row(_text(f"  {state:<9}", color if count else "dim"), shown, _text(f"{count:>4}"))
        lines = [_text(""), bars, _text(f"  {_at_work(picture)}", "dim")]
        self._live.update(import_module("rich.console").Group(*lines), refresh=True)


def _at_work(picture: Picture) -> str:
    """Who runs how much, and how far the long ones are."""
    parts = [f"process {one.pid} runs {one.running}" for one in picture.executors]
    for id, progress in picture.progress.items():
        parts.append(f"{id}: {progress.done:g} of {progress.total or 0:g} ({progress.note})")
    return "  |  ".join(parts) or "no worker yet"


def _grid(columns: int) -> Any:
    grid = import_module("rich.table").Table.grid(padding=(0, 1), expand=False)
    for _ in range(columns):
        grid.add_column(overflow="fold")
    return grid


def _text(text: str, style: str = "") -> Any:
    return import_module("rich.text").Text(text, style=style)
