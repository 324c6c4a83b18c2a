"""Sentinel: the primary is found, and followed when another takes its place."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from failover import in_time
from redis_sentinel import NAME, Watched, watched
from redis_server import wait_until

from dray.broker import connect
from dray.broker.redis.options import Address, read_url
from dray.broker.verbs import Beat, Broker, Filter, Interest, run_blocking
from dray.errors import BrokerAway, BrokerError, InvalidInput
from dray.job import Job


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Watched]:
    with watched(tmp_path) as found:
        yield found


def job(n: int) -> Job:
    return Job(id=f"default:{n:032x}", task="t")


# the URL


def test_a_url_names_sentinels_the_primary_and_both_logins() -> None:
    url = "redis+sentinel://me:s%40cret@a,b:1/main/2?sentinel_username=s&sentinel_password=p&sentinel_tls=no"
    options = read_url(url)
    assert options.sentinels == (Address("a", 26379), Address("b", 1))
    assert (options.primary, options.db, options.username, options.password) == ("main", 2, "me", "s@cret")
    assert (options.sentinel_username, options.sentinel_password, options.sentinel_tls) == ("s", "p", False)
    assert read_url("rediss+sentinel://a/main").tls


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://a,b", "redis+sentinel://host1:26379,host2:26379/name is the form"),
        ("redis+sentinel://a/main/x", "the database is a number"),
        ("redis+sentinel://a/main?sentinel_tls=maybe", "yes or no is allowed"),
        ("redis+sentinel://a/main?sentinel=1", "unknown option 'sentinel'"),
    ],
)
def test_a_wrong_url_says_what_is_allowed(url: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said)):
        read_url(url)


# finding


def test_an_unknown_name_and_sentinels_that_are_away_are_named(system: Watched) -> None:
    for blocking in (False, True):
        with pytest.raises(BrokerError, match="watches no primary named nothing"):
            asyncio.run(connect(system.url.replace(f"/{NAME}", "/nothing"), blocking=blocking))
    for sentinel in system.sentinels:
        sentinel.stop()
    with pytest.raises(BrokerAway, match=r"127\.0\.0\.1:\d+ cannot be reached"):
        asyncio.run(connect(system.url))


def test_both_layers_may_have_a_password(tmp_path: Path) -> None:
    with watched(tmp_path, password="s3cret") as system:
        for blocking in (False, True):
            asyncio.run(_put_one(system.url, blocking))
        with pytest.raises(BrokerError, match="refuses this user or password"):
            asyncio.run(connect(system.url.replace("sentinel_password=s3cret", "sentinel_password=wrong")))


async def _put_one(url: str, blocking: bool) -> None:
    broker = await connect(url, blocking=blocking)
    [accepted] = await broker.put([job(int(blocking))])
    assert accepted.verdict == "created"
    await broker.close()


def test_one_sentinel_is_enough_to_find_the_primary(system: Watched) -> None:
    for sentinel in system.sentinels[1:]:
        sentinel.stop()
    asyncio.run(_put_one(system.url, blocking=False))


# following


class Producer(threading.Thread):
    """Puts numbered jobs, one after the other, each until it is accepted."""

    def __init__(self, url: str, blocking: bool, first: int) -> None:
        super().__init__(daemon=True)
        self.url, self.blocking, self.first = url, blocking, first
        self.accepted: list[tuple[float, int]] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        if self.blocking:
            run_blocking(self._produce())
        else:
            asyncio.run(self._produce())

    async def _produce(self) -> None:
        broker, n = await connect(self.url, blocking=self.blocking), self.first
        while not self.stopping.is_set():
            try:
                await broker.put([job(n)])
            except BrokerError:
                time.sleep(0.02)
                continue
            self.accepted.append((time.monotonic(), n))
            n += 1
        await broker.close()


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "how", ["crash", pytest.param("manual", marks=SLOW), pytest.param("freeze", marks=SLOW)]
)
def test_producers_go_on_with_the_new_primary_and_nothing_is_lost(system: Watched, how: str) -> None:
    producers = [Producer(system.url, False, 0), Producer(system.url, True, 1 << 40)]
    for one in producers:
        one.start()
    wait_until(lambda: all(len(one.accepted) > 20 for one in producers), "nothing is accepted")
    victim, promoted = system.fail_over(how)
    for one in producers:
        wait_until(lambda one=one: one.accepted[-1][0] > promoted, "a producer does not go on", 60)  # type: ignore[misc]
        in_time(next(at for at, _ in one.accepted if at > promoted), promoted, "a producer")
    if how == "freeze":
        victim.thaw()
        wait_until(lambda: victim.command("ROLE")[0] == b"slave", "the old primary is not demoted", 60)
    for one in producers:
        one.stopping.set()
        one.join(60)
    broker = run_blocking(connect(system.url, blocking=True))
    for one in producers:
        ids = [job(n).id for _, n in one.accepted]
        for start in range(0, len(ids), 1000):
            assert None not in run_blocking(broker.get(ids[start : start + 1000]))
    run_blocking(broker.close())


def test_a_sleeping_worker_is_woken_by_the_new_primary(system: Watched) -> None:
    async def sleep_and_take(woken: asyncio.Event) -> None:
        broker = await connect(system.url)
        await _reopen(broker)
        while True:
            try:
                wake = await broker.wait(Interest(queues=("default",), session="s"), 30)
            except BrokerError:
                await asyncio.sleep(0.05)
                continue
            if wake.work:
                woken.set()
                await broker.close()
                return

    async def main() -> float:
        woken = asyncio.Event()
        sleeper = asyncio.create_task(sleep_and_take(woken))
        await asyncio.sleep(0.5)
        _, promoted = await asyncio.to_thread(system.fail_over, "crash")
        producer = await connect(system.url)
        await producer.put([job(1)])
        await asyncio.wait_for(woken.wait(), 30)
        await sleeper
        await producer.close()
        return time.monotonic() - promoted

    print(f"woken {asyncio.run(main()):.2f} s after the promotion")


async def _reopen(broker: Broker) -> None:
    await broker.renew([Beat("s", 60_000)])
    assert await broker.take("s", 1, ["default"], Filter(), 1) == []
