"""The seam to the databases of the history: one connection, used by one thread.

Statements are written once, with `?` for values, unless the two databases differ; then each has a block of
the same name in its own .sql file. Everything blocks: awaited and blocking calls alike wait for the thread.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from importlib import import_module
from importlib.resources import files
from typing import Any, Final, Generic, Literal, Protocol, TypeVar

from dray.broker.sqlite.layout import load_migrations, load_statements
from dray.errors import HistoryError

T = TypeVar("T")
Row = tuple[Any, ...]
Dialect = Literal["sqlite", "postgres"]
OPEN_SECONDS: Final = 10.0
"""How long connecting may take; a statement may take twice as long."""


class Database(Protocol):
    """One connection. Its errors are `HistoryError`; after one the connection is opened anew."""

    dialect: Dialect
    indexed: bool
    """It has an index of words."""
    sql: dict[str, str]
    """Statements by name."""

    def fetch(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and read its rows."""
        ...

    def write(self, name: str, rows: Sequence[Sequence[object]]) -> list[Row]:
        """Run a named statement for many rows; the rows that it returns."""
        ...

    def transaction(self) -> AbstractContextManager[None]:
        """All or nothing, and one writer at a time."""
        ...

    def close(self) -> None: ...


def statements(dialect: Dialect) -> dict[str, str]:
    folder = files("dray.history") / "sql"
    return load_statements(folder / "shared.sql") | load_statements(folder / f"{dialect}.sql")


def migrations(dialect: Dialect) -> list[str]:
    return load_migrations(files("dray.history") / "migrations" / dialect)


def open_database(url: str) -> Database:
    """Connect, and bring the layout up to date."""
    name = "sqlite" if url.startswith("sqlite:") else "postgres"
    try:
        module = import_module(f"dray.history.{name}")
    except ImportError as error:
        raise HistoryError(
            "history_url names PostgreSQL, which needs asyncpg: pip install 'dray[postgres]'"
        ) from error
    database: Callable[[str], Database] = getattr(module, f"{name.capitalize()}Database")
    return database(url)


class HistoryThread(Generic[T]):
    """A thread with a database, which it opens at first use and again after an error."""

    def __init__(self, open: Callable[[], T], close: Callable[[T], None]) -> None:
        self._open, self._close = open, close
        self._opened: list[T] = []
        self._thread = ThreadPoolExecutor(1, "dray-history")
        self.process = os.getpid()
        self.close = weakref.finalize(self, _end, self._thread, self._opened, close)

    def submit(self, work: Callable[[T], Any]) -> Future[Any]:
        return self._thread.submit(self._do, work)

    async def run(self, work: Callable[[T], Any]) -> Any:
        """Wait for work without blocking the event loop."""
        return await asyncio.wrap_future(self.submit(work))

    def _do(self, work: Callable[[T], Any]) -> Any:
        if not self._opened:
            self._opened.append(self._open())
        try:
            return work(self._opened[0])
        except HistoryError:
            with suppress(HistoryError):
                self._close(self._opened.pop())
            raise


def _end(thread: ThreadPoolExecutor, opened: list[T], close: Callable[[T], None]) -> None:
    with suppress(RuntimeError):  # the interpreter ends: the thread takes nothing more
        for one in opened:
            thread.submit(close, one)
    thread.shutdown(wait=False)
