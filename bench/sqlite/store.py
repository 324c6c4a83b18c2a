"""Database files with so many jobs pending: made once by `put`, copied for each use, compared at the end."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path

from dray.broker.sqlite import SqliteBroker
from dray.broker.sqlite.connection import connect, prepare
from dray.broker.verbs import run_blocking
from dray.job import Job

QUEUE = "default"
TASKS = tuple(f"task_{letter}" for letter in "abcdefghij")
PRIORITIES = (1, 5, 9)
EPOCH = 1_800_000_000_000
SYNCHRONOUS = "normal"
COMPANIONS = ("", "-wal", "-shm")

Clock = Callable[[], int]


class Supply:
    """Jobs, sessions, request numbers and a clock that are the same in every run, so that files can be too.

    Ids are made like real ones: growing, with a random tail. Tasks and priorities go round.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._number = self._request = 0
        self._now = EPOCH
        self.session = ""

    def job(self, **fields: object) -> Job:
        number = self._count()
        values: dict[str, object] = {
            "id": f"{QUEUE}:{number:016x}{self._random.getrandbits(64):016x}",
            "task": TASKS[number % len(TASKS)],
            "queue": QUEUE,
            "priority": PRIORITIES[number // len(TASKS) % len(PRIORITIES)],
            "payload": self._random.randbytes(100),
        }
        for name, value in fields.items():
            values[name] = value(number) if callable(value) else value
        return Job(**values)  # type: ignore[arg-type]

    def jobs(self, count: int, **fields: object) -> list[Job]:
        return [self.job(**fields) for _ in range(count)]

    def request(self) -> int:
        self._request += 1
        return self._request

    def new_session(self) -> str:
        self.session = f"session-{self._count()}"
        return self.session

    def now(self) -> int:
        self._now += 1
        return self._now

    def skip(self, milliseconds: int) -> None:
        self._now += milliseconds

    def twin(self) -> Supply:
        """One that goes on from here on its own."""
        return deepcopy(self)

    def _count(self) -> int:
        self._number += 1
        return self._number


def ticking(start: int) -> Clock:
    """A clock that moves on by a millisecond with each look."""
    return itertools.count(start).__next__


def open_broker(path: Path, clock: Clock | None = None) -> SqliteBroker:
    url = f"sqlite:///{path}?synchronous={SYNCHRONOUS}"
    return run_blocking(SqliteBroker.open(url, blocking=True, clock=clock))


def close_broker(broker: SqliteBroker) -> None:
    run_blocking(broker.close())


def open_bare(path: Path) -> sqlite3.Connection:
    """A plain connection, set up by dray's own functions: the same arguments and PRAGMAs."""
    connection = connect(path, "mode=rw")
    try:
        prepare(connection, path)
        connection.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
    except BaseException:
        connection.close()
        raise
    return connection


def pragmas(path: Path) -> dict[str, object]:
    """How the connections are set, as SQLite itself tells it."""
    connection = open_bare(path)
    names = ("journal_mode", "synchronous", "cache_size", "page_size", "wal_autocheckpoint", "mmap_size")
    try:
        return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names}
    finally:
        connection.close()


def fill(path: Path, supply: Supply, depth: int, fields: Mapping[str, object] | None = None) -> None:
    """A new file with `depth` jobs ready."""
    broker = open_broker(path, supply.now)
    try:
        for first in range(0, depth, 1000):
            run_blocking(broker.put(supply.jobs(min(1000, depth - first), **(fields or {}))))
    finally:
        close_broker(broker)
    sync(path)


def copy(source: Path, target: Path) -> Path:
    """A copy that is on the disk already, so that no later checkpoint pays for it."""
    remove(target)
    shutil.copyfile(source, target)
    sync(target)
    return target


def remove(path: Path) -> None:
    for suffix in COMPANIONS:
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def differences(one: Path, other: Path) -> list[str]:
    """The tables whose rows differ; empty if the files hold the same."""
    database = sqlite3.connect(one)
    try:
        database.execute("ATTACH ? AS other", (str(other),))
        return [table for table in _tables(database) if _differs(database, table)]
    finally:
        database.close()


def _tables(database: sqlite3.Connection) -> Iterator[str]:
    names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
    yield from [name for (name,) in database.execute(names).fetchall()]


def _differs(database: sqlite3.Connection, table: str) -> bool:
    columns = database.execute(f"PRAGMA table_info({table})").fetchall()
    key = ", ".join(name for _, name, _, _, _, part in columns if part)
    mine, others = (
        database.execute(f"SELECT * FROM {schema}.{table} ORDER BY {key}") for schema in ("main", "other")
    )
    return any(row != twin for row, twin in itertools.zip_longest(mine, others))
