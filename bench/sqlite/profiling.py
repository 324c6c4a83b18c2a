"""Where the time of a verb goes: by statement in the bare loop, by function in dray."""

from __future__ import annotations

import cProfile
import io
import pstats
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench.report import table
from bench.sqlite.cases import STORES, Case, groups_of
from bench.sqlite.plan import Plan
from bench.sqlite.script import Script, Statement, perform, play_dray
from bench.sqlite.stage import script_of
from bench.sqlite.store import Supply, copy, fill, open_bare, remove
from dray.broker.sqlite.statements import SQL

TOP = 8


def profiles(plan: Plan, folder: Path, depth: int) -> Iterator[str]:
    """A section per case at one depth."""
    for group in groups_of(plan):
        for case in group:
            if case.depth == depth:
                yield _profile(case, folder)


def _profile(case: Case, folder: Path) -> str:
    base, supply = folder / "profile.db", Supply()
    remove(base)
    fill(base, supply, case.depth, STORES[case.store])
    if case.prepare is not None:
        perform(base, supply, case.prepare)
    supply.skip(case.later)
    script = script_of(case, copy(base, folder / "recorded.db"), supply)
    shown = ", ".join(f"{name} {value}" for name, value in case.parameters.items())
    calls = sum(len(stretch.calls) for stretch in script.timed)
    statements = sum(len(stretch.statements) for stretch in script.timed)
    head = (
        f"## {case.name} ({shown})\n\n{calls} calls, {script.count} jobs, "
        f"{statements / calls:.1f} statements per call\n"
    )
    slow_sql = _by_statement(copy(base, folder / "bare.db"), script)
    return "\n".join((head, slow_sql, _by_function(copy(base, folder / "dray.db"), script)))


def _by_statement(path: Path, script: Script) -> str:
    """Time per job and executions per call, by the statement's name."""
    seconds: dict[str, float] = defaultdict(float)
    times: dict[str, int] = defaultdict(int)
    connection = open_bare(path)
    for stretch in script.stretches:
        for statement in stretch.statements:
            before = time.perf_counter()
            _execute(connection, statement)
            if stretch.timed:
                seconds[statement.sql] += time.perf_counter() - before
                times[statement.sql] += 1
    connection.close()
    calls = sum(len(stretch.calls) for stretch in script.timed)
    names = {sql: name for name, sql in SQL.items()}
    slowest = sorted(seconds, key=lambda sql: -seconds[sql])[:TOP]
    whole = sum(seconds.values())
    return table(
        ("statement", "share", "µs/job", "times per call"),
        [
            (
                names.get(sql, " ".join(sql.split())[-40:]),
                f"{seconds[sql] / whole * 100:.0f} %",
                f"{seconds[sql] / script.count * 1e6:.1f}",
                f"{times[sql] / calls:.1f}",
            )
            for sql in slowest
        ],
    )


def _execute(connection: sqlite3.Connection, statement: Statement) -> None:
    if statement.many:
        connection.executemany(statement.sql, statement.parameters)
    else:
        connection.execute(statement.sql, statement.parameters).fetchall()


def _by_function(path: Path, script: Script) -> str:
    profile = cProfile.Profile()
    profile.enable()
    play_dray(path, script)
    profile.disable()
    text = io.StringIO()
    stats = pstats.Stats(profile, stream=text).strip_dirs().sort_stats("tottime")
    stats.print_stats(TOP + 4)
    lines = text.getvalue().splitlines()
    first = next(number for number, line in enumerate(lines) if "tottime" in line)
    return "```\n" + "\n".join(line for line in lines[first:] if line.strip()) + "\n```\n"
