"""The promise, under fire: every job that was acknowledged is completed exactly once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import Chaos, Report
from redis_server import running

JOBS = int(os.environ.get("DRAY_CHAOS_JOBS", "10000"))
SEED = int(os.environ.get("DRAY_CHAOS_SEED", str(time.time_ns() % 1_000_000)))
KILLING = float(os.environ.get("DRAY_CHAOS_SECONDS", str(max(15.0, JOBS / 800))))


@pytest.fixture(params=["sqlite", "valkey", "valkey cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chaos.db'}?timeout=30s"
        return
    with running("valkey", tmp_path / "server", cluster=request.param.endswith("cluster")) as server:
        scheme = "redis+cluster" if request.param.endswith("cluster") else "redis"
        yield f"{scheme}://127.0.0.1:{server.port}"


@pytest.mark.timeout(1800)
def test_every_job_is_completed_exactly_once_whoever_is_killed(url: str, tmp_path: Path) -> None:
    # A cluster differs in the way to the server only, and that has its own tests: half of it is enough.
    share = 0.5 if "cluster" in url else 1.0
    jobs, killing = int(JOBS * share), KILLING * share
    chaos = Chaos(tmp_path, url, jobs, SEED, killing)
    report = chaos.run(patience=killing + 90 + jobs / 100)
    told = told_by(report, tmp_path)
    assert report.states == {"succeeded": jobs}, told
    assert report.gaps == 0, told
    assert len(report.completed) == jobs, told
    assert set(report.completed.values()) == {1}, told
    assert report.ran.keys() == set(range(jobs)), told
    assert report.problems == [], told
    assert {"executor", "supervisor", "producer"} <= report.kills.keys(), told


def told_by(report: Report, folder: Path) -> str:
    """What a failure needs: the counts, the seed, and the last words of the workers."""
    log = (folder / "workers.log").read_text(errors="replace")[-4000:]
    again = sum(count - 1 for count in report.ran.values())
    return (
        f"seed {SEED}, {report.seconds:.0f} s, kills {dict(report.kills)}, states {dict(report.states)}, "
        f"completed {len(report.completed)}, run again {again}, problems {report.problems}\n{log}"
    )
