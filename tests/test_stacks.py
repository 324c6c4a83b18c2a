"""Naming the task that holds everybody up, from what faulthandler wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dray.worker.supervisor.stalls import find_culprit, find_task, read_stacks

APP = """\
import time

def shop_task(f): return f

def around(call):
    return call()

@shop_task
def resize():
    spin()

def spin():
    time.sleep(100)

def after(call):
    return call()
"""
TASKS_LINE = 8

PROGRAM = """
import faulthandler, sys, threading, time
sys.path.insert(0, sys.argv[1])
import shop
{start}
time.sleep(0.3)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    file = tmp_path / "shop.py"
    file.write_text(APP)
    return file


def dump_of(app: Path, program: str) -> str:
    """What faulthandler writes of a program that is in the middle of something."""
    start = (
        "import faulthandler; faulthandler.dump_traceback_later(0.3, exit=True, file=sys.stdout)\n" + program
    )
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(start=start), str(app.parent)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def test_the_task_that_blocks_the_main_thread_is_named(app: Path) -> None:
    stacks = read_stacks(dump_of(app, "shop.resize()"))
    culprit = find_culprit(stacks, {"resize": (str(app), TASKS_LINE)})
    assert culprit is not None
    assert culprit.task == "resize"
    assert [frame.function for frame in culprit.stack.frames] == ["spin", "resize"]


@pytest.mark.parametrize("wrapper", ["around", "after"])
def test_code_around_a_task_in_the_same_file_is_not_taken_for_it(app: Path, wrapper: str) -> None:
    stacks = read_stacks(dump_of(app, f"shop.{wrapper}(lambda: time.sleep(100))"))
    culprit = find_culprit(stacks, {"resize": (str(app), TASKS_LINE)})
    assert culprit is not None
    assert culprit.task is None
    stacks = read_stacks(dump_of(app, f"shop.{wrapper}(shop.resize)"))
    culprit = find_culprit(stacks, {"resize": (str(app), TASKS_LINE)})
    assert culprit is not None
    assert culprit.task == "resize"


THREADED = """
def select():
    import select as system
    system.select([], [], [], 100)
threading.Thread(target=shop.resize, daemon=True).start()
select()
"""


def test_a_thread_is_blamed_when_the_main_thread_only_waits(app: Path) -> None:
    tasks = {"resize": (str(app), TASKS_LINE), "other": ("/nowhere.py", 1)}
    stacks = read_stacks(dump_of(app, THREADED))
    assert len(stacks) >= 2
    culprit = find_culprit(stacks, tasks)
    assert culprit is not None
    assert culprit.task == "resize"
    assert [one.task for one in find_task(stacks, tasks, frozenset({"resize"}))] == ["resize"]
    assert find_task(stacks, tasks, frozenset({"other"})) == []


def test_without_the_source_the_nearest_task_above_is_named(tmp_path: Path) -> None:
    dump = 'Current thread 0x01 (most recent call first):\n  File "/gone.py", line 12 in f\n'
    culprit = find_culprit(
        read_stacks(dump), {"a": ("/gone.py", 3), "b": ("/gone.py", 10), "c": ("/gone.py", 20)}
    )
    assert culprit is not None
    assert culprit.task == "b"


def test_names_of_threads_and_odd_lines_are_read() -> None:
    dump = (
        "noise\n"
        "Thread 0x0000abcd [dray-3] (most recent call first):\n"
        '  File "/a b.py", line 5 in <lambda>\n'
        "  ...\n\n"
        "Thread 0x0000abce (most recent call first):\n"
        "  <no Python frame>\n"
    )
    first, second = read_stacks(dump)
    assert first.thread == "dray-3"
    assert str(first) == '    File "/a b.py", line 5 in <lambda>'
    assert second.frames == ()


def test_nothing_is_made_of_nothing() -> None:
    assert read_stacks("") == []
    assert find_culprit([], {}) is None
