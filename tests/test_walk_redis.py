"""Valkey and Redis walk beside the reference."""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from pathlib import Path

import pytest
from redis_server import Server, need, running
from walk import shrink, side, walk

from dray.broker.redis.scripts import SCRIPTS, Script

MEMORY = side("memory://")
SECONDS = float(os.environ.get("DRAY_WALK_SECONDS", "8"))
FIRST_SEED = int(os.environ.get("DRAY_WALK_SEED", "0"))


@pytest.mark.parametrize(
    ("kind", "cluster", "blocking"),
    [("valkey", False, False), ("valkey", True, True), ("redis", False, True), ("redis", True, False)],
    ids=["valkey", "valkey cluster", "redis", "redis cluster"],
)
def test_it_answers_as_the_reference_does(tmp_path: Path, kind: str, cluster: bool, blocking: bool) -> None:
    need(kind)
    with running(kind, tmp_path, cluster=cluster) as server:
        walk_beside(server, blocking)


def test_it_does_so_where_every_list_is_too_long_to_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of jobs that left their lane stay, and are stale."""
    for name, script in list(SCRIPTS.items()):
        source = script.source.replace("local LONG = 10000\n", "local LONG = 0\n")
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        monkeypatch.setitem(SCRIPTS, name, Script(name, source, sha))
    assert "local LONG = 0" in SCRIPTS["edit"].source
    with running("valkey", tmp_path) as server:
        walk_beside(server, blocking=True)


def walk_beside(server: Server, blocking: bool) -> None:
    redis = side(f"redis://127.0.0.1:{server.port}", blocking=blocking)
    end = time.monotonic() + SECONDS
    for seed in itertools.count(FIRST_SEED):
        found = walk(seed, MEMORY, redis)
        if found is not None:
            pytest.fail(str(shrink(found, MEMORY, redis, budget=1500)))
        # At least some walks, however slow the machine is.
        if time.monotonic() > end and seed >= FIRST_SEED + 10:
            return
