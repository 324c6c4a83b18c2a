"""`dray doctor`: finds what is wrong or risky, and says what to do."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from shell import Shell
from test_cli_queues import enlist

from dray.broker.sqlite.options import read_url
from dray.broker.sqlite.path import filesystem_of
from dray.broker.verbs import QueueInfo, Swept
from dray.cli import doctor_checks, doctor_sqlite
from dray.cli.doctor_checks import Finding
from dray.cli.open_app import store_file
from dray.client.link import Link
from dray.documents.repair_log import note_swept
from dray.documents.worker_registry import WorkerInfo
from dray.job import State
from dray.settings import Settings, describe

NOW = doctor_checks.OLDEST_CLOCK + 1_000_000_000_000


def findings(shell: Shell, *args: str, code: int = 0) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for one in shell.json("doctor", *args, code=code):
        found.setdefault(one["check"], []).append(one)
    return found


def worst(found: Sequence[dict[str, str]]) -> dict[str, str]:
    return max(found, key=lambda one: ("ok", "warn", "fail").index(one["status"]))


def test_a_sound_project_is_well(shell: Shell) -> None:
    job = shell.enqueue("add", 1)
    shell.run("jobs", "delete", job)
    ended = shell.run("doctor")
    assert "all is well" in ended.out
    assert "fail" not in ended.out
    found = findings(shell)
    assert set(found) == {
        *("python", "app", "file", "disk", "database", "durability", "broker", "audit", "clock"),
        *("repairs", "workers", "queues", "tasks"),
    }
    for group in found.values():
        for one in group:
            assert set(one) == {"check", "status", "text", "todo"}
            assert one["status"] == "ok"


def test_without_a_database_nothing_is_made(shell: Shell) -> None:
    found = findings(shell)
    assert "no such file yet" in worst(found["broker"])["text"]
    assert not (shell.folder / ".dray").exists()


def test_an_app_that_cannot_be_imported_fails_but_the_broker_is_still_checked(shell: Shell) -> None:
    shell.enqueue("add", 1)
    (shell.folder / "dray.toml").write_text('app = "no_such_module_here:app"\n')
    found = findings(shell, code=1)
    assert "there is no module" in found["app"][0]["text"]
    assert found["audit"][0]["status"] == "ok"


def test_wrong_settings_are_findings(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_LEASE", "soon")
    monkeypatch.setenv("DRAY_RETRIES", "many")
    found = findings(shell, code=1)
    assert [one["status"] for one in found["settings"]] == ["fail", "fail"]
    assert "DRAY_LEASE" in found["settings"][0]["text"] + found["settings"][1]["text"]


@pytest.mark.parametrize(
    ("url", "status", "says"),
    [("memory://", "warn", "ends with it"), ("redis://u:s3cret/s3cret@h/0", "fail", "%2F")],
)
def test_brokers_that_cannot_be_looked_at(shell: Shell, url: str, status: str, says: str) -> None:
    ended = shell.run("doctor", "--broker", url, "--json", code=None)
    broker = worst([one for one in ended.json if one["check"] == "broker"])
    assert broker["status"] == status
    assert says in broker["text"]
    assert "s3cret" not in ended.out + ended.err
    assert ended.code == (1 if status == "fail" else 0)


def test_somebody_elses_file_fails(shell: Shell) -> None:
    other = shell.folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    found = findings(shell, "--broker", f"sqlite:///{other}", "--namespace", "x", code=1)
    assert "another program" in worst(found["broker"])["text"]


def test_a_damaged_file_fails(shell: Shell) -> None:
    app = shell.app()
    app.enqueue_many([app.tasks["add"].call(n) for n in range(2000)])
    app.close()
    file = shell.folder / ".dray" / "dray.db"
    with file.open("r+b") as handle:
        handle.seek(20 * 4096)
        handle.write(os.urandom(40 * 4096))
    found = findings(shell, code=1)
    assert worst(found["database"])["status"] == "fail"


def test_a_file_that_others_may_open_is_a_warning(shell: Shell) -> None:
    shell.enqueue("add", 1)
    (shell.folder / ".dray" / "dray.db").chmod(0o644)
    found = findings(shell)
    assert found["file"][0]["status"] == "warn"
    assert "chmod 600" in found["file"][0]["todo"]


def test_durability_is_told(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert "normal" in findings(shell)["durability"][0]["text"]
    url = f"sqlite:///{shell.folder}/.dray/dray.db?synchronous=full"
    assert findings(shell, "--broker", url)["durability"][0]["text"].startswith("full")


def test_jobs_that_nobody_serves_and_tasks_nobody_has_are_warnings(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert "none is running, and 1 job waits in default" in findings(shell)["workers"][0]["text"]
    shell.run("enqueue", "--unknown", "shop.reprot")
    found = worst(findings(shell)["tasks"])
    assert "1 ready job of shop.reprot" in found["text"]
    assert "renamed to shop.report" in found["todo"]
    enlist(shell, queues=("email",), tasks=("send",), leader=True)
    found_now = findings(shell)
    assert worst(found_now["queues"])["text"] == "2 jobs wait in queue default, which no worker serves"
    assert worst(found_now["queues"])["todo"] == "start one: dray worker -Q default"
    assert all(one["status"] != "ok" for one in found_now["queues"]), "no line says the contrary"
    assert any("which no running worker knows" in one["text"] for one in found_now["tasks"])


def test_pauses_and_dead_jobs_are_warnings(shell: Shell) -> None:
    shell.finish(shell.enqueue("boom"))
    shell.run("queues", "pause", "default")
    shell.run("queues", "pause", "email", "--task", "send", "--new")
    texts = " ".join(one["text"] for one in findings(shell)["queues"])
    assert "default: paused" in texts
    assert "email: task send paused" in texts
    assert "default: 1 dead job" in texts


def test_settings_are_listed_with_their_origin(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAY_LEASE", "1m")
    monkeypatch.setenv("DRAY_API_KEYS", "s3cret")
    rows = {one["name"]: one for one in shell.json("doctor", "--settings", "--namespace", "ns")}
    assert list(rows) == [info.name for info in describe()]
    assert rows["lease"] == {"name": "lease", "value": "1m", "origin": "DRAY_LEASE"}
    assert rows["heartbeat"]["value"] == "20s"
    assert rows["namespace"] == {"name": "namespace", "value": "ns", "origin": "command line"}
    assert rows["api_keys"]["value"] == "1 hidden"
    text = shell.run("doctor", "--settings").out
    assert text.splitlines()[0].split() == ["SETTING", "VALUE", "FROM"]
    assert "s3cret" not in text


def test_settings_that_an_app_gives_in_code_count(shell: Shell) -> None:
    (shell.folder / "coded_settings.py").write_text(
        "from dray.app import App\napp = App('coded', retries=9)\n"
    )
    rows = {one["name"]: one for one in shell.json("doctor", "--settings", "-A", "coded_settings:app")}
    assert (rows["retries"]["value"], rows["retries"]["origin"]) == ("9", "keyword")
    assert rows["namespace"]["value"] == "coded"


def test_wrong_calls(shell: Shell) -> None:
    assert "No such option" in shell.run("doctor", "--setting", "x", code=2).err
    assert "unexpected extra argument" in shell.run("doctor", "x", code=2).err


# single checks, with facts that are hard to come by


def worker(**more: Any) -> WorkerInfo:
    return WorkerInfo(id="w", host="h", pid=1, started=0, **{"seen": 0, **more})


def test_a_clock_that_was_never_set_fails_and_one_that_differs_is_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor_checks, "now_ms", lambda: 1_000)
    assert [one.status for one in doctor_checks.check_clock([])] == ["fail"]
    monkeypatch.setattr(doctor_checks, "now_ms", lambda: NOW)
    [found] = doctor_checks.check_clock([worker(skew=65_000), worker(skew=-900)])
    assert (found.status, found.text) == ("warn", "h: 65.0 s ahead of the broker's (worker w)")
    assert [one.status for one in doctor_checks.check_clock([worker(skew=-900)])] == ["ok"]


def test_schedules_that_nobody_runs_or_that_went_wrong_are_warnings(shell: Shell) -> None:
    shell.enqueue("add", 1)
    assert "schedules" not in findings(shell)
    shell.run("schedules", "create", "nightly", "add", "1", "--cron", "0 3 * * *")
    shell.run("schedules", "create", "daily", "add", "1", "--cron", "@daily")
    shell.run("schedules", "pause", "daily")
    assert [one["text"] for one in findings(shell)["schedules"]] == ["2, of which 1 paused"]
    enlist(shell, mode="specialized")
    assert "no worker that is running" in worst(findings(shell)["schedules"])["text"]
    assert "dray scheduler" in worst(findings(shell)["schedules"])["todo"]
    enlist(shell, mode="thin", id="host-2")
    assert worst(findings(shell)["schedules"])["status"] == "ok"
    failing = [replace(one, last_error="missed 2 ticks") for one in shell.app().schedules.list()]
    [found] = doctor_checks.check_schedules(failing, [])
    assert (found.status, found.text) == ("warn", "nightly: missed 2 ticks")


def test_declared_schedules_are_compared_with_stored_ones(shell: Shell) -> None:
    code = shell.folder / f"{shell.module}.py"
    declared = ('@app.every("10m", name="often")', '@app.cron("0 3 * * *", name="nightly")', "@app.task")
    code.write_text("\n".join((code.read_text(), *declared, "def tick():", "    pass", "")))
    shell.spawn("enqueue", "add", "1")
    found = json.loads(shell.spawn("doctor", "--json").out)
    missing = [one["text"] for one in found if one["check"] == "schedules"]
    assert len(missing) == 2
    assert "nightly (0 3 * * *) is declared in code and not stored" in " ".join(missing)
    shell.spawn("worker", "--burst", "-p", "1")
    found = json.loads(shell.spawn("doctor", "--json").out)
    assert [one["text"] for one in found if one["check"] == "schedules"] == ["2, of which 0 paused"]
    code.write_text(code.read_text().replace("10m", "20m").replace('"nightly"', '"daily"'))
    found = json.loads(shell.spawn("doctor", "--json").out)
    told = {one["text"]: one["status"] for one in found if one["check"] == "schedules"}
    assert set(told.values()) == {"warn"}
    text = " ".join(told)
    assert "often is stored as every 10m of tick in queue default and declared as every 20m of tick" in text
    assert "nightly (0 3 * * *) is stored, and this app's code does not declare it" in text
    assert "daily (0 3 * * *) is declared in code and not stored" in text


def test_a_broker_that_is_away_is_not_told_to_be_well(shell: Shell) -> None:
    found = findings(shell, "--broker", "redis://127.0.0.1:1/0", "--namespace", "x", code=1)
    assert [one["status"] for one in found["broker"]] == ["fail"]


def test_a_job_that_waits_for_long_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "now_ms", lambda: NOW)
    queue = QueueInfo(name="q", counts={State.READY: 1}, oldest_ready=NOW - 3_600_000)
    [found] = doctor_checks.check_queues([queue])
    assert (found.status, found.text) == ("warn", "q: a ready job is 1h old")


def test_workers_of_which_none_does_the_upkeep_are_a_warning() -> None:
    found = list(doctor_checks.check_workers([], [worker(queues=("q",))]))
    assert [one.status for one in found] == ["ok", "warn"]
    assert [one.status for one in doctor_checks.check_workers([], [worker(queues=("q",), leader=True)])] == [
        "ok"
    ]


def _disk(monkeypatch: pytest.MonkeyPatch, path: Path, free: int) -> list[Finding]:
    usage = shutil.disk_usage(path.parent)._replace(free=free)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    return list(doctor_sqlite._disk(path))


def test_a_disk_that_is_nearly_full_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "jobs.db"
    assert [one.status for one in _disk(monkeypatch, path, 1 << 20)] == ["fail"]
    assert [one.status for one in _disk(monkeypatch, path, 100 << 20)] == ["warn"]
    assert [one.status for one in _disk(monkeypatch, path, 1 << 40)] == ["ok"]


def test_a_network_file_system_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n"
    assert filesystem_of(str(tmp_path / "jobs.db"), mount) == "nfs4"
    monkeypatch.setattr(doctor_sqlite, "mounts", lambda: mount)
    assert any(
        one.status == "fail" and "nfs4" in one.text for one in doctor_sqlite._disk(tmp_path / "jobs.db")
    )


def test_a_write_ahead_log_that_has_grown_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_sqlite, "WAL_LARGE", 10)
    (tmp_path / "jobs.db-wal").write_bytes(b"x" * 100)
    assert any("has grown" in one.text for one in doctor_sqlite._disk(tmp_path / "jobs.db"))


def test_a_file_that_may_not_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs.db"
    file.touch(0o400)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everything
    [found] = doctor_sqlite._permissions(file)
    assert found.status == "fail"


def test_what_is_not_a_file_fails(tmp_path: Path) -> None:
    [found] = doctor_sqlite._permissions(tmp_path)
    assert found.status == "fail"


def test_a_file_changed_in_the_future_is_told(tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.touch(0o600)
    os.utime(file, (2**31, 2**33))
    found = list(doctor_sqlite._permissions(file))
    assert [one.check for one in found] == ["file", "clock"]


def test_a_large_file_is_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "jobs.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE x (y)")
    connection.close()
    monkeypatch.setattr(doctor_sqlite, "QUICK_CHECK_MOST", 10)
    [found] = doctor_sqlite._content(file)
    assert "too large" in found.text


def test_durability_of_the_settings_counts_too() -> None:
    settings = Settings(broker_url="sqlite:///x.db", namespace="n", durability="full")
    options = read_url(settings.broker_url)
    [found] = doctor_sqlite._durability(options, settings)
    assert found.text.startswith("full")


def test_repairs_are_told_with_what_was_repaired(shell: Shell) -> None:
    shell.enqueue("add", 1)
    app = shell.app()

    async def damage_and_sweep(link: Link) -> None:
        with closing(sqlite3.connect(store_file(app.settings.broker_url))) as db:
            db.executescript("DELETE FROM lanes")
        swept = await link.broker.sweep()
        assert swept.repairs
        await note_swept(link.broker, swept)
        await note_swept(link.broker, Swept(repairs={"key": 2}))

    app.client.block(damage_and_sweep)
    app.close()
    [repairs] = findings(shell)["repairs"]
    assert repairs["status"] == "warn"
    assert " in all, the last " in repairs["text"]
    assert "2 × key" in repairs["text"]


def test_steps_of_killed_processes_that_were_finished_are_no_reason_to_worry(shell: Shell) -> None:
    shell.enqueue("add", 1)
    app = shell.app()

    async def finish(link: Link) -> None:
        await note_swept(link.broker, Swept(finished={"intent": 3}))

    app.client.block(finish)
    app.close()
    finished, none = findings(shell)["repairs"]
    assert (finished["status"], none["status"]) == ("ok", "ok")
    assert "3 × intent" in finished["text"]
    assert none["text"] == "none was made so far"
