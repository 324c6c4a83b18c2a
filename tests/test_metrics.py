"""Metrics: bounds on labels, hostile names, sums over workers; the worker's small HTTP responder."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, ParamSpec

import pytest
from prometheus_client.parser import text_string_to_metric_families

import dray
from dray.broker import connect
from dray.broker.verbs import Beat, Filter, QueueInfo
from dray.documents.worker_registry import WorkerInfo
from dray.job import State
from dray.observe import ametrics, metrics
from dray.observe.metrics import render
from dray.observe.samples import MOST
from dray.observe.snapshot import Snapshot
from dray.observe.table import TABLE, full_name
from dray.stats.tallies import (
    BOUNDS,
    MOST_QUEUES,
    OTHER,
    ArchivedTallies,
    Histogram,
    Tally,
    WorkerTallies,
    delete_tallies,
    read_tallies,
    write_archive,
    write_tallies,
)
from dray.worker.supervisor import probes
from dray.worker.supervisor.probes import Answer, Probes

P = ParamSpec("P")
DOCS = Path(__file__).parents[1] / "docs" / "metrics.md"


def on_a_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def run(*args: P.args, **given: P.kwargs) -> None:
        asyncio.run(test(*args, **given))

    return run


def values(text: str, name: str) -> dict[tuple[str, ...], float]:
    """The samples of a metric, by its labels in the order of the table."""
    about = TABLE[name]
    return {
        tuple(sample.labels[label] for label in about.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == full_name(name)
    }


def snapshot(**given: object) -> Snapshot:
    base: dict[str, object] = {"now": 10_000, "tasks": {}, "events": {}, "workers": [], "whole": True}
    return Snapshot(**(base | given))  # type: ignore[arg-type]


def worker(id: str, **given: object) -> WorkerInfo:
    return WorkerInfo(id=id, host="h", pid=1, started=0, seen=0, **given)  # type: ignore[arg-type]


# what is told


def test_no_name_can_break_the_format() -> None:
    evil = 'a"} 1\n# HELP dray_runs_total \\{x="\x00é'
    text = render(
        snapshot(
            tasks={evil: Tally(runs=2, ends={evil: {"succeeded": 2}})},
            queues=[QueueInfo(name=evil, counts={State.READY: 1}, ready={5: (1, 4_000)})],
            workers=[worker(evil, queues=(evil,))],
        )
    )
    assert values(text, "runs") == {(evil, evil, "succeeded"): 2}
    assert values(text, "queue_oldest_ready_seconds") == {(evil, "5"): 6}
    assert values(text, "queue_workers") == {(evil,): 1}


def test_a_served_queue_without_jobs_has_its_own_name() -> None:
    busy = QueueInfo(name="busy", counts={State.READY: 1})
    text = render(snapshot(queues=[busy], workers=[worker("w", queues=("busy", "idle"))]))
    assert values(text, "queue_workers") == {("busy",): 1, ("idle",): 1}


def test_labels_are_bounded_and_nothing_is_left_out_of_the_sums() -> None:
    many = [f"n{number:05}" for number in range(MOST + 50)]
    text = render(
        snapshot(
            tasks={name: Tally(runs=1, ends={"q": {"succeeded": 1}}) for name in many},
            queues=[QueueInfo(name=name, counts={State.DEAD: 2}, ready={1: (3, 0)}) for name in many],
            workers=[worker(name) for name in many],
        )
    )
    for name, whole, of_others in (
        ("runs", MOST + 50, 50),
        ("runs_started", MOST + 50, 50),
        ("queue_ready", 3 * (MOST + 50), 150),
        ("worker_executors", 0, 0),
    ):
        found = values(text, name)
        assert len(found) == MOST + 1
        assert sum(found.values()) == whole
        assert sum(value for labels, value in found.items() if labels[0] == OTHER) == of_others
    assert len(values(text, "worker_info")) == MOST


def test_a_task_in_very_many_queues_is_told_of_in_some_and_the_rest() -> None:
    tally = Tally()
    for number in range(MOST_QUEUES + 20):
        tally.merge(Tally(ends={f"q{number}": {"succeeded": 1}}))
    assert len(tally.ends) == MOST_QUEUES + 1
    assert tally.ends[OTHER] == {"succeeded": 20}


def test_a_histogram_adds_up_and_leaves_out_what_has_other_bounds() -> None:
    one, other = Histogram(), Histogram()
    one.add([0.0005, 0.001, 2.0, 10_000.0])
    other.add([0.002])
    one.merge(other)
    one.merge(Histogram([1, 2, 3], 9.0))
    assert one.counts == [2, 1, 0, 0, 0, 0, 0, 1, *[0] * (len(BOUNDS) - 8), 1]
    assert one.sum == pytest.approx(10_002.0035)
    text = render(snapshot(tasks={"t": Tally(lasted=one)}))
    buckets = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "dray_run_seconds_bucket"
    }
    assert (buckets["0.001"], buckets["3600"], buckets["+Inf"]) == (2, 4, 5)


# what is read


@on_a_loop
async def test_what_the_archive_takes_over_meanwhile_is_counted_once() -> None:
    broker = await connect("memory://", "shop")
    tally = {"t": Tally(runs=5)}
    await write_tallies(broker, "ann", WorkerTallies(seen=1, tasks=tally, events={"lease_lost": 2}), 0)

    class Archiving:
        """The archive is at work just between two calls of the reader, the first time."""

        done = False

        def __getattr__(self, name: str) -> object:
            return getattr(broker, name)

        async def docs(self, kind: str) -> object:
            found = await broker.docs(kind)
            if not self.done:
                self.done = True
                past = ArchivedTallies(tasks=tally, events={"lease_lost": 2}, taken_over=("ann",))
                version = await write_archive(broker, past, 0)
                await delete_tallies(broker, "ann")
                await write_archive(broker, ArchivedTallies(tasks=tally, events=past.events), version)
            return found

    told, past, _ = await read_tallies(Archiving())  # type: ignore[arg-type]
    assert (told, past.tasks["t"].runs, past.events) == ({}, 5, {"lease_lost": 2})
    await broker.close()


@on_a_loop
async def test_limits_that_hold_ready_jobs_back_are_told() -> None:
    app = dray.App("shop", broker="memory://")

    @app.task(max_running=1, queue="a")
    def one() -> None: ...

    @app.task(rate_limit="1/h", rate_key="{who}", queue="a")
    def keyed(who: str) -> None: ...

    await one.aenqueue()
    await one.aenqueue()
    await app.queues.alimit("a", rate="5/s")
    before = values(await ametrics(app), "limit_reached")
    assert before == {("a", "", "rate"): 0, ("a", "one", "max_running"): 0}
    broker = (await app.client.loop_link()).broker
    await broker.renew([Beat("ann", 30_000)])
    await broker.take("ann", 1, ["a"], Filter(), 1)
    assert values(await ametrics(app), "limit_reached")["a", "one", "max_running"] == 1
    app.close()


def test_the_text_is_there_for_programs_too() -> None:
    app = dray.App("shop", broker="memory://")

    @app.task
    def add(a: int) -> int:
        return a

    add.enqueue(1)
    assert values(metrics(app), "queue_ready") == {("default", "5"): 1}
    app.close()


def test_the_docs_tell_of_every_metric() -> None:
    rows = [line for line in DOCS.read_text("utf-8").splitlines() if line.startswith("| `dray_")]
    told = {row.split("`")[1]: row for row in rows}
    assert set(told) == {full_name(name) for name in TABLE}
    for name, about in TABLE.items():
        _, _, labels, where, _ = (cell.strip() for cell in told[full_name(name)].split("|", 4))
        assert labels == (", ".join(about.labels) or "–"), name
        assert where == (f"{about.kind}, worker too" if about.of_worker else about.kind), name


# the responder


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[int]:
    served = Probes({"/healthz": lambda: Answer(200, "ok\n"), "/metrics": lambda: Answer(200, "x" * 100_000)})
    url = await served.open("127.0.0.1:0")
    try:
        yield int(url.rpartition(":")[2])
    finally:
        await served.close()


async def said(port: int, request: bytes, *, end: bool = False) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        writer.write(request)
        if end:
            writer.write_eof()
    reply = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(60):
            reply = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return reply


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
        (b"GET /metrics?a=b HTTP/1.0\r\n\r\n", b"200"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200"),
        (b"POST /healthz HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"GET \xff\xfe HTTP/1.1\r\n\r\n", b"404"),
        (b"\x16\x03\x01\r\n\r\n", b"400"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", b"431"),
    ],
)
@on_a_loop
async def test_the_responder_answers_and_refuses(request_: bytes, status: bytes) -> None:
    async with answering() as port:
        reply = await said(port, request_)
        head, _, body = reply.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        assert b"Connection: close" in head
        if status == b"200":
            assert len(body) == (
                0 if request_.startswith(b"HEAD") else 3 if b"healthz" in request_ else 100_000
            )


@on_a_loop
async def test_the_responder_outlives_slow_clients_crowds_and_those_who_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "TIMEOUT", 0.3)
    async with answering() as port:
        assert await said(port, b"GET /heal", end=True) == b""
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * probes.CONNECTIONS_MAX)]
        for _, writer in slow:
            writer.write(b"GET")
        for reader, writer in slow:
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""  # sent away, at once or when patience ends
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        assert b"200 OK" in await said(port, b"GET /healthz HTTP/1.1\r\n\r\n")


@on_a_loop
async def test_an_address_that_is_taken_is_an_error_that_names_it() -> None:
    async with answering() as port:
        with pytest.raises(dray.DrayError, match=f"cannot listen on 127.0.0.1:{port}"):
            await Probes({}).open(f"127.0.0.1:{port}")
