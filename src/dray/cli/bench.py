"""`dray bench`: what the configured broker does on this machine, in a few seconds.

The embedded broker is measured in a file of its own beside the configured one (same disk), other brokers in a
namespace of their own; both are removed afterwards. Jobs do nothing and are run by a real worker.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from dray.app import App
from dray.cli.bench_app import app as bench_app
from dray.cli.bench_app import nothing
from dray.cli.inspect_app import probe
from dray.cli.job_selection import of_every_state
from dray.cli.open_app import app_path, options, point, settings_here, store_file
from dray.cli.output import note, progress_bar, say_json, say_table
from dray.cli.target import common_options, wants_json
from dray.client.link import Link
from dray.documents import repair_log, worker_registry
from dray.job import State
from dray.settings import Loaded, hide_password, override
from dray.stats import arrivals, tallies

BATCH: Final = 1000
START_TIMEOUT: Final = 60.0
DRAIN_TIMEOUT: Final = 600.0
CONCURRENCY: Final = 100
DOCUMENTS: Final = (
    worker_registry.KIND,
    worker_registry.LEADERSHIP[0],
    repair_log.KIND,
    tallies.KIND,
    tallies.PAST,
    tallies.SECOND,
    arrivals.KIND,
)
"""Kinds of documents that a worker writes."""

Progressed = Callable[[int], None]


@click.command("bench")
@click.option(
    "--jobs", type=click.IntRange(100, 1_000_000), default=10_000, show_default=True, help="How many jobs."
)
@common_options
def bench_command(jobs: int) -> int:
    """Measure the configured broker: enqueue one by one and in bulk, drain with one process, time one job.

    The numbers are for comparing machines, disks and settings; jobs that do something take longer.
    """
    loaded = settings_here()
    path = app_path(loaded)
    if path is not None and "broker_url" not in options():
        loaded = override(probe(path).loaded, options())
    if loaded.settings.broker_url.startswith("memory:"):
        raise click.ClickException(
            "memory:// lives inside one process: there is nothing to measure with a worker"
        )
    with (
        _sigterm_as_interrupt(),
        _private_store(loaded) as store,
        progress_bar("bench", total=jobs * 2 + jobs // 10) as progress,
    ):
        app = point(bench_app, store)
        results = _measure(app, jobs, progress)
    _show(loaded, results)
    return 0


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt as Ctrl-C does, so that the bench cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _private_store(loaded: Loaded) -> Iterator[Loaded]:
    """A namespace or file of our own on the same broker, removed afterwards."""
    url = loaded.settings.broker_url
    namespace = f"dray-bench-{secrets.token_hex(4)}"
    if not url.startswith("sqlite:"):
        try:
            yield override(loaded, {"namespace": namespace})
        finally:
            of_every_state(bench_app.jobs.delete)(dry_run=False, progress=None)
            bench_app.client.block(_erase)
            bench_app.close()
        return
    parent = _existing(store_file(url).parent)
    folder = Path(tempfile.mkdtemp(prefix=".dray-bench-", dir=parent))
    query = url.partition("?")[2]
    own = f"sqlite:///{folder}/bench.db" + (f"?{query}" if query else "")
    try:
        yield override(loaded, {"broker_url": own, "namespace": namespace})
    finally:
        bench_app.close()
        shutil.rmtree(folder, ignore_errors=True)


async def _erase(link: Link) -> None:
    """Remove what the namespace has beside jobs."""
    await bench_app.client.arrivals.write(link.broker)  # a later one would write it again
    await link.broker.erase(DOCUMENTS)  # type: ignore[attr-defined]


def _existing(folder: Path) -> Path:
    return folder if folder.is_dir() else _existing(folder.parent)


def _measure(app: App, jobs: int, progress: Progressed) -> dict[str, dict[str, float]]:
    one_by_one = max(20, jobs // 10)
    results = {"enqueue_one": _one_by_one(one_by_one, progress)}
    results["enqueue_bulk"] = _bulk(app, jobs, lambda done: progress(one_by_one + done))
    with _worker(app) as worker:
        results["drain"] = _drain(app, one_by_one + jobs, worker, lambda done: progress(jobs + done))
        results["round_trip"] = _round_trips(min(200, jobs))
    return results


def _one_by_one(count: int, progress: Progressed) -> dict[str, float]:
    times = []
    for done in range(count):
        began = time.perf_counter()
        nothing.enqueue()
        times.append(time.perf_counter() - began)
        if done % 100 == 0:
            progress(done)
    return {"jobs": count, "per_second": count / sum(times)} | _in_ms(times)


def _in_ms(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return {"p50_ms": p50 * 1000, "p99_ms": p99 * 1000, "max_ms": ordered[-1] * 1000}


def _bulk(app: App, count: int, progress: Progressed) -> dict[str, float]:
    spent = 0.0
    for first in range(0, count, BATCH):
        calls = [nothing.call() for _ in range(min(BATCH, count - first))]
        began = time.perf_counter()
        app.enqueue_many(calls)
        spent += time.perf_counter() - began
        progress(first + len(calls))
    return {"jobs": count, "per_second": count / spent}


@contextmanager
def _worker(app: App) -> Iterator[subprocess.Popen[bytes]]:
    """A real worker with one executor process, ready for work."""
    settings = app.settings
    command = [sys.executable, "-m", "dray", "worker", "-A", "dray.cli.bench_app:app"]
    command += ["--broker", settings.broker_url, "--namespace", settings.namespace]
    command += ["-p", "1", "-c", str(CONCURRENCY), "--log-level", "warning"]
    with tempfile.TemporaryFile() as output:
        worker = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603
        try:
            _until(lambda: _has_begun(app) or worker.poll() is not None, START_TIMEOUT)
            if worker.poll() is not None or not _has_begun(app):
                output.seek(0)
                text = output.read().decode(errors="replace").strip()
                raise click.ClickException(f"the worker did not start:\n{text}")
            yield worker
        finally:
            worker.terminate()
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()


def _has_begun(app: App) -> bool:
    return any(info.counts.get(State.SUCCEEDED, 0) for info in app.queues.list())


def _until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _drain(app: App, count: int, worker: subprocess.Popen[bytes], progress: Progressed) -> dict[str, float]:
    def done() -> int:
        return sum(info.counts.get(State.SUCCEEDED, 0) for info in app.queues.list())

    def over() -> bool:
        finished = done()
        progress(finished)
        return finished >= count or worker.poll() is not None

    if not _until(over, DRAIN_TIMEOUT) or done() < count:
        raise click.ClickException(f"the worker finished only {done()} of {count} jobs")
    infos = app.jobs.find(state=State.SUCCEEDED, limit=None)
    first = min(info.started_at for info in infos if info.started_at is not None)
    last = max(info.finished_at for info in infos if info.finished_at is not None)
    seconds = max((last - first).total_seconds(), 0.001)
    return {"jobs": count, "per_second": count / seconds}


def _round_trips(count: int) -> dict[str, float]:
    """From enqueue to result, one at a time, with an idle worker."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        nothing.enqueue().get(timeout=60)
        times.append(time.perf_counter() - began)
    return {"jobs": count, "per_second": count / sum(times)} | _in_ms(times)


_NAMES: Final = {
    "enqueue_one": "enqueue one by one",
    "enqueue_bulk": f"enqueue in bulk ({BATCH} a call)",
    "drain": f"drain (1 process, {CONCURRENCY} at a time)",
    "round_trip": "enqueue to result, idle worker",
}


def _show(loaded: Loaded, results: dict[str, dict[str, float]]) -> None:
    url = hide_password(loaded.settings.broker_url)
    if wants_json():
        rounded: dict[str, Any] = {
            name: {key: round(value, 3) for key, value in result.items()} for name, result in results.items()
        }
        say_json({"broker": url, "durability": loaded.settings.durability} | rounded)
        return
    numbers = ("JOBS", "JOBS/S", "P50 MS", "P99 MS")
    rows = [
        [
            _NAMES[name],
            f"{result['jobs']:,.0f}",
            f"{result['per_second']:,.0f}",
            *(f"{result[key]:.2f}" if key in result else "" for key in ("p50_ms", "p99_ms")),
        ]
        for name, result in results.items()
    ]
    note(f"{url}, durability {loaded.settings.durability}")
    say_table(("WHAT", *numbers), rows, right=numbers)
