"""What a verb executes: recorded once, then played by dray and by a bare loop, each on a file of its own.

A script is a list of calls and the list of statements that these calls execute on one and the same file.
Everything in it is fixed (ids, clock, request numbers), so after playing, both files hold the same.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from bench.measure import Sample, Stopwatch
from bench.sqlite.store import Supply, close_broker, open_bare, open_broker, ticking
from dray.broker.sqlite import SqliteBroker
from dray.broker.verbs import run_blocking


class Call(NamedTuple):
    verb: str
    args: tuple[Any, ...]


class Statement(NamedTuple):
    many: bool
    sql: str
    parameters: Any


@dataclass
class Stretch:
    """Calls and their statements; only those of some stretches are measured."""

    timed: bool
    calls: list[Call] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)


@dataclass
class Script:
    """What is done to a file, stretch by stretch."""

    start: int
    """The clock's first value."""
    count: int = 0
    """Jobs handled in the measured stretches."""
    stretches: list[Stretch] = field(default_factory=list)

    @property
    def timed(self) -> list[Stretch]:
        return [stretch for stretch in self.stretches if stretch.timed]


Play = Callable[..., Any]
"""`play(verb, *args)` makes a call and returns the reply."""
Work = Callable[[Play, Supply], int]
"""What a case does; returns how many jobs it handled."""


def perform(path: Path, supply: Supply, work: Work) -> tuple[int, list[Call]]:
    """Do something to a file through dray, unmeasured; returns how to `repeat` it on the file's twins."""
    start, stretch = supply.now(), Stretch(timed=False)
    clock = ticking(start)
    with _broker(path, clock) as broker:
        work(_player(broker, stretch), supply)
    supply.skip(clock() - start)
    return start, stretch.calls


def record(path: Path, supply: Supply, works: Iterable[tuple[bool, Work]]) -> Script:
    """Do the works on `path`, one stretch each, timed or not, and write down how."""
    script = Script(supply.now())
    tape: list[Statement] = []
    clock = ticking(script.start)
    with _broker(path, clock, tape) as broker:
        for timed, work in works:
            stretch = Stretch(timed)
            tape.clear()
            done = work(_player(broker, stretch), supply)
            stretch.statements = tape.copy()
            script.stretches.append(stretch)
            script.count += done if timed else 0
    supply.skip(clock() - script.start)
    return script


def play_dray(path: Path, script: Script) -> Sample:
    """Make the calls of a script on a file that is as the recorded one was."""
    watch = Stopwatch()
    with _broker(path, ticking(script.start)) as broker:
        bound = [(stretch.timed, _bind(broker, stretch.calls)) for stretch in script.stretches]
        with _undisturbed():
            for timed, calls in bound:
                with watch.running() if timed else nullcontext():
                    _call_all(calls)
    return Sample(watch.seconds, script.count, watch.cpu)


def play_bare(path: Path, script: Script) -> Sample:
    """Execute the statements of a script on a file that is as the recorded one was."""
    watch = Stopwatch()
    connection = open_bare(path)
    try:
        with _undisturbed():
            for stretch in script.stretches:
                with watch.running() if stretch.timed else nullcontext():
                    _execute_all(connection, stretch.statements)
    finally:
        connection.close()
    return Sample(watch.seconds, script.count, watch.cpu)


def repeat(path: Path, start: int, calls: Iterable[Call]) -> None:
    """Make calls on a file, unmeasured."""
    with _broker(path, ticking(start)) as broker:
        _call_all(_bind(broker, calls))


def _execute_all(connection: sqlite3.Connection, statements: list[Statement]) -> None:
    execute, execute_many = connection.execute, connection.executemany
    for many, sql, parameters in statements:
        if many:
            execute_many(sql, parameters)
        else:
            execute(sql, parameters).fetchall()


def _call_all(calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        run_blocking(call())


def _bind(broker: SqliteBroker, calls: Iterable[Call]) -> list[Callable[[], Any]]:
    return [partial(getattr(broker, verb), *args) for verb, args in calls]


def _player(broker: SqliteBroker, stretch: Stretch) -> Play:
    def play(verb: str, *args: Any) -> Any:
        stretch.calls.append(Call(verb, args))
        return run_blocking(getattr(broker, verb)(*args))

    return play


@contextmanager
def _broker(
    path: Path, clock: Callable[[], int], tape: list[Statement] | None = None
) -> Iterator[SqliteBroker]:
    if tape is None:
        broker = open_broker(path, clock)
    else:
        recording = partial(sqlite3.connect, factory=recorder(tape))
        with patch.object(sqlite3, "connect", recording):
            broker = open_broker(path, clock)
    try:
        yield broker
    finally:
        close_broker(broker)


def recorder(tape: list[Statement]) -> type[sqlite3.Connection]:
    """A connection that writes down everything it is asked to execute."""

    class Recording(sqlite3.Connection):
        def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
            tape.append(Statement(False, sql, parameters))
            return super().execute(sql, parameters)

        def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
            rows = list(parameters)
            tape.append(Statement(True, sql, rows))
            return super().executemany(sql, rows)

        def commit(self) -> None:
            if self.in_transaction:
                tape.append(Statement(False, "COMMIT", ()))
            super().commit()

        def rollback(self) -> None:
            if self.in_transaction:
                tape.append(Statement(False, "ROLLBACK", ()))
            super().rollback()

    return Recording


@contextmanager
def _undisturbed() -> Iterator[None]:
    """The garbage collector works as ever, but does not walk through the script itself."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
