"""docs/cli.md and docs/settings.md say what the code says: every command, option, setting and JSON key."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from shell import Shell

from dray.admin.selection import ChangeResult
from dray.broker.verbs import Limits
from dray.cli.doctor_checks import Finding
from dray.documents.worker_registry import ExecutorInfo, WorkerInfo
from dray.info import JobInfo
from dray.schedules.api import PauseInfo, ScheduleInfo
from dray.settings import describe
from dray.stats.task_stats import TaskStats
from dray.why import Why

DOCS = Path(__file__).parents[1] / "docs"
CLI = (DOCS / "cli.md").read_text("utf-8")
SETTINGS = (DOCS / "settings.md").read_text("utf-8")


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tables", DOCS / "tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(title: str) -> str:
    """What stands under a heading, up to the next."""
    [found] = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", CLI, re.M | re.S)
    return str(found)


def keys(title: str) -> set[str]:
    """The names in the first column of the section's table of JSON keys."""
    [rows] = re.findall(r"\| JSON key \| \|\n\|---\|---\|\n((?:\|.*\|\n)+)", section(title))
    return {name for row in rows.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])}


@pytest.mark.parametrize("text", [CLI, SETTINGS], ids=["cli.md", "settings.md"])
def test_the_tables_are_those_of_the_code(tables: ModuleType, text: str) -> None:
    assert tables.write(text) == text, "out of date: run `python docs/tables.py`"


def test_every_command_has_a_section_with_its_options_and_no_other_has(tables: ModuleType) -> None:
    commands = set(tables.commands())
    assert set(re.findall(r"^## dray (.+)$", CLI, re.M)) == commands
    assert tables.documented(CLI) == commands | {"common"}
    for command in commands:
        assert f"<!-- options: {command} -->" in section(f"dray {command}")


def test_every_setting_has_a_row() -> None:
    [table] = re.findall(r"<!-- settings -->\n(.*?)<!-- end -->", SETTINGS, re.S)
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [info.name for info in describe()]


def test_every_mode_has_a_row() -> None:
    [allowed] = [info.allowed for info in describe() if info.name == "mode"]
    for mode in allowed.removeprefix("one of ").split(", "):
        assert re.search(rf"^\| `{mode}` \|", SETTINGS, re.M), mode


def test_the_json_keys_are_all_told() -> None:
    assert keys("dray jobs ls") == set(JobInfo.__struct_fields__)
    assert keys("dray why") == set(Why.__struct_fields__)
    assert keys("dray doctor") == set(Finding.__struct_fields__)
    assert keys("dray jobs cancel") == {"changed", *ChangeResult.__struct_fields__}
    times = {"started": "started_at", "seen": "seen_at"}
    workers = {times.get(name, name) for name in WorkerInfo.__struct_fields__}
    assert keys("dray workers ls") == workers | {"running", "slots", "against_crew"}
    assert keys("dray workers show") == set(TaskStats.__struct_fields__)
    assert keys("dray schedules ls") == set(ScheduleInfo.__struct_fields__)
    for name in (*PauseInfo.__struct_fields__, *ExecutorInfo.__struct_fields__, *Limits.__struct_fields__):
        assert f"`{name}`" in section("dray workers ls") + section("dray queues ls"), name


def test_the_json_keys_are_those_that_are_printed(shell: Shell) -> None:
    told = keys("dray enqueue")
    assert set(shell.json("enqueue", "add", "1")) == told - {"result", "no_result", "error"}
    assert set(shell.json("queues", "ls")[0]) == keys("dray queues ls")
    assert set(shell.json("jobs", "ls")[0]) == keys("dray jobs ls")
    assert set(shell.json("jobs", "cancel", "--all", "--yes")) == keys("dray jobs cancel")
    assert set(shell.json("doctor")[0]) == keys("dray doctor")
    assert set(shell.json("doctor", "--settings")[0]) == {"name", "value", "origin"}


def test_the_exit_codes_are_all_told() -> None:
    assert re.findall(r"^\| (\d+) \|", section("For all commands"), re.M) == [
        "0",
        "1",
        "2",
        "3",
        "130",
        "141",
    ]
