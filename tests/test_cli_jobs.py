"""`dray jobs`, `dray why` and `dray dead`: look at jobs and act on them."""

from __future__ import annotations

import json
import re

import pytest
from shell import Shell

from dray.broker.verbs import Beat, Heard
from dray.client.link import Link
from dray.info import JobInfo
from dray.job import OutcomeKind


def ids(shell: Shell, *args: str) -> set[str]:
    return {job["id"] for job in shell.json("jobs", "ls", *args)}


def test_jobs_are_listed_as_a_table_and_as_json(shell: Shell) -> None:
    first = shell.enqueue("add", 1, 2)
    shell.enqueue("send", "a@x.org", delay=3600)
    table = shell.run("jobs", "ls").out.splitlines()
    assert table[0].split() == ["ID", "TASK", "QUEUE", "STATUS", "TRY", "CREATED", "NOTE"]
    assert {line.split()[3] for line in table[1:]} == {"ready", "scheduled"}
    assert any("due in 59m" in line for line in table)
    [job] = shell.json("jobs", "ls", "--task", "add")
    assert list(job) == list(JobInfo.__struct_fields__)
    assert (job["id"], job["args"], job["status"], job["attempt"]) == (first, [1, 2], "ready", 0)


def test_json_of_an_empty_list_is_an_empty_list(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert shell.json("jobs", "ls", "--state", "dead") == []
    assert "no jobs fit" in shell.run("jobs", "ls", "--state", "dead").err


def test_every_filter_of_the_listing_counts(shell: Shell) -> None:
    plain = shell.enqueue("add", 1)
    mail = shell.enqueue("send", "a@x", key="k1", group="g1")
    low = shell.enqueue("shop.report", tags=["t1"])
    assert ids(shell) == {plain, mail, low}
    assert ids(shell, "--queue", "email") == {mail}
    assert ids(shell, "--task", "add") == {plain}
    assert ids(shell, "--tag", "nightly") == {low}
    assert ids(shell, "--tag", "t1") == {low}
    assert ids(shell, "--priority", "low") == {low}
    assert ids(shell, "--priority", "5") == {plain, mail}
    assert ids(shell, "--key", "k1") == {mail}
    assert ids(shell, "--group", "g1") == {mail}
    assert ids(shell, "--state", "ready", "--queue", "default") == {plain, low}


def test_a_listing_that_is_cut_says_so(shell: Shell) -> None:
    for n in range(3):
        shell.enqueue("add", n)
    cut = shell.run("jobs", "ls", "--limit", "2")
    assert len(cut.out.splitlines()) == 3
    assert cut.err.startswith("2 of 3 jobs: --cursor ")
    assert shell.run("jobs", "ls", "--limit", "5").err == ""
    assert "2 jobs, not all: --cursor" in shell.run("jobs", "ls", "--limit", "2", "--task", "add").err


def test_the_newest_job_is_listed_first_and_a_cursor_goes_on(shell: Shell) -> None:
    made = [shell.enqueue("add", n) for n in range(3)]
    made.append(shell.enqueue("send", "a", delay=60))
    shell.finish(made[0])
    assert [job["id"] for job in shell.json("jobs", "ls")] == made[::-1]
    first = shell.run("jobs", "ls", "--limit", "3", "--json")
    more = json.loads(first.err)
    assert (more["shown"], more["total"]) == (3, 4)
    rest = shell.run("jobs", "ls", "--limit", "3", "--json", "--cursor", more["cursor"])
    assert [job["id"] for job in first.json + rest.json] == made[::-1]
    assert rest.err == ""
    assert "only a cursor that an earlier page" in shell.run("jobs", "ls", "--cursor", "x", code=1).err


def test_jobs_are_listed_and_changed_by_time_and_parent(shell: Shell) -> None:
    job = shell.enqueue("add", 1)
    assert ids(shell, "--since", "1h") == ids(shell, "--since", "2020-01-31T08:00") == {job}
    assert ids(shell, "--since", "2100-01-01") == set()
    assert ids(shell, "--parent", job) == set()
    assert "--since" in shell.run("jobs", "ls", "--since", "yesterday", code=2).err
    assert shell.run("jobs", "cancel", "--since", "1h", "--yes").out == "cancel: 1 job\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--state", "done"], "'done' is not one of 'waiting'"),
        (["--limit", "0"], "0 is not in the range"),
        (["--limit", "many"], "'many' is not a valid integer"),
        (["--priority", "urgent"], "high, normal, low or an integer"),
        (["--priority", "12"], "integer from 0 to 9"),
        (["--queue", "a b"], "1-128 characters"),
        (["--tag", ""], "1-256 printable"),
        (["--nonsense"], "No such option"),
        (["stray"], "unexpected extra argument"),
    ],
)
def test_a_wrong_filter_is_refused_with_what_is_allowed(shell: Shell, args: list[str], says: str) -> None:
    shell.enqueue("add", 1)
    ended = shell.run("jobs", "ls", *args, code=None)
    assert ended.code in (1, 2)
    assert says in ended.err
    assert ended.out == ""


def test_show_tells_call_state_times_result_and_error(shell: Shell) -> None:
    good = shell.enqueue("shop.report", "monday", description="the weekly one", tags=["x"])
    shell.finish(good, OutcomeKind.SUCCEEDED, result={"day": "monday"})
    bad = shell.enqueue("boom", 7)
    shell.finish(bad)
    text = shell.run("jobs", "show", good).out
    for part in ('shop.report("monday")', "succeeded", '{"day": "monday"}', "nightly, x", "the weekly one"):
        assert part in text
    text = shell.run("jobs", "show", bad).out
    for part in ("boom(7)", "dead", "retries used up", "ValueError: boom", "Traceback:", "attempt:  1 of 1"):
        assert part in text
    job = shell.json("jobs", "show", bad)
    assert job["error"] == {"type": "ValueError", "message": "boom", "traceback": "Traceback:\n  boom"}
    assert job["reason"] == "retries used up"
    assert [one["id"] for one in shell.json("jobs", "show", good, bad)] == [good, bad]
    assert "deadline:" not in text
    assert "deadline:" in shell.run("jobs", "show", shell.enqueue("add", 1, deadline="1h")).out


def test_nothing_in_a_job_acts_on_the_terminal(shell: Shell) -> None:
    evil = shell.enqueue("send", "\x1b]0;owned\x07\x1b[2J")
    assert "\x1b" not in shell.run("jobs", "show", evil).out
    assert "\\u001b" in shell.run("jobs", "show", evil).out
    assert "\x1b" not in shell.run("jobs", "ls").out
    assert shell.json("jobs", "show", evil)["args"] == ["\x1b]0;owned\x07\x1b[2J"]


def test_arguments_that_json_lacks_are_shown_in_what_it_has(shell: Shell) -> None:
    odd = [b"\x00\xff", (1, 2), {3, 1}, [float("nan")], 2**70, {1: "a"}]
    id = shell.enqueue("add", *odd[:2])
    assert shell.json("jobs", "show", id)["args"] == ["AP8=", [1, 2]]
    id = shell.enqueue("add", *odd[2:4])
    assert shell.json("jobs", "show", id)["args"] == [[1, 3], [None]]
    id = shell.enqueue("add", *odd[4:])
    assert shell.json("jobs", "show", id)["args"] == [2**70, {"1": "a"}]


@pytest.mark.parametrize("command", [("jobs", "show"), ("why",)])
def test_an_unknown_id_gets_a_suggestion(shell: Shell, command: tuple[str, ...]) -> None:
    id = shell.enqueue("add", 1)
    for wrong in (id[:-1] + ("0" if id[-1] != "0" else "1"), id[-12:], id[8:-4]):
        ended = shell.run(*command, wrong, code=1)
        assert f"no job {wrong}" in ended.err
        assert f"did you mean {id}?" in ended.err
    assert "did you mean" not in shell.run(*command, "zzz", code=1).err


@pytest.mark.parametrize("id", ["", "\x1b[31m", "a\nb", "x" * 10_000, "\udcff"])
def test_an_odd_id_is_refused(shell: Shell, id: str) -> None:
    shell.enqueue("add", 1)
    for command in (("jobs", "show"), ("why",), ("jobs", "cancel"), ("jobs", "delete"), ("dead", "replay")):
        ended = shell.run(*command, id, code=1)
        assert "\x1b" not in ended.err
        assert "1-256 printable characters" in ended.err


def test_a_reason_that_is_no_text_is_refused(shell: Shell) -> None:
    id = shell.enqueue("add", 1)
    shell.run("jobs", "cancel", id, "--reason", "\udcff", code=2)
    assert shell.json("jobs", "show", id)["status"] == "ready"


def test_show_and_why_need_an_id(shell: Shell) -> None:
    assert "Missing argument" in shell.run("jobs", "show", code=2).err
    assert "Missing argument" in shell.run("why", code=2).err


def test_why_tells_people_and_programs(shell: Shell) -> None:
    id = shell.enqueue("add", 1)
    assert "no worker is running" in shell.run("why", id).out
    why = shell.json("why", id)
    assert set(why) == {"id", "status", "code", "text", "details"}
    assert (why["id"], why["status"], why["code"]) == (id, "ready", "no_workers")
    shell.run("queues", "pause", "default", "--reason", "moving house")
    assert "moving house" in shell.run("why", id).out
    assert shell.json("why", "nobody", code=1)["code"] == "not_found"


def test_cancel_retry_and_delete_by_id(shell: Shell) -> None:
    id = shell.enqueue("add", 1)
    assert shell.run("jobs", "cancel", id, "--reason", "not needed").out == "cancel: 1 job\n"
    assert shell.json("jobs", "show", id)["reason"] == "not needed"
    assert shell.json("jobs", "retry", id) == {"changed": 1, "ids": [id], "refused": {}, "dry_run": False}
    assert shell.json("jobs", "show", id)["status"] == "ready"
    shell.run("jobs", "delete", id)
    assert shell.json("jobs", "ls") == []


def test_force_reaches_the_run_that_was_asked_before(shell: Shell) -> None:
    id = shell.enqueue("add", 1)
    shell.take(id)
    shell.run("jobs", "cancel", id, "--reason", "first")
    assert shell.run("jobs", "cancel", id, "--force").out == "cancel: 1 job\n"
    app = shell.app()
    try:
        [heard] = app.client.block(_beat, f"s-{id}-0")
    finally:
        app.close()
    assert heard.forced == ((id, 1),)


async def _beat(link: Link, session: str) -> list[Heard]:
    return await link.broker.renew([Beat(session, 60_000)])


def test_show_tells_every_run(shell: Shell) -> None:
    id = shell.enqueue("boom")
    for _ in range(2):
        shell.finish(id, OutcomeKind.DEAD)
        shell.run("jobs", "retry", id)
    shell.take(id)
    runs = shell.json("jobs", "show", id)["run_history"]
    assert [(run["number"], run["outcome"]) for run in runs] == [(1, "failed"), (2, "failed"), (3, "running")]
    assert all(run["worker"] and run["started_at"] for run in runs)
    shown = shell.run("jobs", "show", id).out
    assert re.search(r"1  failed, .* on s-\S+: ValueError: boom", shown)
    assert "3  running, " in shown


def test_what_is_refused_is_told_and_makes_the_command_fail(shell: Shell) -> None:
    running, ready = shell.enqueue("add", 1), shell.enqueue("send", "x")
    shell.take(running)
    ended = shell.run("jobs", "delete", running, ready, "nobody", code=1)
    assert ended.out == "delete: 1 job\n"
    assert f"{running}: it is running: cancel it first" in ended.err
    assert "nobody: " in ended.err
    result = shell.json("jobs", "retry", running, code=1)
    assert (result["changed"], list(result["refused"])) == (0, [running])
    assert shell.run("jobs", "cancel", running).out == "cancel: 1 job\n"
    assert "asked to stop" in shell.run("jobs", "show", running).out
    assert "stopping" in shell.run("jobs", "ls").out


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    id = shell.enqueue("add", 1)
    assert shell.run("jobs", "cancel", id, "--dry-run").out == "would cancel: 1 job\n"
    assert shell.run("jobs", "delete", "--queue", "default", "--dry-run").out == "would delete: 1 job\n"
    assert shell.json("jobs", "delete", "--all", "--dry-run")["ids"] == [id]
    assert shell.json("jobs", "show", id)["status"] == "ready"


def test_a_change_by_filter_wants_yes_when_nobody_can_be_asked(shell: Shell) -> None:
    shell.enqueue("add", 1)
    for verb in ("cancel", "retry", "delete"):
        assert "--yes" in shell.run("jobs", verb, "--queue", "default", code=2).err
    assert len(ids(shell)) == 1


def test_changes_by_filter(shell: Shell) -> None:
    mine = [shell.enqueue("add", n) for n in range(3)]
    other = shell.enqueue("send", "x")
    assert shell.run("jobs", "cancel", "--task", "add", "--yes").out == "cancel: 3 jobs\n"
    assert ids(shell, "--state", "cancelled") == set(mine)
    assert shell.run("jobs", "delete", "--state", "cancelled", "-y").out == "delete: 3 jobs\n"
    assert ids(shell) == {other}
    assert shell.run("jobs", "delete", "--all", "--yes").out == "delete: 1 job\n"


def test_retry_by_filter_means_dead_jobs_unless_a_state_is_named(shell: Shell) -> None:
    dead, done = shell.enqueue("boom"), shell.enqueue("send", "x")
    shell.finish(dead)
    shell.finish(done, OutcomeKind.SUCCEEDED)
    assert shell.json("jobs", "retry", "--all", "--yes")["ids"] == [dead]
    assert shell.json("jobs", "retry", "--state", "succeeded", "--yes")["ids"] == [done]


@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
def test_a_change_needs_ids_or_a_filter_but_not_both(shell: Shell, verb: str) -> None:
    assert "which jobs?" in shell.run("jobs", verb, code=2).err
    assert "not both" in shell.run("jobs", verb, "x", "--queue", "default", code=2).err
    assert "not both" in shell.run("jobs", verb, "x", "--all", code=2).err


def test_bulk_changes_go_beyond_one_page(shell: Shell) -> None:
    app = shell.app()
    app.enqueue_many([app.tasks["add"].call(n) for n in range(2500)])
    app.close()
    assert shell.run("jobs", "cancel", "--all", "--yes").out == "cancel: 2500 jobs\n"
    assert len(shell.json("jobs", "ls", "--state", "cancelled", "--limit", "2400")) == 2400


# dead


def test_dead_jobs_are_listed_with_the_reason(shell: Shell) -> None:
    id = shell.enqueue("boom", 3)
    shell.finish(id)
    table = shell.run("dead", "ls").out
    assert "retries used up: ValueError: boom" in table
    [job] = shell.json("dead", "ls")
    assert (job["id"], job["status"]) == (id, "dead")
    assert shell.json("dead", "ls", "--task", "add") == []
    assert shell.json("dead", "ls", "--queue", "email") == []
    assert shell.json("dead", "ls", "--older", "1h") == []
    assert len(shell.json("dead", "ls", "--older", "0")) == 1
    assert "no dead jobs fit" in shell.run("dead", "ls", "--older", "1h").err


def test_a_cut_list_of_dead_jobs_says_so(shell: Shell) -> None:
    for n in range(3):
        shell.finish(shell.enqueue("boom", n))
    cut = shell.run("dead", "ls", "--limit", "2")
    assert len(cut.out.splitlines()) == 3
    assert "--limit shows more" in cut.err


def test_dead_jobs_are_replayed_and_purged(shell: Shell) -> None:
    one, two = (shell.enqueue(task, *args) for task, args in (("boom", ()), ("send", ("x",))))
    shell.finish(one)
    shell.finish(two)
    assert shell.run("dead", "replay", one).out == "replay: 1 job\n"
    assert shell.json("jobs", "show", one)["status"] == "ready"
    assert "it is ready, not dead" in shell.run("dead", "replay", one, code=1).err
    assert "there is no such job" in shell.run("dead", "purge", "nobody", code=1).err
    assert shell.run("dead", "purge", "--queue", "email", "--dry-run").out == "would purge: 1 job\n"
    assert shell.run("dead", "purge", "--older", "1d", "--yes").out == "purge: 0 jobs\n"
    assert shell.run("dead", "purge", "--task", "send", "--yes").out == "purge: 1 job\n"
    assert ids(shell) == {one}


@pytest.mark.parametrize("verb", ["replay", "purge"])
def test_wrong_calls_about_dead_jobs(shell: Shell, verb: str) -> None:
    shell.enqueue("add", 1)
    assert "which jobs?" in shell.run("dead", verb, code=2).err
    assert "not both" in shell.run("dead", verb, "x", "--all", code=2).err
    assert "--yes" in shell.run("dead", verb, "--all", code=2).err
    ended = shell.run("dead", verb, "--older", "soon", "--yes", code=1)
    assert "older='soon'" in ended.err


def test_a_delayed_job_is_rescheduled_by_id_and_by_filter(shell: Shell) -> None:
    later = shell.enqueue("send", "a@x.org", delay=3600)
    shell.run("jobs", "reschedule", later, "--at", "9999-12-31T00:00+00:00")
    assert shell.json("jobs", "show", later)["due_at"].startswith("9999-12-31T00:00")
    shell.run("jobs", "reschedule", "--state", "scheduled", "--delay", "0", "--yes")
    assert shell.json("jobs", "show", later)["status"] == "ready"
    shell.run("jobs", "reschedule", later, "--delay", "1h")
    assert shell.json("jobs", "show", later)["status"] == "scheduled"
    shell.run("jobs", "cancel", later)
    refused = shell.run("jobs", "reschedule", later, "--delay", "1h", code=1)
    assert "it is cancelled" in refused.err


@pytest.mark.parametrize("args", [(), ("--delay", "1h", "--at", "2030-01-01"), ("--at", "noon")])
def test_a_reschedule_says_when_and_only_once(shell: Shell, args: tuple[str, ...]) -> None:
    shell.run("jobs", "reschedule", shell.enqueue("add", 1), *args, code=2)
