"""Lanes in the store: lists, jobs that come back, stale entries; what is kept of jobs of each shape."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from redis_leaks import leaks
from redis_server import Server, running

from dray.broker import Broker, connect
from dray.broker.actions import Cancel, Delete, Ids, Reprioritise, Retry
from dray.broker.verbs import Beat, Filter, run_blocking
from dray.errors import ForeignStore
from dray.job import Error, Job, Outcome, OutcomeKind, Taken

Q = "dray:{dray:q}:"
LANE = "5|t|1\n\n\n"
LONG = 10_000
"""As in lua/lanes.lua."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("lanes") / "server") as server:
        yield server


@pytest.fixture
def broker(server: Server) -> Iterator[Broker]:
    server.command("FLUSHALL")
    broker = run_blocking(connect(f"redis://127.0.0.1:{server.port}", blocking=True))
    run_blocking(broker.renew([Beat("ann", 3_600_000)]))
    yield broker
    assert run_blocking(broker.audit()) == []
    run_blocking(broker.close())


def put(broker: Broker, *ids: str, **fields: Any) -> None:
    jobs = [Job(id=id, task="t", queue="q", **fields) for id in ids]
    for first in range(0, len(jobs), 1000):
        run_blocking(broker.put(jobs[first : first + 1000]))


class Worker:
    def __init__(self, broker: Broker) -> None:
        self.broker, self.requests = broker, count(1)

    def take(self, want: int) -> list[Taken]:
        return run_blocking(self.broker.take("ann", next(self.requests), ["q"], Filter(), want))

    def settle(self, taken: list[Taken], kind: OutcomeKind, **fields: Any) -> None:
        outcomes = [Outcome(id=one.job.id, run=one.run, kind=kind, **fields) for one in taken]
        run_blocking(self.broker.settle("ann", outcomes))

    def drain(self) -> list[str]:
        """Run all there is; the order in which it was handed out."""
        ran = []
        while taken := self.take(1000):
            self.settle(taken, OutcomeKind.SUCCEEDED)
            ran += [one.job.id for one in taken]
        return ran


def test_jobs_that_leave_a_long_lane_are_stepped_over_and_forgotten(server: Server, broker: Broker) -> None:
    ids = [f"j{n}" for n in range(LONG + 50)]
    put(broker, *ids)
    gone = ["j0", "j5", "j6", "j4000", ids[-1]]
    run_blocking(broker.edit(Ids(tuple(gone)), Cancel("no")))
    run_blocking(broker.edit(Ids(("j7", "j9")), Delete()))
    put(broker, "j9")
    run_blocking(broker.edit(Ids(("j6",)), Retry()))
    assert server.command("HGET", Q + "stale", LANE) == b"6"  # the first of a list is dropped at once
    assert run_blocking(broker.audit()) == []
    expected = [id for id in ids if id not in {*gone, "j7", "j9"}]
    assert Worker(broker).drain() == [*expected, "j9", "j6"]
    assert not server.command("EXISTS", Q + "stale", Q + "l:" + LANE)
    assert leaks(server) == []


def test_jobs_that_come_back_stand_where_they_stood(server: Server, broker: Broker) -> None:
    worker = Worker(broker)
    put(broker, *"abcdef")
    taken = worker.take(3)
    worker.settle(taken[1:], OutcomeKind.GIVE_BACK)
    assert server.command("ZCARD", Q + "z:" + LANE) == 2
    run_blocking(broker.edit(Ids(("e",)), Reprioritise(0)))
    assert [one.job.id for one in worker.take(2)] == ["e", "b"]
    assert worker.drain() == ["c", "d", "f"]
    assert not server.command("EXISTS", Q + "z:" + LANE)


@pytest.mark.parametrize(
    "fields",
    [{}, {"retries": 9}, {"max_running": 9}, {"group": "g"}, {"rate": "9/s+9", "rate_key": "k"}],
    ids=["plain", "with a field for workers", "with a limit", "with a group", "with a key"],
)
def test_heads_tell_of_runs_and_nothing_else(server: Server, broker: Broker, fields: dict[str, Any]) -> None:
    """Else `take` and `settle` would go the long way with such jobs."""
    worker = Worker(broker)
    put(broker, "a", **fields)
    assert not server.command("EXISTS", Q + "head")
    worker.settle(worker.take(1), OutcomeKind.RETRY, at=1 << 42, error=Error("E", 'no "luck"\nat all'))
    facts, _, *more = server.command("HGET", Q + "head", "a").decode().split("\n")
    assert facts.startswith("retrying run=1 line=1 failures=1 started=")
    assert [line.partition("=")[0] for line in more] == ["past"]
    [record] = run_blocking(broker.get(["a"]))
    assert record is not None
    assert [past.error for past in record.past] == ['E: no "luck"\nat all']


def test_a_namespace_of_an_older_layout_is_refused(server: Server) -> None:
    server.command("FLUSHALL")
    server.command("SET", "dray:{dray}:layout", "2")
    with pytest.raises(ForeignStore, match=r"older dray.*finish its jobs"):
        run_blocking(connect(f"redis://127.0.0.1:{server.port}", blocking=True))
    assert server.command("GET", "dray:{dray}:layout") == b"2"


@pytest.mark.parametrize("jobs", [3, LONG + 50])
def test_a_ready_job_that_gets_mail_keeps_it_and_its_place(server: Server, broker: Broker, jobs: int) -> None:
    """`take` reads the heads only of jobs that came back, and mail is noted in the head."""
    ids = [f"j{n}" for n in range(jobs)]
    put(broker, *ids)
    for id in ("j0", "j1", "j1"):
        run_blocking(broker.send(id, "n", f"m{id}", b"body"))
    assert run_blocking(broker.audit()) == []
    worker = Worker(broker)
    assert [one.job.id for one in worker.take(2)] == ["j0", "j1"]
    assert all(b"\nbox=1" in server.command("HGET", Q + "head", id) for id in ("j0", "j1"))
    assert run_blocking(broker.audit()) == []
    assert worker.drain() == ids[2:]
