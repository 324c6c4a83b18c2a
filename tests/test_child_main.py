"""Jobs in child processes: they can be killed, they can crash, and nobody else is hurt."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from workshop import Ends, Host, judge_of, live_of, run, until

from dray.app import App
from dray.job import Outcome, OutcomeKind
from dray.loading import load_app
from dray.worker.run import child_pool as module
from dray.worker.run.child_pool import ChildPool
from dray.worker.run.child_process import how_it_ended, spawner
from dray.worker.run.run_state import RunState, StopReason

TASKS = """
import asyncio, ctypes, os, pathlib, subprocess, sys, time
from dray.app import App
from dray.context import Context, Reject

app = App("{name}", broker="memory://")

@app.lifespan
async def resources():
    pathlib.Path("{folder}/lifespans").open("a").write("x")
    yield "the state"

@app.task
def who(ctx: Context):
    return os.getpid(), ctx.state, ctx.attempt

@app.task
async def who_async(ctx: Context):
    return os.getpid(), ctx.state, ctx.attempt

@app.task
def reject():
    raise Reject("not ours")

@app.task
def fail():
    raise ValueError("no")

@app.task
def leave():
    sys.exit(5)

@app.task
def exit_now(code: int):
    os._exit(code)

@app.task
def segfault():
    ctypes.string_at(0)

@app.task
def abort():
    os.abort()

@app.task
def sleep_in_c(seconds: float):
    time.sleep(seconds)

@app.task
async def sleep(seconds: float):
    await asyncio.sleep(seconds)

@app.task
async def block(seconds: float):
    time.sleep(seconds)

@app.task
def polite(ctx: Context):
    while True:
        ctx.check()
        time.sleep(0.01)

@app.task
def say(ctx: Context):
    for n in range(3):
        ctx.progress(n, 3, "step")
    ctx.heartbeat()
    with ctx._running.waiting():
        pass
    return "said"

@app.task
def grandchild():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    pathlib.Path("{folder}/grandchild").write_text(str(process.pid))
    time.sleep(60)

@app.task
def fork_and_leave():
    if os.fork() == 0:
        time.sleep(3)
        os._exit(0)
    os._exit(4)

@app.task
def large(size: int):
    return "x" * size

@app.task
def odd():
    return object()

@app.task
def shut():
    os.closerange(3, 64)
    time.sleep(60)
"""


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        # A zombie that nobody reaps in this container counts as gone.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Nursery:
    """Children of this process, with the app in a folder of its own."""

    def __init__(self, app: App, path: str, folder: Path) -> None:
        self.app, self.folder, self.host, self.ends = app, folder, Host(app), Ends()
        self.children = ChildPool(judge_of(app), spawner(path, app.settings, folder))

    def start(self, name: str, *args: Any, **fields: Any) -> RunState:
        live = live_of(self.app, name, *args, host=self.host, **fields)
        self.children.start(live, self.ends)
        return live

    async def outcome(self, name: str, *args: Any, **fields: Any) -> Outcome:
        return await self.ends.of(self.start(name, *args, **fields))

    async def value(self, name: str, *args: Any) -> Any:
        outcome = await self.outcome(name, *args)
        assert outcome.result is not None, outcome
        return self.app.codecs.decode_value(outcome.result)

    async def begun(self, live: RunState) -> None:
        run = self.children._runs[live]
        await until(lambda: run.begun or run.child.over)
        await asyncio.sleep(0.1)

    def stop(self, live: RunState, why: StopReason, overdue: bool = False) -> None:
        live.stop_reason, live.cancelled, live.overdue = why, True, overdue
        self.children.stop(live)


def write_app(folder: Path, source: str = TASKS) -> str:
    # A name of its own: modules of tests before are still imported.
    name = f"tasks_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(
        source.replace("{name}", "t").replace("{folder}", str(folder)), encoding="utf-8"
    )
    return f"{name}:app"


@asynccontextmanager
async def nursery(folder: Path, source: str = TASKS, app: App | None = None) -> AsyncIterator[Nursery]:
    path = write_app(folder, source)
    found = app or load_app(path, folder)
    one = Nursery(found, path, folder)
    try:
        yield one
    finally:
        pids = [child.process.pid for child in one.children.children if child.process.pid]
        one.children.close()
        await until(lambda: all(map(gone, pids)))
        await until(lambda: not one.children.children)
        sys.path.remove(str(folder))


def test_a_job_runs_in_another_process_with_the_lifespans_state(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            pid, state, attempt = await one.value("who")
            assert pid != os.getpid()
            assert (state, attempt) == ("the state", 1)
            assert (await one.value("who_async"))[1] == "the state"

    run(main())


def test_a_child_is_kept_and_used_again_one_job_at_a_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            first = [await one.value("who") for _ in range(3)]
            assert len({pid for pid, _, _ in first}) == 1
            lives = [one.start("sleep_in_c", 0.3) for _ in range(2)]
            assert len(one.children.children) == 2
            for live in lives:
                assert (await one.ends.of(live)).kind is OutcomeKind.SUCCEEDED
            assert len(one.children._idle()) == 2
            assert (tmp_path / "lifespans").read_text() == "xx"

    run(main())


def test_an_idle_child_ends_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEEP_IDLE", 0.2)

    async def main() -> None:
        async with nursery(tmp_path) as one:
            pid, _, _ = await one.value("who")
            await until(lambda: gone(pid))
            await until(lambda: not one.children._idle())
            assert (await one.value("who"))[0] != pid

    run(main())


def test_a_child_that_died_in_its_sleep_is_not_the_next_jobs_fault(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            pid, _, _ = await one.value("who")
            os.kill(pid, signal.SIGKILL)
            while not gone(pid):
                time.sleep(0.001)  # without a turn of the event loop, which would notice
            assert len(one.children._idle()) == 1, "it was noticed already: this test shows nothing"
            assert (await one.value("who"))[0] != pid

    run(main())


def test_failures_follow_the_same_rules_as_everywhere(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            assert (await one.outcome("reject")).reason == "rejected: not ours"
            failed = await one.outcome("fail")
            assert failed.kind is OutcomeKind.RETRY
            assert failed.error is not None
            assert failed.error.type == "ValueError"
            assert "in fail" in failed.error.traceback
            assert (await one.outcome("fail", attempt=4)).kind is OutcomeKind.DEAD
            assert (await one.outcome("odd")).kind is OutcomeKind.DEAD
            left = await one.outcome("leave")
            assert left.kind is OutcomeKind.RETRY
            assert left.error is not None
            assert left.error.type == "SystemExit"

    run(main())


@pytest.mark.parametrize(
    ("task", "args", "words"),
    [
        ("exit_now", (3,), "its process ended with exit code 3"),
        ("exit_now", (0,), "its process ended with exit code 0"),
        ("segfault", (), "its process was killed by SIGSEGV"),
        ("abort", (), "its process was killed by SIGABRT"),
    ],
)
def test_a_crash_is_told_by_how_the_process_ended(
    tmp_path: Path, task: str, args: tuple[Any, ...], words: str
) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            other = one.start("sleep_in_c", 0.5)
            outcome = await one.outcome(task, *args)
            assert outcome.kind is OutcomeKind.CRASHED
            assert outcome.error is not None
            assert outcome.error.message == words
            assert (await one.ends.of(other)).kind is OutcomeKind.SUCCEEDED

    run(main())


def test_a_child_killed_from_outside_is_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            live = one.start("sleep_in_c", 60)
            await one.begun(live)
            os.kill(one.children._runs[live].child.process.pid, signal.SIGKILL)
            outcome = await one.ends.of(live)
            assert outcome.kind is OutcomeKind.CRASHED
            assert outcome.error is not None
            assert outcome.error.message.endswith("killed by SIGKILL")

    run(main())


@pytest.mark.parametrize("task", ["sleep_in_c", "sleep", "block"])
@pytest.mark.parametrize(
    ("why", "kind"),
    [
        (StopReason.TIMEOUT, OutcomeKind.RETRY),
        (StopReason.CANCELLED, OutcomeKind.CANCELLED),
        (StopReason.LEAVING, OutcomeKind.GIVE_BACK),
    ],
)
def test_whatever_it_does_it_is_stopped_within_moments(
    tmp_path: Path, task: str, why: StopReason, kind: OutcomeKind
) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            live = one.start(task, 60.0)
            await one.begun(live)
            began = time.monotonic()
            one.stop(live, why, overdue=why is StopReason.TIMEOUT)
            outcome = await one.ends.of(live)
            assert time.monotonic() - began < 10
            assert outcome.kind is kind
            if why is StopReason.TIMEOUT:
                assert outcome.error is not None
                assert outcome.error.type == "Timeout"

    run(main())


def test_a_forced_cancel_kills_at_once_also_when_it_was_asked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dray.worker.run.child_pool.KILL_AFTER", 1000.0)

    async def main() -> None:
        async with nursery(tmp_path) as one:
            for asked_before in (False, True):
                live = one.start("sleep_in_c", 60.0)
                await one.begun(live)
                if asked_before:
                    one.stop(live, StopReason.CANCELLED)
                live.forced = True
                one.stop(live, StopReason.CANCELLED)
                assert (await one.ends.of(live)).kind is OutcomeKind.CANCELLED

    run(main())


def test_a_job_that_listens_stops_without_being_killed(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            for task, args in (("polite", ()), ("sleep", (60.0,))):
                live = one.start(task, *args)
                await one.begun(live)
                one.stop(live, StopReason.CANCELLED)
                assert (await one.ends.of(live)).kind is OutcomeKind.CANCELLED
            assert len(one.children._idle()) == 1
            assert (await one.value("who"))[1] == "the state"

    run(main())


def test_a_job_that_is_stopped_before_its_child_is_ready_never_starts(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            live = one.start("exit_now", 3)
            one.stop(live, StopReason.CANCELLED)
            assert one.ends.outcomes[live].kind is OutcomeKind.CANCELLED
            assert (await one.value("who"))[1] == "the state"
            assert len(one.children._idle()) == 1

    run(main())


def test_what_a_killed_job_had_started_is_killed_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            live = one.start("grandchild")
            note = tmp_path / "grandchild"
            await until(lambda: note.exists() and note.read_text())
            one.stop(live, StopReason.TIMEOUT, overdue=True)
            await one.ends.of(live)
            await until(lambda: gone(int(note.read_text())))

    run(main())


def test_a_crash_is_noticed_though_a_fork_of_it_lives_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            began = time.monotonic()
            outcome = await one.outcome("fork_and_leave")
            assert outcome.error is not None
            assert outcome.error.message == "its process ended with exit code 4"
            assert time.monotonic() - began < 20

    run(main())


def test_a_child_that_closed_its_line_still_ends_with_its_timeout(tmp_path: Path) -> None:
    """Nobody can tell it from one that is busy, unless its event loop notices and aborts."""

    async def main() -> None:
        async with nursery(tmp_path) as one:
            live = one.start("shut")
            await one.begun(live)
            one.stop(live, StopReason.TIMEOUT, overdue=True)
            outcome = await one.ends.of(live)
            assert outcome.error is not None
            assert outcome.error.type in ("Timeout", "Crashed")

    run(main())


def test_progress_heartbeats_and_waiting_come_through(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            assert await one.value("say") == "said"
            assert [progress.done for progress in one.host.progress] == [0.0, 1.0, 2.0]
            assert one.host.beats == 1
            assert one.host.away == [True, False]

    run(main())


def test_large_results_come_through(tmp_path: Path) -> None:
    async def main() -> None:
        async with nursery(tmp_path) as one:
            assert len(await one.value("large", 1_000_000)) == 1_000_000
            assert (await one.outcome("large", 2_000_000)).kind is OutcomeKind.DEAD

    run(main())


@pytest.mark.parametrize(
    ("breakage", "words"),
    [
        ("raise RuntimeError('half an app')", "half an app"),
        ("import os; os._exit(9)", "exit code 9"),
        ("import sys; sys.exit(1)", "SystemExit"),
    ],
)
def test_a_child_that_cannot_start_is_a_failure_and_not_a_crash(
    tmp_path: Path, breakage: str, words: str
) -> None:
    async def main() -> None:
        app = load_app(write_app(tmp_path), tmp_path)
        broken = f"{breakage}\n{TASKS}"
        async with nursery(tmp_path, broken, app) as one:
            outcome = await one.outcome("who")
            assert outcome.kind is OutcomeKind.RETRY
            assert outcome.error is not None
            assert outcome.error.type == "NotStarted"
            assert words in outcome.error.message

    run(main())


@pytest.mark.parametrize(("kills", "kind"), [(2, OutcomeKind.SUCCEEDED), (9, OutcomeKind.RETRY)])
def test_a_child_that_is_killed_while_it_starts_costs_its_job_no_attempt_unless_it_goes_on_so(
    tmp_path: Path, kills: int, kind: OutcomeKind
) -> None:
    deadly = f"""
import os, signal
with open({str(tmp_path / "starts")!r}, "a+") as starts:
    starts.write("x")
    starts.flush()
    starts.seek(0)
    if len(starts.read()) <= {kills}:
        os.kill(os.getpid(), signal.SIGKILL)
"""

    async def main() -> None:
        app = load_app(write_app(tmp_path), tmp_path)
        async with nursery(tmp_path, f"{deadly}\n{TASKS}", app) as one:
            assert (await one.outcome("who")).kind is kind

    run(main())
    assert len((tmp_path / "starts").read_text()) == (kills + 1 if kind is OutcomeKind.SUCCEEDED else 4)


def test_a_lifespan_that_fails_in_the_child_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        app = load_app(write_app(tmp_path), tmp_path)
        broken = TASKS.replace('yield "the state"', 'raise OSError("no such database")\n    yield')
        async with nursery(tmp_path, broken, app) as one:
            outcome = await one.outcome("who")
            assert outcome.error is not None
            assert "no such database" in outcome.error.message

    run(main())


PARENT = """
import asyncio, os, pathlib, sys
sys.path[:0] = ["{tests}", "{folder}"]
from workshop import Ends, judge_of, live_of
from dray.loading import load_app
from dray.worker.run.child_pool import ChildPool
from dray.worker.run.child_process import spawner

async def main():
    app = load_app("{path}", pathlib.Path("{folder}"))
    children = ChildPool(judge_of(app), spawner("{path}", app.settings, pathlib.Path("{folder}")))
    for task in ("sleep_in_c", "block"):
        children.start(live_of(app, task, 60.0), Ends())
    while not all(run.begun for run in children._runs.values()):
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    print(*[child.process.pid for child in children.children], flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_children_die_with_their_executor_whatever_they_do(tmp_path: Path) -> None:
    path = write_app(tmp_path)
    source = PARENT.format(tests=Path(__file__).parent, folder=tmp_path, path=path)
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        parent.kill()
        parent.communicate()
    run(until(lambda: all(map(gone, pids))))


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "ended with exit code 3"),
        (-11, "was killed by SIGSEGV"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
        (None, "is gone"),
    ],
)
def test_ends_have_names(code: int | None, words: str) -> None:
    assert how_it_ended(code) == words
