"""What an import brings with it: nothing large that is not used at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

SELDOM = {
    "ctypes",
    "difflib",
    "email",
    "http.client",
    "sysconfig",
    "tempfile",
    "xml",
    "zipfile",
    "zoneinfo",
    "logging.handlers",
}
"""Large modules of Python that only some programs need, or only errors do."""
OTHERS = {
    "sqlite3",
    "hiredis",
    "uvloop",
    "multiprocessing",
    "concurrent.futures.process",
    "backports",
    "compression",
}
EXTRAS = {"uvicorn", "starlette", "grpc", "google", "opentelemetry", "prometheus_client", "yaml", "rich"}
EXPENSIVE = {
    "msgspec",
    "asyncio",
    "ssl",
    "socket",
    "subprocess",
    "logging",
    "inspect",
    "threading",
    "concurrent",
}
ROOMS = {
    "dray.serve",
    "dray.testing",
    "dray.demo",
    "dray.observe",
    "dray.broker.memory",
    "dray.broker.sqlite",
}
PARTS = {"dray.why", "dray.admin.jobs", "dray.admin.external", "dray.schedules.api"}


def loaded_by(code: str) -> set[str]:
    """The modules and packages that a program has loaded at its end, less those of Python alone."""
    names = []
    for program in ("pass", code):
        command = [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"]
        names.append(set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()))
    return names[1] - names[0]


@pytest.mark.parametrize(
    ("code", "not_wanted"),
    [
        ("import dray", EXPENSIVE | SELDOM | OTHERS | EXTRAS | ROOMS | PARTS | {"click", "dray.app"}),
        (
            "from dray import App; App('shop')",
            SELDOM | OTHERS | EXTRAS | ROOMS | PARTS | {"click", "dray.worker"},
        ),
        ("import dray.worker.executor.executor_main", SELDOM | OTHERS | EXTRAS | ROOMS | PARTS | {"click"}),
        ("import dray.worker.supervisor.supervisor", SELDOM | OTHERS | EXTRAS | ROOMS | PARTS | {"click"}),
        (
            "import dray.cli.worker, dray.broker.redis",
            SELDOM | (OTHERS - {"hiredis"}) | EXTRAS | ROOMS | PARTS,
        ),
    ],
    ids=["dray", "an app", "an executor", "a supervisor", "the command"],
)
def test_an_import_brings_nothing_that_is_not_needed(code: str, not_wanted: set[str]) -> None:
    assert loaded_by(code) & not_wanted == set()
