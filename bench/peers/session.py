"""One subject, one round: a fresh server (or file), a driver, a worker, and every measure on them."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import percentile
from bench.peers import envs, servers
from bench.peers.books import Books, wait_until
from bench.peers.crew import Driver, Workers
from bench.peers.figures import QUANTILES
from bench.peers.inside import SHIFT
from bench.peers.lineup import Group, Subject
from bench.peers.plan import Plan

PAYLOAD = 90
"""Characters beside a number: about 100 bytes of arguments."""
WARM = 20
START_MOST = 60.0


@dataclass(frozen=True)
class Place:
    """Where sessions find what they need."""

    server: str
    """The server program; empty where none is needed."""
    folders: dict[str, Path]
    """Environments by name."""
    out: Path
    """For files, on a real disk."""


class Session:
    """The processes of a group at work; every phase has numbers of its own."""

    def __init__(
        self, plan: Plan, books: Books, driver: Driver, workers: Workers, server: servers.Server | None
    ) -> None:
        self.plan, self.books, self.driver, self.workers, self.server = plan, books, driver, workers, server
        self.abilities: dict[str, Any] = {}
        self._phase = 0

    def warm(self) -> None:
        """Until the worker runs jobs, and every way of enqueueing has been used."""
        self.abilities = self.driver.hello()
        for how in self.abilities["modes"]:
            phase, first = self.phase()
            self.driver.ask("enqueue", how=how, task="noop", first=first, count=WARM, size=PAYLOAD)
            self._wait(phase, WARM, START_MOST)

    def phase(self) -> tuple[int, int]:
        """A phase and its first number."""
        self._phase += 1
        return self._phase, self._phase << SHIFT

    def _wait(self, phase: int, count: int, still: float = 20.0, every: float = 0.01) -> None:
        wait_until(lambda: self.books.done(phase, count), count, self.workers.check, still, every)
        self.books.verify(phase, count)

    def enqueues(self, pace: float) -> dict[str, float]:
        """Every way of enqueueing, with the worker frozen; then it runs all those jobs.

        Who is slow at running them gets fewer in bulk.
        """
        found: dict[str, float] = {}
        bulk = min(self.plan.bulk, self.plan.jobs(pace))
        for how in self.abilities["modes"]:
            count = bulk if how.endswith("bulk") else self.plan.singles
            phase, first = self.phase()
            with self.workers.frozen():
                done = self.driver.ask(
                    "enqueue", how=how, task="noop", first=first, count=count, size=PAYLOAD
                )
            self._wait(phase, count)
            name = f"enqueue {how.removeprefix('a') if how == 'abulk' else how}"
            found[name] = max(found.get(name, 0.0), count / done["seconds"])
        return found

    def warm_up(self, task: str, pace: float) -> None:
        """Keep the worker busy for as long as the plan says, so that it may adapt."""
        end, count = time.monotonic() + self.plan.warm, max(WARM, int(pace * min(0.5, self.plan.warm)))
        running: deque[int] = deque()
        while time.monotonic() < end:
            phase, first = self.phase()
            self.driver.ask("enqueue", how="fill", task=task, first=first, count=count, size=PAYLOAD)
            running.append(phase)
            if len(running) > 2:
                self._wait(running.popleft(), count)
        for phase in running:
            self._wait(phase, count)

    def drain(self, task: str, count: int, size: int = PAYLOAD) -> dict[str, float]:
        """Fill while the worker is frozen, then let it run."""
        phase, first = self.phase()
        with self.workers.frozen():
            before = self.server.memory() if self.server else 0
            filled = self.driver.ask("enqueue", how="fill", task=task, first=first, count=count, size=size)
            after = self.server.memory() if self.server else 0
        self._wait(phase, count)
        found = {"rate": count / self.books.seconds(phase), "fill": count / filled["seconds"]}
        if self.server:
            found["memory"] = (after - before) / count
        return found

    def starts(self, count: int, gap: float, driver: Driver | None = None) -> list[float]:
        """Seconds from enqueue to start of single jobs."""
        phase, first = self.phase()
        (driver or self.driver).ask("probe", first=first, count=count, gap=gap)
        wait_until(lambda: len(self.books.delays(phase, count)), count, self.workers.check)
        return self.books.delays(phase, count)

    def trips(self, count: int, gap: float) -> list[float]:
        _, first = self.phase()
        seconds: list[float] = self.driver.ask("trip", first=first, count=count, gap=gap)["seconds"]
        return seconds

    def idle(self, seconds: float) -> float:
        """The share of one core that the worker uses with nothing to do."""
        before, start = self.workers.cpu(), time.perf_counter()
        time.sleep(seconds)
        return (self.workers.cpu() - before) / (time.perf_counter() - start)

    def loaded(self, rate: float, other: Driver) -> list[float]:
        """Starts of single jobs while a second program keeps the worker half busy with jobs of 10 ms."""
        other.hello()
        phase, first = self.phase()
        other.tell("load", task="io", first=first, rate=rate, seconds=self.plan.load)
        time.sleep(self.plan.load * 0.2)
        found = self.starts(int(self.plan.load * 0.6 / 0.02), 0.02)
        count = other.answer()["count"]
        self._wait(phase, count)
        return found


@contextmanager
def opened(
    plan: Plan, subject: Subject, group: Group, place: Place
) -> Iterator[tuple[Session, Callable[[], Driver]]]:
    """A session that is warm, and a function that makes a second driver."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=place.out.resolve())))
        (folder / "marks").mkdir()
        server = stack.enter_context(servers.running(place.server)) if subject.redis else None
        url = server.url if server else f"sqlite:///{folder}/bench.db"
        home = place.folders[subject.env]
        environ = envs.environment(home, BENCH_URL=url, BENCH_MARKS=str(folder / "marks"), **group.environ)

        def drive() -> Driver:
            made = Driver(subject.command(subject.driver, home, url), environ, folder / "driver.log")
            stack.callback(made.stop)
            return made

        commands = [subject.command(one, home, url) for one in group.workers]
        driver = drive()
        workers = Workers(commands, environ, folder / "worker.log")
        stack.callback(workers.stop)
        session = Session(plan, Books(folder / "marks"), driver, workers, server)
        session.warm()
        yield session, drive


def measure(plan: Plan, subject: Subject, place: Place) -> dict[str, float]:
    """One round of a subject: every measure that its groups and the plan have."""
    found: dict[str, float] = {}
    for group in subject.groups if plan.special else subject.groups[:1]:
        wanted = group.measures & _wanted(plan, subject)
        if wanted:
            with opened(plan, subject, group, place) as (session, drive):
                _measure(plan, subject, wanted, session, drive, found)
    return found


def _wanted(plan: Plan, subject: Subject) -> frozenset[str]:
    wanted = {"enqueue", "latency", "trip", *plan.kinds}
    if plan.idle:
        wanted.add("idle")
    if plan.load:
        wanted.add("load")
    if not (subject.has_plain and subject.has_async):
        wanted.discard("plain")
    return frozenset(wanted)


def _measure(
    plan: Plan,
    subject: Subject,
    wanted: frozenset[str],
    session: Session,
    drive: Callable[[], Driver],
    found: dict[str, float],
) -> None:
    if "latency" in wanted:
        found |= _quantiles("start idle", session.starts(plan.probes, plan.gap))
    if "trip" in wanted and session.abilities["trips"]:
        found |= _quantiles("trip idle", session.trips(plan.trips, plan.gap))
    if "idle" in wanted:
        found["idle"] = session.idle(plan.idle)
        found["pss"] = session.workers.memory()
    if "enqueue" in wanted:
        found |= session.enqueues(subject.pace["noop"])
    for kind in ("noop", "plain", "io"):
        if kind in wanted:
            if subject.warm:
                session.warm_up(kind, subject.pace[kind])
            drained = session.drain(kind, plan.jobs(subject.pace[kind]))
            found[f"drain {kind}"] = drained["rate"]
            if kind == "noop" and "memory" in drained:
                found["memory"] = drained["memory"]
    if not subject.has_async and "noop" in wanted:
        found["drain plain"] = found["drain noop"]
    if "load" in wanted and "drain io" in found:
        found["load"] = found["drain io"] / 2
        found |= _quantiles("start loaded", session.loaded(found["load"], drive()))


def _quantiles(name: str, seconds: list[float]) -> dict[str, float]:
    return {f"{name} p{percent}": percentile(seconds, percent) * 1000 for percent in QUANTILES}
