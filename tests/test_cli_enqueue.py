"""`dray enqueue`: arguments from a shell, options, and waiting for the end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from shell import Shell

from dray.job import Error, OutcomeKind


def enqueued(shell: Shell, *args: str) -> dict[str, Any]:
    id = shell.run("enqueue", *args).out.strip()
    job: dict[str, Any] = shell.json("jobs", "show", id)
    return job


def test_an_id_is_printed_and_nothing_else(shell: Shell) -> None:
    ended = shell.run("enqueue", "add", "1", "2")
    [line] = ended.out.splitlines()
    assert line.startswith("default:")
    assert ended.err == ""
    answer = shell.json("enqueue", "add", "1")
    assert set(answer) == {"id", "status", "duplicate"}
    assert (answer["status"], answer["duplicate"]) == ("ready", False)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("3.5", 3.5),
        ("true", True),
        ("null", None),
        ('"3"', "3"),
        ("a@x.org", "a@x.org"),
        ("True", "True"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ('{"a": [1, 2]}', {"a": [1, 2]}),
        ('{"a": ', '{"a": '),
        ("", ""),
        ("ünï", "ünï"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_arguments_are_json_or_else_text(shell: Shell, text: str, value: object) -> None:
    job = enqueued(shell, "--unknown", "anything", "--", text)
    assert job["args"] == [value]


def test_keyword_arguments(shell: Shell) -> None:
    job = enqueued(shell, "add", "-k", "a=1", "--kwargs", "b=2")
    assert job["kwargs"] == {"a": 1, "b": 2}
    assert enqueued(shell, "send", "-k", '{"to": "x", "body": "a=b"}')["kwargs"] == {"to": "x", "body": "a=b"}
    assert enqueued(shell, "send", "-k", "to=a=b")["kwargs"] == {"to": "a=b"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-k", "a"], "not name=value"),
        (["-k", "1a=2"], "not name=value"),
        (["-k", "[1]"], "not name=value"),
        (["-k", "a=1", "-k", "a=2"], "a is given twice"),
        (["1", "--at", "tomorrow"], "not a time like"),
        (["1", "--delay", "soon"], "delay='soon'"),
        (["1", "--delay", "5", "--at", "2027-01-01T00:00"], "either delay or at"),
        (["1", "--priority", "urgent"], "high, normal, low"),
        (["1", "--priority", "11"], "0 to 9"),
        (["1", "--queue", "a b"], "1-128 characters"),
        (["1", "--retries", "-1"], "range"),
        (["1", "--timeout", "5"], "--timeout is for --wait"),
        (["1", "--wait", "--timeout", "x"], "timeout='x'"),
        (["1", "--id", "\x07"], "1-256 printable"),
        (["x"], "task add: argument 'a'"),
        ([], "task add: "),
        (["1", "2", "3"], "task add: "),
        (["1", "-k", "c=3"], "task add: "),
    ],
)
def test_wrong_calls_are_refused_before_anything_is_enqueued(
    shell: Shell, args: list[str], says: str
) -> None:
    ended = shell.run("enqueue", "add", *args, code=None)
    assert ended.code in (1, 2)
    assert says in ended.err
    assert "Traceback" not in ended.err
    assert not (shell.folder / ".dray" / "dray.db").exists() or shell.json("jobs", "ls") == []


def test_an_unknown_task_gets_a_suggestion_and_can_be_insisted_on(shell: Shell) -> None:
    ended = shell.run("enqueue", "shop.reprot", code=1)
    assert "did you mean shop.report" in ended.err
    assert "--unknown" in ended.err
    assert "known are: add, boom, send, shop.report, snooze" in shell.run("enqueue", "xyzzy", code=1).err
    ended = shell.run("enqueue", "--unknown", "shop.reprot", "1")
    assert (ended.err, shell.json("jobs", "show", ended.out.strip())["task"]) == ("", "shop.reprot")
    assert "1-128 characters" in shell.run("enqueue", "--unknown", "a b", code=1).err


def test_a_task_must_be_named(shell: Shell) -> None:
    assert "Missing argument 'TASK'" in shell.run("enqueue", code=2).err


def test_every_option_reaches_the_job(shell: Shell) -> None:
    job = enqueued(
        *(shell, "shop.report", "x", "--queue", "other", "--priority", "high", "--delay", "1h", "--key", "k"),
        *(
            "--id",
            "my-id",
            "--group",
            "g",
            "--retries",
            "7",
            "--job-timeout",
            "5m",
            "--tag",
            "a",
            "--tag",
            "b",
        ),
    )
    assert job["id"] == "my-id"
    assert (job["queue"], job["priority"], job["status"]) == ("other", 1, "scheduled")
    assert (job["key"], job["group"], job["retries"], job["timeout"]) == ("k", "g", 7, 300.0)
    assert job["tags"] == ["nightly", "a", "b"]
    assert enqueued(shell, "add", "1", "--ttl", "1h")["expires_at"] is not None
    at = enqueued(shell, "add", "1", "--at", "2100-01-31T08:00+01:00")
    assert at["due_at"] == "2100-01-31T07:00:00+00:00"
    assert enqueued(shell, "add", "1", "--priority", "0")["priority"] == 0


def test_a_duplicate_is_told(shell: Shell) -> None:
    first = shell.run("enqueue", "add", "1", "--key", "k", "--once", "1d").out
    again = shell.run("enqueue", "add", "1", "--key", "k")
    assert again.out == first
    assert "nothing was enqueued" in again.err
    assert shell.json("enqueue", "add", "1", "--key", "k")["duplicate"] is True


def test_waiting_prints_the_result(shell: Shell) -> None:
    with_worker(shell, "add", OutcomeKind.SUCCEEDED, result=3)
    ended = shell.run("enqueue", "add", "1", "2", "--wait", "--timeout", "60")
    assert ended.out == "3\n"
    assert "waiting" in ended.err
    with_worker(shell, "send", OutcomeKind.SUCCEEDED, result="a@x")
    answer = shell.json("enqueue", "send", "a@x", "--wait", "--timeout", "60")
    assert set(answer) == {"id", "status", "duplicate", "result"}
    assert (answer["status"], answer["result"]) == ("succeeded", "a@x")


def test_waiting_while_results_are_off_says_so_and_is_a_success(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRAY_RESULT_TTL", "0")
    with_worker(shell, "add", OutcomeKind.SUCCEEDED)
    ended = shell.run("enqueue", "add", "1", "--wait", "--timeout", "60")
    assert ended.out == ""
    assert "succeeded, but results are off (result_ttl=0 of this app)" in ended.err
    with_worker(shell, "add", OutcomeKind.SUCCEEDED)
    answer = shell.json("enqueue", "add", "1", "--wait", "--timeout", "60")
    assert set(answer) == {"id", "status", "duplicate", "no_result"}
    assert answer["status"] == "succeeded"


def test_waiting_for_a_job_that_fails_ends_with_1_and_its_error(shell: Shell) -> None:
    error = Error("ValueError", "boom 1", "Traceback of the worker\nValueError: boom 1")
    with_worker(shell, "boom", OutcomeKind.DEAD, error=error)
    ended = shell.run("enqueue", "boom", "--wait", "--timeout", "60", code=1)
    assert "ValueError: boom 1" in ended.err
    assert "Traceback of the worker" in ended.err
    assert ended.out == ""
    with_worker(shell, "boom", OutcomeKind.DEAD, error=error)
    answer = shell.json("enqueue", "boom", "--wait", "--timeout", "60", code=1)
    assert answer["status"] == "dead"
    assert answer["error"]["message"] == "boom 1"


def test_waiting_for_a_cancelled_job_ends_with_1(shell: Shell) -> None:
    with_worker(shell, "add", OutcomeKind.CANCELLED, reason="not today")
    assert "not today" in shell.run("enqueue", "add", "1", "--wait", "--timeout", "60", code=1).err


def test_waiting_in_vain_ends_with_3(shell: Shell) -> None:
    ended = shell.run("enqueue", "add", "1", "--wait", "--timeout", "0.2", code=3)
    assert "was still ready" in ended.err
    assert "dray why" in ended.err


def with_worker(shell: Shell, task: str, kind: OutcomeKind, **outcome: Any) -> None:
    """Settle the next job of the task as soon as there is one."""

    def work() -> None:
        app = shell.app()
        deadline = time.monotonic() + 60
        try:
            while time.monotonic() < deadline:
                found = app.jobs.find(state="ready", task=task)
                if found:
                    shell.finish(found[0].id, kind, **outcome)
                    return
                time.sleep(0.02)
        finally:
            app.close()

    app = shell.app()
    app.jobs.find()  # loaded and made here, not in two threads at once
    threading.Thread(target=work, daemon=True).start()


# negative numbers, waiting, and words of the shell


@pytest.mark.parametrize(
    ("args", "result"),
    [
        (["add", "-1", "2"], 1),
        (["add", "5", "-7"], -2),
        (["add", "--priority", "high", "-3"], -3),
        (["add", "-k", "b=-4", "-1"], -5),
        (["add", "--", "-1", "-2"], -3),
    ],
)
def test_negative_numbers_are_arguments(shell: Shell, args: list[str], result: int) -> None:
    job = shell.run("enqueue", *args).out.strip()
    shell.spawn("worker", "--burst", "-p", "1")
    assert shell.json("jobs", "show", job)["result"] == result


def test_what_looks_like_a_negative_number_only_for_an_argument(shell: Shell) -> None:
    assert "--retries" in shell.run("enqueue", "add", "1", "--retries", "-1", code=2).err
    assert "No such option" in shell.run("enqueue", "add", "-1x", code=2).err
    assert "No such option" in shell.run("enqueue", "add", "-x", code=2).err


def test_a_wait_tells_why_it_lasts_and_again_when_that_changes(shell: Shell) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "dray", "enqueue", "add", "1", "2", "--wait", "--timeout", "90"],
        cwd=shell.folder,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stderr is not None
    with waiting.stderr as said:
        job = said.readline().partition(": waiting")[0]
        assert "no worker is running: start one with" in said.readline()
        app = shell.app()
        app.queues.pause("default", reason="deploy")
        paused = said.readline()
        assert "queue default is paused since" in paused
        assert "(deploy)" in paused
        app.queues.resume("default")
        app.close()
        shell.spawn("worker", "--burst", "-p", "1")
        out, _ = waiting.communicate(timeout=90)
    assert (waiting.returncode, out) == (0, "3\n")
    assert shell.json("jobs", "show", job)["result"] == 3


def test_a_wait_that_does_not_change_is_told_once(shell: Shell) -> None:
    ended = shell.run("enqueue", "add", "1", "--wait", "--timeout", "6.5", code=3)
    assert ended.err.count("no worker is running") == 1
    assert "was still ready after 6s500ms" in ended.err


def test_what_looks_like_json_and_is_not_is_named(shell: Shell) -> None:
    ended = shell.run("enqueue", "send", '{"to":')
    assert "looks like JSON but is not" in ended.err
    assert "looks like JSON" not in shell.run("enqueue", "send", "a@x").err


def test_an_unexpected_keyword_is_told_before_a_missing_one(shell: Shell) -> None:
    told = shell.run("enqueue", "send", "-k", "too=x", code=1).err
    assert "got an unexpected keyword argument 'too'; did you mean 'to'?" in told
    assert "missing a required argument" in shell.run("enqueue", "send", code=1).err
    assert "did you mean" not in shell.run("enqueue", "send", "-k", "zzz=x", code=1).err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["enqueue", "add", "1", "--queue", "a b"], "dray: --queue='a b': 1-128 characters"),
        (["enqueue", "add", "1", "--queue=a b"], "dray: --queue='a b': "),
        (["enqueue", "add", "1", "--job-timeout", "soon"], "dray: --job-timeout='soon': "),
        (["enqueue", "add", "1", "--priority", "12"], "dray: --priority=12: high, normal"),
        (["jobs", "show", "x" * 300], "dray: ID 'xxx"),
        (["queues", "limit", "email", "--rate", "often"], "dray: --rate='often': "),
    ],
)
def test_what_is_wrong_is_told_in_words_of_the_shell(shell: Shell, args: list[str], says: str) -> None:
    shell.enqueue("send", "a")
    assert says in shell.run(*args, code=1).err


@pytest.mark.parametrize(
    ("args", "code", "error"),
    [
        (["jobs", "show", "nope"], 1, "job_not_found"),
        (["enqueue", "add", "1", "--queue", "a b"], 1, "invalid_queue"),
        (["enqueue", "nothing.like.it"], 1, "unknown_task"),
        (["enqueue", "add"], 1, "invalid_arguments"),
        (["jobs", "ls", "--state", "done"], 2, "usage"),
        (["jobs", "ls", "--broker", "redis://127.0.0.1:1/0"], 1, "broker_away"),
        (["schedules", "show", "nope"], 1, "schedule_not_found"),
    ],
)
def test_with_json_an_error_is_a_document_as_well(
    shell: Shell, args: list[str], code: int, error: str
) -> None:
    shell.enqueue("add", 1)
    ended = shell.run(*args, "--json", code=code)
    assert ended.json["error"]["code"] == error
    assert ended.json["error"]["message"].splitlines()[0] in ended.err
    assert shell.run(*args, code=code).out == ""
