"""A worker's wait in many queues stays registered, and no wake-up gets lost with a worker that is busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis_leaks import leaks
from redis_server import Server, need, running

from dray.broker import connect
from dray.broker.actions import Pause, Resume, Scope
from dray.broker.redis.broker import RedisBroker
from dray.broker.verbs import Beat, Filter, Interest, Wake
from dray.job import Job

NAMES = tuple(f"q{n}" for n in range(30))
ANY = Filter()
Play = Callable[[RedisBroker, RedisBroker], Awaitable[None]]


@pytest.fixture(params=[False, True], ids=["alone", "cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    need("valkey")
    with running("valkey", tmp_path / "server", cluster=request.param) as server:
        yield server


def play(server: Server, test: Play) -> None:
    """With two workers, each with a session of its own."""

    async def main() -> None:
        url = f"redis://127.0.0.1:{server.port}"
        ann, bob = await connect(url), await connect(url)
        assert isinstance(ann, RedisBroker)
        assert isinstance(bob, RedisBroker)
        await ann.renew([Beat("ann", 60_000)])
        await bob.renew([Beat("bob", 60_000)])
        try:
            await asyncio.wait_for(test(ann, bob), 120)
            assert await ann.audit() == []
        finally:
            await ann.close()
            await bob.close()
        assert not asleep(server), "a worker that ends is not registered any more"
        assert leaks(server) == []

    asyncio.run(main())


def asleep(server: Server) -> list[bytes]:
    return [key for key in server.command("KEYS", "*") if key.endswith(b":sleep")]


async def all_asleep(server: Server, sleepers: int = 1) -> None:
    keys = [f"dray:{{dray:{name}}}:sleep" for name in NAMES]
    while any(server.command("HLEN", key) < sleepers for key in keys):
        await asyncio.sleep(0.01)


def waiting(broker: RedisBroker, session: str, seconds: float = 60) -> asyncio.Future[Wake]:
    return asyncio.ensure_future(broker.wait(Interest(queues=NAMES, filter=ANY, session=session), seconds))


async def take(broker: RedisBroker, session: str, request: int, queue: str) -> list[str]:
    return [taken.job.id for taken in await broker.take(session, request, [queue], ANY, 10)]


def job(queue: str, number: int = 0, due: int | None = None) -> Job:
    return Job(id=f"{queue}:{number:032x}", task="t", queue=queue, due=due)


def scripts(server: Server) -> int:
    for line in server.command("INFO", "commandstats").decode().split():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.split("calls=")[1].split(",")[0])
    return 0


def test_it_is_woken_for_the_queue_that_has_work_and_registers_only_there_again(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        wait = waiting(ann, "ann")
        await all_asleep(server)
        for request, name in enumerate(("q3", "q17", "q3"), 1):
            await bob.put([job(name, request)])
            assert await wait == Wake(work=True, queues=(name,))
            assert await take(ann, "ann", request, name) == [job(name, request).id]
            before = scripts(server)
            wait = waiting(ann, "ann")
            await all_asleep(server)
            assert scripts(server) - before <= 5, "not one for each queue"
        wait.cancel()

    play(server, test)


def test_a_wake_up_of_a_busy_worker_is_passed_on(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        busy, idle = waiting(ann, "ann"), waiting(bob, "bob")
        await all_asleep(server, 2)
        busy.cancel()  # ann stays registered, and has no time
        await asyncio.gather(busy, return_exceptions=True)
        for request, name in enumerate(NAMES[:15], 1):
            await bob.put([job(name)])
            wake = await asyncio.wait_for(idle, 10)
            assert wake.queues == (name,), "whichever of the two was rung first"
            assert await take(bob, "bob", request, name) == [job(name).id]
            idle = waiting(bob, "bob")
        idle.cancel()

    play(server, test)


def test_a_busy_worker_learns_of_the_queues_it_was_woken_for_when_it_looks(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        busy = waiting(ann, "ann")
        await all_asleep(server)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        await bob.put([job("q4"), job("q9")])
        look = Interest(queues=NAMES[:8], filter=ANY, session="ann")
        found: set[str] = set()
        while "q4" not in found:
            found |= set((await ann.wait(look, 0)).queues)
        found |= set((await waiting(ann, "ann")).queues)
        assert found == {"q4", "q9"}

    play(server, test)


def test_a_job_that_falls_due_and_a_queue_that_is_resumed_wake_it(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        wait = waiting(ann, "ann")
        await all_asleep(server)
        await bob.put([job("q5", due=ann.clock() + 300)])
        assert "q5" in (await asyncio.wait_for(wait, 30)).queues
        assert await take(ann, "ann", 1, "q5")
        await bob.edit(Scope("q6"), Pause("later"))
        await bob.put([job("q6")])
        wait = waiting(ann, "ann")
        await all_asleep(server)
        await bob.edit(Scope("q6"), Resume())
        assert (await asyncio.wait_for(wait, 30)).queues == ("q6",)

    play(server, test)


def test_after_a_cut_it_registers_again(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        wait = waiting(ann, "ann")
        await all_asleep(server)
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        await bob.put([job("q8")])
        while True:
            wake = await asyncio.wait_for(wait, 30)
            if wake.work:
                break
            wait = waiting(ann, "ann")
        assert wake.queues == ("q8",)

    play(server, test)


def test_a_notification_for_the_session_wakes_it(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        await bob.put([job("q1")])
        assert await take(ann, "ann", 1, "q1")
        wait = waiting(ann, "ann")
        await all_asleep(server)
        await bob.release("ann")  # as a sweep does when its lease is over
        assert (await asyncio.wait_for(wait, 30)).told

    play(server, test)


def test_two_workers_share_a_burst_in_many_queues(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        left = {job(name, n).id for name in NAMES for n in range(5)}

        async def work(broker: RedisBroker, session: str) -> None:
            request, deadline = 0, time.monotonic() + 60
            while left and time.monotonic() < deadline:
                for name in (
                    await broker.wait(Interest(queues=NAMES, filter=ANY, session=session), 1)
                ).queues:
                    request += 1
                    left.difference_update(await take(broker, session, request, name))

        workers = [asyncio.ensure_future(work(ann, "ann")), asyncio.ensure_future(work(bob, "bob"))]
        await all_asleep(server, 2)
        for n in range(5):
            await ann.put([job(name, n) for name in NAMES])
        await asyncio.gather(*workers)
        assert not left

    play(server, test)


def test_a_queue_that_it_serves_no_more_keeps_it_neither_busy_nor_awake(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        first = waiting(ann, "ann")
        await all_asleep(server)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        before = time.process_time()
        fewer = Interest(queues=NAMES[1:], filter=ANY, session="ann")
        assert await ann.wait(fewer, 8) == Wake(), "it sleeps, longer than until the next check"
        assert time.process_time() - before < 4, "asleep, and not in a circle"
        idle = waiting(bob, "bob")
        await all_asleep(server, 2)
        again = asyncio.ensure_future(ann.wait(fewer, 60))
        await bob.put([job(NAMES[0])])
        assert (await asyncio.wait_for(idle, 4)).queues == (NAMES[0],), "whoever was rung first"
        again.cancel()

    play(server, test)


def test_a_session_that_ends_in_the_middle_of_a_check_stays_registered_nowhere(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        for _ in range(20):
            wait = waiting(ann, "ann")
            await asyncio.sleep(0.002)
            wait.cancel()
            await asyncio.gather(wait, return_exceptions=True)
            await ann.release("ann", suspect=False)
            await ann.renew([Beat("ann", 60_000)])
            await ann.audit()  # what was sent before is done
            assert not asleep(server)

    play(server, test)


def test_a_wake_up_is_passed_on_past_tasks_that_no_sleeper_knows(server: Server) -> None:
    async def test(ann: RedisBroker, bob: RedisBroker) -> None:
        known = Filter(tasks=frozenset({"t"}))
        for n in range(20):
            foreign = [Job(id=f"{name}:{n + 100:032x}", task=f"foreign{n}", queue=name) for name in NAMES]
            await bob.put(foreign)
        interest = {name: Interest(queues=NAMES, filter=known, session=name) for name in ("ann", "bob")}
        busy = asyncio.ensure_future(ann.wait(interest["ann"], 60))
        idle = asyncio.ensure_future(bob.wait(interest["bob"], 60))
        await all_asleep(server, 2)
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
        for request, name in enumerate(NAMES[:8], 1):
            await bob.put([job(name)])
            assert (await asyncio.wait_for(idle, 4)).queues == (name,)
            [taken] = await bob.take("bob", request, [name], known, 10)
            assert taken.job.task == "t"
            idle = asyncio.ensure_future(bob.wait(interest["bob"], 60))
        idle.cancel()

    play(server, test)
