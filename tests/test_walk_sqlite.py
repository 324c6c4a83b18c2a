"""SQLite walks beside the reference."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest

from dray.testing.walk import shrink, side, walk

MEMORY = side("memory://")
SECONDS = float(os.environ.get("DRAY_WALK_SECONDS", "8"))
FIRST_SEED = int(os.environ.get("DRAY_WALK_SEED", "0"))


@pytest.mark.parametrize(
    ("file", "blocking"),
    [("walk-{n}.db", False), ("walk-{n}.db", True), ("walk.db", False)],
    ids=["awaited", "blocking", "one file for all"],
)
def test_sqlite_answers_as_the_reference_does(tmp_path: Path, file: str, blocking: bool) -> None:
    sqlite = side(f"sqlite:///{tmp_path / file}", blocking=blocking)
    end = time.monotonic() + SECONDS
    for seed in itertools.count(FIRST_SEED):
        found = walk(seed, MEMORY, sqlite)
        if found is not None:
            pytest.fail(str(shrink(found, MEMORY, sqlite, budget=1500)))
        # At least some walks, however slow the machine is.
        if time.monotonic() > end and seed >= FIRST_SEED + 20:
            return
