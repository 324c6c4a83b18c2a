"""Groups that are empty cost nothing: no row and no key of them is left, whatever held them back."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from redis_server import Server, running

from dray.broker import connect
from dray.broker.actions import Scope, SetLimits
from dray.broker.verbs import Beat, Broker, Filter
from dray.job import Job, Outcome, OutcomeKind
from dray.policy import Retention

GROUPS = 1000
RETENTION = Retention(result_ttl=0, error_ttl=1, done_ttl=1)


def tenants() -> list[Job]:
    return [
        Job(
            id=f"default:{n:032x}",
            task="export",
            group=f"tenant-{n}",
            running_key=f"key-{n % 7}",
            max_running=50,
            rate_key=f"rate-{n}",
            rate="1000/s+10",
        )
        for n in range(GROUPS)
    ]


async def flood(url: str) -> None:
    broker = await connect(url, "t", retention=RETENTION)
    try:
        await broker.edit(Scope("default"), SetLimits(group_running=1))
        await broker.put(tenants())
        await broker.renew([Beat("s", 600_000)])
        await drain(broker)
        await broker.edit(Scope("default"), SetLimits(group_running=None))
        await broker.release("s")
        later = broker.clock() + 60_000
        while (await broker.sweep(now=later)).more:
            pass
        assert await broker.audit() == []
    finally:
        await broker.close()


async def drain(broker: Broker) -> None:
    done = request = 0
    while done < GROUPS:
        request += 1
        taken = await broker.take("s", request, ["default"], Filter(), 500)
        outcomes = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in taken]
        await broker.settle("s", outcomes)
        done += len(taken)


def test_no_row_is_left_of_groups_that_are_empty(tmp_path: Path) -> None:
    asyncio.run(flood(f"sqlite:///{tmp_path}/jobs.db"))
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        left = {
            table: file.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
            for table in ("jobs", "classes", "groups", "lanes", "rates", "runs", "task_settings")
        }
    file.close()
    assert set(left.values()) == {0}, left


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with running("valkey", tmp_path / "server") as server:
        yield server


def test_no_key_is_left_of_groups_that_are_empty(server: Server) -> None:
    asyncio.run(flood(f"redis://127.0.0.1:{server.port}"))
    keys: Sequence[bytes] = server.command("KEYS", "dray:{t:default}:*")
    kept = {key.decode().partition("}:")[2] for key in keys}
    assert kept <= {"n", "feed", "set"}, sorted(kept)[:20]
