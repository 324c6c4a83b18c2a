"""`dray schedules`."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from shell import Shell

from dray.client.link import Link
from dray.schedules.cron import Cron
from dray.schedules.schedule import Schedule
from dray.schedules.store import rewrite

NIGHTLY = ("nightly", "shop.report", '"mon"', "--cron", "30 2 * * *", "--tz", "America/New_York")


def test_a_schedule_is_made_listed_shown_and_deleted(shell: Shell) -> None:
    said = shell.run("schedules", "create", *NIGHTLY, "--overlap", "skip", "--jitter", "5m").out
    assert said.startswith("schedule nightly is made: at 02:30 every day, America/New_York time; next run 20")
    head, row = shell.run("schedules", "ls").out.splitlines()
    assert head.split() == ["SCHEDULE", "TASK", "RULE", "NEXT", "LAST", "RUNS", "STATE", "NOTE"]
    assert row.startswith("nightly   shop.report  30 2 * * * America/New_York  in ")
    shown = shell.run("schedules", "show", "nightly").out
    for line in (
        "rule:      30 2 * * * America/New_York (at 02:30 every day, America/New_York time)",
        'call:      shop.report("mon")',
        "queue:     default, priority 9",
        "declared:  at run time",
        "jitter:    300 s",
        "overlap:   skip",
        "runs:      0",
    ):
        assert line in shown.splitlines()
    assert shown.count("02:30:00 E") == 5  # EST or EDT
    assert shell.run("schedules", "show", "nightly", "--count", "2").out.count("02:30:00 E") == 2
    assert shell.run("schedules", "delete", "nightly").out == "schedule nightly is deleted\n"
    ended = shell.run("schedules", "ls")
    assert (ended.out, "no schedules in namespace shop" in ended.err) == ("", True)
    assert shell.json("schedules", "ls") == []


def test_everything_is_there_as_json(shell: Shell) -> None:
    made = shell.json("schedules", "create", *NIGHTLY[:2], *NIGHTLY[3:], "-k", "day=x", "--unknown")
    assert (made["name"], made["kind"], made["tz"]) == ("nightly", "cron", "America/New_York")
    assert (made["args"], made["kwargs"], made["origin"]) == ([], {"day": "x"}, "user")
    assert shell.json("schedules", "ls") == [made]
    shown = shell.json("schedules", "show", "nightly")
    assert len(shown.pop("upcoming")) == 5
    assert shown == made
    changed = shell.json("schedules", "change", "nightly", "--every", "90s", "-k", "day=y", "--priority", "3")
    assert (changed["kind"], changed["rule"], changed["tz"]) == ("every", "1m30s", None)
    assert (changed["kwargs"], changed["priority"]) == ({"day": "y"}, 3)
    paused = shell.json("schedules", "pause", "nightly", "--reason", "audit")
    assert paused["paused"]["reason"] == "audit"
    assert paused["next_run"] is None
    assert shell.json("schedules", "resume", "nightly")["paused"] is None
    job = shell.json("schedules", "trigger", "nightly")
    assert job["schedule"] == "nightly"
    assert shell.json("schedules", "show", "nightly")["last_job"] == job["id"]
    assert "schedule:nightly" in shell.json("jobs", "show", job["id"])["tags"]
    assert shell.json("schedules", "delete", "nightly") == {"name": "nightly", "deleted": True}


def test_what_is_done_is_told(shell: Shell) -> None:
    shell.run("schedules", "create", "s", "add", "1", "--every", "1h", "--job-timeout", "5m", "--tag", "a")
    assert shell.run("schedules", "change", "s", "--cron", "@daily").out.startswith(
        "schedule s is changed: at 00:00 every day; next run 20"
    )
    assert "schedules resume s` undoes it" in shell.run("schedules", "pause", "s", "--reason", "x").out
    assert "paused" in shell.run("schedules", "ls").out
    assert " x" in shell.run("schedules", "show", "s").out
    assert "it is paused" in shell.run("schedules", "change", "s", "--every", "2h").out
    assert "goes on; next run" in shell.run("schedules", "resume", "s").out
    id = shell.run("schedules", "trigger", "s").out.strip()
    assert f"last job:  {id} ready" in shell.run("schedules", "show", "s").out
    assert " s, now\n" in shell.run("jobs", "show", id).out
    info = shell.json("jobs", "show", id)
    assert (info["timeout"], info["tags"], info["args"]) == (300, ["a", "schedule:s"], [1])


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("create", "s", "ad", "--every", "1h"), 1, "did you mean add?"),
        (("create", "s", "add", "1", "2", "3", "--every", "1h"), 1, "add()"),
        (("create", "s", "add", "1"), 1, 'give cron="0 3 * * *" or every="30s"'),
        (("create", "s", "add", "1", "--cron", "0 0 30 2 *"), 1, "there never is such a day"),
        (("create", "s", "add", "1", "--cron", "@daily", "--tz", "Europe/Lodnon"), 1, "Europe/London"),
        (("create", "s", "add", "1", "--every", "1h", "--tz", "UTC"), 1, "no time zone"),
        (("create", "taken", "add", "1", "--every", "1h"), 1, "'taken' already"),
        (("create", "s", "add", "1", "--every", "1h", "--overlap", "maybe"), 2, "maybe"),
        (("change", "taken"), 2, "change what?"),
        (("change", "taken", "--arg", "1", "--arg", "2", "--arg", "3"), 1, "add(): too many"),
        (("create", "s", "add", "1", "2", "3", "--every", "1h", "--unknown"), 1, "add(): too many"),
        (("show", "takne"), 1, "did you mean taken?"),
        (("pause", "nobody"), 1, "no schedule is named 'nobody'"),
        (("sow",), 2, "did you mean show"),
    ],
)
def test_what_goes_wrong_is_said(shell: Shell, args: tuple[str, ...], code: int, says: str) -> None:
    shell.run("schedules", "create", "taken", "add", "1", "--every", "1h")
    ended = shell.run("schedules", *args, code=code)
    assert says in ended.err
    assert len(shell.json("schedules", "ls")) == 1


def test_a_schedule_whose_last_job_is_dead_says_so(shell: Shell) -> None:
    shell.run("schedules", "create", "s", "boom", "--every", "1h")
    id = shell.run("schedules", "trigger", "s").out.strip()
    shell.finish(id)
    assert f"its last job is dead: dray jobs show {id}" in shell.run("schedules", "ls").out
    assert shell.json("schedules", "show", "s")["last_status"] == "dead"
    shell.run("jobs", "delete", id)
    assert shell.json("schedules", "show", "s")["last_status"] is None


def test_what_went_wrong_last_stands_in_the_list_and_code_is_told_from_users(shell: Shell) -> None:
    shell.run("schedules", "create", "s", "add", "1", "--every", "1h", "--catch-up", "all")

    async def spoil(link: Link) -> None:
        def change(one: Schedule | None) -> Schedule | None:
            assert one is not None
            return replace(one, origin="code", last_error="missed 3 ticks", rule=Cron("@daily", "No/Where"))

        await rewrite(link.broker, "s", change)

    app = shell.app()
    app.client.block(spoil)
    app.close()
    assert "missed 3 ticks" in shell.run("schedules", "ls").out
    assert "change it there" in shell.run("schedules", "change", "s", "--every", "1h", code=1).err
    shown = shell.run("schedules", "show", "s")
    assert "No/Where" in shown.out
    assert "tz='No/Where'" in shown.err
    assert "comes back when a worker starts" in shell.run("schedules", "delete", "s").err
