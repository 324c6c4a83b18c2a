"""Signals to a worker that is still starting: it ends in good order, whenever they come."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from crew import until

from dray.early_signals import signals_of

APP = """
import time
from pathlib import Path
from dray import App

app = App("shop")
Path("imported").touch()
time.sleep({seconds})
"""
STOPS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP.format(seconds=0))
    (tmp_path / "dray.toml").write_text('app = "shop:app"\n')
    return tmp_path


# As Python runs a module: what it imports first says when it has begun, and waits to be told to go on.
PAUSED = """
import pathlib, runpy, sys, time
class Pause:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            pathlib.Path("paused").touch()
            while not pathlib.Path("go on").exists():
                time.sleep(0.01)
sys.meta_path.insert(0, Pause())
sys.argv = ["dray", "worker", "-p", "1"]
from dray.cli import main
sys.exit(main())
"""


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(worker: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        out, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
    return worker.returncode, out


@pytest.mark.parametrize("number", STOPS)
@pytest.mark.parametrize("module", ["dray.errors", "click", "dray.worker.supervisor.supervisor"])
def test_a_stop_while_it_imports_is_an_orderly_end(folder: Path, module: str, number: signal.Signals) -> None:
    worker = start(folder, "-c", PAUSED.format(module=module))
    until((folder / "paused").exists, "the import")
    worker.send_signal(number)
    assert ended(worker) == (0, "")


@pytest.mark.parametrize("module", ["dray.errors", "dray.worker.supervisor.supervisor"])
def test_a_hang_up_while_it_imports_does_not_end_it(folder: Path, module: str) -> None:
    worker = start(folder, "-c", PAUSED.format(module=module))
    until((folder / "paused").exists, "the import")
    worker.send_signal(signal.SIGHUP)
    (folder / "go on").touch()
    until((folder / "imported").exists, "the app to be imported")
    worker.send_signal(signal.SIGTERM)
    code, out = ended(worker)
    assert code == 0, out


def test_a_stop_while_the_app_is_imported_ends_that_too(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.format(seconds=600))
    worker = start(folder, "-m", "dray", "worker")
    until((folder / "imported").exists, "the app to be imported")
    probe = children(worker.pid)
    assert probe
    worker.send_signal(signal.SIGTERM)
    assert ended(worker) == (0, "")
    until(lambda: not any(map(alive, probe)), "it to end")


def test_a_worker_that_is_killed_while_the_app_is_imported_leaves_nobody_who_complains(folder: Path) -> None:
    (folder / "shop.py").write_text(APP.format(seconds=600))
    worker = start(folder, "-m", "dray", "worker")
    until((folder / "imported").exists, "the app to be imported")
    probe = children(worker.pid)
    worker.kill()
    assert ended(worker) == (-signal.SIGKILL, "")
    until(lambda: not any(map(alive, probe)), "it to end")


def test_an_answer_that_nobody_waits_for_is_no_error(folder: Path) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    command = [sys.executable, "-m", "dray.cli.inspect_app", "shop:app", str(theirs), str(os.getpid())]
    probe = subprocess.run(
        command, cwd=folder, pass_fds=(theirs,), capture_output=True, text=True, check=False
    )
    os.close(theirs)
    assert (probe.returncode, probe.stderr) == (0, "")


def test_a_worker_ends_well_whenever_it_is_told_to_stop(folder: Path) -> None:
    """From when Python has begun to import dray; what is before that is not ours."""
    for milliseconds in range(150, 1500, 150):
        worker = start(folder, "-X", "importtime", "-m", "dray", "worker", "-p", "1")
        assert worker.stdout is not None
        while "dray.early_signals" not in (line := worker.stdout.readline()):
            assert line, "it has ended"
        time.sleep(milliseconds / 1000)  # any moment is as good as another
        worker.send_signal(signal.SIGTERM)
        code, out = ended(worker)
        assert code == 0, f"after {milliseconds} ms:\n{out[-2000:]}"
        assert "Traceback" not in out


@pytest.mark.parametrize(
    ("argv", "original", "signals"),
    [
        (["/usr/bin/dray", "worker"], [], 3),
        (["dray", "-A", "shop:app", "scheduler"], [], 3),
        (["-m", "worker"], ["python", "-m", "dray", "worker"], 3),
        (["dray", "server"], [], 1),
        (["dray", "jobs", "ls"], [], 0),
        (["-m", "worker"], ["python", "-m", "celery", "worker"], 0),
        (["manage.py", "worker"], [], 0),
        ([], [], 0),
    ],
)
def test_only_commands_of_dray_that_run_on_heed_signals(
    argv: list[str], original: list[str], signals: int
) -> None:
    assert len(signals_of(argv, original)) == signals


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
