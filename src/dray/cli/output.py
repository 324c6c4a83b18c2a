"""How results are shown: tables and bars on a terminal, plain aligned text elsewhere, JSON when asked for.

Text that comes from jobs is made harmless first: control characters could rewrite a terminal.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Final, TextIO

import click
import msgspec

from dray.duration import DAY, HOUR, MINUTE, SECOND
from dray.info import plain as plain

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_COLORS: Final = {
    "ok": "green",
    "succeeded": "green",
    "running": "cyan",
    "ready": "blue",
    "scheduled": "blue",
    "retrying": "yellow",
    "stopping": "yellow",
    "paused": "yellow",
    "warn": "yellow",
    "cancelled": "magenta",
    "dead": "red",
    "fail": "red",
}


LAST_COLUMN: Final = 20
"""Characters that the last column of a table gets at least."""


class Column(msgspec.Struct, frozen=True):
    title: str
    right: bool = False


def harmless(text: str) -> str:
    """Control characters as escapes, so that nothing from a job acts on the terminal."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def one_line(text: str, most: int = 60) -> str:
    """The text on one line, cut to `most` characters."""
    text = harmless(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"


def say(text: str) -> None:
    """A line of the command's result."""
    click.echo(harmless(text))


def note(text: str) -> None:
    """A remark to the person at the terminal: on stderr, so that results can be piped."""
    with suppress(OSError):  # nobody reads remarks: that is no reason to fail
        click.echo(harmless(text), err=True)


def on_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


# JSON


def say_json(value: object) -> None:
    """The value as JSON, one document."""
    plain_text = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=plain_text, allow_nan=False))


def brief(value: object, most: int = 60) -> str:
    """A value on one line, as JSON."""
    return one_line(json.dumps(plain(value), ensure_ascii=False), most)


# tables


def say_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Rows under titles. Nothing is cut unless the terminal is too narrow."""
    if on_terminal(sys.stdout):
        _rich_table(columns, rows)
        return
    lines = [[column.title for column in columns], *[[harmless(cell) for cell in row] for row in rows]]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        cells = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    # Only here, and by name: a command whose output is piped never pays for loading it.
    table = import_module("rich.table").Table(box=None, pad_edge=False, header_style="bold")
    text = import_module("rich.text").Text
    for place, column in enumerate(columns):
        # Only the last gives way in a narrow terminal: an id in two pieces cannot be copied.
        more = {"overflow": "fold"} if place == len(columns) - 1 else {"overflow": "crop", "no_wrap": True}
        table.add_column(column.title, justify="right" if column.right else "left", **more)
    for row in rows:
        table.add_row(*[text(harmless(cell), style=_COLORS.get(cell, "")) for cell in row])
    console = import_module("rich.console").Console()
    needed = sum(
        max(len(column.title), *(len(row[n]) for row in rows)) + 2 for n, column in enumerate(columns[:-1])
    )
    console.width = max(console.width, needed + LAST_COLUMN)
    console.print(table, crop=False)


def say_fields(fields: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line; longer values are indented below their name."""
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        first, *rest = harmless(value).splitlines() or [""]
        if rest:
            click.echo(f"{name}:")
            for line in (first, *rest):
                click.echo(f"    {line}")
        else:
            click.echo(f"{(name + ':').ljust(width + 1)} {first}".rstrip())


def colored(word: str) -> str:
    """The word in its colour, where colours are shown."""
    if not on_terminal(sys.stdout) or os.environ.get("NO_COLOR"):
        return word
    return click.style(word, fg=_COLORS.get(word))


# progress


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr; call what it gives with the number of things done so far."""
    if not on_terminal(sys.stderr):
        yield lambda done: None
        return
    console = import_module("rich.console").Console(stderr=True)
    with import_module("rich.progress").Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


# times


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def age(moment: datetime | int | None) -> str:
    """How long ago (or in how long) something is, roughly."""
    if moment is None:
        return ""
    ms = moment if isinstance(moment, int) else round(moment.timestamp() * 1000)
    passed = now_ms() - ms
    return f"{rough(passed)} ago" if passed >= 0 else f"in {rough(-passed)}"


def rough(ms: int) -> str:
    """A length of time in its largest unit.

    >>> rough(90_000)
    '1m'
    """
    for unit, name in ((DAY, "d"), (HOUR, "h"), (MINUTE, "m"), (SECOND, "s")):
        if ms >= unit:
            return f"{ms // unit}{name}"
    return "0s"


def stamp(moment: datetime | None) -> str:
    """A time for people: local, to the second, with how long ago that is."""
    if moment is None:
        return ""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S} ({age(moment)})"


def moment_of(ms: int | None) -> datetime | None:
    """A time of the broker, in UTC."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
