"""The history on PostgreSQL 12 or newer, in the schema `dray_history` of a database of the user's."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import asyncpg

from dray.broker.sqlite.layout import without_comments
from dray.errors import HistoryError
from dray.history.database import OPEN_SECONDS, Dialect, Row, migrations, statements
from dray.passwords import hide_password

T = TypeVar("T")
SCHEMA: Final = "dray_history"
LOCK: Final = 0x64726168
"""The advisory lock of writers: one batch is written at a time."""


class PostgresDatabase:
    """A connection of asyncpg, driven by an event loop of its own that runs only during a call."""

    dialect: Dialect = "postgres"
    indexed = True

    def __init__(self, url: str) -> None:
        self._url, self._loop = url, asyncio.new_event_loop()
        self._connection: Any = None
        self.sql = {name: _numbered(statement) for name, statement in statements("postgres").items()}
        try:
            self._connection = self._wait(
                asyncpg.connect(
                    url,
                    timeout=OPEN_SECONDS,
                    command_timeout=OPEN_SECONDS * 2,
                    server_settings={"search_path": SCHEMA, "application_name": "dray history"},
                )
            )
            self._migrate()
        except BaseException:
            self.close()
            raise

    def _migrate(self) -> None:
        """Run the migrations that the database has not seen, each with its number in one transaction."""
        scripts = migrations("postgres")
        self.fetch(f"SELECT pg_advisory_lock({LOCK})")
        try:
            self._script(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
            self._script("CREATE TABLE IF NOT EXISTS layout (version BIGINT NOT NULL)")
            version = self.fetch("SELECT COALESCE(max(version), 0) FROM layout")[0][0]
            if version > len(scripts):
                raise HistoryError(
                    f"the history has layout {version}, this dray knows up to {len(scripts)}: upgrade dray"
                )
            for number, script in enumerate(scripts[version:], version + 1):
                self._script(f"BEGIN; {script}; INSERT INTO layout VALUES ({number}); COMMIT")  # noqa: S608
        finally:
            self.fetch(f"SELECT pg_advisory_unlock({LOCK})")

    def _script(self, script: str) -> None:
        self._wait(self._connection.execute(without_comments(script)))

    def fetch(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return [tuple(row) for row in self._wait(self._connection.fetch(_numbered(statement), *values))]

    def write(self, name: str, rows: Sequence[Sequence[object]]) -> list[Row]:
        """The statement gets one array per column (`unnest`): one round trip for all rows."""
        if not rows:
            return []
        columns = [list(column) for column in zip(*rows, strict=True)]
        return self.fetch(self.sql[name], columns)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.fetch("BEGIN")
        try:
            self.fetch(f"SELECT pg_advisory_xact_lock({LOCK})")
            yield
        except BaseException:
            if not self._connection.is_closed():
                self.fetch("ROLLBACK")
            raise
        self.fetch("COMMIT")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._loop.run_until_complete(asyncio.sleep(0))  # the transport closes in the next turn
        self._loop.close()

    def _wait(self, answer: Awaitable[T]) -> T:
        try:
            return self._loop.run_until_complete(_awaited(answer))
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            raise HistoryError(f"the history {hide_password(self._url)} does not answer: {reason}") from error


async def _awaited(answer: Awaitable[T]) -> T:
    return await answer


def _numbered(statement: str) -> str:
    """`?` as `$1`, `$2`, …"""
    numbers = iter(range(1, 1000))
    return re.sub(r"\?", lambda _: f"${next(numbers)}", statement)
