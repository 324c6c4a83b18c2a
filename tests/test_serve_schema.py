"""schemathesis against the running server, on both brokers: it finds nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest
from served import serving

from dray.serve.http import ROUTES
from dray.serve.openapi import document

KEY = "a-key-for-schemathesis"
CONFIG = """
[[operations]]
include-path = "/api/jobs/batch"
checks.negative_data_rejection.enabled = false
"""
"""A batch with a wrong job in it is answered: the job has its own error."""


@pytest.mark.parametrize(("kind", "phase"), [("sqlite", "coverage"), ("valkey", "fuzzing")])
def test_schemathesis_finds_nothing(kind: str, phase: str, tmp_path: Path) -> None:
    """Systematic cases on one broker and random ones on the other: what differs is below the routes."""
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    with serving(kind, tmp_path / "served", accept_unknown_tasks="yes", api_keys=f"admin:{KEY}") as served:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "--config-file", "schemathesis.toml"),
                *("run", f"{served.url}/api/openapi.json", "--header", f"Authorization: Bearer {KEY}"),
                # Events never end. What no schema can say (a rate, a cron rule) is refused all the same.
                *("--exclude-path", "/api/events", "--exclude-checks", "positive_data_acceptance"),
                *("--phases", phase, "--max-examples", "5", "--request-timeout", "30"),
                *("--generation-deterministic", "--no-color"),
            ],
            cwd=tmp_path,
            env=os.environ | {"SCHEMATHESIS_HOOKS": "schema_hooks", "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        tried = re.search(r"(\d+) generated, (\d+) passed", done.stdout)
        assert tried is not None, done.stdout[-3000:]
        assert int(tried[1]) == int(tried[2]) > 100
        assert httpx.get(f"{served.url}/readyz").status_code == 200


def test_the_document_tells_of_every_route_and_of_its_role() -> None:
    shown = msgspec.json.decode(msgspec.json.encode(document(ROUTES, "1")))
    assert shown["openapi"] == "3.1.0"
    for route in ROUTES:
        operation = shown["paths"][route.path][route.method.lower()]
        assert operation.get("x-role") == route.role
        assert {str(status) for status in route.replies} <= operation["responses"].keys()
    names = [one["operationId"] for path in shown["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) == len(ROUTES)
