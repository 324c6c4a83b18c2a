"""The file under the embedded broker, with real files, real processes and real faults."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal
from zipfile import Path as ZipPath
from zipfile import ZipFile

import pytest

from dray.broker.sqlite.database import (
    APPLICATION_ID,
    Database,
    blocking_pause,
    filesystem_of,
    load_migrations,
    load_statements,
    migrate,
    split,
    warn_if_remote,
)
from dray.broker.verbs import run_blocking
from dray.errors import (
    BrokerBusy,
    BrokerError,
    BrokerFull,
    BrokerGone,
    BrokerWarning,
    ForeignStore,
    InvalidInput,
    NewerLayout,
)

LAYOUT = "CREATE TABLE job(id INTEGER PRIMARY KEY, body);\n"

PRELUDE = """
import os, sys, signal, sqlite3, time
from pathlib import Path
from dray.broker.sqlite.database import Database, blocking_pause
from dray.broker.verbs import run_blocking
from dray.errors import *
path, layout = sys.argv[1:3]
def opened(timeout=10.0):
    return run_blocking(Database.open(path, timeout=timeout, pause=blocking_pause, migrations=Path(layout)))
def put(db, body): run_blocking(db.write(lambda c: c.execute("INSERT INTO job(body) VALUES(?)", (body,))))
def bodies(db): return run_blocking(db.read(lambda c: [b for b, in c.execute("SELECT body FROM job")]))
def say(word): print(word, flush=True)
def hear(): assert sys.stdin.readline()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = tmp_path / "layout"
    folder.mkdir()
    (folder / "0001_jobs.sql").write_text(LAYOUT)
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "jobs.db"


@pytest.fixture
def db(path: Path, layout: Path) -> Iterator[Database]:
    database = opened(path, layout)
    yield database
    database.close()


def opened(
    path: Path | str,
    layout: Path,
    *,
    timeout: float = 10.0,
    synchronous: Literal["normal", "full"] = "normal",
) -> Database:
    opening = Database.open(
        path, timeout=timeout, synchronous=synchronous, pause=blocking_pause, migrations=layout
    )
    return run_blocking(opening)


def insert(connection: sqlite3.Connection, body: object = "x") -> None:
    connection.execute("INSERT INTO job(body) VALUES(?)", (body,))


def fill(connection: sqlite3.Connection, bodies: list[object]) -> None:
    connection.executemany("INSERT INTO job(body) VALUES(?)", [(body,) for body in bodies])


def put(db: Database, body: object = "x") -> None:
    run_blocking(db.write(lambda c: insert(c, body)))


def bodies(db: Database) -> list[object]:
    return run_blocking(
        db.read(lambda c: [body for (body,) in c.execute("SELECT body FROM job ORDER BY id")])
    )


def start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PRELUDE + code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def done(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output.strip()


def raw(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None, timeout=0)


def prints(folder: Path) -> dict[str, str]:
    return {
        entry.name: hashlib.sha256(entry.read_bytes()).hexdigest()
        for entry in folder.iterdir()
        if entry.is_file()
    }


def test_write_keeps_all_and_read_sees_it(db: Database) -> None:
    assert run_blocking(
        db.write(lambda c: c.execute("INSERT INTO job(body) VALUES(1) RETURNING id").fetchall())
    )
    assert bodies(db) == [1]


def test_an_error_in_the_work_keeps_nothing_and_the_database_goes_on(db: Database) -> None:
    def work(connection: sqlite3.Connection) -> None:
        insert(connection)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run_blocking(db.write(work))
    with pytest.raises(sqlite3.IntegrityError):
        run_blocking(db.write(lambda c: c.execute("INSERT INTO job(id) VALUES(1), (1)")))
    with pytest.raises(sqlite3.OperationalError, match="syntax"):
        run_blocking(db.write(lambda c: c.execute("SELEKT")))
    assert bodies(db) == []
    put(db)
    assert bodies(db) == ["x"]


def test_a_read_is_one_snapshot(db: Database, path: Path) -> None:
    def work(connection: sqlite3.Connection) -> tuple[int, int]:
        count = "SELECT count(*) FROM job"
        before = connection.execute(count).fetchone()[0]
        other = raw(path)
        insert(other)
        other.close()
        return before, connection.execute(count).fetchone()[0]

    assert run_blocking(db.read(work)) == (0, 0)
    assert run_blocking(db.read(work, snapshot=False)) == (1, 2)


def test_work_that_meets_a_conflict_runs_again_from_the_start(db: Database, path: Path) -> None:
    runs = []

    def work(connection: sqlite3.Connection) -> None:
        runs.append(connection.execute("SELECT count(*) FROM job").fetchone()[0])
        if len(runs) == 1:
            other = raw(path)
            insert(other, "theirs")
            other.close()
        insert(connection, "ours")  # SQLITE_BUSY_SNAPSHOT the first time

    run_blocking(db.read(work))
    assert runs == [0, 1]
    assert bodies(db) == ["theirs", "ours"]


def test_waiting_for_a_lock_leaves_the_event_loop_free(path: Path, layout: Path) -> None:
    async def main() -> None:
        db = await Database.open(path, migrations=layout)
        holder = raw(path)
        holder.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(db.write(insert))
        await asyncio.sleep(0.05)
        assert not writing.done()
        holder.execute("COMMIT")
        await asyncio.wait_for(writing, 5)
        holder.close()
        db.close()

    asyncio.run(main())


def test_giving_up_names_the_file_and_the_time(path: Path, layout: Path) -> None:
    db = opened(path, layout, timeout=0.1)
    holder = raw(path)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(BrokerBusy, match=r"jobs\.db was locked by others for 0\.\d s"):
        put(db)
    holder.close()
    put(db)
    assert bodies(db) == ["x"]
    db.close()


def test_an_uncontended_write_never_pauses(path: Path, layout: Path) -> None:
    async def never(seconds: float) -> None:
        raise AssertionError("paused")

    db = run_blocking(Database.open(path, migrations=layout, pause=never))
    put(db)
    assert bodies(db) == ["x"]
    db.close()


def test_processes_do_not_lose_each_others_updates(db: Database, path: Path, layout: Path) -> None:
    put(db, 0)
    code = """
db = opened(60)
def add(c):
    n = c.execute("SELECT body FROM job WHERE id=1").fetchone()[0]
    c.execute("UPDATE job SET body=? WHERE id=1", (n + 1,))
longest = 0
for _ in range(300):
    began = time.monotonic(); run_blocking(db.write(add)); longest = max(longest, time.monotonic() - began)
say(longest)
"""
    workers = [start(code, path, layout) for _ in range(4)]
    longest = [float(done(worker)) for worker in workers]
    assert bodies(db) == [1200]
    assert max(longest) < 5, "somebody was starved"


def test_a_process_killed_in_a_transaction_leaves_nothing_behind(
    db: Database, path: Path, layout: Path
) -> None:
    code = """
def work(c):
    c.execute("INSERT INTO job(body) VALUES('half')"); say("in"); time.sleep(60)
run_blocking(opened().write(work))
"""
    victim = start(code, path, layout)
    assert heard(victim) == "in"
    victim.kill()
    victim.communicate()
    put(db)
    assert bodies(db) == ["x"]


def test_full_durability_is_for_one_commit(db: Database) -> None:
    def level(connection: sqlite3.Connection) -> int:
        value: int = connection.execute("PRAGMA synchronous").fetchone()[0]
        return value

    assert run_blocking(db.write(level)) == 1
    assert run_blocking(db.write(level, durability="full")) == 2
    with pytest.raises(ZeroDivisionError):
        run_blocking(db.write(lambda c: 1 // 0, durability="full"))
    assert run_blocking(db.read(level)) == 1


def test_a_database_opened_full_syncs_every_commit(path: Path, layout: Path) -> None:
    db = opened(path, layout, synchronous="full")
    assert run_blocking(db.read(lambda c: c.execute("PRAGMA synchronous").fetchone())) == (2,)
    db.close()


def test_another_thread_is_refused(db: Database) -> None:
    caught: list[BaseException] = []

    def use() -> None:
        try:
            put(db)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])


def test_a_closed_database_says_so(db: Database) -> None:
    db.close()
    db.close()
    with pytest.raises(BrokerError, match="closed"):
        put(db)


def test_a_full_database_accepts_nothing_and_works_again_with_space(db: Database) -> None:
    def limit(pages: int) -> None:
        run_blocking(
            db.read(lambda c: c.execute(f"PRAGMA max_page_count={pages}").fetchone(), snapshot=False)
        )

    limit(5)
    with pytest.raises(BrokerFull, match=r"no space left for .*jobs\.db"):
        run_blocking(db.write(lambda c: fill(c, [bytes(3000) for _ in range(50)])))
    assert bodies(db) == []
    limit(100_000)
    put(db)
    assert bodies(db) == ["x"]


def test_a_write_the_system_refuses_for_size_is_full_too(path: Path, layout: Path) -> None:
    code = """
import resource
db = opened(); put(db, "kept")
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
try:
    for _ in range(100): put(db, bytes(10_000))
except BrokerFull as error: say("full")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
before = len(bodies(db)); put(db, "after"); assert len(bodies(db)) == before + 1
say(sorted(os.listdir(os.path.dirname(path))))
"""
    output = done(start(code, path, layout)).splitlines()
    assert output == ["full", "['jobs.db', 'jobs.db-shm', 'jobs.db-wal']"]
    check = raw(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ("os.chmod(path, 0o444)", "BrokerReadOnly"),
        ("os.chmod(path, 0)", "BrokerReadOnly"),
        ("os.chmod(folder, 0o555)", "BrokerReadOnly"),
        ("os.chmod(folder, 0)", "BrokerReadOnly"),
        ("os.unlink(path); os.chmod(folder, 0o555)", "BrokerReadOnly"),
    ],
)
def test_without_permission_it_is_read_only(layout: Path, spoil: str, error: str) -> None:
    # Root may write everywhere, so an ordinary user tries; pytest's own folders are closed to that user.
    with tempfile.TemporaryDirectory() as top:
        Path(top).chmod(0o755)
        mine = shutil.copytree(layout, Path(top) / "layout")
        folder = Path(top) / "data"
        folder.mkdir()
        code = f"""
folder = os.path.dirname(path)
if os.getuid() == 0:
    os.chown(folder, 65534, 65534); os.setgid(65534); os.setuid(65534)
db = opened(); put(db, "kept"); db.close()
{spoil}
try: opened()
except {error} as error: assert path in str(error); say("refused")
os.chmod(folder, 0o755)
if os.path.exists(path): os.chmod(path, 0o644)
say(bodies(opened()))
"""
        refused, after = done(start(code, folder / "jobs.db", mine)).splitlines()
        assert refused == "refused"
        assert after == ("[]" if "unlink" in spoil else "['kept']")


def test_a_damaged_file_says_so_and_how_to_go_on(path: Path, layout: Path) -> None:
    db = opened(path, layout)
    run_blocking(db.write(lambda c: fill(c, [bytes(3000) for _ in range(50)])))
    db.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    db = opened(path, layout)
    for _ in range(2):
        with pytest.raises(ForeignStore, match=r"damaged.*recover"):
            bodies(db)
    db.close()


def make_foreign(path: Path, mode: str) -> None:
    other = raw(path)
    other.execute(f"PRAGMA journal_mode={mode}")
    other.execute("CREATE TABLE precious(x)")
    other.close()


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


def test_what_it_creates_is_private(tmp_path: Path, layout: Path) -> None:
    path = tmp_path / "a" / ".dray" / "jobs.db"
    db = opened(path, layout)
    put(db)
    assert {entry.name for entry in path.parent.iterdir()} == {
        ".gitignore",
        "jobs.db",
        "jobs.db-wal",
        "jobs.db-shm",
    }
    assert (path.parent / ".gitignore").read_text() == "*\n"
    for file in path.parent.glob("jobs.db*"):
        assert file.stat().st_mode & 0o777 == 0o600, file
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    db.close()


@pytest.mark.parametrize("folder", [".dray", "other"])
def test_only_a_dray_folder_of_its_own_is_hidden_from_git(tmp_path: Path, layout: Path, folder: str) -> None:
    if folder == ".dray":
        (tmp_path / folder).mkdir()
    opened(tmp_path / folder / "jobs.db", layout).close()
    assert [entry.name for entry in (tmp_path / folder).iterdir()] == ["jobs.db"]


@pytest.mark.parametrize(
    "name", ["with space", "ünï-çødé", "a?mode=memory", "100%", "%41", "a#b", "a&b", ":memory:"]
)
def test_odd_names_are_plain_names(tmp_path: Path, layout: Path, name: str) -> None:
    db = opened(tmp_path / name, layout)
    put(db)
    db.close()
    assert (tmp_path / name).stat().st_size > 0
    assert {entry.name for entry in tmp_path.iterdir()} == {name, "layout"}


def test_a_name_that_is_not_text_works(tmp_path: Path, layout: Path) -> None:
    db = opened(tmp_path / os.fsdecode(b"caf\xe9"), layout)
    put(db)
    put(db)
    assert (os.fsencode(tmp_path) + b"/caf\xe9-wal") in [os.fsencode(p) for p in tmp_path.iterdir()]
    db.close()


def test_a_relative_path_is_resolved_once(
    tmp_path: Path, layout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    db = opened("jobs.db", layout)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    put(db)
    assert db.path == tmp_path / "jobs.db"
    assert bodies(db) == ["x"]
    db.close()


def test_a_symbolic_link_leads_to_the_real_file(tmp_path: Path, path: Path, layout: Path) -> None:
    opened(path, layout).close()
    (tmp_path / "link.db").symlink_to(path)
    linked, direct = opened(tmp_path / "link.db", layout), opened(path, layout)
    put(linked)
    assert bodies(direct) == ["x"]
    linked.close()
    direct.close()


def test_unusable_paths_are_refused_before_anything_is_made(tmp_path: Path, layout: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for bad in (
        "",
        "a\0b",
        tmp_path,
        tmp_path / "file" / "jobs.db",
        tmp_path / ("n" * 300),
        tmp_path / "loop",
    ):
        with pytest.raises(InvalidInput, match="path="):
            opened(bad, layout)
    assert {entry.name for entry in tmp_path.iterdir()} == {"file", "loop", "layout"}


def test_an_empty_file_becomes_a_database(tmp_path: Path, layout: Path) -> None:
    (tmp_path / "empty.db").touch()
    db = opened(tmp_path / "empty.db", layout)
    put(db)
    db.close()


@pytest.mark.parametrize("use", [put, bodies])
def test_a_removed_file_accepts_nothing_and_is_not_made_again(
    db: Database, path: Path, use: Callable[[Database], object]
) -> None:
    put(db)
    path.unlink()
    for _ in range(3):
        with pytest.raises(BrokerGone, match=r"jobs\.db"):
            use(db)
    assert not path.exists()


def test_a_file_moved_away_is_complete_and_works_again_when_moved_back(
    db: Database, path: Path, tmp_path: Path
) -> None:
    put(db, "before")
    away = tmp_path / "away.db"
    path.rename(away)
    with pytest.raises(BrokerGone, match="removed"):
        put(db, "refused")
    copy = raw(away)
    assert copy.execute("SELECT body FROM job").fetchall() == [("before",)]
    copy.close()
    away.rename(path)
    put(db, "after")
    assert bodies(db) == ["before", "after"]


def test_another_database_in_its_place_is_used_and_not_mixed_up(
    db: Database, path: Path, tmp_path: Path, layout: Path
) -> None:
    other = opened(tmp_path / "other.db", layout)
    run_blocking(other.write(lambda c: fill(c, [f"other {n}" for n in range(500)])))
    other.close()
    run_blocking(db.write(lambda c: fill(c, ["mine" * 99 for n in range(500)])))
    path.rename(tmp_path / "old.db")
    (tmp_path / "other.db").rename(path)
    with pytest.raises(BrokerGone, match="replaced"):
        put(db)
    put(db, "new")
    assert bodies(db) == [*(f"other {n}" for n in range(500)), "new"]
    for name, count in ((path, 501), (tmp_path / "old.db", 500)):
        check = raw(name)
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert check.execute("SELECT count(*) FROM job").fetchone() == (count,)
        check.close()


def test_a_foreign_file_in_its_place_is_refused(db: Database, path: Path) -> None:
    path.rename(path.with_name("old.db"))
    path.write_text("something else entirely\n" * 50)
    with pytest.raises(BrokerGone):
        put(db)
    with pytest.raises(ForeignStore):
        put(db)
    assert path.read_text().startswith("something else")


def test_a_database_created_anew_by_another_process_starts_clean(
    db: Database, path: Path, layout: Path
) -> None:
    run_blocking(db.write(lambda c: fill(c, [bytes(3000) for _ in range(50)])))
    path.unlink()  # and leaves a -wal and a -shm in use
    assert done(start("db = opened(); put(db, 'theirs'); say(bodies(db))", path, layout)) == "['theirs']"
    with pytest.raises(BrokerGone):
        put(db, "refused")
    put(db, "mine")
    assert bodies(db) == ["theirs", "mine"]


@pytest.mark.parametrize("suffixes", [("-wal",), ("-shm",), ("-wal", "-shm")])
def test_nothing_is_lost_when_the_wal_is_deleted(
    db: Database, path: Path, layout: Path, suffixes: tuple[str, ...]
) -> None:
    put(db, "before")
    for suffix in suffixes:
        Path(f"{path}{suffix}").unlink()
    time.sleep(0.02)
    put(db, "after")
    assert Path(f"{path}-wal").exists()
    db.close()
    assert done(start("say(bodies(opened()))", path, layout)) == "['before', 'after']"


def test_two_processes_survive_the_loss_of_their_wal(db: Database, path: Path, layout: Path) -> None:
    code = """
db = opened(); put(db, "theirs"); say("up"); hear()
try: put(db, "again")
except BrokerGone: put(db, "again")
say("done"); hear(); say(bodies(db))
"""
    other = start(code, path, layout)
    assert heard(other) == "up"
    put(db, "mine")
    Path(f"{path}-wal").unlink()
    time.sleep(0.02)
    put(db, "after")
    tell(other)
    assert heard(other) == "done"
    put(db, "last")
    tell(other)
    assert done(other) == str(["theirs", "mine", "after", "again", "last"])
    assert run_blocking(db.read(lambda c: c.execute("PRAGMA integrity_check").fetchone())) == ("ok",)


def test_a_forked_child_gets_its_own_connection_and_loses_nothing(path: Path, layout: Path) -> None:
    code = """
db, second = opened(), opened(); put(db, "parent")
child_in, parent_out = os.pipe(); parent_in, child_out = os.pipe()
if not (child := os.fork()):
    assert bodies(db) == ["parent"]
    os.write(child_out, b"x"); os.read(child_in, 1)
    put(db, "child"); os.kill(os.getpid(), signal.SIGKILL)
os.read(parent_in, 1)
put(db, "parent again"); db.close(); second.close()
say(os.path.exists(path + "-wal"))  # the child has it open
os.write(parent_out, b"x"); os.waitpid(child, 0)
say(bodies(opened()))
"""
    kept, found = done(start(code, path, layout)).splitlines()
    assert kept == "True", "the child's connection locks nothing"
    assert found == "['parent', 'parent again', 'child']"


def test_a_child_that_closes_does_not_unlock_its_parent(path: Path, layout: Path) -> None:
    code = """
db = opened(); put(db, "parent")
for use in ("db.close()", "bodies(db)", "opened().close()", "del db"):
    if not (child := os.fork()):
        exec(use); sys.stdout.flush(); os._exit(0)
    os.waitpid(child, 0)
say("up"); hear()
put(db, "still here"); say(bodies(db))
"""
    parent = start(code, path, layout)
    assert heard(parent) == "up"
    opened(path, layout).close()
    assert Path(f"{path}-wal").exists(), "we were taken for the last user"
    tell(parent)
    assert done(parent) == "['parent', 'still here']"


def test_a_child_forked_inside_a_transaction_refuses_and_the_parent_goes_on(path: Path, layout: Path) -> None:
    code = """
import threading
db, inside, go = opened(), threading.Event(), threading.Event()
def thread():
    mine = opened()
    def work(c): c.execute("INSERT INTO job(body) VALUES('thread')"); inside.set(); go.wait()
    run_blocking(mine.write(work)); mine.close()
t = threading.Thread(target=thread); t.start(); inside.wait()
if not (child := os.fork()):
    try: put(db, "child")
    except BrokerAway as error: say("refused" if "middle of a transaction" in str(error) else error)
    os._exit(0)
os.waitpid(child, 0); go.set(); t.join(); put(db, "main"); say(bodies(db))
"""
    output = done(start("import warnings; warnings.simplefilter('ignore')" + code, path, layout))
    assert output.splitlines() == ["refused", "['thread', 'main']"]


MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /mnt/my\040share rw - nfs4 server:/export rw,vers=4.2
31 22 0:27 / /home rw master:3 propagate_from:2 - cifs //host/share rw
32 31 254:0 /var/local /home/local rw - ext4 /dev/vda rw
33 22 0:28 / /over rw - ext4 /dev/vdb rw
34 22 0:29 / /over rw - fuse.sshfs host: rw
35 22 0:30 / /tab\011and\134slash rw - tmpfs tmpfs rw
broken line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/jobs.db", "ext4"),
        ("/mnt/my share/a/jobs.db", "nfs4"),
        ("/mnt/my share-not/jobs.db", "ext4"),
        ("/home/me/jobs.db", "cifs"),
        ("/homely/jobs.db", "ext4"),
        ("/home/local/jobs.db", "ext4"),
        ("/over/jobs.db", "fuse.sshfs"),
        ("/tab\tand\\slash/jobs.db", "tmpfs"),
    ],
)
def test_the_file_system_is_that_of_the_longest_mount(path: str, kind: str) -> None:
    assert filesystem_of(path, MOUNTS) == kind


def test_nothing_is_known_without_a_mount_table() -> None:
    assert filesystem_of("/jobs.db", "") is None


def test_a_network_file_system_is_warned_about_once() -> None:
    with pytest.warns(BrokerWarning, match=r"nfs4.*local disk"):
        warn_if_remote(Path("/mnt/my share/jobs.db"), MOUNTS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_remote(Path("/mnt/my share/jobs.db"), MOUNTS)
        warn_if_remote(Path("/var/jobs.db"), MOUNTS)
