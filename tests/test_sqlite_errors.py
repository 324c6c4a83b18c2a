"""What happens to a file is told in dray's words, and nothing is half accepted."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from sqlite_file import bodies, done, fill, opened, put, raw, start

from dray.broker.sqlite.database import Database
from dray.broker.verbs import run_blocking
from dray.errors import BrokerFull, ForeignStore


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
