"""A slot moves to another node while its queue is at work: calls wait, and nothing is lost or split."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from redis_server import Server, need, three_primaries

from dray.broker import Broker, connect
from dray.broker.redis.keys import KeyNames, slot
from dray.broker.verbs import Beat, Filter
from dray.errors import BrokerAway, BrokerBusy
from dray.job import Job, Outcome, OutcomeKind, Verdict

P = ParamSpec("P")
T = TypeVar("T")
JOBS = 120
SLOT = slot(KeyNames("dray").queue("default"))


def owner(servers: list[Server]) -> Server:
    for server in servers:
        for first, last, (_, port, *_), *_ in server.command("CLUSTER", "SLOTS"):
            if first <= SLOT <= last:
                return next(one for one in servers if one.port == port)
    raise AssertionError("nobody has the slot")


def move(source: Server, target: Server, servers: list[Server]) -> None:
    """As redis-cli does it: key by key, then all nodes learn of it."""
    from_id, to_id = (one.command("CLUSTER", "MYID").decode() for one in (source, target))
    target.command("CLUSTER", "SETSLOT", str(SLOT), "IMPORTING", from_id)
    source.command("CLUSTER", "SETSLOT", str(SLOT), "MIGRATING", to_id)
    while keys := source.command("CLUSTER", "GETKEYSINSLOT", str(SLOT), "2"):
        for key in keys:
            source.command("MIGRATE", "127.0.0.1", str(target.port), key.decode(), "0", "5000")
    for server in (target, source, *servers):
        server.command("CLUSTER", "SETSLOT", str(SLOT), "NODE", to_id)


async def patiently(call: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """A move that lasts longer than a call waits is an error of the call, which may be repeated."""
    while True:
        try:
            return await call(*args, **options)
        except (BrokerAway, BrokerBusy):
            await asyncio.sleep(0.05)


async def produce(broker: Broker, moved: asyncio.Event) -> list[str]:
    ids: list[str] = []
    while len(ids) < JOBS or not moved.is_set():
        job = Job(id=f"default:{secrets.token_hex(16)}", task="work")
        await patiently(broker.put, [job])
        ids.append(job.id)
        await asyncio.sleep(0.002)
    return ids


async def work(broker: Broker, done: asyncio.Event) -> list[str]:
    await patiently(broker.renew, [Beat("ann", 60_000)])
    ran: list[str] = []
    request = 0
    while True:
        request += 1
        over = done.is_set()
        taken = await patiently(broker.take, "ann", request, ["default"], Filter(), 5)
        outcomes = [
            Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED, result=b"\xc0") for one in taken
        ]
        if outcomes:
            settled = await patiently(broker.settle, "ann", outcomes)
            assert all(one.verdict in (Verdict.ACCEPTED, Verdict.ALREADY) for one in settled)
            ran += [one.job.id for one in taken]
        elif over:
            return ran
        else:
            await asyncio.sleep(0.005)


def test_a_queue_whose_slot_moves_goes_on_where_it_is_now(tmp_path: Path) -> None:
    need("valkey")

    async def test(servers: list[Server]) -> None:
        url = f"redis+cluster://127.0.0.1:{servers[0].port}"
        producer, worker = await connect(url), await connect(url)
        moved, done = asyncio.Event(), asyncio.Event()
        working = asyncio.create_task(work(worker, done))
        producing = asyncio.create_task(produce(producer, moved))
        await asyncio.sleep(0.1)
        source = owner(servers)
        for target in (next(one for one in servers if one is not source), source):  # there and back
            await asyncio.to_thread(move, owner(servers), target, servers)
            assert owner(servers) is target
        moved.set()
        ids = await producing
        done.set()
        ran = await working
        assert sorted(ran) == sorted(ids)
        assert await worker.audit() == []
        await producer.close()
        await worker.close()

    with three_primaries("valkey", tmp_path) as servers:
        asyncio.run(test(servers))
