"""Clients that mainstream generators make of the OpenAPI document submit, wait and cancel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from node_worker import installed, program, search_path
from served import Served, serving

TESTS = Path(__file__).parent
KEY = "a-key-for-generated-clients"
SAID = [
    '{"status":"succeeded","result":5}',
    '{"changed":true,"status":"cancelled","reason":"not wanted"}',
    '"task"',
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("sqlite", tmp_path_factory.mktemp("clients"), api_keys=f"admin:{KEY}") as served:
        yield served


def use(served: Served, command: Sequence[str], folder: Path) -> None:
    """Run a client: it names its job, which is finished for it, and then says how everything ended."""
    process = subprocess.Popen(
        [*command, served.url, KEY], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    id = process.stdout.readline().strip()
    if id:
        served.finish(id, result=5)
    said, wrong = process.communicate(timeout=120)
    assert process.returncode == 0, wrong
    assert [line.replace(": ", ":").replace(", ", ",") for line in said.splitlines()] == SAID


def run(*command: str, folder: Path) -> None:
    environ = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{search_path()}"}
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_openapi_python_client_makes_a_client_that_works(served: Served, tmp_path: Path) -> None:
    run(
        *(
            sys.executable,
            "-m",
            "openapi_python_client",
            "generate",
            "--url",
            f"{served.url}/api/openapi.json",
        ),
        *("--output-path", "dray_client", "--meta", "none", "--fail-on-warning"),
        folder=tmp_path,
    )
    shutil.copy(TESTS / "python_client.py", tmp_path / "use.py")
    use(served, [sys.executable, "use.py"], tmp_path)


@pytest.mark.slow
def test_openapi_typescript_makes_a_client_that_is_typed_and_works(served: Served, tmp_path: Path) -> None:
    source = TESTS / "typescript_client"
    modules = installed(source) / "node_modules"
    (tmp_path / "node_modules").symlink_to(modules)
    for file in source.glob("*.*"):
        shutil.copy(file, tmp_path)
    (tmp_path / "openapi.json").write_bytes(httpx.get(f"{served.url}/api/openapi.json").content)
    node = program("node")
    run(
        node,
        str(modules / "openapi-typescript/bin/cli.js"),
        "openapi.json",
        "-o",
        "schema.d.ts",
        folder=tmp_path,
    )
    run(node, str(modules / "typescript/bin/tsc"), folder=tmp_path)
    use(served, [node, "built/client.js"], tmp_path)
