"""The tour, taken for real: it ends well, its numbers agree, and nothing of it is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dray.broker import connect
from dray.broker.actions import Query
from dray.demo.monitor import DemoEvent
from dray.demo.summary import Facts, run_checks

MARK = "TOUR_OF_TEST"
"""An environment variable that every process of a tour inherits, so that none can hide."""
MOST = 60
"""Seconds that a tour may take, start-up included."""
TABLE = "TASK        JOBS"


class Tour:
    """Where one tour is taken: in an empty folder, with a temporary folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.scratch = folder / "here", folder / "scratch"
        self.folder.mkdir()
        self.scratch.mkdir()
        self.mark = secrets.token_hex(8)
        self.environment = {
            **os.environ,
            "TMPDIR": str(self.scratch),
            MARK: self.mark,
            "PYTHONUNBUFFERED": "1",
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "dray", *words]

    def take(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command("demo", *words),
            cwd=self.folder,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=2 * MOST,
        )

    @contextlib.contextmanager
    def begun(self, *words: str, **how: Any) -> Iterator[subprocess.Popen[bytes]]:
        """A tour that goes on; killed if the test fails."""
        with subprocess.Popen(
            self.command("demo", *words), cwd=self.folder, env=self.environment, **how
        ) as tour:
            try:
                yield tour
            finally:
                tour.kill()

    def processes(self) -> list[int]:
        """Every process of this tour that is alive."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.processes() == []
        assert list(self.scratch.iterdir()) == []
        assert list(self.folder.iterdir()) == []


class Kept(NamedTuple):
    tour: Tour
    result: dict[str, Any]


class Tampered(Facts):
    """The facts of a demo whose folder was kept, for tests to change."""

    @staticmethod
    async def read(kept: Kept) -> Tampered:
        broker = await connect(kept.result["broker"], "demo")
        try:
            records = (await broker.find(Query(), limit=1000)).records
            feed = await broker.events({}, limit=10_000)
            return Tampered(
                calls=len(records),
                accepted={record.id for record in records},
                results=[n * n for n in range(1, sum(record.job.task == "price" for record in records) + 1)],
                replaced=2,
                exit_code=0,
                events=[
                    DemoEvent(event.kind, event.id, event.run, entry.at)
                    for entry in feed.entries
                    for event in entry.events
                ],
                records=records,
                audit=await broker.audit(),
            )
        finally:
            await broker.close()

    def failed_checks(self) -> list[str]:
        return [what for what, ok in run_checks(self).items() if not ok]

    def last(self, kind: str) -> DemoEvent:
        return [event for event in self.events if event.kind == kind][-1]

    def earlier(self, kind: str, id: str) -> None:
        place = self._place(kind, id)
        self.events[place] = self.events[place]._replace(at=0)

    def swap(self, kind: str, one: str, other: str) -> None:
        here, there = self._place(kind, one), self._place(kind, other)
        self.events[here], self.events[there] = self.events[there], self.events[here]

    def _place(self, kind: str, id: str) -> int:
        return [(event.kind, event.id) for event in self.events].index((kind, id))


@pytest.fixture
def tour(tmp_path: Path) -> Tour:
    return Tour(tmp_path)


def read_until(handle: int, wanted: bytes) -> bytes:
    """What comes out of a pipe or terminal until some words were said."""
    said, deadline = b"", time.monotonic() + MOST
    while wanted not in said:
        left = deadline - time.monotonic()
        assert left > 0, said.decode()
        if select.select([handle], [], [], left)[0]:
            new = os.read(handle, 65536)
            assert new, said.decode()
            said += new
    return said


def read_to_end(handle: int) -> bytes:
    said = b""
    with contextlib.suppress(OSError):  # a terminal whose other side is closed
        while new := os.read(handle, 65536):
            said += new
    return said


def test_without_a_terminal_it_tells_its_story_in_plain_lines_and_leaves_nothing(tour: Tour) -> None:
    began = time.monotonic()
    done = tour.take()
    assert done.returncode == 0, done.stdout + done.stderr
    assert time.monotonic() - began < MOST
    assert done.stderr == ""
    assert not re.search(r"[^\n\x20-\x7e]", done.stdout)
    story, table = done.stdout.split(TABLE)
    lines = story.splitlines()
    assert [line for line in lines if line and not re.match(r" *\d+\.\ds  [a-z]+ ", line)] == []
    assert {line.split()[1] for line in lines if line} >= {
        *("put", "worker", "retry", "dead", "cancel", "crash", "kill", "done", "progress", "result")
    }
    assert max(len(line) for line in done.stdout.splitlines() if "/" not in line) <= 110
    assert "Every job accounted for" in table
    assert "What to try next" in table
    tour.assert_nothing_is_left()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A tour whose folder was kept, and what it told."""
    tour = Tour(tmp_path_factory.mktemp("kept"))
    done = tour.take("--keep", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert tour.processes() == []
    return Kept(tour, json.loads(done.stdout))


def test_its_numbers_agree_with_each_other(kept: Kept) -> None:
    result = kept.result
    assert result["ok"] is True
    assert all(check["ok"] for check in result["checks"])
    assert result["calls"] - result["duplicates"] == result["accepted"] == sum(result["states"].values())
    assert result["accepted"] == sum(row["jobs"] for row in result["rows"])
    assert result["runs"] == sum(row["runs"] for row in result["rows"])
    for state, count in result["states"].items():
        assert count == sum(row["states"].get(state, 0) for row in result["rows"])
    # Every run ended in one way: well, with an error, with its process, or because it was told to stop.
    stopped = sum(row["states"].get("cancelled", 0) for row in result["rows"] if row["runs"])
    assert result["runs"] == result["states"]["succeeded"] + result["failed"] + result["lost"] + stopped
    assert result["lost"] >= 2
    assert result["replaced"] >= 2


def test_its_numbers_are_those_of_the_broker(kept: Kept) -> None:
    listing = kept.tour.command("jobs", "ls", "--broker", kept.result["broker"], "--json", "--limit", "1000")
    jobs = json.loads(subprocess.check_output(listing, cwd=kept.tour.folder, timeout=MOST))
    assert len(jobs) == kept.result["accepted"]
    assert Counter(job["status"] for job in jobs) == kept.result["states"]
    assert sum(job["runs"] for job in jobs) == kept.result["runs"]


@pytest.mark.parametrize(
    ("tamper", "noticed"),
    [
        (
            lambda facts: facts.accepted.add("order-99"),
            "every accepted job is in the broker, and no other",
        ),
        (lambda facts: facts.events.append(facts.last("succeeded")), "no job ended twice"),
        (lambda facts: facts.earlier("taken", "reminder-1"), "nothing delayed started early"),
        (lambda facts: facts.swap("taken", "order-1", "thumbnail-1"), "high priority went first"),
        (lambda facts: facts.results.reverse(), "results came back in order"),
        (lambda facts: setattr(facts, "exit_code", -9), "the worker ended in good order"),
    ],
)
def test_a_summary_notices_what_did_not_go_as_it_must(
    kept: Kept, tamper: Callable[[Tampered], None], noticed: str
) -> None:
    facts = asyncio.run(Tampered.read(kept))
    assert facts.failed_checks() == []
    tamper(facts)
    assert facts.failed_checks() == [noticed]


def test_nobodys_settings_get_in_its_way(tour: Tour) -> None:
    (tour.folder / "dray.toml").write_text('broker_url = "redis://nowhere.invalid"\nnonsense = 1\n')
    done = tour.take("--json", DRAY_BROKER_URL="memory://", DRAY_APP="no.such:app", DRAY_QUEUES="other")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    assert json.loads(done.stdout)["folder"] is None
    (tour.folder / "dray.toml").unlink()
    tour.assert_nothing_is_left()


def test_the_commands_it_names_work_in_the_folder_it_kept(kept: Kept, tmp_path: Path) -> None:
    assert Path(kept.result["folder"]).parent == kept.tour.scratch
    folder = shutil.copytree(kept.result["folder"], tmp_path / "copy")  # they change it, and others read it
    for command in kept.result["next"]:
        ran = subprocess.run(
            shlex.split(command),
            cwd=folder,
            env=kept.tour.environment,
            capture_output=True,
            text=True,
            timeout=MOST,
        )
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        assert ran.stdout


def _on_terminal(
    tour: Tour, columns: int, *words: str, **environment: str
) -> tuple[int, subprocess.Popen[bytes]]:
    """A tour on a terminal of its own; our end of it, and the process."""
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    process = subprocess.Popen(
        tour.command("demo", *words),
        cwd=tour.folder,
        env={**tour.environment, "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    return ours, process


def _unstyled(said: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode(errors="replace")).replace("\r", "")


def test_a_narrow_terminal_without_colours_shows_bars_and_a_table(tour: Tour) -> None:
    ours, process = _on_terminal(tour, 40, NO_COLOR="1")
    said = read_to_end(ours)
    os.close(ours)
    assert process.wait(MOST) == 0, _unstyled(said)
    assert not re.search(rb"\x1b\[[0-9;]*[34][0-9](;[0-9;]*)?m", said)
    assert said.rstrip().rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l")  # the cursor is back
    text = _unstyled(said)
    assert re.search(r"running +[━╸╺ ]+ +[1-8]\n", text)
    closing = text[text.rindex("WHAT IT") :].split("What to try next")[0]
    assert max(map(len, closing.splitlines())) <= 80  # all but the last column stay whole, that one is folded
    tour.assert_nothing_is_left()


def test_ctrl_c_on_a_terminal_ends_it_and_cleans_up(tour: Tour) -> None:
    ours, process = _on_terminal(tour, 100)
    said = read_until(ours, b"at work")
    os.write(ours, b"\x03")
    said += read_to_end(ours)
    os.close(ours)
    assert process.wait(MOST) == 128 + signal.SIGINT, _unstyled(said)
    assert "the demo was stopped by SIGINT" in _unstyled(said)
    assert b"Traceback" not in said
    assert said.rfind(b"\x1b[?25h") > said.rfind(b"\x1b[?25l")
    tour.assert_nothing_is_left()


@pytest.mark.parametrize("moment", ["thumbnails in", "at work", "kill -9"])
def test_a_signal_at_any_moment_ends_it_and_cleans_up(tour: Tour, moment: str) -> None:
    with tour.begun(stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        read_until(process.stdout.fileno(), moment.encode())
        process.send_signal(signal.SIGTERM)
        said = process.stdout.read().decode()
        assert process.wait(MOST) == 128 + signal.SIGTERM, said
    assert "the demo was stopped by SIGTERM" in said
    assert "Traceback" not in said
    tour.assert_nothing_is_left()


def test_a_worker_that_cannot_start_fails_it_with_the_workers_own_words(tour: Tour, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if 'worker' in sys.orig_argv:\n"
        "    print('there is no room for a worker here', flush=True)\n"
        "    os._exit(7)\n"
    )
    done = tour.take(PYTHONPATH=str(planted))
    assert done.returncode == 1
    assert "the worker ended by itself, with exit code 7" in done.stderr
    assert "there is no room for a worker here" in done.stderr
    assert "Traceback" not in done.stderr
    tour.assert_nothing_is_left()
