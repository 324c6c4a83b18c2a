"""The file under the embedded broker: opening it, transactions on it, and all that can happen to a file.

A `Database` belongs to one thread of one process. `write` and `read` run a synchronous function in a
transaction; on contention they pause and run it again, so it must be restartable.

What a commit survives: with `synchronous="normal"` in WAL mode a power cut or kernel crash can lose the
commits since the last sync of the WAL (at the latest the last checkpoint), a crash of any process loses
nothing, and neither corrupts the file. With "full" nothing acknowledged is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import random
import re
import sqlite3
import stat
import threading
import time
import warnings
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

from dray.errors import (
    BrokerAway,
    BrokerBusy,
    BrokerError,
    BrokerFull,
    BrokerGone,
    BrokerReadOnly,
    BrokerWarning,
    DrayError,
    ForeignStore,
    InvalidInput,
    NewerLayout,
)

APPLICATION_ID: Final = 0x64726179
"""Marks a SQLite file as dray's ("dray" in ASCII)."""
OLDEST_SQLITE: Final = (3, 35, 0)
LOOK_EVERY: Final = 0.01
"""Seconds between looks at the -wal and -shm files; the database file itself is looked at every time."""
REMOTE: Final = re.compile(
    r"nfs4?|cifs|smb3|smbfs|9p|afs|ceph|lustre|glusterfs|gfs2|ocfs2|beegfs|gpfs|ncpfs|vboxsf|prl_fs|virtiofs"
    r"|fuse\.(sshfs|glusterfs|ceph|s3fs|rclone|gcsfuse|vmhgfs-fuse)"
)

# Measured on 600,000 jobs (160 MB), transactions of 20 random moves and one insert.
PRAGMAS: Final = (
    # 2 to 6 % quicker than the default 2 MB, hardly more than noise; 64 MB gained nothing further.
    "cache_size=-16384",
    # Sorting a page of `find` must not depend on a writable, roomy /tmp.
    "temp_store=MEMORY",
    # The default, 4 MB of WAL. 4,000 pages are 15 % quicker on such random moves but not on inserts, make the
    # longest stall two to three times as long, and leave more for a power cut to take.
    "wal_autocheckpoint=1000",
    # A WAL that grew behind a long reader gives its space back at the next restart.
    "journal_size_limit=67108864",
    # A mapped file that another process truncates is a SIGBUS, and mapping made nothing quicker.
    "mmap_size=0",
    # References are kept by the verbs; checking them again costs each insert a lookup.
    "foreign_keys=OFF",
)

T = TypeVar("T")
Durability = Literal["normal", "full"]
Pause = Callable[[float], Awaitable[object]]
Work = Callable[[sqlite3.Connection], T]

_BUSY: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_process = object()
"""Replaced in a forked child: cheaper to compare than `os.getpid()`, which is a system call."""
_opening = threading.Lock()
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_abandoned: list[sqlite3.Connection] = []
_unsafe: set[tuple[int, int]] = set()
_warned: set[Path] = set()


async def blocking_pause(seconds: float) -> None:
    """A `pause` that never suspends, for a broker without an event loop."""
    time.sleep(seconds)  # noqa: ASYNC251 (blocking is its purpose)


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
        self._connection: sqlite3.Connection | None = None
        self._closed = self._active = False
        self._process, self._thread = _process, threading.get_ident()
        self._device = self._inode = 0
        self._companions: tuple[int | None, int | None] = (None, None)
        self._look_at = 0.0

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
                    return self._run(connection, begin, work)
                return self._run_as(durability, connection, begin, work)
            except sqlite3.Error as error:
                patience = self._endure(error, patience)
            await self._pause(patience.next())

    def _run(self, connection: sqlite3.Connection, begin: str | None, work: Work[T]) -> T:
        self._active = True
        try:
            if begin is None:
                return work(connection)
            connection.execute(begin)
            result = work(connection)
            connection.execute("COMMIT")  # faster than commit(), which prepares it anew each time
            return result
        except BaseException:
            self._roll_back(connection)
            raise
        finally:
            self._active = False

    def _run_as(
        self, durability: Durability, connection: sqlite3.Connection, begin: str | None, work: Work[T]
    ) -> T:
        connection.execute(f"PRAGMA synchronous={durability}")
        try:
            return self._run(connection, begin, work)
        finally:
            if self._connection is connection:
                connection.execute(f"PRAGMA synchronous={self.synchronous}")

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
        """Whether the connection is still this process's, and its file is still the one at the path."""
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
        """Whether the -wal and -shm files are still the ones in use; brings the WAL home if they are not.

        SQLite goes on with a WAL that was unlinked, but no later process would ever see what is in it.
        """
        self._look_at = now + LOOK_EVERY
        found = companions(self._name)
        if found == self._companions:
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
        replacement, somebody uses it with the new file already, and it is not ours to touch.
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
        prepare(connection, self.path)
        migrate(connection, self._scripts, self.path)
        connection.execute(f"PRAGMA synchronous={self.synchronous}")
        self._companions = companions(self._name)
        self._look_at = self._clock() + LOOK_EVERY
        now = self.path.stat()
        if (now.st_dev, now.st_ino) != (seen.st_dev, seen.st_ino):
            raise BrokerGone(f"{self.path} was replaced while it was being opened; try again")
        return connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def _disown(self) -> None:
        """Close a connection inherited through fork, in the child.

        It must not merely be forgotten: SQLite counts locks per process and file in its own memory, which
        the child inherited while the kernel's locks stayed with the parent. A fresh connection beside a
        forgotten one would therefore lock nothing, and lose its commits when the parent closes. Closing
        harms nobody: the kernel's locks belong to a process, so the parent keeps its own. Only a
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


def _forked() -> None:
    global _process, _opening
    _process, _opening = object(), threading.Lock()


os.register_at_fork(after_in_child=_forked)


class Patience:
    """How long to pause between tries, and when to stop trying.

    SQLite's own busy handler backs off to 100 ms and starves whoever came first; short random pauses that
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


def connect(path: Path, options: str) -> sqlite3.Connection:
    # A URI, because only there can be said that the file must exist; quoted, because `?` and `#` end a path.
    return sqlite3.connect(
        f"file://{quote(os.fsencode(path))}?{options}",
        uri=True,
        timeout=0,
        isolation_level=None,
        cached_statements=256,
        check_same_thread=False,  # a forked child closes what it inherited; `_sound` checks the thread
    )


def empty_wal(connection: sqlite3.Connection) -> bool:
    """Write everything in the WAL into the file it belongs to; False if others are in the way."""
    try:
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error:
        return False
    return not busy


def companions(name: str) -> tuple[int | None, int | None]:
    """The inodes of the -wal and the -shm file."""

    def inode(path: str) -> int | None:
        try:
            return os.stat(path).st_ino  # noqa: PTH116 (see `_sound`)
        except OSError:
            return None

    return inode(f"{name}-wal"), inode(f"{name}-shm")


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


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Mark a new file as dray's and set the connection up."""
    if not connection.execute("PRAGMA application_id").fetchone()[0]:
        # Before WAL: so the mark is in the file itself, and a crash here leaves it empty or marked.
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute("COMMIT")
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerAway(f"{path}: its file system cannot share memory (WAL); use a local disk")
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


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
        # So that the file itself, without its WAL, tells an older dray that it is too new.
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


def resolve(path: str | os.PathLike[str]) -> Path:
    """The absolute path, symbolic links followed: SQLite puts the -wal beside the real file."""
    text = os.fspath(path)
    if not text or "\0" in text:
        raise InvalidInput("path", text, "name the database file")
    try:
        place = Path(text).resolve()
        if place.is_dir():
            raise InvalidInput("path", text, "is a folder: name a file in it")
    except OSError as error:
        raise os_fault(error, Path(text)) from error
    except RuntimeError as error:
        raise InvalidInput("path", text, "its symbolic links go in a circle") from error
    return place


def create_file(path: Path) -> None:
    """Make the file, empty and private, and the folders above it, unless it is there."""
    try:
        if path.exists():
            return
        make_folders(path.parent)
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists():
                return
            # What a removed database left behind would be replayed into the new one. Under the lock no
            # other dray can be creating it, and with no file there nobody can rightly be using these.
            for suffix in ("-wal", "-shm", "-journal"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            os.fsync(handle)
        finally:
            os.close(handle)
    except BlockingIOError:
        raise
    except OSError as error:
        raise os_fault(error, path) from error


def make_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    make_folders(folder.parent)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
        if folder.name == ".dray":
            (folder / ".gitignore").write_text("*\n")


def os_fault(error: OSError, path: Path) -> DrayError:
    """What kept the file from being found or created."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return BrokerFull(f"{path} cannot be opened or created: {error.strerror}; free some space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BrokerReadOnly(
            f"{path} cannot be opened or created: {error.strerror}; make its folder writable for this user"
        )
    if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST):
        return InvalidInput("path", str(path), f"{error.strerror}: name a file in a folder")
    return BrokerAway(f"{path} cannot be opened or created: {error.strerror}")


def fault_of(error: sqlite3.Error, path: Path) -> BrokerError | None:
    """A SQLite error in dray's words; None for one that only a mistake in dray can cause."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return None
    kind, what = code & 0xFF, f"{error.sqlite_errorname}: {error}"
    if kind == sqlite3.SQLITE_FULL or (kind == sqlite3.SQLITE_IOERR and out_of_space(path)):
        return BrokerFull(f"no space left for {path} ({what}): nothing was accepted; free some and try again")
    if kind == sqlite3.SQLITE_IOERR:
        return BrokerAway(f"{path} cannot be read or written ({what}): check the disk and the system log")
    if code == sqlite3.SQLITE_READONLY_DBMOVED or (kind == sqlite3.SQLITE_CANTOPEN and missing(path)):
        return BrokerGone(f"{path} was removed or replaced while in use ({what}); put it back")
    if kind in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM) or (
        kind == sqlite3.SQLITE_CANTOPEN and not writable(path)
    ):
        return BrokerReadOnly(
            f"{path} may not be written ({what}): the file and its folder must be writable for this user"
        )
    if kind == sqlite3.SQLITE_CANTOPEN:
        return BrokerAway(f"{path} cannot be opened ({what}): look at the limit of open files and the disk")
    if kind == sqlite3.SQLITE_NOTADB:
        return ForeignStore(f"{path} is not a SQLite database: choose another path")
    if kind == sqlite3.SQLITE_CORRUPT:
        return ForeignStore(
            f"{path} is damaged ({what}): stop every process that uses it, keep a copy with its -wal, then "
            "restore a backup or salvage it with `sqlite3 FILE .recover`"
        )
    return None


def missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def writable(path: Path) -> bool:
    """Whether this user may write the file, and make the -wal and -shm beside it."""
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.R_OK | os.W_OK, effective_ids=effective) and os.access(
        path.parent, os.W_OK | os.X_OK, effective_ids=effective
    )


def out_of_space(path: Path) -> bool:
    """Whether a file beside the database cannot grow to its size: SQLite does not say why a write failed."""
    probe = Path(f"{path}-probe-{os.getpid()}")
    lump = bytes(1 << 16)
    try:
        reach = max(size_of(path), size_of(Path(f"{path}-wal")))
        handle = os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            probe.unlink()
            return os.pwrite(handle, lump, reach) < len(lump)
        finally:
            os.close(handle)
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def size_of(path: Path) -> int:
    return 0 if missing(path) else path.stat().st_size


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """The type of the file system that holds an absolute path, by the text of /proc/self/mountinfo."""
    best, found = -1, None
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) < 5 or not source:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4]).rstrip("/")
        # Of two mounts on one point the later one hides the earlier.
        if (path == point or path.startswith(point + "/")) and len(point) >= best:
            best, found = len(point), source.split(" ")[0]
    return found


def mounts() -> str:
    """The mounted file systems where the system tells them (Linux), else nothing."""
    try:
        return Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def warn_if_remote(path: Path, mountinfo: str) -> None:
    kind = filesystem_of(str(path), mountinfo)
    if kind and REMOTE.fullmatch(kind) and path not in _warned:
        _warned.add(path)
        warnings.warn(
            f"{path} is on a network file system ({kind}): WAL needs all processes on one machine, else jobs "
            "are lost; use a local disk, or Redis for several machines",
            BrokerWarning,
            stacklevel=3,
        )
