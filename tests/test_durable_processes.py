"""Durable jobs while workers, scheduler and server are killed: each effect once, plus one per kill."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from durable_chaos import SLOTS, DurableChaos
from redis_server import running, three_primaries

SEED = int(os.environ.get("DRAY_CHAOS_SEED", str(time.time_ns() % 1_000_000)))
BROKERS = ["sqlite", "valkey", "three primaries"]


@pytest.fixture(params=BROKERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'chaos.db'}?timeout=30s"
        return
    if request.param == "valkey":
        with running("valkey", tmp_path / "server") as server:
            yield f"redis://127.0.0.1:{server.port}"
        return
    with three_primaries("valkey", tmp_path / "servers") as nodes:
        yield "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes)


def check(url: str, folder: Path, jobs: int, killing: float) -> None:
    report = DurableChaos(folder, url, jobs, SEED, killing).run(patience=120 + jobs)
    kills = report.kills.total()
    again = sum(count - 1 for count in report.effects.values())
    shown = f"seed {SEED}, kills {dict(report.kills)}, ends {dict(report.ends)}, {again} effects again"
    assert report.problems == [], shown
    assert {"executor", "worker", "scheduler", "server"} <= report.kills.keys(), shown
    assert max(report.effects.values()) <= 1 + kills, shown
    # A killed worker has two executors, and a step of `wide` three others beside it.
    assert again <= kills * 2 * SLOTS * 4, shown


@pytest.mark.timeout(600)
def test_effects_happen_once_whoever_is_killed(url: str, tmp_path: Path) -> None:
    check(url, tmp_path, jobs=64, killing=8)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_effects_of_many_jobs_happen_once_whoever_is_killed(url: str, tmp_path: Path) -> None:
    check(url, tmp_path, jobs=500, killing=60)
