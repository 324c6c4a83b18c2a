"""The history on SQLite: a file of its own, with an index of words (FTS5) where SQLite has it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from dray.broker.sqlite.connection import connect
from dray.broker.sqlite.layout import migrate
from dray.broker.sqlite.options import read_url
from dray.broker.sqlite.path import create_file, resolve
from dray.errors import BrokerError, HistoryError
from dray.history.database import Dialect, Row, migrations, statements

APPLICATION_ID: Final = 0x64726168
"""Marks a SQLite file as a history ("drah" in ASCII)."""
BUSY_MS: Final = 10_000
PRAGMAS: Final = ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-32768", "temp_store=MEMORY")


class SqliteDatabase:
    """A connection to the file, which is made if need be."""

    dialect: Dialect = "sqlite"

    def __init__(self, url: str, *, index: bool = True) -> None:
        """`index=False` is for SQLite without FTS5: words are found by reading all rows."""
        self._path = resolve(read_url(url).path)
        self.sql = statements("sqlite")
        try:
            create_file(self._path)
            self._connection = connect(self._path, "mode=rw")
            self._prepare(index)
        except (sqlite3.Error, BrokerError, OSError) as error:
            raise HistoryError(f"the history {self._path} cannot be opened: {error}") from error

    def _prepare(self, index: bool) -> None:
        connection = self._connection
        connection.execute(f"PRAGMA busy_timeout={BUSY_MS}")
        _claim(connection, self._path)
        for pragma in PRAGMAS:
            connection.execute(f"PRAGMA {pragma}")
        migrate(connection, migrations("sqlite"), self._path)
        if not connection.execute(self.sql["words_table"]).fetchone():
            try:
                connection.execute(self.sql["make_words" if index else "make_plain_words"])
            except sqlite3.OperationalError as error:
                if "fts5" not in str(error):
                    raise
                connection.execute(self.sql["make_plain_words"])
        self.indexed = "fts5" in connection.execute(self.sql["words_table"]).fetchone()[0]

    def fetch(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._away(error) from error

    def write(self, name: str, rows: Sequence[Sequence[object]]) -> list[Row]:
        statement = self.sql[name]
        try:
            if "RETURNING" not in statement:
                self._connection.executemany(statement, rows)
                return []
            execute = self._connection.execute
            return [found for row in rows for found in execute(statement, row)]
        except sqlite3.Error as error:
            raise self._away(error) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.fetch("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise
        self.fetch("COMMIT")

    def close(self) -> None:
        self._connection.close()

    def _away(self, error: sqlite3.Error) -> HistoryError:
        return HistoryError(f"the history {self._path} does not answer: {error}")


def _claim(connection: sqlite3.Connection, path: Path) -> None:
    """Mark a new file; a file of another program, or the broker's own, is refused."""
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    if owner == APPLICATION_ID:
        return
    if owner or connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise HistoryError(f"{path} is a database of another use: choose another path in history_url")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
