"""The layout of the file: its mark, its version, migrations, and the reading of .sql files."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from dray.broker.sqlite.connection import connect
from dray.broker.sqlite.errors import writable
from dray.errors import BrokerReadOnly, ForeignStore, NewerLayout

APPLICATION_ID: Final = 0x64726179
"""Marks a SQLite file as dray's ("dray" in ASCII)."""


def inspect(path: Path, seen: os.stat_result, newest: int) -> None:
    """Refuse what is not dray's or is too new, without touching it.

    Asked through SQLite, since closing a handle of our own would drop every POSIX lock that this process
    holds on the file; immutable, so that no -wal or -shm appears; with a writable schema (which nothing
    writes) it also reads a header that is ahead of its file, as a crash during a checkpoint leaves it.
    """
    if not stat.S_ISREG(seen.st_mode):
        raise ForeignStore(f"{path} is not a regular file: name a file for the database")
    probe = connect(path, "mode=ro&immutable=1")
    try:
        probe.execute("PRAGMA writable_schema=ON")
        owner = probe.execute("PRAGMA application_id").fetchone()[0]
        version = probe.execute("PRAGMA user_version").fetchone()[0]
    finally:
        probe.close()
    # Not by its pages: SQLite takes a file of a few bytes for an empty database.
    if seen.st_size and owner != APPLICATION_ID:
        raise ForeignStore(f"{path} is a SQLite database of another program: choose another path for dray's")
    refuse_newer(path, version, newest)
    if not writable(path):
        raise BrokerReadOnly(
            f"{path} may not be written: make the file and its folder writable for this user"
        )


def refuse_newer(path: Path, version: int, newest: int) -> None:
    if version > newest:
        raise NewerLayout(
            f"{path} has layout {version}, this dray knows up to {newest}: upgrade dray, or use another file"
        )


def mark(connection: sqlite3.Connection) -> None:
    """Mark a new file as dray's.

    Before WAL: so the mark is in the file itself, and a crash here leaves it empty or marked.
    """
    if not connection.execute("PRAGMA application_id").fetchone()[0]:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")


def load_migrations(folder: Traversable) -> list[str]:
    """The scripts of `0001_name.sql`, `0002_name.sql`, … in order."""
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    for number, name in enumerate(names, 1):
        if not re.fullmatch(rf"{number:04}_\w+\.sql", name):
            raise ValueError(f"migration {name}: expected {number:04}_<name>.sql, numbered without holes")
    return [(folder / name).read_text("utf-8") for name in names]


def migrate(connection: sqlite3.Connection, scripts: list[str], path: Path) -> None:
    """Run what the file has not seen: each script and its version number are one transaction."""
    version = first = connection.execute("PRAGMA user_version").fetchone()[0]
    while version < len(scripts):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have migrated while this one waited for the lock.
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version < len(scripts):
                run_script(connection, scripts[version])
                version += 1
                connection.execute(f"PRAGMA user_version={version}")
            connection.execute("COMMIT")
        except BaseException as error:
            connection.rollback()
            error.add_note(f"while migrating {path} from layout {version}")
            raise
    refuse_newer(path, version, len(scripts))
    if version != first:
        # So that an older dray sees in the file itself, without its WAL, that it is too new.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """`executescript` would commit the transaction that this must be part of."""
    for statement in split(script):
        connection.execute(statement)
        if not connection.in_transaction:
            raise ValueError("a migration must not end its transaction")


def split(script: str) -> Iterator[str]:
    """The statements of a script; semicolons in strings, comments and triggers do not end one."""
    statement = ""
    *pieces, rest = script.split(";")
    for piece in pieces:
        statement += piece + ";"
        if sqlite3.complete_statement(statement):
            if without_comments(statement).strip("; \n\t"):
                yield statement.strip()
            statement = ""
    if without_comments(statement + rest).strip():
        raise ValueError(f"statement without an end: {(statement + rest).strip()[:60]!r}")


def without_comments(sql: str) -> str:
    return re.sub(r"^\s*--.*$", "", sql, flags=re.MULTILINE)


def load_statements(file: Traversable) -> dict[str, str]:
    """The named blocks of a .sql file: `-- name: put_job`, comments that document it, one statement."""
    head, *parts = re.split(r"^--[ \t]*name:", file.read_text("utf-8"), flags=re.MULTILINE)
    if without_comments(head).strip():
        raise ValueError(f"{file.name}: SQL before the first `-- name:` line")
    statements: dict[str, str] = {}
    for part in parts:
        name, _, body = part.partition("\n")
        name = name.strip()
        if not name.isidentifier():
            raise ValueError(f"{file.name}: `-- name: {name}` is not a name")
        if name in statements:
            raise ValueError(f"{file.name}: two blocks are named {name}")
        sql = without_comments(body).strip().rstrip(";").rstrip()
        if len(list(split(sql + "\n;"))) != 1:
            raise ValueError(f"{file.name}: block {name} must be exactly one statement")
        statements[name] = sql
    return statements
