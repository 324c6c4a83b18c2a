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


def empty_wal(connection: sqlite3.Connection) -> bool:
    """Write everything in the WAL into the file it belongs to; False if others are in the way."""
    try:
        busy: int = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
    except sqlite3.Error:
        return False
    return not busy
