"""Every example is run as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_leaves_nothing_behind(example: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert list(scratch.iterdir()) == []


def test_the_tour_accounts_for_every_job(tmp_path: Path) -> None:
    tour = ROOT / "examples" / "tour.py"
    done = subprocess.run([sys.executable, str(tour)], capture_output=True, text=True, timeout=60)
    assert "Nothing was lost, nothing finished twice." in done.stdout
    assert "3 dead" in done.stdout
    assert "flaky     5 succeeded" in done.stdout
    held = re.search(r"(\d+) of them were held by the killed worker", done.stdout)
    assert held is not None
    assert int(held[1]) > 0
