"""`dray top`: its screens fit 80 by 24, its keys act, and it works in a real terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from shell import Shell

from dray.broker.actions import Pause
from dray.broker.verbs import QueueInfo
from dray.cli.top import Reader, Top
from dray.cli.top_view import VIEWS, Screen, Snapshot, lines, rates
from dray.documents.worker_registry import ExecutorInfo, WorkerInfo
from dray.history.broker_view import ErrorGroup
from dray.info import JobInfo
from dray.job import State

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def a_job(number: int, **more: object) -> JobInfo:
    given = {
        "id": f"default:{number:032x}",
        "task": "email.send_a_rather_long_name",
        "queue": "default",
        "priority": 5,
        "status": State.DEAD,
        "attempt": 1,
        "args": (number,),
        "kwargs": {},
        "created_at": NOW,
        "updated_at": NOW,
    }
    return JobInfo(**given | more)  # type: ignore[arg-type]


def snapshot(**more: object) -> Snapshot:
    queues = [
        QueueInfo(name=f"queue-{number}", counts={State.READY: number * 1000, State.DEAD: 3})
        for number in range(50)
    ]
    queues[0] = QueueInfo(name="queue-0", counts={}, paused=Pause(by="me"))
    executor = ExecutorInfo(number=1, pid=1, session="s", running=3, slots=32)
    worker = WorkerInfo(id="host-1-abcdef", host="h", pid=1, started=0, seen=0, executors=(executor,))
    group = ErrorGroup(
        fingerprint="f" * 16,
        task="email.send",
        queues=["default"],
        type="ValueError",
        message="x" * 300,
        count=1234,
        first_seen=NOW,
        last_seen=NOW,
        last_job="default:1",
        hours=[0, 1, 5] * 8,
    )
    given: dict[str, object] = {
        "at": 10.0,
        "queues": queues,
        "workers": [worker],
        "jobs": [a_job(number) for number in range(60)],
        "errors": [group],
        "runs": 1500,
        "failed": 50,
    }
    return Snapshot(**given | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 60), (40, 10)])
@pytest.mark.parametrize("view", [*VIEWS, "job"])
def test_every_screen_fits_its_terminal(view: str, width: int, height: int) -> None:
    job = a_job(7, description="line\n" * 100)
    screen = Screen(view=view, job=job.id)  # type: ignore[arg-type]
    found = lines(screen, snapshot(job=job, why="it is dead"), None, "shop", width, height)
    assert len(found) == height
    assert max(map(len, found)) <= width


def test_the_sums_and_rates_are_shown() -> None:
    before = snapshot(at=5.0, runs=1000, failed=45)
    assert rates(snapshot(), before) == (100.0, 1.0)
    assert rates(snapshot(), None) == (0.0, 0.0)
    assert rates(snapshot(runs=0), before)[0] == 0.0, "statistics began anew"
    first = lines(Screen(), snapshot(), before, "shop", 120, 24)[0]
    assert "shop" in first
    assert "running 3/32" in first
    assert "100.0 runs/s" in first


def test_the_selected_row_stays_on_the_screen() -> None:
    found = lines(Screen(row=49), snapshot(), None, "shop", 80, 24)
    assert any(line.startswith("> queue-49") for line in found)
    assert not any("queue-0 " in line for line in found)


def test_text_of_jobs_cannot_act_on_the_terminal() -> None:
    evil = a_job(1, task="\x1b[2Jx", description="\x1b]0;title\x07")
    for view in ("jobs", "job"):
        screen = Screen(view=view, job=evil.id)
        shown = "\n".join(lines(screen, snapshot(jobs=[evil], job=evil), None, "s", 80, 24))
        assert "\x1b" not in shown
        assert "\x07" not in shown


def test_an_outage_is_said_and_the_rest_stays() -> None:
    found = lines(Screen(), snapshot(away="gone fishing"), None, "shop", 80, 24)
    assert any("does not answer: gone fishing" in line for line in found)
    assert any("queue-1" in line for line in found)


# keys


@pytest.fixture
def top(shell: Shell) -> Iterator[Top]:
    """A view of a broker with a ready and a dead job, not drawn."""
    shell.enqueue("add", 1)
    shell.finish(shell.enqueue("boom"))
    app = shell.app()
    found = Top(app, 1.0)
    read(found)
    yield found
    app.close()


def where(top: Top) -> tuple[str, str | None]:
    return top.screen.view, top.screen.queue


def paused(top: Top) -> bool:
    return top.reader.now.queues[0].paused is not None


def read(top: Top) -> None:
    top.reader.now = top.reader._read()


def press(top: Top, *keys: str) -> None:
    for key in keys:
        assert top.answer(key)
        read(top)


def test_keys_lead_from_a_queue_to_a_job_and_back(top: Top) -> None:
    press(top, "enter")
    assert where(top) == ("jobs", "default")
    press(top, "enter")
    assert where(top) == ("job", "default")
    assert top.reader.now.job is not None
    shown = "\n".join(lines(top.screen, top.reader.now, None, "shop", 80, 24))
    assert f"id:          {top.screen.job}" in shown
    press(top, "back")
    assert where(top) == ("jobs", "default")
    press(top, "back")
    assert where(top) == ("queues", None)
    assert not top.answer("q")


def test_tabs_numbers_and_rows(top: Top) -> None:
    for view in ("workers", "jobs", "errors", "queues"):
        press(top, "tab")
        assert top.screen.view == view
    press(top, "3", "down", "down", "down")
    assert top.screen.row == 1, "there are two jobs"
    press(top, "pageup")
    assert top.screen.row == 0
    press(top, "f")
    assert top.screen.state is State.READY
    assert [job.status for job in top.reader.now.jobs] == [State.READY]


def test_an_error_leads_to_its_last_job(top: Top) -> None:
    press(top, "4", "enter")
    assert top.screen.view == "job"
    assert top.reader.now.job is not None
    assert top.reader.now.job.status is State.DEAD


def test_changes_are_made_only_after_a_yes(top: Top) -> None:
    press(top, "p")
    assert top.screen.asking == "pause default"
    press(top, "n")
    assert not paused(top)
    press(top, "p", "y")
    assert paused(top)
    press(top, "p", "y")
    assert not paused(top)
    assert top.screen.message == "resume default: done"


def test_a_job_is_cancelled_and_another_retried(top: Top) -> None:
    press(top, "3", "f")
    waiting = top.reader.now.jobs[0].id
    press(top, "c", "y")
    assert top._app.job(waiting).status() == "cancelled"
    dead = top._app.dead.list()[0].id
    top._open_job(dead)
    press(top, "r", "y")
    assert top._app.job(dead).status() == "ready"
    press(top, "r", "y")
    assert top.screen.message.startswith(f"retry {dead}: ")
    assert "done" not in top.screen.message


def test_the_reader_goes_on_when_the_broker_does_not_answer(
    top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Reader(top._app, top.screen, 0.2)
    monkeypatch.setattr(reader, "_read", lambda: (_ for _ in ()).throw(OSError("no route")))
    reader.start()
    assert reader.changed.wait(10)
    reader.stop()
    assert reader.now.away == "no route"


# a real terminal


def test_without_a_terminal_it_says_what_to_use_instead(shell: Shell) -> None:
    ended = shell.spawn("top", code=1)
    assert "needs a terminal" in ended.err
    assert "dray queues ls" in ended.err


class Terminal:
    """A command on a terminal of 80 by 24, and what it has drawn so far."""

    def __init__(self, folder: Path, environ: dict[str, str], *command: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dray", *command],
            cwd=folder,
            env=environ | {"TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        self._theirs, self.drawn = theirs, ""

    def until(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.plain():
            assert time.monotonic() < deadline, f"{text!r} is not in {self.plain()[-3000:]}"
            if select.select([self._ours], [], [], 0.2)[0]:
                self.drawn += os.read(self._ours, 65536).decode(errors="replace")

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.drawn)

    def press(self, keys: str) -> None:
        self.drawn = ""
        os.write(self._ours, keys.encode())

    def echoes(self) -> bool:
        return bool(termios.tcgetattr(self._theirs)[3] & termios.ECHO)

    def end(self) -> int:
        deadline = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if select.select([self._ours], [], [], 0.1)[0]:
                    self.drawn += os.read(self._ours, 65536).decode(errors="replace")
        return self.process.wait(1)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@pytest.fixture
def terminal(shell: Shell) -> Iterator[Terminal]:
    shell.enqueue("add", 1)
    found = Terminal(
        shell.folder, shell.environ | {"DRAY_APP": f"{shell.module}:app"}, "top", "--interval", "0.3"
    )
    yield found
    found.close()


def test_it_draws_itself_answers_keys_and_leaves_the_terminal_as_it_was(
    terminal: Terminal, shell: Shell
) -> None:
    terminal.until("dray shop  ready 1")
    assert not terminal.echoes()
    terminal.press("\t")
    terminal.until("[workers]")
    terminal.press("1")
    terminal.until("> default")
    terminal.press("p")
    terminal.until("pause default? y")
    terminal.press("y")
    terminal.until("pause default: done")
    app = shell.app()
    assert app.queues.list()[0].paused is not None
    app.close()
    terminal.press("\r")
    terminal.until("queue default")
    terminal.press("\x1b")
    terminal.until("[queues]")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.echoes()
    assert "\x1b[?1049l" in terminal.drawn, "the screen before it is back"


def test_ctrl_c_ends_it(terminal: Terminal) -> None:
    terminal.until("dray shop")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.end() == 130
    assert terminal.echoes()
