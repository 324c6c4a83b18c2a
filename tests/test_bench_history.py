"""The bench of the history runs, and its searches find what they are meant to find."""

from __future__ import annotations

from pathlib import Path

from bench.history import SEARCHES, TINY, databases, measure_drains, measure_searches, time_searches

from dray.history.database import open_database
from dray.history.store import Store


def test_it_measures_drains_and_searches_on_each_database(tmp_path: Path) -> None:
    with databases(tmp_path) as urls:
        assert set(urls) == {"SQLite", "PostgreSQL"}
        drains = measure_drains(TINY, tmp_path / "drains", {"SQLite": urls["SQLite"]})
        searches = measure_searches(TINY, urls)
    assert [row[0] for row in drains] == ["SQLite"]
    assert len(searches) == 2 * (len(SEARCHES) + 1)
    by_search = {(row[0], row[1]): row[2] for row in searches}
    for name in urls:
        assert by_search[name, "`zebra`"] == "1"
        assert by_search[name, "`state:dead`"] == "50"


def test_an_empty_history_finds_nothing(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path}/empty.db")
    assert {found for _, found, _ in time_searches(Store(database, "bench"), 10**12, 1)} == {0}
    database.close()
