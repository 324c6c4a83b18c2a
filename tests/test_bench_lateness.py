"""The bench of lateness: a lone worker that no upkeep helps starts delayed jobs, and none early."""

from __future__ import annotations

from pathlib import Path

from bench.lateness.__main__ import markdown, run
from bench.lateness.cases import TINY


def test_delayed_jobs_start_without_any_sweep_and_never_early(tmp_path: Path) -> None:
    cases = run(TINY, "sqlite", tmp_path / "store")
    jobs = [one.jobs for one in cases]
    assert jobs[:5] == [TINY.single, TINY.single, 1000 * TINY.seconds, TINY.burst, TINY.burst]
    assert jobs[5] > 0, "urgent jobs were put meanwhile"
    # Due times are kept in whole milliseconds, and rounded to the nearest.
    assert all(-0.001 <= one.median <= one.p99 <= one.worst for one in cases)
    assert len(markdown({"sqlite": cases}).splitlines()) == 2 + len(cases)
