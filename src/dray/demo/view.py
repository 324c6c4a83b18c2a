"""What a person sees while the demo runs: a live view on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from dray.cli.output import COLORS, harmless, on_terminal
from dray.job import State

STYLES: Final = (
    {"demo": "bold", "put": "blue", "retry": "yellow", "cancel": "magenta", "dead": "red"}
    | dict.fromkeys(("broker", "worker", "progress"), "cyan")
    | dict.fromkeys(("done", "result"), "green")
    | dict.fromkeys(("crash", "kill"), "bold red")
)
BARS: Final = ("scheduled", "ready", "running", "retrying", "succeeded", "cancelled", "dead")


class View(Live):
    """Lines about events and, on a terminal, bars below them. `--json` moves both to stderr."""

    def __init__(self, *, json: bool) -> None:
        stream = sys.stderr if json else sys.stdout
        self._on_terminal = on_terminal(stream)
        self._plain = None if json or self._on_terminal else stream
        self._began = time.monotonic()
        # Where `stream` is no terminal, rich draws nothing at all.
        console = Console(file=stream, highlight=False, force_terminal=self._on_terminal)
        super().__init__(console=console, auto_refresh=False, transient=True, redirect_stdout=False)

    def __exit__(self, *error: Any) -> None:
        self.update("", refresh=True)
        super().__exit__(*error)

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def say(self, label: str, text: str) -> None:
        """Print a line about something that happened."""
        elapsed, text = f"{self.seconds:5.1f}s", harmless(text)
        if self._on_terminal:
            style = STYLES[label]
            self.console.print(_grid([Text(elapsed, "dim"), Text(f"{label:<8}", style), Text(text)]))
        elif self._plain is not None:
            print(f"{elapsed}  {label:<8}  {text}", file=self._plain, flush=True)

    def draw(self, counts: Mapping[State, int], below: str) -> None:
        """Draw the bars again, one per state, and a line below them."""
        rows: list[list[RenderableType]] = []
        for state in map(State, BARS):
            count, color = counts.get(state, 0), COLORS[state]
            bar = ProgressBar(max(sum(counts.values()), 1), count, complete_style=color, finished_style=color)
            rows.append([Text(f"  {state:<9}", color if count else "dim"), bar, Text(f"{count:>4}")])
        self.update(Group(Text(""), _grid(*rows), Text(f"  {below}", "dim")), refresh=True)


def _grid(*rows: list[RenderableType]) -> Table:
    grid = Table.grid(*[Column(overflow="fold") for _ in range(3)], padding=(0, 1))
    for row in rows:
        grid.add_row(*row)
    return grid
