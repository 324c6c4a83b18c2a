"""Database files for tests, small things to do to them, and processes that use them too."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Literal

from dray.broker.sqlite.database import Database, blocking_pause
from dray.broker.verbs import run_blocking

LAYOUT = "CREATE TABLE job(id INTEGER PRIMARY KEY, body);\n"

PRELUDE = """
import os, sys, signal, sqlite3, time
from pathlib import Path
from dray.broker.sqlite.database import Database, blocking_pause
from dray.broker.verbs import run_blocking
from dray.errors import *
path, layout = sys.argv[1:3]
def opened(timeout=10.0):
    return run_blocking(Database.open(path, timeout=timeout, pause=blocking_pause, migrations=Path(layout)))
def put(db, body): run_blocking(db.write(lambda c: c.execute("INSERT INTO job(body) VALUES(?)", (body,))))
def bodies(db): return run_blocking(db.read(lambda c: [b for b, in c.execute("SELECT body FROM job")]))
def say(word): print(word, flush=True)
def hear(): assert sys.stdin.readline()
"""


def opened(
    path: Path | str,
    layout: Path,
    *,
    timeout: float = 10.0,
    synchronous: Literal["normal", "full"] = "normal",
) -> Database:
    opening = Database.open(
        path, timeout=timeout, synchronous=synchronous, pause=blocking_pause, migrations=layout
    )
    return run_blocking(opening)


def insert(connection: sqlite3.Connection, body: object = "x") -> None:
    connection.execute("INSERT INTO job(body) VALUES(?)", (body,))


def fill(connection: sqlite3.Connection, bodies: list[object]) -> None:
    connection.executemany("INSERT INTO job(body) VALUES(?)", [(body,) for body in bodies])


def put(db: Database, body: object = "x") -> None:
    run_blocking(db.write(lambda c: insert(c, body)))


def bodies(db: Database) -> list[object]:
    return run_blocking(
        db.read(lambda c: [body for (body,) in c.execute("SELECT body FROM job ORDER BY id")])
    )


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def done(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output.strip()


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=0)
