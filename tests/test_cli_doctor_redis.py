"""`dray doctor` on a real server: what would lose jobs is found, and it says what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_server import Server, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("server")) as server:
        yield server


def findings(server: Server, folder: Path) -> tuple[int, dict[tuple[str, str], str]]:
    url = f"redis://127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "dray", "doctor", "--broker", url, "--namespace", "shop", "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    told = {(one["check"], one["status"]): one["text"] + one["todo"] for one in json.loads(done.stdout)}
    return done.returncode, told


def test_a_server_that_keeps_nothing_on_disk_is_told_of(server: Server, tmp_path: Path) -> None:
    code, told = findings(server, tmp_path)
    assert code == 0
    assert "appendonly yes" in told["disk", "warn"]
    assert ("memory", "ok") in told
    assert "Valkey" in told["server", "ok"]


def test_a_server_that_throws_keys_away_fails(server: Server, tmp_path: Path) -> None:
    server.command("CONFIG", "SET", "maxmemory", "100mb")
    server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    try:
        code, told = findings(server, tmp_path)
    finally:
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        server.command("CONFIG", "SET", "maxmemory", "0")
    assert code == 1
    assert "allkeys-lru" in told["memory", "fail"]
    assert "noeviction" in told["memory", "fail"]


def test_a_server_that_appends_is_fine(server: Server, tmp_path: Path) -> None:
    server.command("CONFIG", "SET", "appendonly", "yes")
    try:
        _, told = findings(server, tmp_path)
    finally:
        server.command("CONFIG", "SET", "appendonly", "no")
    assert ("disk", "ok") in told


def test_a_server_that_is_away_is_a_finding_not_a_traceback(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dray",
        "doctor",
        "--broker",
        "redis://127.0.0.1:1",
        "--namespace",
        "shop",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "fail" in done.stdout
    assert "127.0.0.1:1" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
