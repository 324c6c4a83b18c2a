"""`dray worker`, `dray scheduler` and `dray bench`: real processes on the embedded broker."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shell import Shell


@contextmanager
def started(shell: Shell, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A worker that runs until it is stopped."""
    child = subprocess.Popen(
        [sys.executable, "-m", "dray", *args],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def until(shell: Shell, id: str, status: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while shell.json("jobs", "show", id)["status"] != status:
        assert time.monotonic() < deadline, shell.run("why", id)
        time.sleep(0.05)


def test_an_app_without_tasks_is_warned_about(shell: Shell) -> None:
    (shell.folder / "bare.py").write_text("from dray import App\napp = App('bare')\n")
    ended = shell.spawn("worker", "-A", "bare:app", "-p", "1", "--burst")
    assert "warning: bare:app has no tasks, so its workers run no job at all" in ended.err
    assert "autodiscover" in ended.err
    assert "imports" in ended.err
    (finding,) = [one for one in shell.json("doctor", "-A", "bare:app") if one["check"] == "app"]
    assert finding["status"] == "warn"
    assert "has no tasks" in finding["text"]
    assert "autodiscover" in finding["todo"]


def test_workers_know_the_tasks_of_modules_that_a_settings_file_names(shell: Shell) -> None:
    (shell.folder / "more.py").write_text(
        f"from {shell.module} import app\n@app.task\ndef triple(n: int) -> int: return 3 * n\n"
    )
    with (shell.folder / "dray.toml").open("a") as file:
        file.write('imports = ["more"]\n')
    id = shell.spawn("enqueue", "triple", "4").out.strip()
    shell.spawn("worker", "-p", "1", "--burst")
    assert json.loads(shell.spawn("jobs", "show", id, "--json").out)["result"] == 12


def test_a_burst_runs_what_is_there_and_ends(shell: Shell) -> None:
    good = [shell.run("enqueue", "add", str(n), "1").out.strip() for n in range(5)]
    mail = shell.enqueue("send", "a@x")
    bad = shell.enqueue("boom", 7)
    ended = shell.spawn("worker", "-p", "1", "-c", "4", "--burst", "-Q", "default")
    assert "namespace shop" in ended.out
    assert "1 job waits in queue email, which no worker serves: dray worker -Q email" in ended.out
    assert [shell.json("jobs", "show", id)["result"] for id in good] == [1, 2, 3, 4, 5]
    dead = shell.json("jobs", "show", bad)
    assert (dead["status"], dead["error"]["message"]) == ("dead", "boom 7")
    assert "ValueError: boom 7" in shell.run("jobs", "show", bad).out
    assert shell.json("jobs", "show", mail)["status"] == "ready"
    shell.spawn("worker", "-Q", "email", "-p", "1", "--burst")
    assert shell.json("jobs", "show", mail)["result"] == "a@x"
    assert shell.json("workers", "ls") == []


def test_a_dead_job_is_replayed_and_runs_again(shell: Shell) -> None:
    bad = shell.enqueue("boom", 1)
    shell.spawn("worker", "-p", "1", "--burst")
    assert shell.run("dead", "replay", "--all", "--yes").out == "replay: 1 job\n"
    shell.spawn("worker", "-p", "1", "--burst")
    job = shell.json("jobs", "show", bad)
    assert (job["status"], job["runs"]) == ("dead", 2)


def test_only_chosen_tasks_or_priorities_are_taken(shell: Shell) -> None:
    add, low = shell.enqueue("add", 1), shell.enqueue("shop.report")
    shell.spawn("worker", "--mode", "job-specialized", "--tasks", "shop.report", "-p", "1", "--burst")
    assert shell.json("jobs", "show", add)["status"] == "ready"
    assert shell.json("jobs", "show", low)["status"] == "succeeded"
    urgent = shell.enqueue("add", 2, priority="high")
    shell.spawn("worker", "--mode", "specialized", "--priorities", "high", "-p", "1", "--burst")
    assert shell.json("jobs", "show", add)["status"] == "ready"
    assert shell.json("jobs", "show", urgent)["status"] == "succeeded"


def test_a_worker_is_seen_serves_and_stops_when_told(shell: Shell) -> None:
    shell.enqueue("add", 0)
    with started(shell, "worker", "-p", "1", "-c", "2", "-Q", "email,default") as child:
        ended = shell.spawn("enqueue", "add", "20", "22", "--wait", "--timeout", "90")
        assert ended.out == "42\n"
        [worker] = shell.json("workers", "ls")
        assert (worker["queues"], worker["concurrency"]) == (["email", "default"], 2)
        assert {one["slots"] for one in worker["executors"]} == {2}
        own = {name for name in worker["tasks"] if not name.startswith("dray.")}
        assert own == {"add", "boom", "send", "shop.report", "snooze"}
        end = time.monotonic() + 60
        while (checked := shell.run("worker", "--check", code=None)).code != 0:
            assert time.monotonic() < end, checked
            time.sleep(0.1)
        assert checked.out == f"{worker['id']}: at work\n"
        running = shell.enqueue("snooze", 600)
        until(shell, running, "running")
        assert "it runs on" in shell.run("why", running).out
        child.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    job = shell.json("jobs", "show", running)
    assert (job["status"], job["failures"]) == ("ready", 0)
    assert shell.json("workers", "ls") == []
    gone = shell.run("worker", "--check", code=1)
    assert "no worker of this machine" in gone.err


def test_a_worker_works_on_when_nobody_reads_what_it_says(shell: Shell) -> None:
    shell.enqueue("add", 0)
    with started(shell, "worker", "-p", "1") as child:
        assert child.stdout is not None
        child.stdout.close()
        ended = shell.spawn("enqueue", "add", "20", "22", "--wait", "--timeout", "90")
        assert ended.out == "42\n"
        child.send_signal(signal.SIGTERM)
        child.wait(60)


def test_settings_in_the_apps_code_count_and_options_win(shell: Shell) -> None:
    url = f"sqlite:///{shell.folder}/coded.db"
    (shell.folder / "coded.py").write_text(
        f"from dray.app import App\napp = App('coded', broker={url!r}, concurrency=7)\n"
        "@app.task\ndef hello() -> str: return 'hi'\n"
    )
    args = ("-A", "coded:app")
    assert shell.spawn("enqueue", "hello", *args).out.startswith("default:")
    ended = shell.spawn("worker", "-p", "1", "--burst", *args)
    assert "coded.db (namespace coded)" in ended.out
    assert "× 7 jobs" in ended.out
    assert "× 3 jobs" in shell.spawn("worker", "-p", "1", "-c", "3", "--burst", *args).out
    assert not (shell.folder / ".dray").exists()


def test_logs_can_be_json(shell: Shell) -> None:
    shell.enqueue("boom")
    ended = shell.spawn("worker", "-p", "1", "--burst", "--log-format", "json", "--log-level", "debug")
    messages = [json.loads(line)["message"] for line in (ended.out + ended.err).splitlines()]
    assert any("boom" in message for message in messages)
    assert any("stop with Ctrl-C" in message for message in messages)


def test_each_job_is_a_line_of_the_log_and_quiet_keeps_failures_only(shell: Shell) -> None:
    added = shell.enqueue("add", 1)
    shell.enqueue("boom")
    ended = shell.spawn("worker", "-p", "1", "--burst")
    assert re.search(rf"INFO .*add {added} succeeded in [0-9.]+ s \(queue default\)", ended.err)
    assert re.search(r"ERROR .*boom default:\S+ is dead after .*ValueError: boom 1", ended.err)
    assert 'raise ValueError(f"boom {n}")' in ended.err, "the last failure comes with its traceback"
    shell.enqueue("add", 1)
    shell.enqueue("boom")
    ended = shell.spawn("worker", "-p", "1", "--burst", "--quiet")
    assert ended.out == ""
    assert "succeeded" not in ended.err
    assert "is dead after" in ended.err


def test_the_log_goes_to_a_file_that_may_be_moved_away(shell: Shell) -> None:
    file = shell.folder / "worker.log"
    with started(shell, "worker", "-p", "1", "--log-file", str(file)) as child:
        wait = ("--wait", "--timeout", "90")
        assert shell.spawn("enqueue", "add", "20", "22", *wait).out == "42\n"
        wait_for(lambda: "succeeded" in file.read_text(), "the first line")
        file.rename(shell.folder / "worker.log.1")
        assert shell.spawn("enqueue", "add", "1", "2", *wait).out == "3\n"
        wait_for(lambda: file.exists() and "succeeded" in file.read_text(), "a line in a new file")
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert "SIGTERM: the worker takes no more jobs" in file.read_text()
    shell.enqueue("add", 1)
    said = shell.spawn("worker", "-p", "1", "--burst", "--log-output", "stdout")
    assert ("succeeded" in said.out, "succeeded" in said.err) == (True, False)


def wait_for(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("args", "says", "code"),
    [
        (["--quiet", "--log-level", "info"], "--quiet means --log-level warning: give one", 2),
        (
            ["--log-file", "nowhere/at.log"],
            "--log-file='nowhere/at.log': a file that can be written is allowed: No such file",
            1,
        ),
        (["--log-output", "file"], "log_output=file needs to know which: set log_file", 2),
        (["--log-output", "stdout", "--log-file", "a.log"], "log_file is set: set log_output to file", 2),
        (["--scheduler", "often"], "scheduler='often': auto, on or off is allowed", 2),
        (["--mode", "scheduler-only", "--scheduler", "off"], "mode scheduler-only does nothing else", 2),
        (["-c", "0"], "concurrency='0': auto or a whole number from 1 to 1000", 2),
        (["-p", "many"], "processes='many'", 2),
        (["-Q", "a b"], "--queues='a b'", 2),
        (["--mode", "fat"], "mode='fat': one of thin, default", 2),
        (["--mode", "specialized"], "mode specialized needs to know which: set priorities", 2),
        (["--mode", "job-specialized"], "mode job-specialized needs to know which: set tasks", 2),
        (["--mode", "thin", "-p", "3"], "mode thin has one process", 2),
        (["--mode", "scheduler-only", "-Q", "a"], "mode scheduler-only runs no jobs: leave it out", 2),
        (["--mode", "scheduler-only", "--burst"], "--burst: mode scheduler-only runs no jobs", 1),
        (["-c", "1001"], "concurrency='1001': auto or a whole number from 1 to 1000 is allowed", 2),
        (["--rate", "often"], "rate='often': a rate like 100/s", 2),
        (["--priorities", "urgent"], "priorities='urgent'", 2),
        (["--tasks", "ad"], "no task named 'ad'; did you mean add", 1),
        (["--max-memory", "1"], "--max-memory='1'", 2),
        (["--max-jobs-per-process", "0"], "--max-jobs-per-process='0'", 2),
        (["--lease", "soon"], "lease='soon'", 2),
        (["--broker", "memory://"], "memory:// lives inside one process", 1),
        (["--broker", "nonsense"], "--broker='nonsense'", 2),
        (["-A", "nowhere_at_all:app"], "there is no module 'nowhere_at_all'", 1),
        (["stray"], "unexpected extra argument", 2),
    ],
)
def test_a_worker_that_is_called_wrongly_says_so_and_never_starts(
    shell: Shell, args: list[str], says: str, code: int
) -> None:
    ended = shell.run("worker", *args, code=code)
    assert says in ended.err
    assert ended.out == ""


def test_all_wrong_options_are_told_at_once(shell: Shell) -> None:
    ended = shell.run("worker", "-c", "0", "-p", "0", "--lease", "x", code=2)
    assert [name in ended.err for name in ("concurrency=", "processes=", "lease=")] == [True] * 3


def test_an_app_that_ends_the_process_when_it_is_imported_is_told(shell: Shell) -> None:
    (shell.folder / "quits.py").write_text("import os\nos._exit(7)\n")
    ended = shell.run("worker", "-A", "quits:app", code=1)
    assert "importing 'quits:app' ended the process (exit code 7)" in ended.err


def test_wrong_settings_in_the_apps_code_are_told(shell: Shell) -> None:
    (shell.folder / "wrong_settings.py").write_text("from dray.app import App\napp = App('x', retries=-1)\n")
    ended = shell.run("worker", "-A", "wrong_settings:app", code=1)
    assert "retries=-1" in ended.err
    assert "Traceback" not in ended.err


def test_the_scheduler_runs_no_jobs_and_does_the_upkeep(shell: Shell) -> None:
    late = shell.enqueue("add", 1, delay=1.0)
    with started(shell, "scheduler") as child:
        until(shell, late, "ready")
        deadline = time.monotonic() + 60
        while not shell.json("workers", "ls"):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        [worker] = shell.json("workers", "ls")
        assert (worker["mode"], worker["executors"]) == ("scheduler-only", [])
        assert "scheduler-only" in shell.run("workers", "ls").out
        child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0
    assert "unexpected extra argument" in shell.run("scheduler", "x", code=2).err


# bench


def test_bench_measures_and_leaves_nothing_behind(shell: Shell) -> None:
    kept = shell.enqueue("add", 1)
    before = _files(shell.folder)
    result = shell.spawn("bench", "--jobs", "200", "--json").json
    assert set(result) == {"broker", "durability", "enqueue_one", "enqueue_bulk", "drain", "round_trip"}
    for name in ("enqueue_one", "enqueue_bulk", "drain", "round_trip"):
        assert result[name]["per_second"] > 0
        assert result[name]["jobs"] >= 20
    assert result["round_trip"]["p50_ms"] <= result["round_trip"]["p99_ms"] <= result["round_trip"]["max_ms"]
    assert _files(shell.folder) == before
    assert [job["id"] for job in shell.json("jobs", "ls")] == [kept]
    table = shell.spawn("bench", "--jobs", "100").out.splitlines()
    assert table[0].split()[:2] == ["WHAT", "JOBS"]
    assert len(table) == 5


def _files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_bench_that_is_stopped_leaves_nothing_behind(shell: Shell, end: signal.Signals) -> None:
    with started(shell, "bench", "--jobs", "500000") as child:
        deadline = time.monotonic() + 60
        while not list(shell.folder.glob(".dray-bench-*/bench.db")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.kill(child.pid, end)
        assert child.wait(60) == 130
    assert not list(shell.folder.glob(".dray-bench-*"))


def test_a_wrong_bench_is_refused(shell: Shell) -> None:
    assert "is not in the range" in shell.run("bench", "--jobs", "1", code=2).err
    assert "not a valid integer" in shell.run("bench", "--jobs", "many", code=2).err
