"""Limits, pauses and cancellation with whole workers, on the embedded broker and on a server.

One worker serves all tests of a broker. Every start and end of a job appends a line to a file, and the feed
of the broker tells when it handed out what: nothing rests on what the worker says of itself.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from crew import until
from redis_server import running

from dray import App, JobCancelled, JobHandle
from dray.broker import connect
from dray.broker.verbs import Broker, run_blocking
from dray.documents.worker_registry import read_workers
from dray.job import Job, Move
from dray.policy import Rate

APP = '''
import asyncio, os, time
from pathlib import Path
from dray import App, Context

app = App("shop", broker=os.environ["SHOP_BROKER"], retries=2, backoff="fixed:1h")
FOLDER = Path(os.environ["SHOP_FOLDER"])
NOTES = os.open(FOLDER / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def note(word, name):
    os.write(NOTES, f"{word} {name} {os.getpid()} {time.time()}\\n".encode())


@app.task
async def on_loop(name: str) -> None:
    note("start", name)
    await asyncio.sleep(600)


@app.task
def in_thread(ctx: Context, name: str) -> None:
    note("start", name)
    while True:
        ctx.check()
        time.sleep(0.01)


@app.task(isolate="process")
def in_process(name: str) -> None:
    note("start", name)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


@app.task
def loops(name: str) -> None:
    """A plain function that never asks."""
    note("start", name)
    while True:
        time.sleep(0.05)


@app.task
def sleeps(name: str) -> None:
    """Sits in one call that nothing interrupts."""
    note("start", name)
    time.sleep(600)


@app.task
def returns(name: str) -> str:
    """Hears nothing, and returns in the end."""
    note("start", name)
    while not (FOLDER / name).exists():
        time.sleep(0.01)
    return name


@app.task
def fails(name: str) -> None:
    note("start", name)
    raise ValueError(name)


@app.task
def quick(name: str) -> str:
    note("start", name)
    return name


@app.task(rate_limit="50/s")
async def paced(n: int) -> None:
    pass


@app.task(max_running=2)
async def capped(name: str) -> None:
    note("start", name)
    await asyncio.sleep(0.1)
    note("end", name)
'''


class Site:
    """An app, its broker, and one worker."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "shop.py").write_text(APP)
        self.environ = {**os.environ, "SHOP_BROKER": url, "SHOP_FOLDER": str(folder)}
        self.app = App("shop", broker=url, retries=2, backoff="fixed:1h")
        self.app.task(name="paced", rate_limit="50/s")(_anything)
        self.app.task(name="capped", max_running=2)(_anything)
        self.app.task(name="in_process", isolate="process")(_anything)
        for name in ("on_loop", "in_thread", "loops", "sleeps", "returns", "fails", "quick"):
            self.app.task(name=name)(_anything)
        self.broker: Broker = run_blocking(connect(url, "shop", blocking=True))
        self.worker: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "dray", "worker", "-A", "shop:app", "-p", "2", "-c", "8"]
        with (self.folder / "log").open("ab") as log:
            self.worker = subprocess.Popen(command, cwd=self.folder, env=self.environ, stdout=log, stderr=log)

    def enqueue(self, task: str, name: Any, **using: Any) -> JobHandle[Any]:
        return self.app.tasks[task].using(**using).enqueue(name)

    def notes(self, *names: str) -> list[list[str]]:
        file = self.folder / "notes"
        found = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return [one for one in found if not names or one[1] in names]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        return until(condition, lambda: f"{what}; log:\n{(self.folder / 'log').read_text()}")

    def begins(self, *jobs: JobHandle[Any]) -> None:
        self.until(lambda: all(job.status() == "running" for job in jobs), "all to run")
        names = [str((job.info().args or ("",))[0]) for job in jobs]
        self.until(lambda: len(self.notes(*names)) >= len(jobs), f"{names} to begin")

    def starts(self, ids: Sequence[str]) -> list[int]:
        """When the broker handed these jobs out."""
        wanted, found = set(ids), []
        cursor: dict[str, int] = {}
        while True:
            feed = run_blocking(self.broker.events(cursor, limit=1000))
            for entry in feed.entries:
                found += [entry.at for one in entry.events if one.kind == Move.TAKEN and one.id in wanted]
            if not feed.entries:
                return sorted(found)
            cursor = feed.cursor

    def close(self) -> None:
        if self.worker is not None and self.worker.poll() is None:
            self.worker.kill()
            self.worker.wait()
        self.app.close()
        run_blocking(self.broker.close())


def _anything(name: Any) -> Any:
    raise AssertionError("it runs in the worker")


@pytest.fixture(scope="module", params=["sqlite", "valkey"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with ExitStack() as stack:
        url = f"sqlite:///{folder}/jobs.db"
        if request.param == "valkey":
            server = stack.enter_context(running("valkey", folder / "server"))
            url = f"redis://127.0.0.1:{server.port}"
        site = Site(folder, url)
        yield site
        site.close()


def ended(job: JobHandle[Any]) -> str:
    with pytest.raises(JobCancelled):
        job.get(timeout=60)
    assert job.status() == "cancelled"
    return job.info().reason or ""


# The tests of one broker go on where the one before left off.


def test_with_workers_offline_whatever_waits_is_cancelled_at_once_and_never_runs(site: Site) -> None:
    ready, later = site.enqueue("quick", "ready"), site.enqueue("quick", "later", delay="1h")
    waits = Job(id="waits", task="quick", waits_for=(later.id,))
    run_blocking(site.broker.put([waits]))
    for job in (site.app.job("waits"), later, ready):
        assert job.cancel("offline")
        assert not job.cancel("again")
        assert job.status() == "cancelled"
        assert job.info().reason == "offline"
    tagged = [site.enqueue("quick", f"tagged {n}", tags=["spring"]) for n in range(3)]
    assert len(site.app.jobs.cancel(tag="spring", dry_run=True)) == 3
    assert {job.status() for job in tagged} == {"ready"}
    assert len(site.app.jobs.cancel(tag="spring", state="ready")) == 3
    assert {job.status() for job in tagged} == {"cancelled"}
    site.start()
    assert site.enqueue("quick", "first").get(timeout=60) == "first"
    assert [note[1] for note in site.notes()] == ["first"]


def test_running_jobs_of_every_kind_are_stopped(site: Site) -> None:
    jobs = [site.enqueue(task, f"{task}-1") for task in ("on_loop", "in_thread", "in_process")]
    site.begins(*jobs)
    [[_, _, child, _]] = site.until(lambda: site.notes("in_process-1"), "the child to start")
    for job in jobs:
        assert job.cancel("enough")
        assert job.status() in ("running", "cancelled")
    assert [ended(job) for job in jobs] == ["enough"] * 3
    site.until(
        lambda: not Path(f"/proc/{child}").exists(), "the child, which swallows everything, to be killed"
    )


def test_plain_functions_that_never_ask_are_stopped_as_by_a_timeout(site: Site) -> None:
    jobs = [site.enqueue(task, f"{task}-1") for task in ("loops", "sleeps")]
    site.begins(*jobs)
    for job in jobs:
        assert job.cancel("enough")
    assert [ended(job) for job in jobs] == ["enough"] * 2
    assert {run.outcome for job in jobs for run in job.info().run_history} == {"cancelled"}
    assert site.enqueue("quick", "after").get(timeout=60) == "after", "whoever was lost was replaced"


def test_force_kills_an_isolated_run_that_was_asked_before(site: Site) -> None:
    job = site.enqueue("in_process", "forced")
    site.begins(job)
    [[_, _, child, _]] = site.until(lambda: site.notes("forced"), "the child to start")
    job.cancel("please")
    assert job.cancel("now", force=True) or job.status() == "cancelled"
    assert ended(job) == "please"
    site.until(lambda: not Path(f"/proc/{child}").exists(), "the child to be gone")
    assert not job.cancel(force=True)


def test_by_filter_those_that_run_are_stopped_and_the_rest_is_left_alone(site: Site) -> None:
    jobs = [site.enqueue("in_thread", f"filter-{n}") for n in range(2)]
    other = site.enqueue("on_loop", "other")
    site.begins(*jobs, other)
    cancelled = site.app.jobs.cancel(task="in_thread", state="running")
    assert sorted(cancelled.ids) == sorted(job.id for job in jobs)
    for job in jobs:
        ended(job)
    assert other.status() == "running"
    other.cancel()
    ended(other)


def test_a_job_that_returns_after_its_cancel_is_cancelled_and_one_before_it_is_not(
    site: Site,
) -> None:
    deaf = site.enqueue("returns", "deaf")
    site.begins(deaf)
    deaf.cancel("too late to stop")
    (site.folder / "deaf").touch()
    assert ended(deaf) == "too late to stop"
    done = site.enqueue("quick", "done")
    assert done.get(timeout=60) == "done"
    assert not done.cancel()
    assert (done.status(), done.get()) == ("succeeded", "done")


def test_a_job_in_its_back_off_is_cancelled_and_not_tried_again(site: Site) -> None:
    job = site.enqueue("fails", "fails")
    site.until(lambda: job.status() == "retrying", "it to fail")
    assert job.cancel()
    ended(job)
    assert len(site.notes("fails")) == 1


def test_a_paused_task_starts_nothing_while_its_running_job_finishes(site: Site) -> None:
    first = site.enqueue("returns", "paused-1")
    site.begins(first)
    site.app.queues.pause("default", task="returns", by="ada", reason="look")
    second, other = site.enqueue("returns", "paused-2"), site.enqueue("quick", "unpaused")
    (site.folder / "paused-2").touch()
    (site.folder / "paused-1").touch()
    assert first.get(timeout=60) == "paused-1"
    assert other.get(timeout=60) == "unpaused"
    assert (second.status(), second.why().code) == ("ready", "task_paused")
    site.app.queues.resume("default", task="returns")
    assert second.get(timeout=60) == "paused-2"


def test_a_rate_is_never_exceeded_and_used_to_95_percent(site: Site) -> None:
    rate, window = Rate.parse("50/s"), 2000
    ids: list[str] = []
    best = 0
    deadline = time.monotonic() + 60
    while best < 0.95 * 50 * window / 1000:
        assert time.monotonic() < deadline, f"at most {best} starts in {window} ms"
        task = site.app.tasks["paced"]
        jobs = site.app.enqueue_many([task.call(n) for n in range(110)])
        ids += [job.id for job in jobs]
        for job in jobs:
            job.get(timeout=60)
        starts = site.starts(ids)
        assert len(starts) == len(ids)
        best = max(sum(first <= at < first + window for at in starts) for first in starts)
    for first, since in enumerate(starts):
        for last in range(first, len(starts)):
            count = last - first + 1
            assert (count - rate.burst) * rate.interval <= (starts[last] - since) * 1000, (count, starts)


def test_slots_neither_leak_nor_are_freed_twice_when_executors_are_killed(site: Site) -> None:
    jobs: list[JobHandle[Any]] = []
    killed: dict[str, float] = {}
    deadline = time.monotonic() + 60
    while len(killed) < 2 or not all(job.status().finished for job in jobs):
        assert time.monotonic() < deadline, (killed, [job.status() for job in jobs])
        if len(killed) < 2 and sum(not job.status().finished for job in jobs) < 4:
            jobs += [site.enqueue("capped", f"capped-{len(jobs) + n}") for n in range(8)]
        if len(killed) < 2 and (pid := _busy(site, killed)) is not None:
            killed[pid] = time.time()
            os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.02)
    assert {job.status() for job in jobs} == {"succeeded"}
    assert _most_at_once(site, killed) <= 2
    usage = run_blocking(site.broker.usage(Job(id="x", task="capped")))
    assert usage.running == {"queue": 0, "task": 0}
    assert run_blocking(site.broker.audit()) == []


def _busy(site: Site, killed: dict[str, float]) -> str | None:
    """An executor that is just running one of them."""
    held = {note[1]: note[2] for note in site.notes() if note[1].startswith("capped") and note[0] == "start"}
    for note in site.notes():
        if note[0] == "end" and held.get(note[1]) == note[2]:
            del held[note[1]]
    workers = run_blocking(read_workers(site.broker))
    executors = {str(one.pid) for worker in workers for one in worker.executors} - killed.keys()
    return next((pid for pid in held.values() if pid in executors), None)


def _most_at_once(site: Site, killed: dict[str, float]) -> int:
    """Counted from the notes. A run without an end ended with its executor, also if it was in a child."""
    events: list[tuple[float, int]] = []
    notes = [
        (word, name, pid, float(at)) for word, name, pid, at in site.notes() if name.startswith("capped")
    ]
    for word, name, pid, at in notes:
        if word == "end":
            events.append((at, -1))
            continue
        events.append((at, 1))
        if not any((note[0], note[1], note[2]) == ("end", name, pid) for note in notes):
            again = min(note[3] for note in notes if note[1] == name and note[3] > at)
            events.append((max([at, *(moment for moment in killed.values() if moment <= again)]), -1))
    most = now = 0
    for _, change in sorted(events):
        now += change
        most = max(most, now)
    return most


def test_a_limit_changed_at_run_time_is_seen_by_all_at_once(site: Site) -> None:
    site.app.queues.limit("default", task="returns", max_running=1)
    jobs = [site.enqueue("returns", f"limit-{n}") for n in range(3)]
    site.until(lambda: len(site.notes(*(f"limit-{n}" for n in range(3)))) == 1, "one to start")
    waits = next(job for job in jobs if job.status() == "ready")
    assert waits.why().code == "limited"
    site.app.queues.limit("default", task="returns", max_running=None)
    site.until(lambda: len(site.notes(*(f"limit-{n}" for n in range(3)))) == 3, "all to start")
    for n in range(3):
        (site.folder / f"limit-{n}").touch()
    for job in jobs:
        job.get(timeout=60)


def test_a_job_is_cancelled_while_its_worker_shuts_down(site: Site) -> None:
    assert site.worker is not None
    job = site.enqueue("on_loop", "shutdown")
    site.begins(job)
    site.worker.send_signal(signal.SIGTERM)
    site.until(lambda: _all_stop(site), "it to stop")
    assert job.cancel("closing time")
    assert site.worker.wait(60) == 0
    assert job.status() == "cancelled"
    assert job.info().reason == "closing time"


def _all_stop(site: Site) -> bool:
    return all(worker.state == "stopping" for worker in run_blocking(read_workers(site.broker)))
