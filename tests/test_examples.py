"""Every example is run as a user would run it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
SAYS = {
    "approval.py": [
        "News waits: waits_for_event",
        "News, approved by ann",
        "Rumours: declined by bob",
        "Opinion: nobody decided",
    ],
    "beside.py": [],
    "cancel.py": [
        "cancelled before its time: True cancelled",
        "cancelled while it ran: nobody wants to see it",
    ],
    "emails.py": ["delivered to flaky@x.org by attempt 3", "dead: ('never@x.org',) after 4 attempts"],
    "fair_tenants.py": [
        "it is done: small 1",
        "it waited for fewer than ten of the big tenant's 500 jobs: True",
    ],
    "gpu_routing.py": [
        "before any worker runs: no_workers",
        "models were trained on: gpu-1",
        "pictures were resized on machines without a GPU: True",
        "mail went out from any of them: True",
    ],
    "rate_limited_api.py": [
        "bob's calls are done before ann's: True",
        "ann started at most 21 calls in any second: True",
        "a third call is refused for 60 minutes",
    ],
    "fan_out.py": ["in all: 1229", "awaited: [4, 25, 168]"],
    "schedules.py": [
        "often: every 2 seconds (user)",
        "pulse: every second (code)",
        "report: at 03:00 on Monday to Friday, Europe/London time (code)",
        "its newest job: often",
        "at most one job per tick: True",
    ],
    "stragglers.py": [
        "in time: True",
        "page 0 by run 1 - page 49 by run 2",
        "second runs: 2 launched, 2 won, 0 wasted",
    ],
    "order_saga.py": [
        "result: parcel-berlin is on its way",
        "failed: nobody delivers there",
        "ship: failed",
        "undo(pack): done",
        "undo(pay): done",
    ],
    "map_reduce.py": ["most common: {'the': 3, 'load': 3, 'cart': 2}", "jobs: 6 succeeded"],
    "nightly_etl.py": [
        "failed: node extract-2: crm does not answer",
        "report: failed, cancelled",
        "not loaded: ['extract-2', 'transform-2', 'load']",
        "loaded after the retry: 80",
    ],
    "quickstart.py": ["enqueued: ready", "result: 5", "afterwards: succeeded"],
}
"""Lines that each example prints, beside others."""


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
    assert set(SAYS[example.name]) <= set(done.stdout.splitlines())
