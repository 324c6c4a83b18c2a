"""Unused queues: nothing is left of them, and a later put or reader finds everything in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uuid_utils
from redis_leaks import leaks
from redis_server import Server, need, running

from dray.broker import connect
from dray.broker.actions import Delete, Ids, Query, Scope, SetLimits
from dray.broker.redis import sweep
from dray.broker.redis.broker import RedisBroker
from dray.broker.redis.core import Core
from dray.broker.redis.router import Command
from dray.broker.verbs import Beat, Filter, Interest
from dray.job import Job, Outcome, OutcomeKind
from dray.policy import Retention

MINUTE = 60_000
HOUR = 60 * MINUTE
Play = Callable[[RedisBroker, RedisBroker, int], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["alone", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    need("valkey")
    with running("valkey", tmp_path / "server", cluster=request.param) as server:
        yield server


def play(server: Server, test: Play) -> None:
    """With two clients, and the server's time."""

    async def main() -> None:
        url = f"redis://127.0.0.1:{server.port}"
        one, other = await connect(url, retention=Retention(done_ttl=1)), await connect(url)
        assert isinstance(one, RedisBroker)
        assert isinstance(other, RedisBroker)
        try:
            await test(one, other, int(server.command("TIME")[0]) * 1000)
            assert await one.audit() == []
            assert leaks(server) == []
        finally:
            await one.close()
            await other.close()

    asyncio.run(main())


def job(queue: str = "mail") -> Job:
    return Job(id=f"{queue}:{uuid_utils.uuid7().hex}", task="t", queue=queue, payload=b"x" * 500)


def keys_of(server: Server, queue: str) -> list[str]:
    return sorted(key.decode() for key in server.command("KEYS", "*") if f":{queue}}}:".encode() in key)


def size_of(server: Server, queue: str) -> int:
    return sum(server.command("MEMORY", "USAGE", key) for key in keys_of(server, queue))


async def use(broker: RedisBroker, queue: str = "mail") -> None:
    """Put some jobs, run them, delete them; the worker ends."""
    await broker.put([job(queue) for _ in range(20)])
    session = uuid_utils.uuid7().hex
    await broker.renew([Beat(session, 60_000)])
    taken = await broker.take(session, 1, [queue], Filter(), 20)
    done = [Outcome(id=one.job.id, run=one.run, kind=OutcomeKind.SUCCEEDED) for one in taken]
    await broker.settle(session, done)
    await broker.release(session)
    await broker.edit(Query(queue=queue), Delete())


def test_an_empty_queue_shrinks_and_then_is_gone(server: Server) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        await use(one)
        assert size_of(server, "mail") > 1024
        await one.sweep(now=now + 9 * MINUTE)
        assert any(key.endswith("feed") for key in keys_of(server, "mail"))
        await one.sweep(now=now + 11 * MINUTE)
        assert size_of(server, "mail") <= 1024
        await one.sweep(now=now + 55 * MINUTE)
        assert keys_of(server, "mail") != []
        await one.sweep(now=now + 61 * MINUTE)
        assert keys_of(server, "mail") == []
        assert server.command("SMEMBERS", "dray:{dray}:queues") in ([], set())

    play(server, test)


def test_many_short_lived_queues_leave_nothing(server: Server) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        before = server.command("DBSIZE")
        for n in range(30):
            await use(one, f"tenant-{n}")
        for _ in range(2):
            await one.sweep(now=now + 2 * HOUR)
        left = {key.decode().rpartition(":")[2] for key in server.command("KEYS", "*")}
        assert left <= {"layout", "versions", "opened", "clock", "fed"}
        assert server.command("DBSIZE") - before <= 5

    play(server, test)


def test_who_knows_a_forgotten_queue_lists_it_again_with_the_next_job(server: Server) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        await use(one)
        cursor = (await other.events({})).cursor
        for _ in range(2):
            await other.sweep(now=now + 2 * HOUR)
        assert keys_of(server, "mail") == []
        for client in (one, other):  # one has put there before, the other has not
            new = job()
            await client.put([new])
            [info] = await other.queues()
            assert info.name == "mail"
            feed = await other.events(cursor)
            assert feed.gaps == ("mail",)
            assert [event.id for entry in feed.entries for event in entry.events] == [new.id]
            await client.edit(Ids((new.id,)), Delete())
            cursor = (await other.events({})).cursor
            for _ in range(2):
                await other.sweep(now=now + 4 * HOUR)
            assert keys_of(server, "mail") == []
        await one.edit(Scope("mail"), SetLimits(max_running=1))
        assert [info.name for info in await other.queues()] == ["mail"]

    play(server, test)


def test_a_queue_that_is_served_keeps_what_its_worker_needs(server: Server) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        await use(one)
        await one.renew([Beat("ann", 24 * HOUR)])
        assert await one.take("ann", 1, ["mail"], Filter(), 1) == []
        for _ in range(3):
            await other.sweep(now=now + 2 * HOUR)
        assert size_of(server, "mail") <= 1024
        waiting = asyncio.ensure_future(one.wait(Interest(queues=("mail",), session="ann"), 20))
        await asyncio.sleep(0)
        await other.put([job()])
        assert (await waiting).work
        assert len(await one.take("ann", 2, ["mail"], Filter(), 1)) == 1
        await one.release("ann")

    play(server, test)


class Died(Exception):
    pass


@pytest.mark.parametrize("step", range(1, 6))
def test_a_sweeper_that_dies_in_between_is_followed_by_the_next(server: Server, step: int) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        await use(one)
        await other.sweep(now=now + 2 * HOUR)
        with pytest.raises(Died):
            await sweep._forget_queues(Mortal(other._core, step), {"mail": 99}, now + 2 * HOUR)  # type: ignore[arg-type]
        await one.put([job()])
        assert [info.name for info in await one.queues()] == ["mail"]
        await one.sweep(now=now + 2 * HOUR)
        assert [info.name for info in await one.queues()] == ["mail"]
        assert await one.audit() == []
        await one.edit(Query(), Delete())
        for _ in range(2):
            await one.sweep(now=now + 4 * HOUR)
        assert keys_of(server, "mail") == []
        assert server.command("EXISTS", "dray:{dray}:leaving") == 0

    play(server, test)


@pytest.mark.parametrize("step", range(1, 7))
def test_a_job_that_is_put_at_any_moment_of_it_is_seen(server: Server, step: int) -> None:
    async def test(one: RedisBroker, other: RedisBroker, now: int) -> None:
        await use(one)
        await other.sweep(now=now + 2 * HOUR)
        new = job()

        async def put() -> None:
            await one.put([new])

        await sweep._forget_queues(Busy(other._core, step, put), {"mail": 99}, now + 2 * HOUR)  # type: ignore[arg-type]
        assert [info.name for info in await other.queues()] == ["mail"]
        assert server.command("SISMEMBER", "dray:{dray}:queues", "mail") == 1
        assert [record.id for record in (await other.find(Query())).records] == [new.id]
        await other.sweep()

    play(server, test)


class Mortal:
    """A core that dies before one of its calls."""

    def __init__(self, core: Core, step: int) -> None:
        self._core, self._left = core, step
        self.keys, self.on_own, self.on_queue = core.keys, core.on_own, core.on_queue

    async def call(self, call: Command) -> Any:
        self._left -= 1
        if not self._left:
            raise Died
        return await self._core.call(call)


class Busy(Mortal):
    """A core that lets another client act before one of its calls."""

    def __init__(self, core: Core, step: int, act: Callable[[], Awaitable[None]]) -> None:
        super().__init__(core, step)
        self._act = act

    async def call(self, call: Command) -> Any:
        self._left -= 1
        if not self._left:
            await self._act()
        return await self._core.call(call)


def test_a_bench_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{server.port}"
    command = [sys.executable, "-m", "dray", "bench", "--jobs", "100", "--broker", url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert server.command("KEYS", "*") == []
