"""How soon an idle worker in another process starts a job, and what it costs while it sleeps."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.measure import percentile
from bench.sqlite.cases import ANY, LEASE, succeed
from bench.sqlite.plan import Plan
from bench.sqlite.store import QUEUE, SYNCHRONOUS, Supply, close_broker, open_broker, remove
from dray.broker.sqlite import SqliteBroker
from dray.broker.verbs import Beat, Interest, run_blocking

SETTLED = 0.02
"""Seconds that the waiter gets to fall asleep before it is woken again."""


@dataclass(frozen=True)
class Waking:
    """Seconds from just before `put` to just after `take`, and the share of a core that waiting costs."""

    wakes: int
    p50: float
    p99: float
    longest: float
    idle_cpu: float
    idle_seconds: float


def measure_waking(path: Path, plan: Plan) -> Waking:
    """A producer here, a waiter in another process."""
    broker = open_broker(path)
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    child = spawn.Process(target=_waiter, args=(path, plan.idle, there), daemon=True)
    child.start()
    there.close()
    try:
        idle_cpu: float = here.recv()
        delays = [_wake(broker, supply_id, here) for supply_id in range(plan.wakes)]
        here.send(None)
        _put(broker, plan.wakes)
        child.join()
    finally:
        close_broker(broker)
    remove(path)
    return summarise(delays, idle_cpu, plan.idle)


def summarise(delays: Sequence[float], idle_cpu: float, idle_seconds: float) -> Waking:
    p50, p99 = percentile(delays, 50), percentile(delays, 99)
    return Waking(len(delays), p50, p99, max(delays), idle_cpu / idle_seconds, idle_seconds)


def _put(broker: SqliteBroker, number: int) -> None:
    run_blocking(broker.put([Supply(number).job(id=f"wake-{number}")]))


def _wake(broker: SqliteBroker, number: int, waiter: Connection) -> float:
    time.sleep(SETTLED)
    start = time.monotonic()
    _put(broker, number)
    started: float = waiter.recv()
    return started - start


def _waiter(path: Path, idle: float, pipe: Connection) -> None:
    asyncio.run(_wait(path, idle, pipe))


async def _wait(path: Path, idle: float, pipe: Connection) -> None:
    """As a worker's loop: sleep, take, tell, settle."""
    broker = await SqliteBroker.open(f"sqlite:///{path}?synchronous={SYNCHRONOUS}")
    supply, interest = Supply(), Interest(queues=(QUEUE,), session="waiter")
    await broker.renew([Beat("waiter", LEASE)])
    await broker.wait(interest, 0.05)
    before = time.process_time()
    await broker.wait(interest, idle)
    pipe.send(time.process_time() - before)
    while not pipe.poll():
        await broker.wait(interest, 10.0)
        taken = await broker.take("waiter", supply.request(), (QUEUE,), ANY, 1)
        now = time.monotonic()
        if taken and not pipe.poll():
            pipe.send(now)
        await broker.settle("waiter", [succeed(one, supply) for one in taken])
    await broker.close()
