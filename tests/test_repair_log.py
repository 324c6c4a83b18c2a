"""Recovery under way: traffic, several sweepers, a killed one, a server that forgot, a clock that jumps."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from damage import HOUR, QUEUE, check_sound, furnish, swept
from redis_server import Server, running

from dray.broker import Broker, connect
from dray.broker.actions import Cancel, Ids, JobAction, Query, Reschedule, Scope, SetLimits
from dray.broker.memory.broker import MemoryBroker
from dray.broker.redis import put
from dray.broker.verbs import Beat, DocWrite, Filter, run_blocking
from dray.documents.repair_log import read_repairs
from dray.errors import SessionLost, UnknownDependency
from dray.job import Job, Outcome, OutcomeKind
from dray.worker.duties.duties import Sweep
from dray.worker.retrying_broker import RetryingBroker

SECONDS = 2.5
SWEEPER = """
import sys
from dray.broker import connect
from dray.broker.verbs import run_blocking
broker = run_blocking(connect(sys.argv[1], blocking=True))
while True:
    swept = run_blocking(broker.sweep(100))
    print(swept.repaired, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("recovery") / "server", cluster=True) as server:
        yield server


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, server: Server, tmp_path: Path) -> str:
    server.command("FLUSHALL")
    return f"redis://127.0.0.1:{server.port}" if request.param == "redis" else f"sqlite:///{tmp_path}/d.db"


@asynccontextmanager
async def opened(url: str, count: int) -> AsyncIterator[list[Broker]]:
    brokers = [await connect(url) for _ in range(count)]
    yield brokers
    for broker in brokers:
        await broker.close()


class Traffic:
    """Producers, workers and operators who do all there is to do, until told to stop."""

    def __init__(self, seed: int) -> None:
        self.dice, self.end, self.ids = random.Random(seed), time.monotonic() + SECONDS, ["none"]
        self.settled = 0

    def over(self) -> bool:
        return time.monotonic() > self.end

    def _job(self, now: int) -> Job:
        dice = self.dice
        queue = dice.choice(["one", "two"])
        id = f"{queue}:{uuid4().hex}" if dice.random() < 0.6 else f"made-up-{dice.randrange(10**9)}"
        fields: dict[str, Any] = dice.choice(
            [
                {},
                {"key": f"k{dice.randrange(20)}", "once": dice.choice([None, 50])},
                {"group": dice.choice("abc"), "running_key": dice.choice("xy"), "max_running": 2},
                {"due": now + dice.randrange(300)},
                {"waits_for": (dice.choice(self.ids),), "orphan": dice.choice(["run", "cancel", "wait"])},
                {"ttl": dice.randrange(1, 500)},
            ]
        )
        if fields.get("waits_for") == ("none",):
            fields = {}
        replaces = "replace" if dice.random() < 0.1 else "return"
        return Job(id=id, task="t", queue=queue, on_duplicate=replaces, **fields)  # type: ignore[arg-type]

    async def produce(self, broker: Broker) -> None:
        while not self.over():
            jobs = [self._job(time.time_ns() // 1_000_000) for _ in range(self.dice.randrange(1, 30))]
            try:
                accepted = await broker.put(jobs)
            except UnknownDependency:  # a made-up id that is gone by now
                continue
            self.ids = [one.id for one in accepted if one.verdict == "created"][:5] or self.ids
            await asyncio.sleep(0.005)

    async def work(self, broker: Broker, name: str) -> None:
        request, kinds = 0, [kind for kind in OutcomeKind if kind is not OutcomeKind.SUSPENDED]
        while not self.over():
            session, request = f"{name}-{request // 20}", request + 1
            try:
                await broker.renew([Beat(session, self.dice.choice([50, 5000]))])
                taken = await broker.take(session, request, ["one", "two"], Filter(), 10)
            except SessionLost:
                continue
            await asyncio.sleep(self.dice.choice([0, 0, 0.1]))
            outcomes = [Outcome(id=one.job.id, run=one.run, kind=self.dice.choice(kinds)) for one in taken]
            self.settled += len(await broker.settle(session, outcomes))
            if request % 20 == 19:
                await broker.release(session)

    async def operate(self, broker: Broker) -> None:
        while not self.over():
            id, now = self.dice.choice(self.ids), time.time_ns() // 1_000_000
            actions: list[JobAction] = [Cancel(), Reschedule(now + 50)]
            await broker.edit(Ids((id,)), self.dice.choice(actions))
            await broker.edit(Scope("one"), SetLimits(max_running=self.dice.choice([None, 5])))
            await asyncio.sleep(0.01)

    async def sweep(self, broker: Broker, repairs: Counter[str]) -> None:
        while not self.over():
            swept = await broker.sweep(self.dice.choice([5, 1000]))
            repairs.update(swept.repairs)
            repairs.update(swept.finished)
            await asyncio.sleep(0.005)


def test_nothing_sound_is_repaired_while_everybody_is_at_work(url: str) -> None:
    async def play() -> None:
        repairs: Counter[str] = Counter()
        traffic = Traffic(seed=7)
        async with opened(url, 7) as (first, *others):
            await first.put([Job(id="none", task="t", queue="one")])
            sweepers = others[:2]
            async with asyncio.TaskGroup() as together:
                for broker in sweepers:
                    together.create_task(traffic.sweep(broker, repairs))
                together.create_task(traffic.produce(others[2]))
                together.create_task(traffic.produce(others[3]))
                together.create_task(traffic.work(others[4], "ann"))
                together.create_task(traffic.work(others[5], "bob"))
                together.create_task(traffic.operate(first))
            later = time.time_ns() // 1_000_000 + 20_000
            for n in range(3):  # whatever was in doubt is looked at again
                for broker in sweepers:
                    repairs.update((await broker.sweep(now=later + n * 10_000)).repairs)
            assert repairs == Counter()
            assert await first.audit() == []
            assert traffic.settled > 0

    asyncio.run(play())


def test_two_sweepers_at_once_repair_a_thing_once(url: str, server: Server) -> None:
    now = 1_800_000_000_000

    async def play() -> None:
        async with opened(url, 2) as (one, other):
            await furnish(one, now)
            if url.startswith("redis"):
                server.command("DEL", f"dray:{{dray:{QUEUE}}}:key")
            else:
                _script(url, "DELETE FROM keys")
            found = await asyncio.gather(one.sweep(now=now), other.sweep(now=now))
            total = Counter(found[0].repairs) + Counter(found[1].repairs)
            assert total == {"key": 2}
            await swept(one, now)
            await check_sound(one, now, set())

    asyncio.run(play())


def _script(url: str, script: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=20)) as db:
        db.executescript(script)


def test_a_sweeper_that_is_killed_midway_leaves_the_rest_to_the_next(url: str, server: Server) -> None:
    count = 1500
    broker = run_blocking(connect(url, blocking=True))
    jobs = [Job(id=f"one:{uuid4().hex}", task="t", queue="one", group=f"g{n % 50}") for n in range(count)]
    run_blocking(broker.put(jobs))
    if url.startswith("redis"):
        server.command("DEL", "dray:{dray:one}:index", "dray:{dray:one}:r:5|t|1")
    else:
        _script(url, "DELETE FROM lanes; DELETE FROM groups")
    with subprocess.Popen([sys.executable, "-c", SWEEPER, url], stdout=subprocess.PIPE, text=True) as sweeper:
        assert sweeper.stdout is not None
        while int(sweeper.stdout.readline()) == 0:
            pass
        sweeper.send_signal(signal.SIGKILL)
    while run_blocking(broker.audit()):
        run_blocking(broker.sweep())
    run_blocking(broker.renew([Beat("ann", HOUR)]))
    taken = run_blocking(broker.take("ann", 1, ["one"], Filter(), 2 * count))
    assert {one.job.id for one in taken} == {job.id for job in jobs}
    assert len(taken) == count
    run_blocking(broker.close())


def test_a_server_that_forgot_everything_is_swept_as_an_empty_one(server: Server) -> None:
    now = 1_800_000_000_000
    server.command("FLUSHALL")
    broker = run_blocking(connect(f"redis://127.0.0.1:{server.port}", blocking=True))
    run_blocking(furnish(broker, now))
    run_blocking(broker.sweep(now=now))
    server.command("FLUSHALL")
    assert run_blocking(broker.sweep(now=now + HOUR)).repairs == {}
    run_blocking(furnish(broker, now))
    assert sum(run_blocking(swept(broker, now)).values()) == 0
    run_blocking(check_sound(broker, now, set()))
    run_blocking(broker.close())


def test_a_clock_that_jumps_breaks_nothing(url: str) -> None:
    now = 1_800_000_000_000
    broker = run_blocking(connect(url, blocking=True))
    run_blocking(furnish(broker, now))
    for jump in (0, -24 * HOUR, HOUR // 2, -HOUR, 0):
        assert run_blocking(broker.sweep(now=now + jump)).repairs == {}
        assert run_blocking(broker.audit()) == []
    run_blocking(check_sound(broker, now, set()))
    run_blocking(broker.close())


def test_whoever_has_the_duties_warns_of_repairs_and_adds_them_up(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        broker, now = MemoryBroker(), time.time_ns() // 1_000_000
        await furnish(broker, now)
        line, upkeep = RetryingBroker(broker, 30.0), Sweep(1000)
        await upkeep.step(line)
        assert (await read_repairs(broker)).counts == {}
        for _ in range(2):
            broker._store.keys.clear()
            await upkeep.step(line)
        repairs = await read_repairs(broker)
        assert (repairs.counts, repairs.latest) == ({"key": 4}, {"key": 2})
        assert 0 < repairs.first <= repairs.last

    with caplog.at_level("WARNING", "dray.recovery"):
        asyncio.run(play())
    assert caplog.text.count("has been repaired: 2 × key (unique keys without a job") == 2


def test_what_a_killed_client_had_begun_is_finished_without_alarm(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        server.command("FLUSHALL")
        async with opened(f"redis://127.0.0.1:{server.port}", 1) as (broker,):
            tick = DocWrite(kind="schedule", name="s", value=b"tick", expect_version=0)
            with monkeypatch.context() as patch:
                patch.setattr(put, "put_step", Mock(side_effect=SystemExit))
                with pytest.raises(SystemExit):
                    await broker.put([Job(id=f"one:{uuid4().hex}", task="t", queue="one")], when=tick)
            monkeypatch.setattr(put, "INTENT_GRACE", 0)
            await Sweep(1000).step(RetryingBroker(broker, 30.0))
            repairs = await read_repairs(broker)
            assert (repairs.counts, repairs.last, repairs.finished) == ({}, 0, {"intent": 1})
            assert len((await broker.find(Query())).records) == 1

    with caplog.at_level("INFO", "dray.recovery"):
        asyncio.run(play())
    [said] = [record for record in caplog.records if record.name == "dray.recovery"]
    assert said.levelname == "INFO"
    assert "finished what a killed process had begun: 1 × intent" in said.getMessage()
