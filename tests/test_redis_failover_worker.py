"""Whole workers on a cluster, or with Sentinel, whose primary crashes, freezes or hands over, under load.

The primary that goes serves the namespace and its queue, and every client listens there: nothing of dray
works without it. All must go on soon after its replica took over, and whatever was accepted must be done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from failover import Moments, fail_over, in_time, namespace_at_first
from redis_sentinel import watched
from redis_server import Server, need, three_and_three, wait_until

from dray import App, BrokerAway, JobHandle, gather

pytestmark = pytest.mark.slow
PATIENCE = 90.0

APP = """
import os, time
from dray import App

app = App(os.environ["SHOP_NAME"], broker=os.environ["SHOP_BROKER"])
runs = os.open(os.environ["SHOP_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(what):
    os.write(runs, f"{what} {time.monotonic()}\\n".encode())


@app.task
async def quick(n: int) -> int:
    note("run")
    return n


@app.task
def nap(seconds: float) -> float:
    note("nap")
    time.sleep(seconds)
    return seconds


@app.every("1s")
@app.task
async def tick() -> None:
    note("tick")
"""


class Crew:
    """Two workers and what they have done."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.name = folder, url, namespace_at_first()
        self._runs = folder / "runs"
        self.app = App(self.name, broker=url)
        for name in ("quick", "nap"):
            self.app.task(name=name)(_never)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        (self.folder / "shop.py").write_text(APP)
        more = {"SHOP_NAME": self.name, "SHOP_BROKER": self.url, "SHOP_RUNS": str(self._runs)}
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1", "-c", "8"]
        workers: list[subprocess.Popen[bytes]] = []
        try:
            for n in range(2):
                with (self.folder / f"log{n}").open("ab") as log:
                    workers.append(
                        subprocess.Popen(
                            command, cwd=self.folder, env=os.environ | more, stdout=log, stderr=log
                        )
                    )
            yield
            assert all(worker.poll() is None for worker in workers), self.logs
        finally:
            for worker in workers:
                worker.send_signal(signal.SIGTERM)
            for worker in workers:
                worker.wait(PATIENCE)
            self.app.close()

    @property
    def logs(self) -> str:
        return "\n".join((self.folder / f"log{n}").read_text() for n in range(2))

    def moments(self, what: str) -> Moments:
        """When it was done, as far as the workers have noted it."""
        moments = Moments(what)
        lines = self._runs.read_text().splitlines() if self._runs.exists() else []
        moments.all = [float(line.split()[1]) for line in lines if line.startswith(what)]
        return moments

    def goes_on(self, what: str, since: float) -> None:
        def first() -> float | None:
            return next((one for one in self.moments(what).all if one > since), None)

        wait_until(first, f"no {what} any more\n{self.logs}", PATIENCE)
        in_time(first() or 0.0, since, f"a worker's {what}")


def _never(*_: float) -> float:
    raise AssertionError("it runs in the worker")


class Load:
    """Threads that enqueue and wait, and try again as a caller would."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.jobs: list[tuple[int, JobHandle[int]]] = []
        self.accepted, self.answered = Moments("a producer"), Moments("a waiter")
        self._done, self._numbers = threading.Event(), iter(range(10**9))
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._produce, self._ask)]
        for thread in self._threads:
            thread.start()

    def _patiently(self, call: Callable[[], object]) -> object:
        while not self._done.is_set():
            with contextlib.suppress(BrokerAway):
                return call()
            time.sleep(0.02)
        return None

    def _produce(self) -> None:
        while not self._done.wait(0.01):
            n = next(self._numbers)
            job = self._patiently(lambda n=n: self.crew.app.tasks["quick"].enqueue(n))  # type: ignore[misc]
            if isinstance(job, JobHandle):
                self.jobs.append((n, job))
                self.accepted.note()

    def _ask(self) -> None:
        while not self._done.is_set():
            if self._patiently(lambda: self.crew.app.tasks["quick"].enqueue(-1).get(timeout=PATIENCE)) == -1:
                self.answered.note()

    def end(self) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(PATIENCE)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("valkey", "crash"),
        ("valkey", "freeze"),
        ("valkey", "manual"),
        ("redis", "crash"),
        ("redis", "freeze"),
        ("sentinel", "crash"),
        ("sentinel", "freeze"),
        ("sentinel", "manual"),
    ],
)
def test_workers_producers_and_schedules_go_on_after_a_fail_over_and_nothing_is_lost(
    tmp_path: Path, kind: str, how: str
) -> None:
    with _system(kind, tmp_path / "servers", how) as (url, fail):
        crew = Crew(tmp_path, url)
        idle = App(crew.name, broker=url)
        assert idle.jobs.find() == []
        with crew.at_work():
            wait_until(lambda: crew.moments("tick").all, f"no tick\n{crew.logs}", PATIENCE)
            long = crew.app.tasks["nap"].enqueue(6.0)  # ends after the fail-over
            wait_until(lambda: crew.moments("nap").all, f"no nap\n{crew.logs}", PATIENCE)
            load = Load(crew)
            try:
                wait_until(lambda: len(load.jobs) > 50, "nothing is accepted", PATIENCE)
                victim, promoted = fail()
                load.accepted.check(promoted)
                load.answered.check(promoted)
                for what in ("run", "tick"):
                    crew.goes_on(what, promoted)
                wait_until(lambda: seen(crew) > promoted, f"no heartbeat\n{crew.logs}", PATIENCE)
                if how == "freeze":
                    victim.thaw()
                elif how == "crash":
                    victim.start()
                wait_until(lambda: victim.command("ROLE")[0] == b"slave", "it is no replica", PATIENCE)
                # Clients that saw nothing of it, and those that did, are served beside the old primary.
                assert idle.job(long.id).get(timeout=PATIENCE) == 6.0
                back = time.monotonic()
                load.accepted.check(back)
                crew.goes_on("run", back)
                crew.goes_on("tick", back)
            finally:
                load.end()
            results = gather([job for _, job in load.jobs], timeout=PATIENCE)
            assert results == [n for n, _ in load.jobs], "what was accepted was done"
            assert len(crew.moments("nap").all) == 1, "its lease was kept"
            assert crew.app.client.block(_audit) == []
        idle.close()
    print(crew.logs)


@contextlib.contextmanager
def _system(kind: str, folder: Path, how: str) -> Iterator[tuple[str, Callable[[], tuple[Server, float]]]]:
    """The URL of servers, and a function that loses their primary: returns it, and when it was replaced."""
    if kind == "sentinel":
        with watched(folder) as found:
            yield found.url, lambda: found.fail_over(how)
        return
    need(kind)
    with three_and_three(kind, folder) as cluster:

        def fail() -> tuple[Server, float]:
            victim, _, promoted = fail_over(cluster, how)
            return victim, promoted

        yield cluster.url, fail


def seen(crew: Crew) -> float:
    """When the last heartbeat of a worker was, by our clock."""
    ago = crew.app.now() / 1000 - min(info.seen / 1000 for info in crew.app.workers.list())
    return time.monotonic() - ago


async def _audit(link: object) -> list[str]:
    broker = getattr(link, "broker")  # noqa: B009
    problems: list[str] = await broker.audit()
    return problems
