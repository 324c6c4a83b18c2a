"""On Redis a schedule and its jobs live in different slots: whoever dies or freezes between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis_server import Server, need, running

from dray.broker.redis import RedisBroker, accepting
from dray.broker.redis.core import Core
from dray.broker.verbs import Delete, DocWrite, Ids, Query
from dray.errors import BrokerAway
from dray.job import Job

TICK = "jobs:" + "0" * 31 + "1"
WHEN = DocWrite(kind="schedule", name="s", value=b"tick", expect_version=0)
MINUTE = 60_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    need("valkey")
    folder: Path = tmp_path_factory.mktemp("valkey")
    with running("valkey", folder) as server:
        yield server


class Frozen:
    """A leader that stands still between the two halves of a tick."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._put_step, self._go_on = accepting.put_step, asyncio.Event()
        self._reached, self._patch = asyncio.Event(), monkeypatch

    async def leads(self, broker: RedisBroker) -> asyncio.Task[Any]:
        async def stands(*args: Any) -> Any:
            self._reached.set()
            await self._go_on.wait()
            return await self._put_step(*args)

        with self._patch.context() as patch:
            patch.setattr(accepting, "put_step", stands)
            task = asyncio.create_task(broker.put([Job(id=TICK, task="t", queue="jobs")], when=WHEN))
            await self._reached.wait()
        return task

    def thaw(self) -> None:
        self._go_on.set()


Play = Callable[[RedisBroker, RedisBroker, Frozen], Awaitable[None]]


def play(server: Server, monkeypatch: pytest.MonkeyPatch, test: Play) -> None:
    async def main() -> None:
        server.command("FLUSHALL")
        url = f"redis://127.0.0.1:{server.port}"
        one, other = await RedisBroker.open(url), await RedisBroker.open(url)
        try:
            await test(one, other, Frozen(monkeypatch))
        finally:
            await one.close()
            await other.close()

    asyncio.run(main())


async def ids(broker: RedisBroker) -> list[str]:
    return [record.id for record in (await broker.find(Query())).records]


def test_a_leader_frozen_between_the_halves_is_finished_for_and_makes_nothing_when_it_comes_back(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: RedisBroker, other: RedisBroker, frozen: Frozen) -> None:
        late = await frozen.leads(one)
        assert await ids(other) == []
        assert await accepting.finish_intents(other._core, None, older_than=0) == 1
        assert await ids(other) == [TICK]
        await other.edit(Ids((TICK,)), Delete())  # as if it had run and was pruned
        frozen.thaw()
        await late
        assert await ids(other) == []
        assert await accepting.finish_intents(other._core, None, older_than=0) == 0

    play(server, monkeypatch, test)


def test_one_that_comes_back_after_what_was_put_is_forgotten_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: RedisBroker, other: RedisBroker, frozen: Frozen) -> None:
        stamps = Core.stamps
        with monkeypatch.context() as then:
            then.setattr(Core, "stamps", lambda core, count: stamps(core, count) - 20 * MINUTE)
            late = await frozen.leads(one)
        assert await accepting.finish_intents(other._core, None) == 1
        assert await ids(other) == [TICK]
        await other.edit(Ids((TICK,)), Delete())
        frozen.thaw()
        with pytest.raises(BrokerAway, match="ten minutes"):
            await late
        assert await ids(other) == []
        assert await accepting.finish_intents(other._core, None, older_than=0) == 0

    play(server, monkeypatch, test)


def test_what_is_remembered_of_ticks_is_forgotten_within_the_hour(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: RedisBroker, other: RedisBroker, frozen: Frozen) -> None:
        await one.put([Job(id=TICK, task="t", queue="jobs")], when=WHEN)
        marks = [key for key in server.command("KEYS", "*") if b":i:" in key]
        assert len(marks) == 1
        assert 0 < server.command("TTL", marks[0].decode()) <= 3600
        assert server.command("EXISTS", "dray:{dray}:intent") == 0

    play(server, monkeypatch, test)
