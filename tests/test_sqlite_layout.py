"""Only dray's files are touched, and each is brought up to date once and whole."""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import sqlite3
import time
from pathlib import Path
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest
from sqlite_file import bodies, done, fill, heard, opened, put, raw, start, tell

from dray.broker import connect
from dray.broker.actions import Cancel, Ids
from dray.broker.sqlite.layout import APPLICATION_ID, load_migrations, load_statements, migrate, split
from dray.broker.verbs import Beat, run_blocking
from dray.errors import ForeignStore, NewerLayout
from dray.job import Error, Outcome, OutcomeKind


def prints(folder: Path) -> dict[str, str]:
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in folder.iterdir()
        if entry.is_file()
    }


def make_foreign(path: Path, mode: str) -> None:
    other = raw(path)
    other.execute(f"PRAGMA journal_mode={mode}")
    other.execute("CREATE TABLE precious(x)")
    other.close()


def test_an_empty_file_becomes_a_database(tmp_path: Path, layout: Path) -> None:
    (tmp_path / "empty.db").touch()
    db = opened(tmp_path / "empty.db", layout)
    put(db)
    db.close()


@pytest.mark.parametrize("kind", ["text", "short", "delete", "wal", "magic", "zeros"])
def test_a_foreign_file_is_refused_and_untouched(tmp_path: Path, layout: Path, kind: str) -> None:
    path = tmp_path / "foreign" / "theirs.db"
    path.parent.mkdir()
    if kind in ("delete", "wal"):
        make_foreign(path, kind)
    else:
        text = {"text": b"dear diary\n" * 900, "short": b"x", "magic": b"SQLite format 3\0junk"}
        path.write_bytes(text.get(kind, bytes(8192)))
    before = prints(path.parent)
    with pytest.raises(ForeignStore, match=r"theirs\.db"):
        opened(path, layout)
    assert prints(path.parent) == before


def test_looking_at_a_foreign_file_drops_nobodys_locks(tmp_path: Path, layout: Path) -> None:
    path = tmp_path / "theirs.db"
    make_foreign(path, "delete")
    owner = raw(path)  # an ORM in the same process, say
    owner.execute("BEGIN IMMEDIATE")
    with pytest.raises(ForeignStore):
        opened(path, layout)
    code = """
try: sqlite3.connect(path, timeout=0, isolation_level=None).execute("BEGIN IMMEDIATE"); say("stolen")
except sqlite3.OperationalError: say("locked")
"""
    assert done(start(code, path, layout)) == "locked"
    owner.close()


def test_a_pipe_in_its_place_is_refused_at_once(tmp_path: Path, layout: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ForeignStore, match="regular file"):
        opened(tmp_path / "pipe", layout)


def test_a_newer_layout_is_refused_and_untouched(path: Path, layout: Path) -> None:
    (layout / "0002_more.sql").write_text("CREATE TABLE more(x);")
    opened(path, layout).close()
    (layout / "0002_more.sql").unlink()
    before = prints(path.parent)
    with pytest.raises(NewerLayout, match="layout 2, this dray knows up to 1"):
        opened(path, layout)
    assert prints(path.parent) == before


def test_a_newer_layout_still_in_the_wal_is_refused(path: Path, layout: Path) -> None:
    (layout / "0002_more.sql").write_text("CREATE TABLE more(x);")
    newer = opened(path, layout)
    run_blocking(newer.write(lambda c: c.execute("PRAGMA user_version=3")))
    with pytest.raises(NewerLayout, match="layout 3"):
        opened(path, layout)
    newer.close()


def test_a_crash_during_a_checkpoint_is_not_taken_for_damage(
    tmp_path: Path, path: Path, layout: Path
) -> None:
    db = opened(path, layout)
    run_blocking(db.write(lambda c: fill(c, [bytes(3000) for _ in range(50)])))
    crashed = tmp_path / "crashed.db"
    content = bytearray(path.read_bytes())
    content[28:32] = (60).to_bytes(4, "big")  # page 1 is written first and already counts all pages
    crashed.write_bytes(content)
    shutil.copy(f"{path}-wal", f"{crashed}-wal")
    db.close()
    again = opened(crashed, layout)
    assert len(bodies(again)) == 50
    again.close()


def test_migrations_run_in_order_and_once(path: Path, layout: Path) -> None:
    db = opened(path, layout)
    put(db, "old")
    db.close()
    (layout / "0002_add.sql").write_text(
        "-- why; and how\nALTER TABLE job ADD COLUMN note DEFAULT 'a;b';\n"
        "CREATE TRIGGER t AFTER INSERT ON job BEGIN UPDATE job SET note = 'n'; SELECT 1; END;\n"
    )
    (layout / "0003_fill.sql").write_text("UPDATE job SET body = body || note;")
    for _ in range(2):
        db = opened(path, layout)
        assert bodies(db) == ["olda;b"]
        db.close()
    check = raw(path)
    assert check.execute("PRAGMA user_version").fetchone() == (3,)
    assert check.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    check.close()


def test_a_failing_migration_leaves_the_layout_before_it(path: Path, layout: Path) -> None:
    (layout / "0002_bad.sql").write_text("CREATE TABLE half(x); INSERT INTO nowhere VALUES(1);")
    with pytest.raises(sqlite3.OperationalError, match="nowhere") as caught:
        opened(path, layout)
    assert "from layout 1" in caught.value.__notes__[0]
    (layout / "0002_bad.sql").unlink()
    db = opened(path, layout)
    assert run_blocking(db.read(lambda c: c.execute("SELECT name FROM sqlite_schema").fetchall())) == [
        ("job",)
    ]
    db.close()


def test_a_migration_may_not_commit(path: Path, layout: Path) -> None:
    (layout / "0002_bad.sql").write_text("CREATE TABLE half(x); COMMIT;")
    with pytest.raises(ValueError, match="must not end its transaction"):
        opened(path, layout)


def test_a_process_killed_while_migrating_leaves_the_layout_before_it(path: Path, layout: Path) -> None:
    opened(path, layout).close()
    slow = (
        "CREATE TABLE big AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1e9)"
        " SELECT i, randomblob(500) FROM n;"
    )
    (layout / "0002_slow.sql").write_text(slow)
    victim = start("opened()", path, layout)
    wal = Path(f"{path}-wal")
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and not (wal.exists() and wal.stat().st_size > 20_000_000):
        time.sleep(0.01)
    victim.kill()
    victim.communicate()
    assert wal.stat().st_size > 20_000_000, "it never came to the migration"
    (layout / "0002_slow.sql").write_text("CREATE TABLE small(x);")
    db = opened(path, layout)
    names = run_blocking(db.read(lambda c: c.execute("SELECT name FROM sqlite_schema ORDER BY 1").fetchall()))
    assert names == [("job",), ("small",)]
    db.close()


@pytest.mark.parametrize("existing", [False, True])
def test_of_processes_opening_at_once_exactly_one_migrates(path: Path, layout: Path, existing: bool) -> None:
    if existing:
        opened(path, layout).close()
    (layout / "0002_row.sql").write_text("INSERT INTO job(body) VALUES('once');")
    (layout / "0003_row.sql").write_text("INSERT INTO job(body) VALUES('once more');")
    openers = [start("say('up'); hear(); say(bodies(opened()))", path, layout) for _ in range(6)]
    for opener in openers:
        assert heard(opener) == "up"
    for opener in openers:
        tell(opener)
    assert {done(opener) for opener in openers} == {"['once', 'once more']"}


def test_a_migration_another_process_ran_meanwhile_is_not_run_again(path: Path, layout: Path) -> None:
    opened(path, layout).close()
    (layout / "0002_row.sql").write_text("INSERT INTO job(body) VALUES('once');")
    late = raw(path)
    began: list[str] = []

    def before(statement: str) -> None:
        if statement == "BEGIN IMMEDIATE" and not began:
            began.append(statement)
            opened(path, layout).close()

    late.set_trace_callback(before)
    migrate(late, load_migrations(layout), path)
    assert began
    assert late.execute("SELECT body FROM job").fetchall() == [("once",)]
    late.close()


@pytest.mark.parametrize(
    "names", [("0002_a.sql",), ("0001_a.sql", "0001_b.sql"), ("1_a.sql",), ("layout.sql",)]
)
def test_migrations_are_numbered_without_holes(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("SELECT 1;")
    with pytest.raises(ValueError, match="numbered without holes"):
        opened(tmp_path / "jobs.db", tmp_path)


def test_statements_are_loaded_by_name(tmp_path: Path) -> None:
    file = tmp_path / "jobs.sql"
    file.write_text(
        "-- About this file.\n\n-- name: put_job\n-- Adds one.\nINSERT INTO job\n-- as given\nVALUES (';');\n"
        "--name: count_jobs\nSELECT count(*) FROM job -- all\n"
    )
    statements = load_statements(file)
    assert list(statements) == ["put_job", "count_jobs"]
    assert statements["put_job"].split() == ["INSERT", "INTO", "job", "VALUES", "(';')"]
    assert statements["count_jobs"].startswith("SELECT")
    with ZipFile(tmp_path / "wheel.zip", "w") as wheel:
        wheel.write(file, "dray/jobs.sql")
    assert load_statements(ZipPath(str(tmp_path / "wheel.zip"), "dray/jobs.sql")) == statements


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("SELECT 1;\n-- name: a\nSELECT 2;", "before the first"),
        ("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;", "two blocks are named a"),
        ("-- name:\nSELECT 1;", "is not a name"),
        ("-- name: two words\nSELECT 1;", "is not a name"),
        ("-- name: a\n-- only words\n", "exactly one statement"),
        ("-- name: a\nSELECT 1; SELECT 2;", "exactly one statement"),
    ],
)
def test_unclear_statement_files_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "bad.sql").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.sql.*{complaint}"):
        load_statements(tmp_path / "bad.sql")


def test_a_statement_without_an_end_is_refused() -> None:
    assert list(split("SELECT ';' ; -- done\n")) == ["SELECT ';' ;"]
    with pytest.raises(ValueError, match="without an end"):
        list(split("SELECT 1; SELECT 2"))


def test_a_file_of_layout_3_is_brought_up_to_date_and_who_waits_goes_on(tmp_path: Path) -> None:
    stored = Path(__file__).with_name("stored") / "layout_3.db.gz"
    (tmp_path / "jobs.db").write_bytes(gzip.decompress(stored.read_bytes()))
    broker = run_blocking(connect(f"sqlite:///{tmp_path}/jobs.db", "shop", blocking=True))
    now = 1_700_000_000_000 + 100
    waits, more = run_blocking(broker.get(["waits", "waits-more"], now=now))
    assert waits is not None
    assert more is not None
    assert (waits.waiting, more.waiting) == (("held",), ("held", "later"))
    assert (waits.memos, waits.suspended, waits.job.owner) == (0, None, None)
    done = Outcome(id="held", run=1, kind=OutcomeKind.SUCCEEDED)
    run_blocking(broker.settle("ann", [done], now=now))
    run_blocking(broker.edit(Ids(("later",)), Cancel(), now=now))
    states = [record.state for record in run_blocking(broker.get(["waits", "waits-more"], now=now)) if record]
    assert states == ["ready", "cancelled"]
    assert run_blocking(broker.send("ready-0", "go", "m1", b"hello", now=now)).verdict == "accepted"
    assert run_blocking(broker.audit()) == []
    run_blocking(broker.close())


def test_a_file_of_layout_1_is_brought_up_to_date_and_its_jobs_go_on(tmp_path: Path) -> None:
    stored = Path(__file__).with_name("stored") / "layout_1.db.gz"
    (tmp_path / "jobs.db").write_bytes(gzip.decompress(stored.read_bytes()))
    broker = run_blocking(connect(f"sqlite:///{tmp_path}/jobs.db", "shop", blocking=True))
    now = 1_700_000_000_000 + 100
    ids = ["done", "retried", "dead", "held", "asked", "ready"]
    records = {record.id: record for record in run_blocking(broker.get(ids, now=now)) if record is not None}
    assert [records[id].state for id in ids] == [
        "succeeded",
        "retrying",
        "dead",
        "running",
        "running",
        "ready",
    ]
    assert all(record.past == () for record in records.values())
    [heard] = run_blocking(broker.renew([Beat("old/1.1", 1000)], now=now))
    assert (heard.opened, heard.cancelled, heard.forced) == (False, (("asked", 1),), ())
    run_blocking(broker.edit(Ids(("asked",)), Cancel(force=True), now=now))
    [heard] = run_blocking(broker.renew([Beat("old/1.1", 1000)], now=now))
    assert heard.forced == (("asked", 1),)
    again = Outcome(id="held", run=1, kind=OutcomeKind.RETRY, error=Error("ValueError", "no"))
    run_blocking(broker.settle("old/1.1", [again], now=now))
    [held] = run_blocking(broker.get(["held"], now=now))
    assert held is not None
    assert [(run.session, run.how) for run in held.past] == [("old/1.1", "failed")]
    assert run_blocking(broker.audit()) == []
    run_blocking(broker.close())
