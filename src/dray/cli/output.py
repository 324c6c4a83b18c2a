"""Output of commands: tables and bars on a terminal, aligned text elsewhere, JSON with `--json`.

Text from jobs is escaped first: control characters could rewrite a terminal.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Final, TextIO, TypeVar

import click

from dray.cli.target import wants_json
from dray.duration import DAY, HOUR, MINUTE, SECOND
from dray.info import moment as from_ms
from dray.info import plain as plain

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
COLORS: Final = {
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
T = TypeVar("T")


def harmless(text: str) -> str:
    """Control characters as escapes, so that no text of a job acts on the terminal."""
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
    with suppress(OSError):  # a closed stderr is no reason to fail
        click.echo(harmless(text), err=True)


def announce(text: str) -> None:
    """A line of a long-running command, which goes on also when its stdout is closed."""
    with suppress(OSError):
        say(text)
        sys.stdout.flush()


def on_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


# JSON


said_json: list[bool] = []
"""Not empty once the command has printed its document: an error then prints no second one."""


def say_json(value: object) -> None:
    """The value as JSON, one document."""
    said_json.append(True)
    plain_text = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
    click.echo(json.dumps(plain(value), indent=2, ensure_ascii=plain_text, allow_nan=False))


def brief(value: object, most: int = 60) -> str:
    """A value on one line, as JSON."""
    return one_line(json.dumps(plain(value), ensure_ascii=False), most)


def show_result(document: object, text: str) -> None:
    """The document with `--json`, else the text."""
    if wants_json():
        say_json(document)
    else:
        say(text)


def show_list(
    found: Sequence[T],
    titles: Sequence[str],
    to_row: Callable[[T], Sequence[str]],
    empty: Callable[[], str],
    *,
    to_json: Callable[[T], object] = plain,
    right: Collection[str] = (),
) -> None:
    """A list of documents with `--json`, else a table, or a remark that nothing was found."""
    if wants_json():
        say_json([to_json(one) for one in found])
    elif found:
        say_table(titles, [to_row(one) for one in found], right)
    else:
        note(empty())


# tables


def say_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str] = ()) -> None:
    """Rows under titles; `right` are titles of right-aligned columns. Cut only if the terminal is narrow."""
    if on_terminal(sys.stdout):
        _rich_table(titles, rows, right)
        return
    lines = [titles, *[[harmless(cell) for cell in row] for row in rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if title in right else cell.ljust(width)
            for cell, width, title in zip(line, widths, titles, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Collection[str]) -> None:
    # Loaded only here: commands whose output is piped start faster.
    table = import_module("rich.table").Table(box=None, pad_edge=False, header_style="bold")
    text = import_module("rich.text").Text
    for title in titles:
        # Only the last column is folded in a narrow terminal: an id in two pieces cannot be copied.
        more = {"overflow": "fold"} if title == titles[-1] else {"overflow": "crop", "no_wrap": True}
        table.add_column(title, justify="right" if title in right else "left", **more)
    for row in rows:
        table.add_row(*[text(harmless(cell), style=COLORS.get(cell, "")) for cell in row])
    console = import_module("rich.console").Console()
    needed = sum(max(map(len, column)) + 2 for column in list(zip(titles, *rows, strict=True))[:-1])
    console.width = max(console.width, needed + LAST_COLUMN)
    console.print(table, crop=False)


def say_fields(fields: Sequence[tuple[str, str]]) -> None:
    """One line per name and value; longer values are indented below their name."""
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
    return click.style(word, fg=COLORS.get(word))


# progress


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal's stderr. Yields a function to call with the number of things done so far."""
    if not on_terminal(sys.stderr):
        yield lambda done: None
        return
    console = import_module("rich.console").Console(stderr=True)
    with import_module("rich.progress").Progress(console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def user_name() -> str:
    """The login name of the person at the terminal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name for this user id, as in containers
        return ""


# times


def counted(count: int, one: str, many: str) -> str:
    """A number and its noun.

    >>> counted(1, "job", "jobs"), counted(1204, "job", "jobs")
    ('1 job', '1,204 jobs')
    """
    return f"{count:,} {one if count == 1 else many}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def age(moment: datetime | int | None) -> str:
    """The rough distance of a time from now: "5m ago", "in 2h"."""
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
    """A time in UTC, to the second, and its distance from now."""
    if moment is None:
        return ""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC ({age(moment)})"


def moment_of(ms: int | None) -> datetime | None:
    """A time of the broker, in UTC."""
    return None if ms is None else from_ms(ms)
