"""Errors of SQLite and the system, as errors of dray.

SQLite often says only that something failed; here is found out why, by a look at the file and its disk.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from dray.errors import (
    BrokerAway,
    BrokerError,
    BrokerFull,
    BrokerGone,
    BrokerReadOnly,
    DrayError,
    ForeignStore,
    InvalidInput,
)


def fault_of(error: sqlite3.Error, path: Path) -> BrokerError | None:
    """A SQLite error in dray's words; None for one that only a mistake in dray can cause."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None and "decode to UTF-8" in str(error):
        return ForeignStore(f"{path} is damaged ({error}): restore a backup, or set that column right")
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


def os_fault(error: OSError, path: Path) -> DrayError:
    """The error for a file that could not be found or created."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return BrokerFull(f"{path} cannot be opened or created: {error.strerror}; free some space")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return BrokerReadOnly(
            f"{path} cannot be opened or created: {error.strerror}; make its folder writable for this user"
        )
    if error.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EEXIST):
        return InvalidInput("path", str(path), f"{error.strerror}: name a file in a folder")
    return BrokerAway(f"{path} cannot be opened or created: {error.strerror}")


def writable(path: Path) -> bool:
    """This user may write the file, and make the -wal and -shm beside it."""
    effective = os.access in os.supports_effective_ids
    return os.access(path, os.R_OK | os.W_OK, effective_ids=effective) and os.access(
        path.parent, os.W_OK | os.X_OK, effective_ids=effective
    )


def missing(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def out_of_space(path: Path) -> bool:
    """A file beside the database cannot grow to its size. SQLite does not say why a write failed."""
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
