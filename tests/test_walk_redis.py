"""Valkey and Redis walk beside the reference."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import pytest
from redis_server import need, running
from walk import shrink, side, walk

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
        redis = side(f"redis://127.0.0.1:{server.port}", blocking=blocking)
        end = time.monotonic() + SECONDS
        for seed in itertools.count(FIRST_SEED):
            found = walk(seed, MEMORY, redis)
            if found is not None:
                pytest.fail(str(shrink(found, MEMORY, redis, budget=1500)))
            # At least some walks, however slow the machine is.
            if time.monotonic() > end and seed >= FIRST_SEED + 10:
                return
