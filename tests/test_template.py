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
from typing import Any

import pytest
from crew import until
from test_worker_processes import Site, alive, ends

from dray.job import State
from dray.worker.process import can_fork

PIPES: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere executors are spawned")

APP = """
import logging, os, sys, threading
import multiprocessing
from pathlib import Path
from typing import Any
from dray import App

HANDLERS, THREADS = list(logging.getLogger().handlers), threading.active_count()
app = App("shop", broker={url!r})


def open_files():
    for fd in os.listdir("/proc/self/fd"):
        try:
            yield os.readlink(f"/proc/self/fd/{{fd}}")
        except FileNotFoundError:  # that of the listing itself
            pass


@app.task
def look() -> dict[str, object]:
    return {{
        "parent": os.getppid(),
        "files": sorted(open_files()),
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


def test_an_idle_worker_needs_little_more_than_its_imports_once(site: Site) -> None:
    worker = site.start(processes=2)
    site.at_work(2)
    tree = [worker.pid]
    for pid in tree:  # grows while it is walked
        tree += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    assert len(tree) == 4
    with subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], **PIPES) as bare:
        assert bare.stdout is not None
        bare.stdout.readline()
        alone = memory_of(bare.pid)
        bare.communicate(b"\n")
    assert sum(map(memory_of, tree)) < 20 * alone  # 15 as of now; 25 if every process imports for itself


def memory_of(pid: int) -> int:
    """Memory that is not that of files; shared pages are divided among those that share them."""
    found = re.search(r"^Pss_Anon: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1])
