"""The file under the embedded broker: transactions, contention, fork, and a file that goes away.

A `Database` belongs to one thread of one process. `write` and `read` run a synchronous function in a
transaction; on contention they pause and run it again, so it must be restartable.

What a commit survives: with `synchronous="normal"` in WAL mode a power cut or kernel crash can lose the
commits since the last sync of the WAL (at the latest the last checkpoint), a crash of any process loses
nothing, and neither corrupts the file. With "full" nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sqlite3
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from dray.broker.sqlite.connection import connect, copy_wal, empty_wal, prepare
from dray.broker.sqlite.errors import fault_of, os_fault
from dray.broker.sqlite.layout import inspect, load_migrations, mark, migrate
from dray.broker.sqlite.path import (
    companions,
    create_file,
    inode_of,
    mounts,
    resolve,
    size_of,
    warn_if_remote,
)
from dray.errors import BrokerAway, BrokerBusy, BrokerError, BrokerFull, BrokerGone, InvalidInput

OLDEST_SQLITE: Final = (3, 35, 0)
FORK_PATIENCE: Final = 1.0
"""Seconds that a fork waits for another thread's transaction."""
LOOK_EVERY: Final = 0.01
"""Seconds between looks at the -wal and -shm files; the database file itself is looked at every time."""
WAL_LONG: Final = 8 << 20
"""Bytes beyond which the WAL is emptied. With 16 MiB nothing is quicker, and a power cut may take more."""
SHORTEN_PAUSES: Final = (0.02, 2.0)
"""Seconds between two tries of a process: at first, and at most while a reader is in the way."""
READERS_MAY_TAKE: Final = 20
"""Milliseconds that writers wait for readers so that the WAL can be emptied."""


T = TypeVar("T")
Durability = Literal["normal", "full"]
Pause = Callable[[float], Awaitable[object]]
Work = Callable[[sqlite3.Connection], T]

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_process = object()
"""Replaced in a forked child: cheaper to compare than `os.getpid()`, which is a system call."""
_opening = threading.Lock()
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_held: list[Database] = []
"""Databases whose locks are held during a fork: a child forked inside a call of SQLite would hang in it."""
_abandoned: list[sqlite3.Connection] = []
_unsafe: set[tuple[int, int]] = set()


async def blocking_pause(seconds: float) -> None:
    """A `pause` that never suspends, for a broker without an event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 (blocking is its purpose)


class _Unaccompanied(Exception):
    """The -wal in use is not the one at the path any more."""


class Database:
    """One SQLite file. Make it with `await Database.open(...)`."""

    def __init__(
        self,
        path: Path,
        *,
        synchronous: Durability,
        timeout: float,
        pause: Pause,
        clock: Callable[[], float],
        scripts: list[str],
    ) -> None:
        self.path: Final = path
        self.synchronous: Final = synchronous
        self.timeout: Final = timeout
        self._pause, self._clock, self._scripts = pause, clock, scripts
        self._name = str(path)
        self._wal = f"{path}-wal"
        self._connection: sqlite3.Connection | None = None
        self._closed = self._active = False
        self._in_use = threading.RLock()
        self._process, self._thread = _process, threading.get_ident()
        self._device = self._inode = 0
        self._companions: tuple[int | None, int | None] = (None, None)
        self._look_at = self._shorten_at = 0.0
        self._wal_size, self._shorten_pause = 0, SHORTEN_PAUSES[0]
        self._copied = False

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str],
        *,
        synchronous: Durability = "normal",
        timeout: float = 10.0,
        pause: Pause = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        migrations: Traversable | None = None,
    ) -> Database:
        """Open the file, creating it and its folders if needed, and bring its layout up to date."""
        if sqlite3.sqlite_version_info < OLDEST_SQLITE:
            raise BrokerError(f"SQLite {sqlite3.sqlite_version} is too old: dray needs 3.35 or newer")
        if synchronous not in ("normal", "full"):
            raise InvalidInput("synchronous", synchronous, "normal or full")
        place = resolve(path)
        scripts = load_migrations(migrations or files("dray.broker.sqlite") / "migrations")
        database = cls(
            place, synchronous=synchronous, timeout=timeout, pause=pause, clock=clock, scripts=scripts
        )
        await database._connect(create=True)
        warn_if_remote(place, mounts())
        return database

    def write(self, work: Work[T], *, durability: Durability | None = None) -> Coroutine[Any, Any, T]:
        """Run `work` in a write transaction: all of it is kept, or nothing.

        `durability` overrides, for this commit alone, what the database was opened with.
        """
        return self._perform("BEGIN IMMEDIATE", work, durability)

    def read(self, work: Work[T], *, snapshot: bool = True) -> Coroutine[Any, Any, T]:
        """Run `work` on one consistent state. A single statement needs no `snapshot` to be consistent."""
        return self._perform("BEGIN" if snapshot else None, work, None)

    def close(self) -> None:
        """Let go of the file. Closing twice is fine; using it afterwards is not."""
        self._closed = True
        if self._process is _process:
            self._drop()
        else:
            _leave_to_parent()

    async def _perform(self, begin: str | None, work: Work[T], durability: Durability | None) -> T:
        patience: Patience | None = None
        while True:
            try:
                connection = self._connection
                if connection is None or not self._sound(connection):
                    connection = await self._connect()
                if durability is None or durability == self.synchronous:
                    result = self._run(connection, begin, work)
                else:
                    result = self._run_as(durability, connection, begin, work)
                if self._wal_size > WAL_LONG and begin == "BEGIN IMMEDIATE":
                    self._shorten(connection)
                return result
            except _Unaccompanied:
                self._look_at = 0.0
                patience = patience or Patience(self._clock, self.timeout)
                if not patience.left():
                    raise BrokerBusy(
                        f"{self._wal} was removed, and a process in a transaction keeps us from repairing it"
                    ) from None
            except sqlite3.Error as error:
                patience = self._endure(error, patience)
            await self._pause(patience.next())

    def _run(self, connection: sqlite3.Connection, begin: str | None, work: Work[T]) -> T:
        self._in_use.acquire()
        self._active = True
        try:
            if begin is None:
                return work(connection)
            connection.execute(begin)
            if begin == "BEGIN IMMEDIATE" and inode_of(self._wal) != self._companions[0]:
                # Checked again under the lock, where no other process can be switching to another WAL.
                raise _Unaccompanied
            result = work(connection)
            connection.execute("COMMIT")  # faster than commit(), which prepares it anew each time
            return result
        except BaseException:
            self._roll_back(connection)
            raise
        finally:
            self._active = False
            self._in_use.release()

    def _run_as(
        self, durability: Durability, connection: sqlite3.Connection, begin: str | None, work: Work[T]
    ) -> T:
        connection.execute(f"PRAGMA synchronous={durability}")
        try:
            return self._run(connection, begin, work)
        finally:
            if self._connection is connection:
                connection.execute(f"PRAGMA synchronous={self.synchronous}")

    def _shorten(self, connection: sqlite3.Connection) -> None:
        """Empty a long WAL, right after a commit. That does not fail for it: another call tries again.

        SQLite begins a WAL anew only if all of it is written home when the next writer comes. Its own
        checkpoints keep no writer out, so with several of them there always is something left. So one
        commit is followed by writing home most of it, beside the others; the next, while the lock is
        free, by writing the little that came meanwhile, while they wait.
        """
        if self._clock() < self._shorten_at:
            return
        first, longest = SHORTEN_PAUSES
        with self._in_use, contextlib.suppress(sqlite3.Error):
            if not self._copied:
                self._copied = copy_wal(connection)
            elif empty_wal(connection, READERS_MAY_TAKE):
                self._wal_size, self._copied, self._shorten_pause = 0, False, first
            else:
                self._copied = False
                self._shorten_pause = min(2 * self._shorten_pause, longest)
        self._shorten_at = 0.0 if self._copied else self._clock() + self._shorten_pause

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            connection.rollback()
        except sqlite3.Error:
            self._drop()

    def _endure(self, error: sqlite3.Error | BlockingIOError, patience: Patience | None) -> Patience:
        """Go on waiting if the file is merely busy; otherwise raise what happened in dray's words."""
        if isinstance(error, BlockingIOError) or getattr(error, "sqlite_errorcode", -1) & 0xFF in _BUSY:
            patience = patience or Patience(self._clock, self.timeout)
            if patience.left():
                return patience
            raise BrokerBusy(
                f"{self.path} was locked by others for {patience.waited():.1f} s: look for a process that is "
                "stopped or stuck in a transaction on it, or raise the timeout"
            ) from error
        fault = fault_of(error, self.path)
        if fault is None:
            raise error
        if not isinstance(fault, BrokerFull):
            self._drop()
        raise fault from error

    def _sound(self, connection: sqlite3.Connection) -> bool:
        """The connection belongs to this process, and its file is still the one at the path."""
        if self._process is not _process:
            _leave_to_parent()
            return False
        if self._thread != threading.get_ident():
            raise RuntimeError(f"{self.path} was opened by another thread: open a broker per thread")
        try:
            seen = os.stat(self._name)  # noqa: PTH116 (half the cost of Path.stat, and on the hot path)
        except OSError:
            raise self._gone(connection, None) from None
        if seen.st_ino != self._inode or seen.st_dev != self._device:
            raise self._gone(connection, seen)
        now = self._clock()
        return now < self._look_at or self._accompanied(connection, now)

    def _accompanied(self, connection: sqlite3.Connection, now: float) -> bool:
        """The -wal and -shm files are still the ones in use; if not, the WAL is brought home.

        SQLite goes on with a WAL that was unlinked, but no later process would ever see what is in it.
        """
        self._look_at = now + LOOK_EVERY
        found = companions(self._name)
        if found == self._companions:
            self._wal_size = size_of(self._wal)
            return True
        if all(new in (old, None) for new, old in zip(found, self._companions, strict=True)):
            if empty_wal(connection):
                self._drop()
                return False
            self._look_at = now
            return True
        self._drop()
        raise BrokerGone(
            f"{self._name}-wal or -shm was removed while in use: the last commits may be lost; "
            "leave these files alone while any process has the database open"
        )

    def _gone(self, connection: sqlite3.Connection, seen: os.stat_result | None) -> BrokerGone:
        """Part with a file that was moved away or replaced, leaving it whole wherever it is now.

        What is in a left-over WAL belongs to the old file. It is written home through our open handles;
        else opening the file that took its place would replay it there. If the WAL was written after the
        replacement, another process uses it with the new file already: leave it alone.
        """
        try:
            ours = seen is None or Path(f"{self._name}-wal").stat().st_mtime_ns <= seen.st_ctime_ns
        except OSError:
            ours = False
        if not ours or empty_wal(connection) or seen is None:
            self._drop()
        if seen is None:
            return BrokerGone(
                f"{self.path} was removed while in use: nothing was accepted; put it back and work goes on, "
                "or restart to begin with an empty one"
            )
        return BrokerGone(
            f"{self.path} was replaced while in use: nothing was accepted; the next call uses the file that "
            "is there now"
        )

    async def _connect(self, create: bool = False) -> sqlite3.Connection:
        if self._closed:
            raise BrokerError(f"{self.path}: this broker was closed; open another")
        patience: Patience | None = None
        while True:
            try:
                with _opening:
                    return self._attach(create)
            except (sqlite3.Error, BlockingIOError) as error:
                self._drop()
                patience = self._endure(error, patience)
            except BaseException:
                self._drop()
                raise
            await self._pause(patience.next())

    def _attach(self, create: bool) -> sqlite3.Connection:
        """One try to open the file; on any error the caller drops what there is and may call again."""
        _leave_to_parent()
        if create:
            create_file(self.path)
        try:
            seen = self.path.stat()
        except FileNotFoundError as error:
            raise BrokerGone(f"{self.path} is not there any more; put it back and work goes on") from error
        except OSError as error:
            raise os_fault(error, self.path) from error
        if (seen.st_dev, seen.st_ino) in _unsafe:
            raise BrokerAway(
                f"{self.path}: this process was forked in the middle of a transaction of another thread; "
                "start it with the spawn method, or fork before using the broker"
            )
        inspect(self.path, seen, len(self._scripts))
        self._connection = connection = connect(self.path, "mode=rw")
        self._process, self._thread = _process, threading.get_ident()
        self._device, self._inode = seen.st_dev, seen.st_ino
        _databases.add(self)
        mark(connection)
        prepare(connection, self.path)
        migrate(connection, self._scripts, self.path)
        connection.execute(f"PRAGMA synchronous={self.synchronous}")
        self._companions = companions(self._name)
        self._look_at = self._clock() + LOOK_EVERY
        try:
            now = self.path.stat()
        except OSError as error:
            raise BrokerGone(f"{self.path} is not there any more; put it back and work goes on") from error
        if (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino):
            raise BrokerGone(f"{self.path} was replaced while it was being opened; try again")
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with self._in_use, contextlib.suppress(sqlite3.Error):
                connection.close()

    def _disown(self) -> None:
        """Close a connection inherited through fork, in the child.

        It must not merely be forgotten: SQLite counts locks per process and file in its own memory, which
        the child inherited while the kernel's locks stayed with the parent. A fresh connection beside a
        forgotten one would therefore lock nothing, and lose its commits when the parent closes. Closing
        is harmless: the kernel's locks belong to a process, so the parent keeps its own. Only a
        connection caught in a transaction cannot be closed, for that would undo the parent's half of it.
        """
        connection, self._connection = self._connection, None
        self._process = _process
        if connection is None:
            return
        if self._active:
            _abandoned.append(connection)
            _unsafe.add((self._device, self._inode))
        else:
            connection.close()


def _leave_to_parent() -> None:
    for database in list(_databases):
        if database._process is not _process:
            database._disown()


def _before_fork() -> None:
    """Wait until no other thread is inside SQLite; one that stays there is left to `_disown`."""
    _opening.acquire()
    _held.extend(one for one in list(_databases) if one._in_use.acquire(timeout=FORK_PATIENCE))


def _after_fork() -> None:
    while _held:
        _held.pop()._in_use.release()
    _opening.release()


def _forked() -> None:
    global _process
    _process = object()
    for database in _databases:
        if database not in _held:
            database._in_use = threading.RLock()  # its thread does not exist here, and will not let go
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_forked)


class Patience:
    """The pauses between tries, and the end of trying.

    SQLite's own busy handler backs off to 100 ms and starves the first waiter; short random pauses that
    hardly grow give every waiter the same chance.
    """

    def __init__(self, clock: Callable[[], float], timeout: float) -> None:
        self._clock, self._start = clock, clock()
        self._timeout, self._longest = timeout, 0.0005

    def waited(self) -> float:
        return self._clock() - self._start

    def left(self) -> bool:
        return self.waited() < self._timeout

    def next(self) -> float:
        self._longest = min(self._longest * 1.3, 0.002)
        return random.uniform(0.0002, self._longest)  # noqa: S311 (jitter)
