"""Writes the tables of cli.md and settings.md from the code: `python docs/tables.py`; `--check` compares.

`<!-- options: jobs ls -->` stands above the table of a command's options, `<!-- settings -->` above that of
the settings; what is between it and `<!-- end -->` is written here. All other text is written by people.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from dray.cli.main import cli
from dray.settings import describe

PAGES = [Path(__file__).with_name(name) for name in ("cli.md", "settings.md")]
COMMON = {"app", "broker", "namespace", "json"}
_TABLE = re.compile(r"(<!-- (options|settings)(?:: ([\w ]+))? -->\n).*?(<!-- end -->)", re.S)


def write(text: str) -> str:
    """The page with every table as the code has it now."""

    def fill(match: re.Match[str]) -> str:
        table = settings_table() if match[2] == "settings" else options_table(match[3])
        return f"{match[1]}{table}{match[4]}"

    return _TABLE.sub(fill, text)


def documented(text: str) -> set[str]:
    """The commands whose options have a table."""
    return {match[3] for match in _TABLE.finditer(text) if match[2] == "options"}


def commands() -> dict[str, click.Command]:
    """Every command that does something, by the words that call it."""
    return dict(_commands(cli, ()))


def _commands(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*words, name))
        elif command is not None:
            yield " ".join((*words, name)), command


def options_table(name: str) -> str:
    """A command's own options; `common` are those that every command has."""
    command = cli if name == "common" else commands()[name]
    options = [
        one
        for one in command.params
        if isinstance(one, click.Option) and (name == "common" or one.name not in COMMON)
    ]
    rows = [(_flags(option), (option.help or "").strip() + _default(option)) for option in options]
    return _table(("option", "does"), rows)


def _flags(option: click.Option) -> str:
    names = sorted(option.opts, key=len)
    value = "" if option.is_flag else f" {option.make_metavar(click.Context(cli))}"
    return ", ".join(f"`{name}{value}`" for name in names)


def _default(option: click.Option) -> str:
    return f" Default: {option.default}." if option.show_default else ""


def settings_table() -> str:
    rows = [(f"`{info.name}`", info.default, info.help, info.allowed) for info in describe()]
    return _table(("setting", "default", "is for", "may be"), rows)


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["", f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows]
    return "\n".join([*lines, "", ""]) if rows else "\nIt has no options of its own.\n\n"


def main() -> int:
    stale = 0
    for page in PAGES:
        text = page.read_text("utf-8")
        fresh = write(text)
        if fresh != text and "--check" in sys.argv:
            print(f"{page.name} is out of date: run `python docs/tables.py`")
            stale = 1
        elif fresh != text:
            page.write_text(fresh, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main())
