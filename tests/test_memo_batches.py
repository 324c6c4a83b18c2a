"""Memos of many runs on their way to the broker: few calls, and no run suffers for another."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from dray.broker.durable import MemoWrite
from dray.broker.memory import MemoryBroker
from dray.broker.verbs import Beat, Filter
from dray.errors import BrokerAway, TooLarge
from dray.job import Job, Verdict
from dray.worker.executor.memo_batches import MemoBatches


class Counting(MemoryBroker):
    """Counts the writes of each call of `memo`, and takes a while over it."""

    def __init__(self) -> None:
        super().__init__("memos")
        self.calls: list[int] = []
        self.away = False

    async def memo(
        self, session: str, writes: Sequence[MemoWrite], *, now: int | None = None
    ) -> list[Verdict]:
        self.calls.append(len(writes))
        await asyncio.sleep(0.01)
        if self.away:
            raise BrokerAway("away")
        return await super().memo(session, writes, now=now)


async def holding(count: int) -> tuple[Counting, MemoBatches]:
    broker = Counting()
    await broker.put([Job(id=f"j{n}", task="t") for n in range(count)])
    await broker.renew([Beat("s", 10_000)])
    taken = await broker.take("s", 1, ["default"], Filter(), count)
    assert len(taken) == count
    return broker, MemoBatches(broker)


def write(n: int, position: int = 0, size: int = 1) -> MemoWrite:
    return MemoWrite(id=f"j{n}", run=1, position=position, entries=(b"x" * size,))


def test_memos_of_one_moment_are_one_call() -> None:
    async def scene() -> None:
        broker, batches = await holding(20)
        verdicts = await asyncio.gather(*(batches.write("s", write(n)) for n in range(20)))
        assert verdicts == [Verdict.ACCEPTED] * 20
        assert broker.calls == [20]

    asyncio.run(scene())


def test_memos_that_come_during_a_call_wait_for_the_next() -> None:
    async def scene() -> None:
        broker, batches = await holding(5)
        first = asyncio.ensure_future(batches.write("s", write(0)))
        await asyncio.sleep(0.005)
        rest = [asyncio.ensure_future(batches.write("s", write(n))) for n in range(1, 5)]
        assert await asyncio.gather(first, *rest) == [Verdict.ACCEPTED] * 5
        assert broker.calls == [1, 4]
        assert await batches.write("s", write(0, 1)) is Verdict.ACCEPTED
        assert await batches.write("s", write(0, 1)) is Verdict.ALREADY
        assert await batches.write("s", write(0, 7)) is Verdict.REFUSED

    asyncio.run(scene())


def test_a_log_that_is_full_fails_its_own_write_only() -> None:
    async def scene() -> None:
        _, batches = await holding(3)
        writes = [write(0), write(1, size=17 * 1024 * 1024), write(2)]
        replies: list[Any] = await asyncio.gather(
            *(batches.write("s", one) for one in writes), return_exceptions=True
        )
        assert replies[0] is replies[2] is Verdict.ACCEPTED
        assert isinstance(replies[1], TooLarge)

    asyncio.run(scene())


def test_an_outage_reaches_every_writer_and_the_next_call_works() -> None:
    async def scene() -> None:
        broker, batches = await holding(2)
        broker.away = True
        replies = await asyncio.gather(
            *(batches.write("s", write(n)) for n in range(2)), return_exceptions=True
        )
        assert [type(reply) for reply in replies] == [BrokerAway, BrokerAway]
        broker.away = False
        assert await batches.write("s", write(0)) is Verdict.ACCEPTED

    asyncio.run(scene())


def test_a_writer_that_is_cancelled_does_not_stop_the_others() -> None:
    async def scene() -> None:
        _, batches = await holding(2)
        gone = asyncio.ensure_future(batches.write("s", write(0)))
        stays = asyncio.ensure_future(batches.write("s", write(1)))
        await asyncio.sleep(0.005)
        gone.cancel()
        assert await stays is Verdict.ACCEPTED
        await asyncio.wait((gone,))
        assert gone.cancelled()

    asyncio.run(scene())


def test_sessions_are_kept_apart() -> None:
    async def scene() -> None:
        broker, batches = await holding(1)
        replies = [*await asyncio.gather(batches.write("s", write(0)), batches.write("other", write(0)))]
        assert replies == [Verdict.ACCEPTED, Verdict.REFUSED]
        assert broker.calls == [1, 1]

    asyncio.run(scene())
