"""The roster: workers as documents in the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from dray.broker import Broker
from dray.broker.memory import MemoryBroker
from dray.documents.worker_registry import (
    KIND,
    ExecutorInfo,
    WorkerInfo,
    delete_worker,
    read_workers,
    write_worker,
)

INFO = WorkerInfo(
    id="host-1-abc",
    host="host",
    pid=1,
    started=1_000,
    seen=2_000,
    queues=("default", "email"),
    priorities=(1, 5),
    tasks=("shop.send",),
    processes=2,
    executors=(
        ExecutorInfo(number=1, pid=2, session="host-1-abc/1.1", running=3, slots=40),
        ExecutorInfo(number=2, pid=3, running=1, slots=2),
    ),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def on_memory(test: Callable[[Broker, Clock], Coroutine[Any, Any, None]]) -> None:
    clock = Clock()
    asyncio.run(test(MemoryBroker("dray", clock=clock), clock))


def test_a_worker_is_read_back_as_it_was_written() -> None:
    async def test(broker: Broker, clock: Clock) -> None:
        await write_worker(broker, INFO, 60_000)
        assert await read_workers(broker) == [INFO]
        assert (INFO.running, INFO.slots) == (4, 42)

    on_memory(test)


def test_a_worker_that_writes_no_more_drops_off_the_roster() -> None:
    async def test(broker: Broker, clock: Clock) -> None:
        await write_worker(broker, INFO, 60_000)
        clock.now += 59_000
        await write_worker(broker, INFO, 60_000)
        clock.now += 59_000
        assert len(await read_workers(broker)) == 1
        clock.now += 2_000
        assert await read_workers(broker) == []

    on_memory(test)


def test_one_that_leaves_in_good_order_is_gone_at_once() -> None:
    async def test(broker: Broker, clock: Clock) -> None:
        await write_worker(broker, INFO, 60_000)
        await delete_worker(broker, INFO.id)
        assert await read_workers(broker) == []
        await delete_worker(broker, INFO.id)

    on_memory(test)


def test_a_document_that_cannot_be_read_hides_nobody_else() -> None:
    async def test(broker: Broker, clock: Clock) -> None:
        await write_worker(broker, INFO, 60_000)
        await broker.doc(KIND, "aaa-future", b"\xc1 not a worker", ttl=60_000)
        assert await read_workers(broker) == [INFO]

    on_memory(test)


def test_a_worker_serves_what_its_queues_tasks_and_priorities_allow() -> None:
    assert INFO.serves("email", "shop.send", 5)
    assert not INFO.serves("other", "shop.send", 5)
    assert not INFO.serves("email", "shop.pay", 5)
    assert not INFO.serves("email", "shop.send", 4)
    assert WorkerInfo(
        id="w", host="h", pid=1, started=0, seen=0, queues=("q",), tasks=("t",), priorities=None
    ).serves("q", "t", 9)
