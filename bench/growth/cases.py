"""Drains, round trips and puts, with more and more of one thing."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.measure import percentile
from bench.peers.servers import Server
from dray import App, Call
from dray.broker import connect
from dray.broker.verbs import Beat, Broker, Filter, Interest
from dray.job import Job

CHUNK = 1000
PATIENCE = 300.0
Prepare = Callable[[App, int], AbstractContextManager[None]]


def nothing(app: App) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True)
class Plan:
    """How much of each; the first of each list is what the others are compared with."""

    jobs: int
    queues: tuple[int, ...]
    tasks: tuple[int, ...]
    groups: tuple[int, ...]
    sleepers: tuple[int, ...]
    pending: tuple[int, ...]
    waiters: tuple[int, ...]
    schedules: tuple[int, ...]
    rounds: int
    trips: int


FULL = Plan(
    jobs=60_000,
    queues=(1, 10, 100, 1000, 10_000),
    tasks=(1, 100, 1000),
    groups=(1, 100, 10_000, 100_000),
    sleepers=(1, 30, 300),
    pending=(60_000, 250_000, 1_000_000),
    waiters=(1, 1000, 10_000),
    schedules=(1, 1000, 10_000),
    rounds=3,
    trips=300,
)
QUICK = Plan(
    jobs=20_000,
    queues=(1, 100, 1000),
    tasks=(1, 1000),
    groups=(1, 1000),
    sleepers=(1, 300),
    pending=(20_000, 100_000),
    waiters=(1, 1000),
    schedules=(1, 1000),
    rounds=1,
    trips=100,
)
TINY = Plan(200, (1, 10), (1, 10), (1, 10), (1, 3), (200, 400), (1, 10), (1, 10), rounds=1, trips=3)


@dataclass(frozen=True)
class Figure:
    """One case: its figure, and what it is compared with."""

    case: str
    number: int
    value: float
    first: float
    unit: str

    @property
    def ratio(self) -> float:
        return self.value / self.first


class Site:
    """One broker, and workers of it as they are needed."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder
        self._number = 0

    def app(self) -> App:
        """An app with a namespace and a file of marks of its own."""
        self._number += 1
        return App("growth", namespace=f"growth-{self._number}", broker=self.url)

    @property
    def marks(self) -> Path:
        return self._folder / f"marks-{self._number}"

    @contextmanager
    def worker(self, tasks: int, *flags: str) -> Iterator[None]:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "BENCH_BROKER": self.url,
            "BENCH_MARKS": str(self.marks),
            "BENCH_TASKS": str(tasks),
            "DRAY_NAMESPACE": f"growth-{self._number}",
        }
        command = [sys.executable, "-m", "dray", "-A", "bench.growth.app:app", "worker", "-Q", "all"]
        with self.marks.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "-p", "2", "-c", "100", "--quiet", *flags], env=environment, stdout=log, stderr=log
            )
        try:
            yield
        finally:
            process.terminate()
            process.wait(60)

    def _count(self) -> int:
        return self.marks.stat().st_size if self.marks.exists() else 0

    def drain(
        self,
        calls: Callable[[App, int], Call[int]],
        jobs: int,
        tasks: int = 1,
        after_put: Callable[[], None] = lambda: None,
        pending: int = 0,
    ) -> float:
        """Jobs a second, from the first tenth to the last job: without the start of the worker.

        `pending`: so many are put, of which `jobs` are counted.
        """
        app, put = self.app(), max(jobs, pending)
        with closing(app):
            for first in range(0, put, CHUNK):
                app.enqueue_many([calls(app, n) for n in range(first, min(first + CHUNK, put))])
            after_put()
            with self.worker(tasks):
                began = self._reach(jobs // 10)
                return (jobs - jobs // 10) / (self._reach(jobs) - began)

    def _reach(self, count: int) -> float:
        end = time.perf_counter() + PATIENCE
        while self._count() < count:
            if time.perf_counter() > end:
                raise RuntimeError(f"{self._count()} of {count} jobs ran:\n{self._log()}")
            time.sleep(0.002)
        return time.perf_counter()

    def _log(self) -> str:
        return self.marks.with_suffix(".log").read_text()[-2000:]

    def round_trip(
        self, trips: int, queues: int = 1, prepare: Callable[[App], AbstractContextManager[None]] = nothing
    ) -> float:
        """The median of milliseconds from an enqueue to its result, through an idle worker."""
        app = self.app()
        with closing(app):
            app.enqueue_many([app.using(queue=f"q{n}").call("mark0", n) for n in range(queues)])
            with self.worker(1), prepare(app):
                self._reach(queues)
                found = []
                for n in range(trips):
                    time.sleep(0.02)
                    began = time.perf_counter()
                    queue = f"q{random.randrange(queues)}"
                    app.using(queue=queue).enqueue("mark0", n).get(timeout=PATIENCE)
                    found.append((time.perf_counter() - began) * 1000)
                return percentile(found, 50)


@contextmanager
def waiting(app: App, waiters: int) -> Iterator[None]:
    """So many callers of this process wait for jobs that are not due."""
    later = app.using(delay=3600)
    jobs = app.enqueue_many([later.call("mark0", n) for n in range(waiters)])
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    waits = [asyncio.run_coroutine_threadsafe(job.aget(), loop) for job in jobs]
    try:
        yield
    finally:
        for wait in waits:
            wait.cancel()
        asyncio.run_coroutine_threadsafe(_close_link(app), loop).result(PATIENCE)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _close_link(app: App) -> None:
    await asyncio.sleep(0.1)  # the cancelled waits end
    await (await app.client.loop_link()).broker.close()


@contextmanager
def scheduled(app: App, schedules: int) -> Iterator[None]:
    """So many schedules, none of them due."""
    for n in range(schedules):
        app.schedules.create(f"s{n}", "mark0", args=[n], cron="0 0 1 1 *")
    yield


def spread(kind: str, number: int) -> Callable[[App, int], Call[int]]:
    """Calls spread over so many queues, tasks or groups."""
    if kind == "tasks":
        return lambda app, n: app.call(f"mark{n % number}", n)
    if kind == "groups":
        return lambda app, n: app.using(group=f"g{n % number}").call("mark0", n)
    return lambda app, n: app.using(queue=f"q{n % number}").call("mark0", n)


def compared(case: str, numbers: tuple[int, ...], unit: str, run: Callable[[int], float]) -> list[Figure]:
    values = [run(number) for number in numbers]
    return [Figure(case, n, value, values[0], unit) for n, value in zip(numbers, values, strict=True)]


def measure(
    plan: Plan, url: str, folder: Path, server: Server | None, tell: Callable[[str], None]
) -> list[Figure]:
    site, found = Site(url, folder), []

    def median(run: Callable[[], float]) -> float:
        return percentile([run() for _ in range(plan.rounds)], 50)

    for kind, numbers in (("queues", plan.queues), ("tasks", plan.tasks), ("groups", plan.groups)):

        def drain(number: int, kind: str = kind) -> float:
            tell(f"{number} {kind}")
            tasks = number if kind == "tasks" else 1
            return median(lambda: site.drain(spread(kind, number), max(plan.jobs, number), tasks))

        found += compared(f"drain, {kind}", numbers, "jobs/s", drain)
    tell("pending")
    found += compared(
        "drain, pending",
        plan.pending,
        "jobs/s",
        lambda number: median(lambda: site.drain(spread("queues", 1), plan.jobs, pending=number)),
    )
    tell("round trips")
    found += compared(
        "round trip, queues",
        plan.queues,
        "ms",
        lambda number: median(lambda: site.round_trip(plan.trips, number)),
    )
    beside = (("waiters", plan.waiters, waiting), ("schedules", plan.schedules, scheduled))
    for name, numbers, prepare in beside:

        def trip(number: int, prepare: Prepare = prepare) -> float:
            return site.round_trip(plan.trips, prepare=lambda app: prepare(app, number))

        tell(name)
        found += compared(f"round trip, {name}", numbers, "ms", trip)
    if server is not None:
        tell("server")
        found += server_costs(site, server, plan.jobs)
        tell("sleepers")
        found += compared(
            "put, sleeping workers", plan.sleepers, "µs of the server", lambda n: put_cost(url, server, n)
        )
    return found


def server_costs(site: Site, server: Server, jobs: int) -> list[Figure]:
    """Microseconds of the server's CPU for each job of a queue: put by the thousand, taken and settled."""
    cpu = [server_cpu(server)]
    site.drain(spread("queues", 1), jobs, after_put=lambda: cpu.append(server_cpu(server)))
    cpu.append(server_cpu(server))
    put, drain = ((after - before) / jobs * 1e6 for before, after in pairwise(cpu))
    return [
        Figure("server CPU for a job, put", 1, put, put, "µs"),
        Figure("server CPU for a job, run", 1, drain, drain, "µs"),
    ]


def server_cpu(server: Server) -> float:
    lines = dict(line.split(":") for line in server.ask("INFO", "cpu").split() if ":" in line)
    return float(lines["used_cpu_user"]) + float(lines["used_cpu_sys"])


def put_cost(url: str, server: Server, sleepers: int) -> float:
    """Microseconds of the server's time for the put of one job while so many workers sleep."""
    return asyncio.run(_put_cost(url, server, sleepers))


async def _put_cost(url: str, server: Server, sleepers: int) -> float:
    broker, rounds = await connect(url, f"sleepers-{sleepers}"), 200
    names, asleep = [f"s{n}" for n in range(sleepers)], f"dray:{{sleepers-{sleepers}:default}}:sleep"
    await broker.renew([Beat(name, 60_000) for name in names])
    waits = [asyncio.ensure_future(_sleep(broker, name)) for name in names]
    while f":{sleepers}\r\n" not in server.raw("HLEN", asleep):
        await asyncio.sleep(0.01)
    spent = 0.0
    for n in range(rounds):
        server.raw("CONFIG", "RESETSTAT")
        await broker.put([Job(id=f"default:{n:032x}", task="t")])
        stats = next(line for line in server.ask("INFO", "commandstats").split() if "evalsha:" in line)
        spent += float(stats.split("usec=")[1].split(",")[0])
        await broker.take(names[0], n + 1, ["default"], Filter(), 10)
        while f":{sleepers}\r\n" not in server.raw("HLEN", asleep):
            await asyncio.sleep(0.001)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    await broker.close()
    return spent / rounds


async def _sleep(broker: Broker, session: str) -> None:
    while True:
        await broker.wait(Interest(queues=("default",), session=session), 60)
        await asyncio.sleep(0.002)
