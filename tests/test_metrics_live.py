"""Metrics of real servers and workers: what they tell is what happened, also when a worker is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from redis_server import Server, need, running
from served import Served, wait_until

from dray.observe.table import TABLE, full_name

SHOP = """
import os
import time
from pathlib import Path

from dray import App, Reject, Retry

app = App("shop")


@app.task
def add(a: int) -> int:
    return a


@app.task(queue="mail", retries=1, backoff="fixed:1ms")
def fail(always: bool, mark: str) -> None:
    if always or not Path(mark).exists():
        Path(mark).touch()
        raise ValueError("no")


@app.task(queue="mail")
def refuse() -> None:
    raise Reject("never")


@app.task
def die(mark: str) -> None:
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), 9)


@app.task(priority="high")
def hang() -> None:
    time.sleep(600)
"""
LEASE = 1.0

Sample = tuple[str, frozenset[tuple[str, str]]]
Scrape = dict[Sample, float]


class Crew:
    """A server, its workers, and what was scraped of it so far."""

    def __init__(self, folder: Path, broker: str, server: Server | None) -> None:
        self.server = server
        self.served = Served(folder, broker)
        (folder / f"{self.served.module}.py").write_text(SHOP)
        self.workers: list[subprocess.Popen[str]] = []
        self.last: Scrape = {}
        self.text = ""

    def work(self) -> tuple[subprocess.Popen[str], str]:
        """A worker, and where it answers."""
        options = (
            "-p",
            "1",
            "-Q",
            "default,mail",
            "--lease",
            "1s",
            "--metrics",
            "127.0.0.1:0",
            "--shutdown-grace",
            "0",
        )
        worker = subprocess.Popen(
            [sys.executable, "-m", "dray", "worker", *options],
            cwd=self.served.folder,
            env=self.served.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.workers.append(worker)
        assert worker.stdout is not None
        return worker, worker.stdout.readline().split()[-1]

    def dismiss(self) -> None:
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.communicate(timeout=60)
        self.served.stop()

    def scrape(self) -> Scrape:
        """All samples; no counter has ever fallen."""
        reply = httpx.get(f"{self.served.url}/metrics", timeout=60)
        assert reply.status_code == 200, reply.text
        assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
        self.text = reply.text
        found = samples(reply.text)
        for sample, before in self.last.items():
            if sample[0].endswith(("_total", "_bucket", "_count")):
                assert found[sample] >= before, sample
        self.last = found
        return found

    def runs(self) -> dict[tuple[str, str, str], float]:
        return {
            (labels["task"], labels["queue"], labels["outcome"]): value
            for (name, pairs), value in self.scrape().items()
            if name == "dray_runs_total" and (labels := dict(pairs))
        }

    def value(self, name: str, **labels: str) -> float:
        return self.last.get((name, frozenset(labels.items())), 0.0)

    def put(self, task: str, *args: object) -> None:
        reply = httpx.post(f"{self.served.url}/api/jobs", json={"task": task, "args": args}, timeout=60)
        assert reply.status_code == 201, reply.text


def samples(text: str) -> Scrape:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module", params=["sqlite", "valkey"])
def crew(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    folder = tmp_path_factory.mktemp("metrics")
    with contextlib.ExitStack() as stack:
        server, broker = None, f"sqlite:///{folder / 'jobs.db'}"
        if request.param == "valkey":
            need("valkey")
            server = stack.enter_context(running("valkey", folder / "redis"))
            broker = f"redis://127.0.0.1:{server.port}/0?timeout=1s&connect_timeout=1s"
        crew = Crew(folder, broker, server)
        crew.served.start()
        stack.callback(crew.dismiss)
        yield crew


EXPECTED = {
    ("add", "default", "succeeded"): 6.0,
    ("fail", "mail", "retry"): 2.0,
    ("fail", "mail", "dead"): 1.0,
    ("fail", "mail", "succeeded"): 1.0,
    ("refuse", "mail", "dead"): 1.0,
}


def test_what_is_told_is_what_happened_though_a_worker_is_killed(crew: Crew, tmp_path: Path) -> None:
    worker, url = crew.work()
    for number in range(6):
        crew.put("add", number)
    crew.put("fail", True, str(tmp_path / "always"))
    crew.put("fail", False, str(tmp_path / "once"))
    crew.put("refuse")
    wait_until(lambda: crew.runs() == EXPECTED, "not all is told")
    assert crew.value("dray_run_seconds_count", task="add") == 6
    assert crew.value("dray_wait_seconds_bucket", task="add", le="+Inf") == 6
    assert crew.value("dray_queue_jobs", queue="mail", state="dead") == 2
    _check_names(crew.text, whole=True)
    told = {name: value for (name, _), value in crew.last.items() if name.startswith("dray_broker_")}
    if crew.server is None:
        assert set(told) == {"dray_broker_round_trip_seconds"}
    else:
        assert told["dray_broker_memory_bytes"] > 100_000
        assert told["dray_broker_cpu_seconds_total"] > 0
        assert told["dray_broker_clients"] > 1
    own = httpx.get(f"{url}/metrics", timeout=60).text
    assert {k: v for k, v in samples(own).items() if k[0] == "dray_runs_total"} == {
        k: v for k, v in crew.last.items() if k[0] == "dray_runs_total"
    }
    _check_names(own, whole=False)

    crew.put("die", str(tmp_path / "died"))
    died = ("die", "default", "succeeded")
    wait_until(lambda: crew.runs() == EXPECTED | {died: 1.0}, "it was not run again")
    wait_until(
        lambda: crew.scrape() and crew.value("dray_executor_deaths_total", cause="died") == 1,
        "a death is not told",
    )

    crew.put("hang")
    wait_until(
        lambda: crew.scrape() and crew.value("dray_queue_jobs", queue="default", state="running") == 1,
        "it is not running",
    )
    os.kill(worker.pid, signal.SIGKILL)
    wait_until(lambda: crew.scrape() and not crew.value("dray_workers", state="running"), "still there")
    assert crew.runs() == EXPECTED | {died: 1.0}
    # The server stands in for workers: it frees what the dead one held, and counts that.
    wait_until(lambda: crew.scrape() and crew.value("dray_runs_freed_total") == 1, "its run is not freed")
    assert crew.value("dray_lease_losses_total") >= 1
    crew.put("add", 7)
    wait_until(
        lambda: crew.scrape() and crew.value("dray_queue_ready", queue="default", priority="5") == 1,
        "it is not ready",
    )
    assert crew.value("dray_queue_workers", queue="default") == 0

    _, url = crew.work()
    more = EXPECTED | {died: 1.0, ("add", "default", "succeeded"): 7.0}
    wait_until(lambda: crew.runs() == more, "the new one is not told of")
    assert crew.value("dray_leader_present") == 1
    wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "it is not fit")
    assert httpx.get(f"{url}/healthz", timeout=60).text == "ok\n"
    _check_silence(crew, url)


def _check_names(text: str, *, whole: bool) -> None:
    """All that is in the table is there, nothing else, and under these labels."""
    wanted = {name: about for name, about in TABLE.items() if whole or about.of_worker}
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {f"dray_{name}" for name in wanted}
    for name, about in wanted.items():
        family = families[f"dray_{name}"]
        assert (family.type, family.documentation) == (about.kind, about.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(about.labels)
            assert sample.name.startswith(full_name(name))


def _check_silence(crew: Crew, url: str) -> None:
    """A broker that does not answer is said to be away, by the server and by the worker."""
    if crew.server is None:
        return
    crew.server.signal(signal.SIGSTOP)
    try:
        time.sleep(1.1)  # for so long a text is good
        began = time.monotonic()
        reply = httpx.get(f"{crew.served.url}/metrics", timeout=60)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "broker_away")
        assert time.monotonic() - began < 30
        wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 503, "it thinks it is fit")
        assert httpx.get(f"{url}/healthz", timeout=60).status_code == 200
        assert httpx.get(f"{url}/metrics", timeout=60).status_code == 200
    finally:
        crew.server.signal(signal.SIGCONT)
    wait_until(lambda: httpx.get(f"{url}/readyz", timeout=60).status_code == 200, "it does not recover")
