"""The end of the tour: the summary as a table or as JSON, and what to try next."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

from dray.cli.output import Column, note, on_terminal, plain, say, say_json, say_table
from dray.demo.place import Place
from dray.demo.summary import Row, Summary

COLUMNS: Final = (
    Column("TASK"),
    Column("JOBS", right=True),
    Column("ENDED"),
    Column("RUNS", right=True),
    Column("WHAT IT SHOWS"),
)
NEXT: Final = {
    "demo --keep": "the same, and the folder stays to look around in",
    "bench": "how fast it is on this machine",
    "--help": "all commands",
}
NEXT_INSIDE: Final = {
    "jobs ls --limit 20": "what is there",
    "jobs show video-1": "all that is known of one job",
    "why fax-1": "why it stands where it stands",
    "dead ls": "what needs a person",
    "dead replay --task fax --yes": "give it another chance; then",
    "worker --burst": "run what there is to run, and end",
}


def say_summary(summary: Summary, place: Place, seconds: float) -> None:
    """The table, the account, and where to go from here."""
    say("")
    say_table(COLUMNS, [_cells(row) for row in summary.rows])
    say("")
    for sentence in account(summary, seconds):
        say(_fitted(sentence))
    for check in summary.checks:
        if not check.ok:
            note(f"dray: this is not so: {check.what}")
    say("")
    if place.keep:
        say(f"Kept: {place.folder} (broker {place.url}). What to try next:")
        say(f"  cd {shlex.quote(str(place.folder))}")
    else:
        say("What to try next:")
    commands = next_commands(place)
    width = max(map(len, commands))
    for command, what in commands.items():
        say(f"  {command:<{width}}  # {what}")


def account(summary: Summary, seconds: float) -> list[str]:
    """The sentences below the table."""
    ended = " + ".join(f"{count} {state}" for state, count in summary.states.items())
    kept = (
        "Every job accounted for" if summary.accepted == sum(summary.states.values()) else "Jobs are missing"
    )
    passed = sum(check.ok for check in summary.checks)
    return [
        f"{kept}: {summary.calls} enqueued - {summary.duplicates} duplicates = {summary.accepted} = {ended}.",
        f"{summary.runs} runs: {summary.failed} failed, {summary.lost} were lost with their process;"
        f" {summary.replaced} executors died and were replaced.",
        f"{passed} of {len(summary.checks)} checks passed, in {seconds:.1f} s.",
    ]


def say_summary_json(summary: Summary, place: Place, seconds: float) -> None:
    """The same for programs."""
    shown: dict[str, Any] = plain(summary)
    say_json(
        {
            "ok": summary.sound,
            "seconds": round(seconds, 3),
            **shown,
            "folder": str(place.folder) if place.keep else None,
            "broker": place.url if place.keep else None,
            "next": list(next_commands(place)),
        }
    )


def next_commands(place: Place) -> dict[str, str]:
    """Commands to paste, and what each does."""
    program = _program(place)
    return {f"{program} {words}": what for words, what in (NEXT_INSIDE if place.keep else NEXT).items()}


def _program(place: Place) -> str:
    """`dray` where the shell finds this very one, else the way it was started."""
    python = Path(sys.executable)
    found = shutil.which("dray")
    if found is not None and Path(found).parent == python.parent:
        return "dray"
    if not place.keep and python.is_relative_to(place.home):
        python = python.relative_to(place.home)
    return f"{shlex.quote(str(python))} -m dray"


def _fitted(sentence: str) -> str:
    """Broken between words where a terminal would break it inside one."""
    if not on_terminal(sys.stdout):
        return sentence
    return textwrap.fill(sentence, max(20, shutil.get_terminal_size().columns))


def _cells(row: Row) -> list[str]:
    ended = ", ".join(f"{count} {state}" for state, count in row.states.items())
    return [row.task, str(row.jobs), ended, str(row.runs), row.shows]
