"""Checks of `dray doctor` for the embedded broker: the file, its folder and its disk."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from dray.broker.sqlite.options import Options, read_url
from dray.broker.sqlite.path import REMOTE, filesystem_of, mounts
from dray.cli.doctor_checks import Finding
from dray.settings import Settings, format_size

MEBIBYTE: Final = 1 << 20
QUICK_CHECK_MOST: Final = 256 * MEBIBYTE
WAL_LARGE: Final = 256 * MEBIBYTE
DISK_FAIL: Final = 64 * MEBIBYTE
DISK_WARN: Final = 512 * MEBIBYTE


def check_file(settings: Settings) -> Iterator[Finding]:
    """Runs before the broker opens the file: closing another handle later would drop the broker's locks."""
    options = read_url(settings.broker_url)
    path = Path(options.path).resolve()
    yield from _permissions(path)
    yield from _disk(path)
    yield from _content(path)
    yield from _durability(options, settings)


def _permissions(path: Path) -> Iterator[Finding]:
    seen = path.stat()
    if not stat.S_ISREG(seen.st_mode):
        yield Finding("file", "fail", f"{path} is not a regular file", "name a file with --broker")
        return
    if not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK | os.X_OK):
        todo = f"make {path} and its folder writable for this user: SQLite keeps files beside it"
        yield Finding("file", "fail", f"{path} or its folder may not be written", todo)
    elif seen.st_uid != os.geteuid():
        text = f"{path} belongs to another user (id {seen.st_uid})"
        todo = "run workers and programs as one user, or the files beside it get in the way"
        yield Finding("file", "warn", text, todo)
    elif seen.st_mode & 0o077:
        text = f"{path} can be opened by others on this machine (mode {stat.S_IMODE(seen.st_mode):o})"
        yield Finding("file", "warn", text, f"chmod 600 {path}, unless that is meant")
    else:
        yield Finding("file", "ok", f"{path} is private and writable ({format_size(seen.st_size)})")
    if seen.st_mtime > time.time() + 60:
        text = "the file was changed in the future: the clock went back"
        yield Finding("clock", "warn", text, "keep the clock by NTP; jobs due then wait for it")


def _disk(path: Path) -> Iterator[Finding]:
    kind = filesystem_of(str(path), mounts())
    if kind and REMOTE.fullmatch(kind):
        todo = "use a local disk, or a server broker for several machines"
        yield Finding("disk", "fail", f"{path} is on a network file system ({kind}): jobs can be lost", todo)
    free = shutil.disk_usage(path.parent).free
    if free < DISK_WARN:
        todo = "make room: a full disk refuses every job"
        yield Finding("disk", "fail" if free < DISK_FAIL else "warn", f"{_rounded(free)} free", todo)
    else:
        yield Finding("disk", "ok", f"{_rounded(free)} free")
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    if size > WAL_LARGE:
        todo = "find the process that keeps a read open (a backup, a stopped worker) and end it"
        yield Finding("disk", "warn", f"{wal.name} has grown to {_rounded(size)}", todo)


def _rounded(size: int) -> str:
    return format_size(size // MEBIBYTE * MEBIBYTE) if size < 10 * 1024 * MEBIBYTE else f"{size >> 30}GiB"


def _content(path: Path) -> Iterator[Finding]:
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=5)) as connection:
            layout = connection.execute("PRAGMA user_version").fetchone()[0]
            if path.stat().st_size > QUICK_CHECK_MOST:
                yield Finding("database", "ok", f"layout {layout}; too large for a quick check of every page")
                return
            problems = [row[0] for row in connection.execute("PRAGMA quick_check(5)")]
    except sqlite3.Error as error:
        yield Finding("database", "fail", f"SQLite cannot read it: {error}", "restore a backup")
        return
    if problems != ["ok"]:
        text = f"SQLite finds it damaged: {'; '.join(problems)}"
        yield Finding("database", "fail", text, "keep a copy; restore a backup, or `sqlite3 FILE .recover`")
    else:
        yield Finding("database", "ok", f"layout {layout}, every page is sound")


def _durability(options: Options, settings: Settings) -> Iterator[Finding]:
    if options.synchronous == "full" or settings.durability == "full":
        yield Finding("durability", "ok", "full: nothing acknowledged is lost in a power cut")
    else:
        text = "normal: safe when processes die; the last moments before a power cut may be lost"
        yield Finding("durability", "ok", f"{text} (durability=full waits for the disk)")
