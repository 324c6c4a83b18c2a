"""What health checks of workers go by."""

from __future__ import annotations

from typing import Any

import pytest

from dray.documents.worker_registry import LATELY, ExecutorInfo, WorkerInfo, not_ready

NOW = 1_700_000_000_000
WELL: dict[str, Any] = {"number": 1, "pid": 2, "session": "w/1.1", "slots": 4, "tried_age": 1000}


def worker(*executors: dict[str, Any], **given: Any) -> WorkerInfo:
    told = tuple(ExecutorInfo(**executor) for executor in executors)
    about: dict[str, Any] = {"id": "w", "host": "h", "pid": 1, "started": 0, "seen": NOW}
    return WorkerInfo(**about | given, executors=told)


@pytest.mark.parametrize(
    "info",
    [
        worker(WELL),
        worker(WELL, WELL | {"number": 2, "session": None, "tried_age": None}),
        worker(WELL | {"tried_age": 3_600_000, "running": 4}),
        worker(mode="scheduler-only"),
        worker(WELL, seen=NOW - 20_000),
        worker(WELL, seen=NOW + 5_000),
    ],
    ids=[
        "asks",
        "another one starts",
        "has its hands full",
        "runs no jobs",
        "between two beats",
        "clock ahead",
    ],
)
def test_a_worker_that_works_is_fit(info: WorkerInfo) -> None:
    assert not_ready(info, NOW) is None


@pytest.mark.parametrize(
    ("info", "reason"),
    [
        (worker(WELL, seen=NOW - LATELY - 1000), "it was last heard of 61 s ago"),
        (worker(WELL, state="stopping"), "it is stopping"),
        (worker(), "it has no executor"),
        (worker(WELL | {"session": None}), "executor 1 has not started yet"),
        (worker(WELL | {"tried_age": None}), "executor 1 has not asked for work yet"),
        (worker(WELL | {"tried_age": 90_000, "running": 3}), "executor 1 last asked for work 90 s ago"),
        (worker(WELL | {"tried_age": 50_000}, seen=NOW - 20_000), "executor 1 last asked for work 70 s ago"),
    ],
)
def test_one_that_does_not_says_why(info: WorkerInfo, reason: str) -> None:
    assert not_ready(info, NOW) == reason
