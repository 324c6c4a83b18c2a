"""The file under the embedded broker, with real files, real processes and real faults."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlite_file import bodies, done, fill, heard, insert, opened, put, raw, start, tell

from dray.broker.sqlite.database import Database
from dray.broker.verbs import run_blocking
from dray.errors import BrokerBusy, BrokerError, BrokerGone, ForeignStore


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


def test_a_fork_beside_threads_that_write_neither_hangs_nor_loses_anything(path: Path, layout: Path) -> None:
    code = """
import threading
over, written = threading.Event(), []
def thread(n):
    mine = opened()
    while not over.is_set():
        put(mine, f"thread {n}"); written.append(n)
    mine.close()
threads = [threading.Thread(target=thread, args=(n,)) for n in range(3)]
for t in threads: t.start()
db = opened()
for n in range(25):
    if not (child := os.fork()):
        put(db, f"child {n}"); os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    put(db, "main")
over.set()
for t in threads: t.join()
found = bodies(db)
say([found.count("main"), sum(body.startswith("child") for body in found), len(found) - 50 == len(written)])
"""
    output = done(start("import warnings; warnings.simplefilter('ignore')" + code, path, layout))
    assert output == "[25, 25, True]"


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
