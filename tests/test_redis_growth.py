"""The work of a verb on Redis depends on what it moves, not on how many queues, tasks or sleepers there are.

Counted in commands that the server ran, inside scripts too: no clock is involved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from redis_server import Server, need, running

from dray.broker import connect
from dray.broker.redis.broker import RedisBroker
from dray.broker.verbs import Beat, Filter, Interest, NextTake, Wake
from dray.job import Job, Outcome, OutcomeKind, Suspension

ANY = Filter()
Play = Callable[[RedisBroker], Awaitable[None]]


@pytest.fixture(scope="module", params=["valkey", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    need(request.param)
    folder: Path = tmp_path_factory.mktemp(request.param)
    with running(request.param, folder) as server:
        yield server


def play(server: Server, test: Play) -> None:
    async def main() -> None:
        server.command("FLUSHALL")
        broker = await connect(f"redis://127.0.0.1:{server.port}")
        assert isinstance(broker, RedisBroker)
        try:
            await broker.renew([Beat("s", 60_000)])
            await test(broker)
            assert await broker.audit() == []
        finally:
            await broker.close()

    asyncio.run(main())


class Commands:
    """The commands that the server has run since the last look."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.since()

    def since(self) -> dict[str, int]:
        found = {}
        for line in self._server.command("INFO", "commandstats").decode().split():
            if line.startswith("cmdstat_"):
                name, _, rest = line.removeprefix("cmdstat_").partition(":")
                found[name] = int(rest.split(",")[0].removeprefix("calls="))
        self._server.command("CONFIG", "RESETSTAT")
        return {name: number for name, number in found.items() if not name.startswith(("info", "config"))}


def jobs(count: int, tasks: int = 1, queues: int = 1) -> list[Job]:
    return [
        Job(id=f"q{n % queues}:{n:032x}", task=f"task{n % tasks}", queue=f"q{n % queues}")
        for n in range(count)
    ]


def test_a_put_looks_at_a_few_sleepers_however_many_there_are(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        commands, seen = Commands(server), {}
        sleeping: list[asyncio.Future[Wake]] = []
        for request, sleepers in enumerate((1, 300), 1):
            while len(sleeping) < sleepers:
                wait = broker.wait(Interest(queues=("q0",), filter=ANY), 60)
                sleeping.append(asyncio.ensure_future(wait))
            while server.command("HLEN", "dray:{dray:q0}:sleep") < sleepers:
                await asyncio.sleep(0.01)
            commands.since()
            await broker.put(jobs(sleepers + 1)[-1:])
            seen[sleepers] = commands.since()
            await asyncio.wait(sleeping, return_when=asyncio.FIRST_COMPLETED)
            sleeping = [one for one in sleeping if not one.done()]
            assert len(sleeping) == sleepers - 1, "one job wakes one"
            assert len(await broker.take("s", request, ["q0"], ANY, 10)) == 1
        seen[1].pop("hset", None)  # the first put lists the queue
        for name in ("evalsha", "hrandfield", "hgetall", "hdel", "publish"):
            assert seen[300].get(name, 0) <= max(1, seen[1].get(name, 0)), f"{name}: {seen}"
        for one in sleeping:
            one.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)

    play(server, test)


def test_a_hand_over_looks_at_a_few_sleepers_however_many_there_are(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        commands, seen = Commands(server), {}
        asleep: list[asyncio.Future[Wake]] = []
        await broker.put(jobs(1))
        [first] = await broker.take("s", 1, ["q0"], ANY, 1)
        await broker.settle("s", [Outcome(id=first.job.id, run=1, kind=OutcomeKind.SUCCEEDED)])
        for sleepers in (1, 300):
            while len(asleep) < sleepers:
                name, take = f"s{len(asleep)}-{sleepers}", NextTake(2, ("q0",))
                await broker.renew([Beat(name, 60_000)])
                await broker.take(name, 1, ["q0"], ANY, 1)
                wait = broker.wait(Interest(queues=("q0",), filter=ANY, session=name, next_take=take), 60)
                asleep.append(asyncio.ensure_future(wait))
            while server.command("HLEN", "dray:{dray:q0}:sleep") < sleepers:
                await asyncio.sleep(0.01)
            commands.since()
            await broker.put(jobs(sleepers + 1)[-1:])
            seen[sleepers] = commands.since()
            done, _ = await asyncio.wait(asleep, return_when=asyncio.FIRST_COMPLETED)
            [wake] = [one.result() for one in done]
            assert len(wake.taken) == 1
            asleep = [one for one in asleep if not one.done()]
        assert seen[300] == seen[1]
        for one in asleep:
            one.cancel()
        await asyncio.gather(*asleep, return_exceptions=True)

    play(server, test)


def test_a_sleeper_that_cannot_run_a_job_never_keeps_it_from_one_that_can(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        other = Filter(tasks=frozenset({"other"}))
        asleep = [
            asyncio.ensure_future(broker.wait(Interest(queues=("q0",), filter=filter), 60))
            for filter in (*[other] * 40, ANY)
        ]
        while server.command("HLEN", "dray:{dray:q0}:sleep") < len(asleep):
            await asyncio.sleep(0.01)
        await broker.put(jobs(1))
        wake = await asyncio.wait_for(asleep[-1], 10)
        assert wake.work
        assert sum(one.done() for one in asleep) == 1
        for one in asleep:
            one.cancel()
        await asyncio.gather(*asleep, return_exceptions=True)

    play(server, test)


def test_a_take_meets_only_the_tasks_whose_jobs_it_takes(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        seen = {}
        for request, tasks in enumerate((10, 1000), 1):
            await broker.put(jobs(1000, tasks=tasks))
            await broker.take("s", 2 * request - 1, ["q0"], ANY, 1)
            commands = Commands(server)
            taken = await broker.take("s", 2 * request, ["q0"], ANY, 10)
            seen[tasks] = sum(commands.since().values()) / len({one.job.task for one in taken})
            server.command("FLUSHALL")
            await broker.renew([Beat("s", 60_000)])
        assert seen[1000] <= seen[10], f"commands for each task of a take: {seen}"

    play(server, test)


def test_a_grouped_job_among_many_tasks_is_found_in_steps(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        grouped = Job(id="q0:" + "f" * 32, task="grouped", queue="q0", group="tenant", priority=0)
        await broker.put([*jobs(1000, tasks=1000), grouped])
        await broker.take("s", 1, ["q0"], Filter(tasks=frozenset({"task999"})), 1)
        commands = Commands(server)
        [taken] = await broker.take("s", 2, ["q0"], ANY, 1)
        assert taken.job.id == grouped.id
        assert sum(commands.since().values()) < 500

    play(server, test)


def test_empty_queues_cost_no_script(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        names = tuple(f"q{n}" for n in range(200))
        await broker.put([Job(id="q7:" + "1" * 32, task="t", queue="q7")])
        look = Interest(queues=names, filter=ANY, session="s")
        await broker.wait(look, 0)  # the server learns the scripts
        commands = Commands(server)
        assert (await broker.wait(look, 0)).queues == ("q7",)
        assert commands.since().get("evalsha", 0) <= 2

    play(server, test)


def test_a_drain_over_many_queues_costs_scripts_by_the_batch(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        names = [f"q{n}" for n in range(50)]
        await broker.put(jobs(1000, queues=50))
        commands, taken, request = Commands(server), 0, 0
        while names:
            request += 1
            turns, share = names[:5], 20
            given = await broker.take("s", request, turns, ANY, 100, share=share)
            done = [Outcome(id=one.job.id, run=1, kind=OutcomeKind.SUCCEEDED) for one in given]
            await broker.settle("s", done)
            taken += len(given)
            names = names[5:]
        assert taken == 1000
        # For each queue: a take to which the session is unknown, one that takes, a settle; some load scripts.
        assert commands.since()["evalsha"] <= 50 * 4

    play(server, test)


def test_sweeps_visit_all_queues_some_at_a_time(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        names, now = [f"q{n}" for n in range(450)], broker.clock()
        jobs = [Job(id=f"{name}:{1:032x}", task="t", queue=name, due=now + 1, ttl=1) for name in names]
        await broker.put(jobs, now=now)
        commands = Commands(server)
        first = await broker.sweep(now=now + 10)
        assert commands.since()["evalsha"] < 200 * 6, "450 queues would be more than 2,000"
        assert first.promoted == 200
        swept = [first, *[await broker.sweep(now=now + 20) for _ in range(2)]]
        assert sum(one.promoted for one in swept) == 450
        swept += [await broker.sweep(now=now + 10_000) for _ in range(3)]
        assert sum(one.expired for one in swept) == 450

    play(server, test)


async def _put_to_sleep(broker: RedisBroker, count: int, suspend: Suspension, request: int = 1) -> None:
    """Jobs of one queue that are suspended, a thousand at a time."""
    for first in range(0, count, 1000):
        some = [Job(id=f"q0:{n:032x}", task="t", queue="q0") for n in range(first, min(first + 1000, count))]
        await broker.put(some)
        taken = await broker.take("s", request + first // 1000, ["q0"], ANY, 1000)
        kind = OutcomeKind.SUSPENDED
        outcomes = [Outcome(id=one.job.id, run=one.run, kind=kind, suspend=suspend) for one in taken]
        await broker.settle("s", outcomes)


def test_sleeping_jobs_cost_nothing_until_one_is_due_and_waking_one_costs_one_script(server: Server) -> None:
    """As many commands with 3,000 sleeping jobs as with ten, in a wait, a take and a sweep."""

    async def test(broker: RedisBroker) -> None:
        seen, hour, clock = {}, 3_600_000, broker.clock()
        for count in (10, 20, 3000):
            server.command("FLUSHALL")
            await broker.renew([Beat("s", 10 * hour)])
            await _put_to_sleep(broker, count, Suspension(until=clock + hour, events={"go": 0}))
            await broker.send("q0:" + "f" * 32, "go", "m", b"")  # the script is known from here on
            commands = Commands(server)
            await broker.wait(Interest(queues=("q0",), filter=ANY), 0)
            assert await broker.take("s", 900, ["q0"], ANY, 10) == []
            seen[count] = commands.since()
            await broker.send(f"q0:{count - 1:032x}", "go", "m", b"")
            seen[-count] = commands.since()
            assert len(await broker.take("s", 901, ["q0"], ANY, 10)) == 1
        assert seen[3000] == seen[20]
        assert seen[-3000]["evalsha"] == 1
        assert sum(seen[-3000].values()) <= sum(seen[-20].values())

    play(server, test)


def test_the_end_of_one_of_many_jobs_costs_the_same_however_many_are_waited_for(server: Server) -> None:
    async def test(broker: RedisBroker) -> None:
        seen = {}
        for count in (150, 200, 2000):
            server.command("FLUSHALL")
            await broker.renew([Beat("s", 60_000)])
            first = jobs(count)
            await broker.put(first)
            await broker.put([Job(id="last", task="t", queue="q1", waits_for=tuple(job.id for job in first))])
            [taken] = await broker.take("s", 1, ["q0"], ANY, 1)
            commands = Commands(server)
            await broker.settle("s", [Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)])
            seen[count] = commands.since()
        assert seen[2000] == seen[200]

    play(server, test)


def test_jobs_that_are_not_durable_pay_nothing_for_those_that_are(server: Server) -> None:
    """Neither a key nor a command more beside durable jobs in other queues."""

    async def test(broker: RedisBroker) -> None:
        seen = []
        for turn in range(3):
            commands = Commands(server)
            await broker.put([Job(id=f"plain:{turn:032x}", task="t", queue="plain")])
            [taken] = await broker.take("s", 100 * turn + 50, ["plain"], ANY, 1)
            await broker.settle("s", [Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind.SUCCEEDED)])
            seen.append(commands.since())
            if turn == 1:
                await _put_to_sleep(broker, 5, Suspension(events={"go": 0}), 160)
        assert seen[2] == seen[1] | {"evalsha": seen[2]["evalsha"]}
        keys = {key.decode().rpartition("}:")[2] for key in server.command("KEYS", "dray:{dray:plain}:*")}
        assert keys <= {"n", "counts", "feed", "job", "head", "ended", "s", "t"}

    play(server, test)
