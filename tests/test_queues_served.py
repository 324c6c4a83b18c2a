"""Which queues real workers serve, on the embedded broker, a server and a cluster: what tasks name, patterns,
all of them, and never a dedicated one that they do not list.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis_server import need, running, wait_until

from dray import App, JobHandle
from dray.cli import main

PATIENCE = 60.0
NEW_QUEUE = 2.0
"""Seconds within which a queue that is new is served."""
SLACK = 8.0
"""Seconds more on a machine that is busy with other things."""

APP = """
import os, time
from dray import App

app = App("shop", broker=os.environ["SHOP_BROKER"])


@app.task
def default(seconds: float = 0) -> str:
    time.sleep(seconds)
    return "default"


@app.task(queue="email")
def email(seconds: float = 0) -> str:
    time.sleep(seconds)
    return "email"


@app.task(queue="gpu", dedicated=True)
def gpu() -> str:
    return os.environ["SHOP_NAME"]
"""


class Shop:
    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        (folder / "shop.py").write_text(APP)
        self.app = App("shop", broker=url)
        for name, queue in (("default", None), ("email", "email"), ("gpu", "gpu")):
            self.app.task(name=name, queue=queue)(_never) if queue else self.app.task(name=name)(_never)

    @contextmanager
    def worker(self, *args: str, name: str = "") -> Iterator[Path]:
        """Runs until the block ends; gives the file of what it says."""
        log = self.folder / f"log-{name}"
        environ = {**os.environ, "SHOP_BROKER": self.url, "SHOP_NAME": name}
        command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1", *args]
        with log.open("wb") as out:
            worker = subprocess.Popen(command, cwd=self.folder, env=environ, stdout=out, stderr=out)
        try:
            wait_until(lambda: b"stop with Ctrl-C" in log.read_bytes(), "it does not greet", PATIENCE)
            yield log
            assert worker.poll() is None, log.read_text()
        finally:
            worker.terminate()
            worker.wait(PATIENCE)

    def enqueue(self, task: str, queue: str | None = None, *args: float) -> JobHandle[str]:
        options = {} if queue is None else {"queue": queue}
        job: JobHandle[str] = self.app.using(**options).enqueue(task, *args)  # type: ignore[arg-type]
        return job


def _never(seconds: float = 0) -> str:
    raise AssertionError("only workers run it")


@pytest.fixture(params=["sqlite", "valkey", "redis cluster"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    if request.param == "sqlite":
        shop = Shop(tmp_path, f"sqlite:///{tmp_path}/q.db")
        yield shop
        shop.app.close()
        return
    kind, _, cluster = request.param.partition(" ")
    need(kind)
    with running(kind, tmp_path / "server", cluster=bool(cluster)) as server:
        shop = Shop(tmp_path, f"redis{'+cluster' if cluster else ''}://127.0.0.1:{server.port}")
        yield shop
        shop.app.close()


def test_a_worker_without_a_list_serves_what_its_tasks_name(shop: Shop) -> None:
    first = [shop.enqueue("default"), shop.enqueue("email")]
    left, elsewhere = shop.enqueue("gpu"), shop.enqueue("default", "elsewhere")
    with shop.worker() as log:
        assert [job.get(timeout=PATIENCE) for job in first] == ["default", "email"]
        for _ in range(3):
            assert shop.enqueue("email").get(timeout=PATIENCE) == "email"
            assert shop.enqueue("default").get(timeout=PATIENCE) == "default"
        assert (left.status(), elsewhere.status()) == ("ready", "ready")
        why = left.why()
        assert (why.code, why.details["dedicated"]) == ("no_worker_for_queue", True)
        assert "it is dedicated" in why.text
        said = log.read_text()
        assert "queues   default, email (taking turns; not gpu: dedicated, serve it with -Q)" in said
        wait_until(lambda: "1 job waits in queue elsewhere" in log.read_text(), "it names no queue", PATIENCE)
        assert "1 job waits in queue gpu, which is dedicated, and no worker serves" in log.read_text()
        [info] = shop.app.workers.list()
        assert (info.queues, info.dedicated) == (("default", "email"), ("gpu",))
        with shop.worker("-Q", "gpu", name="the gpu"):
            assert left.get(timeout=PATIENCE) == "the gpu"


def test_all_serves_new_queues_soon_but_no_dedicated_one(shop: Shop) -> None:
    left = shop.enqueue("gpu")
    shop.app.queues.limit("secret", dedicated=True)
    secret = shop.enqueue("default", "secret")
    with shop.worker("-Q", "all"):
        for number in range(3):
            began = time.monotonic()
            job = shop.enqueue("default", f"tenant-{number}")
            assert job.get(timeout=PATIENCE) == "default"
            assert time.monotonic() - began < NEW_QUEUE + SLACK
        assert shop.enqueue("default", "tenant-0").get(timeout=PATIENCE) == "default"
        assert (left.status(), secret.status()) == ("ready", "ready")
        shop.app.queues.limit("secret", dedicated=False)
        assert secret.get(timeout=PATIENCE) == "default"
        assert left.status() == "ready"


def test_a_pattern_serves_what_it_matches_after_the_queues_that_are_named(shop: Shop) -> None:
    other = shop.enqueue("default", "other")
    jobs = [shop.enqueue("default", queue) for queue in ("tenant-1", "high", "tenant-2")]
    with shop.worker("-Q", "high,tenant-*", "-c", "1"):
        assert [job.get(timeout=PATIENCE) for job in jobs] == ["default"] * 3
        started = {job.info().queue: job.info().started_at for job in jobs}
        assert started["high"] == min(started.values())  # type: ignore[type-var]
        assert other.status() == "ready"
        [info] = shop.app.workers.list()
        assert info.queues == ("high", "tenant-*")


def test_queues_take_turns_and_none_is_starved(shop: Shop) -> None:
    many = [shop.enqueue("default", None, 0.02) for _ in range(60)]
    few = [shop.enqueue("email") for _ in range(3)]
    with shop.worker("-c", "1"):
        for job in few:
            job.get(timeout=PATIENCE)
        left = [job for job in many if job.status() == "ready"]
        assert len(left) > 20, "the others of the longer queue had to wait for their turns"
        late = shop.enqueue("email")
        assert late.get(timeout=PATIENCE) == "email"
        assert many[-1].get(timeout=PATIENCE) == "default"
        started = [job.info().started_at for job in (late, many[-1])]
        assert started[0] < started[1], "a queue that was empty is looked at while others keep it busy"  # type: ignore[operator]


def test_a_burst_ends_when_nothing_is_left_in_what_it_serves(shop: Shop) -> None:
    jobs = [shop.enqueue("default", queue) for queue in ("a", "b", "c")]
    left = shop.enqueue("gpu")
    environ = {**os.environ, "SHOP_BROKER": shop.url, "SHOP_NAME": ""}
    command = [sys.executable, "-m", "dray", "-A", "shop:app", "worker", "-p", "1", "--burst", "-Q", "*"]
    subprocess.run(command, cwd=shop.folder, env=environ, check=True, timeout=PATIENCE, capture_output=True)
    assert [job.status() for job in (*jobs, left)] == ["succeeded"] * 3 + ["ready"]


def test_a_namespace_without_jobs_names_the_others(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    shop.enqueue("default")
    target = ("--broker", shop.url, "--namespace", "sohp")
    for command in (("jobs", "ls"), ("queues", "ls"), ("workers", "ls"), ("schedules", "ls")):
        assert main([*command, *target]) == 0
        assert "namespace sohp (this broker has shop: choose with --namespace" in capsys.readouterr().err
