"""Executors are forked from a template: they start clean, share memory, and outlive it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import until
from test_worker_processes import Site, alive, ends

from dray.job import State
from dray.worker.process import can_fork

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere executors are spawned")

APP = """
import logging, os, sys, threading
import multiprocessing
from pathlib import Path
from dray import App

HANDLERS, THREADS = list(logging.getLogger().handlers), threading.active_count()
app = App("shop", broker={url!r})


@app.task
def look() -> dict[str, object]:
    return {{
        "parent": os.getppid(),
        "files": sorted(os.readlink(f"/proc/self/fd/{{fd}}") for fd in os.listdir("/proc/self/fd")[:-1]),
        "group": os.getpgid(0) == os.getpid(),
        "argv": sys.argv,
        "main": sys.modules["__main__"].__name__,
        "handlers": len(HANDLERS),
        "threads": THREADS,
        "secret": [name for name in os.environ if name.startswith("DRAY_")],
    }}


@app.task
def spawn() -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(abs, (-3,))


@app.task
def draw() -> float:
    import random
    return random.random()


@app.task(max_crashes=1)
def crash() -> None:
    os.kill(os.getpid(), 11)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, APP)
    yield site
    site.close()


def template_of(worker: subprocess.Popen[bytes], site: Site) -> int:
    """The only child of the supervisor."""
    site.at_work(1)
    (pid,) = map(int, Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split())
    return pid


def result_of(site: Site, task: str) -> object:
    site.reaches(id := site.enqueue(task))
    return site.app.job(id).get(10)


def test_a_forked_executor_looks_like_a_new_process(site: Site) -> None:
    worker = site.start(processes=1)
    template = template_of(worker, site)
    seen = result_of(site, "look")
    assert isinstance(seen, dict)
    assert seen.pop("parent") == template
    assert seen.pop("files")
    assert seen == {
        "group": True,
        "argv": [seen["argv"][0]],
        "main": "dray.worker.executor.executor_main",
        "handlers": 0,
        "threads": 1,
        "secret": [],
    }


def test_a_forked_executor_inherits_no_more_files_than_a_new_process(site: Site) -> None:
    kinds = []
    for flag in ("spawn", "fork"):
        worker = site.start(flag, processes=1)
        seen = result_of(site, "look")
        assert isinstance(seen, dict)
        kinds.append([re.sub(r"\d", "", file) for file in seen["files"] if not file.startswith("/")])
        worker.terminate()
        ends(worker, site)
    assert kinds[0] == kinds[1]


def test_tasks_may_start_processes_as_in_any_program(site: Site) -> None:
    site.start(processes=1)
    assert result_of(site, "spawn") == 3


def test_executors_draw_other_numbers(site: Site) -> None:
    worker = site.start(processes=1, max_jobs_per_process=1)
    drawn = {result_of(site, "draw") for _ in range(3)}
    assert len(drawn) == 3
    assert worker.poll() is None


def test_the_end_of_a_forked_executor_is_told_with_its_cause(site: Site) -> None:
    site.start(processes=1)
    site.reaches(site.enqueue("crash"), State.DEAD)
    assert "died: killed by signal 11" in site.log()


def test_without_its_template_a_worker_goes_on(site: Site) -> None:
    worker = site.start(processes=1)
    template = template_of(worker, site)
    os.kill(template, signal.SIGKILL)
    (executor,) = site.executors(worker)
    os.kill(executor, signal.SIGKILL)
    until(lambda: site.executors(worker) not in ([], [executor]), "another executor")
    seen = result_of(site, "look")
    assert isinstance(seen, dict)
    assert seen["parent"] == worker.pid
    assert "the template of executors is gone" in site.log()
    worker.terminate()
    assert ends(worker, site) == 0


def test_a_frozen_template_delays_no_one_for_long(site: Site) -> None:
    worker = site.start(processes=1)
    template = template_of(worker, site)
    os.kill(template, signal.SIGSTOP)
    (executor,) = site.executors(worker)
    os.kill(executor, signal.SIGKILL)
    until(lambda: site.executors(worker) not in ([], [executor]), "another executor")
    assert result_of(site, "draw")
    assert not alive(template)
    worker.terminate()
    assert ends(worker, site) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_template_ends_with_its_worker(site: Site, number: signal.Signals) -> None:
    worker = site.start(processes=1)
    template = template_of(worker, site)
    (executor,) = site.executors(worker)
    worker.send_signal(number)
    ends(worker, site)
    until(lambda: not alive(template) and not alive(executor), "all to end")


def test_signals_to_the_whole_group_reach_only_the_supervisor(site: Site) -> None:
    worker = site.start(processes=1)
    template_of(worker, site)
    os.killpg(worker.pid, signal.SIGTERM)
    assert ends(worker, site) == 0
    assert "is gone" not in site.log()
    assert not re.search("died|killed", site.log())


def test_a_program_with_threads_does_not_fork() -> None:
    gate = threading.Event()
    thread = threading.Thread(target=gate.wait)
    thread.start()
    assert not can_fork()
    gate.set()
    thread.join()
