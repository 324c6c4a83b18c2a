"""One SQLite connection: how it is opened and set up."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final
from urllib.parse import quote

from dray.errors import BrokerAway

# Measured on 600,000 jobs (160 MB), transactions of 20 random moves and one insert.
PRAGMAS: Final = (
    # 2 to 6 % quicker than the default 2 MB, hardly more than noise; 64 MB gained nothing further.
    "cache_size=-16384",
    # Sorting a page of `find` must not depend on a writable, roomy /tmp.
    "temp_store=MEMORY",
    # `Database` does it (`_shorten`): SQLite's own, with several processes at work, never empties the WAL.
    "wal_autocheckpoint=0",
    # A mapped file that another process truncates is a SIGBUS, and mapping made nothing quicker.
    "mmap_size=0",
    # References are kept by the verbs; checking them again costs each insert a lookup.
    "foreign_keys=OFF",
)


def connect(path: Path, options: str) -> sqlite3.Connection:
    # A URI, because only there can be said that the file must exist; quoted, because `?` and `#` end a path.
    return sqlite3.connect(
        f"file://{quote(os.fsencode(path))}?{options}",
        uri=True,
        timeout=0,
        isolation_level=None,
        cached_statements=256,
        check_same_thread=False,  # a forked child closes what it inherited; `Database` checks the thread
    )


def prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Set the connection up: WAL, which the file keeps, and the PRAGMAs, which it does not."""
    mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
    if mode != "wal":
        raise BrokerAway(f"{path}: its file system cannot share memory (WAL); use a local disk")
    for pragma in PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def copy_wal(connection: sqlite3.Connection) -> bool:
    """Copy the WAL into the file without blocking others; False if another process is doing it."""
    return not connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0]


def empty_wal(connection: sqlite3.Connection, wait: int = 0) -> bool:
    """Write everything in the WAL into the file it belongs to; False if others are in the way.

    `wait` is for how many milliseconds it keeps writers out until readers are done.
    """
    try:
        connection.execute(f"PRAGMA busy_timeout={wait}")
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        connection.execute("PRAGMA busy_timeout=0")
    except sqlite3.Error:
        return False
    return not busy
