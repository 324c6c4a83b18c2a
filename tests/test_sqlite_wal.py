"""The WAL stays short while several processes write all the time."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sqlite_file import PRELUDE, bodies, opened, put

from dray.broker.sqlite.database import WAL_LONG
from dray.broker.verbs import run_blocking

MEBIBYTE = 1 << 20
PROCESSES, COMMITS, SIZE = 5, 2000, 25_000
WRITER = f"""{PRELUDE}
db, name = opened(timeout=60.0), int(sys.argv[3])
for n in range({COMMITS}):
    run_blocking(db.write(
        lambda c: c.execute("UPDATE job SET body = randomblob({SIZE}) WHERE id = ?", (1 + (n + name) % 50,))
    ))
    if n % 10 == 0:
        run_blocking(db.read(lambda c: c.execute("SELECT count(*) FROM job").fetchone()))
"""


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = tmp_path / "layout"
    folder.mkdir()
    (folder / "0001_job.sql").write_text("CREATE TABLE job(id INTEGER PRIMARY KEY, body);\n")
    return folder


def test_it_is_bounded_under_a_steady_load_of_several_processes(tmp_path: Path, layout: Path) -> None:
    path = tmp_path / "jobs.db"
    db = opened(path, layout)
    for _ in range(50):
        put(db)
    wal = Path(f"{path}-wal")
    command = [sys.executable, "-c", WRITER, str(path), str(layout)]
    writers = [subprocess.Popen([*command, str(n)]) for n in range(PROCESSES)]
    longest = 0
    try:
        while any(writer.poll() is None for writer in writers):
            longest = max(longest, wal.stat().st_size)
            time.sleep(0.005)
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    written = PROCESSES * COMMITS * SIZE
    assert written > 100 * MEBIBYTE
    assert longest < written / 2, f"{longest} bytes of WAL for {written} written"
    db.close()


def test_a_long_reader_lets_it_grow_and_the_first_writer_after_it_empties_it(
    tmp_path: Path, layout: Path
) -> None:
    path = tmp_path / "jobs.db"
    db, reader = opened(path, layout), opened(path, layout)
    put(db)
    wal = Path(f"{path}-wal")

    def grow(connection: sqlite3.Connection) -> None:
        connection.execute("SELECT count(*) FROM job").fetchone()  # its snapshot is older than what follows
        for _ in range(20):
            put(db, b"x" * MEBIBYTE)
        assert wal.stat().st_size > WAL_LONG

    run_blocking(reader.read(grow))
    end = time.monotonic() + 30
    while wal.stat().st_size > WAL_LONG:
        assert time.monotonic() < end, "it stays long"
        put(db)
        time.sleep(0.01)  # a process looks at the WAL that often
    assert len(bodies(db)) > 20
    db.close()
    reader.close()
