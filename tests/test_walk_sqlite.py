"""SQLite walks beside the reference."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from walk import Script, op, replay, shrink, side, walk

from dray.broker.verbs import Beat, Filter
from dray.job import Job, Outcome, OutcomeKind
from dray.policy import Retention

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


def test_a_rate_that_a_quicker_one_of_the_same_key_let_go_holds_nothing_back(tmp_path: Path) -> None:
    slow = Job(id="slow", task="t", queue="q", rate="1/h", rate_key="k")
    quick = Job(id="quick", task="t", queue="q", rate="3/m", rate_key="k", running_key="r")
    crashed = Outcome(id="slow", run=-1, kind=OutcomeKind.CRASHED)
    script = Script(
        (
            op(1000, "put", jobs=(slow,)),
            op(1000, "renew", beats=(Beat("first", 20_000), Beat("last", 3_600_000))),
            op(1000, "take", session="first", request=0, queues=("q",), filter=Filter(), want=2),
            op(1000, "settle", session="first", outcomes=(crashed,)),
            op(1000, "put", jobs=(quick,)),
            op(1000, "take", session="last", request=0, queues=("q",), filter=Filter(), want=50),
            op(600_000, "take", session="last", request=0, queues=("q",), filter=Filter(), want=50),
        ),
        Retention(),
    )
    assert replay(script, MEMORY, side(f"sqlite:///{tmp_path / 'walk-{n}.db'}")) is None
