"""Five real schedulers on one store, stopped, resumed, killed and told to leave: one job for every tick.

What they did is counted from outside: the ids of all jobs there are, against the ticks there were.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from crew import end, freeze, until
from redis_server import need, running

from dray.broker import Broker, connect
from dray.broker.actions import Query
from dray.broker.verbs import PAGE_MAX, run_blocking
from dray.documents.worker_registry import LEADERSHIP, WorkerInfo, read_leader, read_workers
from dray.job import Job
from dray.schedules.cron import Every
from dray.schedules.schedule import KIND, NEWS, Schedule, decode, encode, tick_id
from dray.settings import Settings

LEASE = 600
NAMES = ("a", "b", "c")
EVERY = Every(200)
"""Quicker than users may: more ticks to go wrong."""
SCHEDULER = """
import sys, msgspec
from dray.settings import Settings
from dray.worker import logs
from dray.worker.supervisor.supervisor import run_worker
settings = msgspec.json.decode(sys.argv[1], type=Settings)
logs.set_up(settings)
sys.exit(run_worker("shop:app", settings))
"""


class Office:
    """Schedulers at work on a store, and a look at it from outside."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.broker: Broker = run_blocking(connect(url, "office", blocking=True))
        self.staff: list[subprocess.Popen[str]] = []
        (folder / "shop.py").write_text("from dray import App\napp = App('office')\n")

    @property
    def database(self) -> Path | None:
        return Path(self.url.removeprefix("sqlite:///")) if self.url.startswith("sqlite:") else None

    def hire(self) -> None:
        settings = Settings(
            broker_url=self.url,
            namespace="office",
            mode="scheduler-only",
            lease=LEASE,
            sweep_interval=100,
        )
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-c", SCHEDULER, msgspec.json.encode(settings).decode()]
            self.staff.append(subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, text=True))

    def open_schedules(self) -> int:
        """Their first tick."""
        first = EVERY.next(self.broker.clock())
        assert first is not None
        for name in NAMES:
            job = Job(id="", task="t", queue=f"queue-{name}")
            schedule = Schedule(name=name, task="t", rule=EVERY, job=job, next_run=first)
            run_blocking(self.broker.doc(KIND, name, encode(schedule)))
        run_blocking(self.broker.doc(*NEWS, b""))
        return first

    def schedule(self, name: str) -> Schedule:
        doc = run_blocking(self.broker.doc(KIND, name)).doc
        assert doc is not None
        return decode(doc.value)

    def ids(self, queue: str) -> list[str]:
        found, cursor = [], None
        while True:
            page = run_blocking(self.broker.find(Query(queue=queue), cursor=cursor, limit=PAGE_MAX))
            found += [record.id for record in page.records]
            cursor = page.cursor
            if cursor is None:
                return found

    def leader(self) -> str | None:
        holder = read_leader(run_blocking(self.broker.doc(*LEADERSHIP)).doc)
        return None if holder is None else holder.worker

    def roster(self) -> list[WorkerInfo]:
        return run_blocking(read_workers(self.broker))

    def all_have_come(self) -> None:
        came: set[str] = set()
        while len(came) < len(self.staff):
            assert all(process.poll() is None for process in self.staff), (self.folder / "log").read_text()
            came |= {info.id for info in self.roster()}
            time.sleep(0.05)

    def process_of(self, worker: str) -> subprocess.Popen[str]:
        pid = next(info.pid for info in self.roster() if info.id == worker)
        return next(process for process in self.staff if process.pid == pid)

    def another_leads(self, than: str | None) -> str:
        def looks() -> str | None:
            leader = self.leader()
            known = leader is not None and any(info.id == leader for info in self.roster())
            return leader if known and leader != than else None

        return until(looks, f"a leader other than {than}") or ""

    def ticks_go_on(self, count: int = 4) -> None:
        before = {name: self.schedule(name).run_count for name in NAMES}
        until(
            lambda: all(self.schedule(name).run_count >= before[name] + count for name in NAMES), "more ticks"
        )

    def has_just(self, name: str, wanted: set[str]) -> None:
        """All these jobs and no other. What somebody was killed in the midst of, the next leader finishes."""
        end = time.monotonic() + 30
        while True:
            run_blocking(self.broker.sweep(lapse=False))
            found = self.ids(f"queue-{name}")
            if wanted == set(found) or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert (sorted(wanted - set(found)), sorted(set(found) - wanted)) == ([], [])


@pytest.fixture(params=["sqlite", "valkey", "valkey cluster"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    with store(request.param, tmp_path) as url:
        office = Office(tmp_path, url)
        try:
            yield office
        finally:
            for process in office.staff:
                process.kill()
                end(process)
            run_blocking(office.broker.close())


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/jobs.db"
        return
    need("valkey")
    cluster = kind.endswith("cluster")
    with running("valkey", folder / "server", cluster=cluster) as server:
        yield f"redis{'+cluster' if cluster else ''}://127.0.0.1:{server.port}"


def test_every_tick_makes_one_job_whatever_befalls_the_schedulers(office: Office) -> None:
    for _ in range(5):
        office.hire()
    office.all_have_come()
    first = office.open_schedules()
    frozen = office.another_leads(than=None)
    office.ticks_go_on()

    stopped = office.process_of(frozen)
    freeze(stopped.pid, office.database)
    second = office.another_leads(than=frozen)
    office.ticks_go_on()
    stopped.send_signal(signal.SIGCONT)
    office.ticks_go_on()

    office.process_of(office.another_leads(than=None)).kill()
    third = office.another_leads(than=second)
    office.ticks_go_on()

    leaving = office.process_of(third)
    leaving.terminate()
    assert leaving.wait(60) == 0
    assert office.leader() != third  # it has let go, nobody waits for the lease to run out
    fourth = office.another_leads(than=third)
    office.ticks_go_on()
    until(
        lambda: [info.id for info in office.roster() if info.leader] == [fourth] or office.leader() != fourth,
        "the roster to show who leads",
    )

    for process in office.staff:
        process.terminate()
    for process in office.staff:
        process.wait(60)
    for name in NAMES:
        schedule = office.schedule(name)
        assert schedule.last_run is not None
        ticks = range(first, schedule.last_run + 1, EVERY.interval)
        office.has_just(name, {tick_id(name, f"queue-{name}", at) for at in ticks})
        assert schedule.run_count == len(ticks)
        assert schedule.last_error is None
