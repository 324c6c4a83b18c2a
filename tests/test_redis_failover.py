"""A node of a cluster goes away and its replica takes over: clients go on by themselves, and soon."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from by_hand import Hand
from failover import Moments, fail_over, in_time, namespace_at_first
from redis_server import Cluster, need, three_and_three, wait_until

from dray import App, BrokerAway
from dray.broker import connect
from dray.broker.redis.cluster import FRESH
from dray.broker.verbs import Interest, run_blocking
from dray.job import Job

PATIENCE = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    need("valkey")
    with three_and_three("valkey", tmp_path) as cluster:
        yield cluster


@pytest.fixture
def app(cluster: Cluster) -> Iterator[App]:
    app = App(namespace_at_first(), broker=cluster.url)
    app.task(name="add")(lambda a: a)
    yield app
    app.close()


@contextlib.asynccontextmanager
async def closing_link(app: App) -> AsyncIterator[None]:
    """A loop that ends leaves its connections to the collector, which warns of them."""
    yield
    await (await app.client.loop_link()).broker.close()


class Client:
    """Calls again and again in a thread of its own, blocking or on a loop, and notes when that worked."""

    def __init__(self, app: App, awaited: bool) -> None:
        self.moments = Moments("an awaited producer" if awaited else "a blocking producer")
        self.accepted: list[str] = []
        self.failures = 0
        self._app, self._done = app, threading.Event()
        main = (lambda: asyncio.run(self._await())) if awaited else self._block
        self._thread = threading.Thread(target=main)
        self._thread.start()

    def _block(self) -> None:
        while not self._done.wait(0.02):
            try:
                self._note(self._app.enqueue("add", 1).id)
            except BrokerAway:
                self.failures += 1

    async def _await(self) -> None:
        async with closing_link(self._app):
            while not self._done.is_set():
                try:
                    self._note((await self._app.aenqueue("add", 1)).id)
                except BrokerAway:
                    self.failures += 1
                await asyncio.sleep(0.02)

    def _note(self, id: str) -> None:
        self.accepted.append(id)
        self.moments.note()

    def end(self) -> None:
        self._done.set()
        self._thread.join(PATIENCE)


def test_producers_waiters_and_listeners_go_on_when_a_primary_is_killed(cluster: Cluster, app: App) -> None:
    """The node that all of them listen at, and that serves their namespace."""
    results: list[int] = []
    ended, rung, listening = Moments("a waiter for a result"), Moments("a listener"), threading.Event()
    job = app.enqueue("add", 5)

    def wait_blocking() -> None:
        results.append(job.get(timeout=PATIENCE))
        ended.note()

    async def wait_awaited() -> None:
        async with closing_link(app):
            results.append(await job.aget(timeout=PATIENCE))
            ended.note()

    async def listen() -> None:
        broker = await connect(cluster.url, app.name)
        while not rung.all:
            listening.set()
            with contextlib.suppress(BrokerAway):
                if (await broker.wait(Interest(queues=("later",)), PATIENCE)).work:
                    rung.note()
        await broker.close()

    threads = [
        threading.Thread(target=work)
        for work in (wait_blocking, lambda: asyncio.run(wait_awaited()), lambda: asyncio.run(listen()))
    ]
    for thread in threads:
        thread.start()
    listening.wait(PATIENCE)
    producers = [Client(app, awaited=False), Client(app, awaited=True)]
    try:
        wait_until(lambda: all(one.accepted for one in producers), "nothing is accepted", PATIENCE)
        _, _, promoted = fail_over(cluster, "crash")
        for producer in producers:
            producer.moments.check(promoted)
    finally:
        for producer in producers:
            producer.end()
    with Hand(app) as hand:
        taken = [one for batch in iter(hand.take, []) for one in batch]
        for one in taken:
            hand.succeed(one, 5)
        app.tasks["add"].using(queue="later").enqueue(1)
        for thread in threads:
            thread.join(PATIENCE)
    assert results == [5, 5]
    for moments in (ended, rung):
        in_time(moments.all[-1], max(producer.moments.all[-1] for producer in producers), moments.what)
    accepted = {id for producer in producers for id in producer.accepted}
    assert accepted <= {one.job.id for one in taken}, "what was accepted is there"
    assert all(producer.failures for producer in producers), "who calls meanwhile hears of it"


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "loop"])
def test_a_cluster_of_which_nobody_answers_is_an_error_and_used_again_when_it_is_back(
    cluster: Cluster, blocking: bool
) -> None:
    async def test() -> None:
        broker = await connect(cluster.url, blocking=blocking)
        await broker.put([Job(id="a", task="add")])
        for server in cluster.servers:
            server.stop()
        with pytest.raises(BrokerAway, match=r"cannot be reached|closed the connection"):
            await broker.get(["a"])
        with pytest.raises(BrokerAway, match="cannot be reached"):
            await broker.get(["a"])
        for server in cluster.servers:
            server.start()
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(BrokerAway):
                assert await broker.get(["a"]) == [None], "nothing was written to disk"
                break
            assert time.monotonic() < end, "it never came back"
            time.sleep(0.05)
        await broker.close()

    run_blocking(test()) if blocking else asyncio.run(test())


def test_a_client_that_slept_through_two_fail_overs_finds_the_node_that_serves_it(
    cluster: Cluster, app: App
) -> None:
    app.enqueue("add", 1)
    victim, heir, _ = fail_over(cluster, "manual")
    wait_until(lambda: victim.command("ROLE")[0] == b"slave", "the old primary is no replica")
    assert len(app.jobs.find()) == 1, "sent on by the one that is a replica now"
    wait_until(lambda: b"master_link_status:up" in victim.command("INFO", "replication"), "no copy")
    victim.command("CLUSTER", "FAILOVER")
    cluster.wait_until_all_know(victim)
    heir.stop()
    time.sleep(2 * FRESH)  # a map that was read just now is not read again
    app.enqueue("add", 2)
    assert len(app.jobs.find()) == 2
