"""On Redis a schedule and its jobs live in different slots: whoever dies or freezes between the two."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis_server import Server, need, running

from dray.broker.actions import Delete, Ids, Query
from dray.broker.redis import RedisBroker, put
from dray.broker.redis.core import Core
from dray.broker.verbs import DocWrite
from dray.errors import BrokerAway
from dray.job import ENVELOPE_VERSION, Job

ANY_AGE = -60_000_000
"""Microseconds: two clients know the clock of the server a little differently."""
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
        self._put_step, self._go_on = put.put_step, asyncio.Event()
        self._reached, self._patch = asyncio.Event(), monkeypatch

    async def leads(self, broker: RedisBroker) -> asyncio.Task[Any]:
        async def stands(*args: Any) -> Any:
            self._reached.set()
            await self._go_on.wait()
            return await self._put_step(*args)

        with self._patch.context() as patch:
            patch.setattr(put, "put_step", stands)
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
        assert await put.finish_intents(other._core, None, older_than=ANY_AGE) == 1
        assert await ids(other) == [TICK]
        await other.edit(Ids((TICK,)), Delete())  # as if it had run and was pruned
        frozen.thaw()
        await late
        assert await ids(other) == []
        assert await put.finish_intents(other._core, None, older_than=ANY_AGE) == 0

    play(server, monkeypatch, test)


def test_one_that_comes_back_after_what_was_put_is_forgotten_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(one: RedisBroker, other: RedisBroker, frozen: Frozen) -> None:
        stamps = Core.stamps
        with monkeypatch.context() as then:
            then.setattr(Core, "stamps", lambda core, count: stamps(core, count) - 20 * MINUTE)
            late = await frozen.leads(one)
        assert await put.finish_intents(other._core, None) == 1
        assert await ids(other) == [TICK]
        await other.edit(Ids((TICK,)), Delete())
        frozen.thaw()
        with pytest.raises(BrokerAway, match="ten minutes"):
            await late
        assert await ids(other) == []
        assert await put.finish_intents(other._core, None, older_than=ANY_AGE) == 0

    play(server, monkeypatch, test)


def test_an_intent_that_cannot_be_read_is_left_alone_and_the_others_are_finished(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(one: RedisBroker, other: RedisBroker, frozen: Frozen) -> None:
        newer = msgspec.msgpack.encode([ENVELOPE_VERSION + 1, {"of": "another form"}])
        strange = {"100-one": msgspec.msgpack.encode([newer]), f"{one._core.stamps(1)}-two": b"\xc1"}
        for token, packed in strange.items():
            server.command("HSET", "dray:{dray}:intent", token, packed)
        late = await frozen.leads(one)
        assert await put.finish_intents(other._core, None, older_than=ANY_AGE) == 1
        assert await put.finish_intents(other._core, None, older_than=ANY_AGE) == 0
        assert await ids(other) == [TICK]
        assert set(server.command("HKEYS", "dray:{dray}:intent")) == {token.encode() for token in strange}
        said = [record.getMessage() for record in caplog.records if record.name == "dray.broker"]
        assert len(said) == 2
        assert any(f"version {ENVELOPE_VERSION + 1}" in line for line in said)
        await other.sweep()
        assert set(server.command("HKEYS", "dray:{dray}:intent")) == {token.encode() for token in strange}
        frozen.thaw()
        await late

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
