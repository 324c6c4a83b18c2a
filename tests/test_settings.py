"""Settings: every field from every source, and everything that is wrong with them said at once."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.app import App
from dray.broker import SCHEMES, connect
from dray.broker.redis import options as redis_options
from dray.duration import MAX_DURATION
from dray.errors import InvalidInput, InvalidSettings, SettingsWarning
from dray.job import BANDS
from dray.policy import Backoff, Retention
from dray.settings import (
    AUTO_START,
    Loaded,
    Settings,
    cores,
    describe,
    format_size,
    hide_password,
    load,
    override,
    parse_size,
    show,
)
from dray.settings.forms import format_priorities, read_priorities
from dray.settings.table import BROKER_SCHEMES

EXAMPLES: dict[str, tuple[Any, str, object, object]] = {
    # setting: (keyword, text for environment, value in TOML, what comes of all three)
    "broker_url": ("redis://h:1/2", "redis://h:1/2", "redis://h:1/2", "redis://h:1/2"),
    "namespace": ("shop", "shop", "shop", "shop"),
    "queues": (["gpu", "any"], "gpu, any,", ["gpu", "any"], ("gpu", "any")),
    "priorities": ({0, 1, 2, 3, 9}, "high,9", ["high", 9], frozenset({0, 1, 2, 3, 9})),
    "tasks": (("a", "b.c"), "a,b.c", ["a", "b.c"], ("a", "b.c")),
    "imports": (["a.tasks", "b"], "a.tasks, b", ["a.tasks", "b"], ("a.tasks", "b")),
    "mode": ("scheduler-only", "Scheduler-Only", "scheduler-only", "scheduler-only"),
    "scheduler": (True, "on", "on", True),
    "processes": (3, "3", 3, 3),
    "concurrency": (1000, "1000", 1000, 1000),
    "rate": ("100/m+20", "100/m+20", " 100/m+20", "100/m+20"),
    "lease": (timedelta(minutes=1), "1m", 60, 60_000),
    "heartbeat": (2, "2", "2s", 2_000),
    "sweep_interval": (0.5, "500ms", 0.5, 500),
    "stall_limit": ("1h30m", "1h30m", "90m", 5_400_000),
    "shutdown_grace": (0, "0", 0, 0),
    "timeout": ("5s", "5", 5.0, 5_000),
    "retries": (0, "0", 0, 0),
    "backoff": (Backoff("linear", 10.0), "linear:10", "linear:10", "linear:10"),
    "max_crashes": (7, "7", 7, 7),
    "result_ttl": (0, "0s", "0s", 0),
    "error_ttl": ("2d", "2d", "2d", 172_800_000),
    "done_ttl": (60, "60", 60, 60_000),
    "dead_ttl": ("7d", "7d", "7d", 604_800_000),
    "max_payload": (2048, "2KiB", "2KiB", 2048),
    "max_result": ("4MB", "4000000", 4_000_000, 4_000_000),
    "max_jobs_per_process": (500, "500", 500, 500),
    "max_memory": ("1G", "1GiB", 1 << 30, 1 << 30),
    "pool_size": (1, "1", 1, 1),
    "connect_timeout": ("1s", "1", 1, 1_000),
    "read_timeout": ("2s", "2", 2, 2_000),
    "durability": ("full", "FULL", "full", "full"),
    "allow_pickle": (True, "yes", True, True),
    "codec": ("json", "json", "json", "json"),
    "history_url": (*("postgresql://h/db",) * 4,),
    "history_payloads": (False, "no", False, False),
    "history_redact": (["pin", "a:b*"], "pin,a:b*", ["pin", "a:b*"], ("pin", "a:b*")),
    "history_ttl": ("1d", "24h", 86400, 86_400_000),
    "history_max_size": ("1GiB", "1G", 1 << 30, 1 << 30),
    "http": ("0.0.0.0:80", "0.0.0.0:80", "0.0.0.0:80", "0.0.0.0:80"),
    "grpc": ("[::1]:9090", "[::1]:9090", "[::1]:9090", "[::1]:9090"),
    "api_keys": (["k1", "k2"], "k1,k2", ["k1", "k2"], ("k1", "k2")),
    "accept_unknown_tasks": (True, "yes", True, True),
    "key_rate": ("100/s", "100/s+10", "100/s", "100/s"),
    "max_requests": (10, "10", 10, 10),
    "max_waiting": (20, "20", 20, 20),
    "max_request_size": ("1MiB", "1MiB", 1048576, 1048576),
    "allowed_hosts": (["a.org", "[::2]"], "A.org,[::2]", ["a.org", "[::2]"], ("a.org", "[::2]")),
    "cors_origins": (["https://a.org"], "https://a.org", ["HTTPS://A.org"], ("https://a.org",)),
    "tls_cert": ("a.pem", "a.pem", "a.pem", "a.pem"),
    "tls_key": (Path("b.pem"), "b.pem", "b.pem", "b.pem"),
    "metrics": ("127.0.0.1:9100", "127.0.0.1:9100", "127.0.0.1:9100", "127.0.0.1:9100"),
    "log_level": ("debug", "DEBUG", "debug", "debug"),
    "log_format": ("json", "json", "json", "json"),
    "log_output": ("stdout", "STDOUT", "stdout", "stdout"),
    "log_file": (Path("w.log"), "w.log", "w.log", "w.log"),
    "otel": (True, "on", True, True),
}

WRONG: dict[str, list[object]] = {
    "broker_url": ["", "somewhere", "http://x", "sqlite", 5, None.__class__],
    "namespace": ["", "two words", "x" * 129, 5],
    "queues": ["", ",", "a b", ["x", 5], {"a": 1}, 7],
    "priorities": ["", "urgent", "10", "-1", "5-2", [10], [True], b"1", 3.5],
    "tasks": ["", "a b", [None]],
    "imports": ["a b", "a..b", "tasks.py:app", "./tasks", [5], 7],
    "mode": ["", "fat", 1],
    "scheduler": ["", "often", 1],
    "processes": [0, -1, 1025, "two", 1.5, True, "1.5"],
    "concurrency": [0, 1001, "many", True, "none"],
    "rate": ["often", "5", 5, "0/s"],
    "lease": ["soon", -1, "2d", "99ms", True, ""],
    "heartbeat": ["0", 0, "x", "16s"],
    "sweep_interval": ["1ms", "2h", "x"],
    "stall_limit": ["1ms", "x"],
    "shutdown_grace": [-1, "x"],
    "timeout": [-1, "x"],
    "retries": [-1, "x", 2_000_000, "٣"],
    "backoff": ["", "often", "linear:x", 5],
    "max_crashes": [0, "x"],
    "result_ttl": [-1, "x"],
    "error_ttl": [-1, "x"],
    "done_ttl": [-1, "x"],
    "dead_ttl": [-1, "x", "200000d"],
    "max_payload": ["1 parsec", 10, "-1", "2TiB", "9" * 400],
    "max_result": ["", 0],
    "max_jobs_per_process": [0, "x"],
    "max_memory": ["1KiB", "x", True],
    "pool_size": [0, "x"],
    "connect_timeout": [0, "2h"],
    "read_timeout": [0, "2h"],
    "durability": ["some", 1],
    "allow_pickle": ["maybe", 2, ""],
    "codec": ["", "a b", "pickle"],
    "history_url": ["mysql://h/db", "x", 5],
    "history_payloads": ["maybe", 2],
    "history_redact": ["a b", [1]],
    "history_ttl": ["1s", "x"],
    "history_max_size": ["1KiB", "x"],
    "http": ["", "8000", "localhost", ":80", "h:99999", "http://h:80", 8000],
    "grpc": ["h:", "h:x"],
    "api_keys": ["a b", [1], 7],
    "accept_unknown_tasks": ["maybe", 2],
    "key_rate": ["fast", 7, "0/s"],
    "max_requests": [0, "x"],
    "max_waiting": [0, True],
    "max_request_size": ["10", "x"],
    "allowed_hosts": ["a.org:80", "http://a.org", [1]],
    "cors_origins": ["*", "a.org", "https://a.org/"],
    "tls_cert": ["", 7],
    "tls_key": ["", 7],
    "metrics": ["h:", "9100"],
    "log_level": ["loud", 10],
    "log_format": ["xml"],
    "log_output": ["", "printer", 1],
    "log_file": ["", 5],
    "otel": ["x", 3],
}


def quiet(environ: Mapping[str, str] | None = None, start: Path | None = None, **overrides: Any) -> Loaded:
    return load(overrides, environ=environ or {}, start=start)


def project(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, "utf-8")
    return folder


def toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(toml(part) for part in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """A folder that is a project's and says nothing."""
    (tmp_path / "here" / ".git").mkdir(parents=True)
    return tmp_path / "here"


def test_the_examples_here_name_every_setting() -> None:
    fields = list(Settings.__struct_fields__)
    assert [info.name for info in describe()] == fields
    assert list(EXAMPLES) == fields
    assert list(WRONG) == fields


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_setting_can_be_given_as_keyword_variable_or_in_a_file(name: str, empty: Path) -> None:
    keyword, text, in_file, expected = EXAMPLES[name]
    by_keyword = quiet(start=empty, **{name: keyword})
    assert getattr(by_keyword.settings, name) == expected
    assert by_keyword.origins[name] == "keyword"
    by_variable = quiet({f"DRAY_{name.upper()}": text}, empty)
    assert getattr(by_variable.settings, name) == expected
    assert by_variable.origins[name] == f"DRAY_{name.upper()}"
    file = project(empty, "dray.toml", f"{name} = {toml(in_file)}\n")
    by_file = quiet(start=file)
    assert getattr(by_file.settings, name) == expected
    assert by_file.origins[name] == str(empty / "dray.toml")


@pytest.mark.parametrize("name", EXAMPLES)
def test_keyword_wins_over_variable_over_file_over_default(name: str, empty: Path) -> None:
    keyword, text, in_file, _ = EXAMPLES[name]
    variable = {f"DRAY_{name.upper()}": text}
    project(empty, "pyproject.toml", f"[tool.dray]\n{name} = {toml(in_file)}\n")
    assert quiet(variable, empty, **{name: keyword}).origins[name] == "keyword"
    assert quiet(variable, empty).origins[name] == f"DRAY_{name.upper()}"
    assert quiet({}, empty).origins[name] == str(empty / "pyproject.toml")
    (empty / "pyproject.toml").unlink()
    assert quiet({}, empty).origins[name] == "default"


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in WRONG for value in WRONG[name]])
def test_a_wrong_value_is_refused_by_name_with_what_is_allowed(name: str, value: Any, empty: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        quiet(start=empty, **{name: value})
    [(problem, origin)] = caught.value.problems
    assert problem.field == name
    assert origin == "keyword"
    assert "allowed" in problem.allowed or "needs" in problem.allowed
    assert str(caught.value).startswith(f"{name}=")


def test_the_defaults_are_those_of_the_specification(empty: Path) -> None:
    loaded = quiet(start=empty)
    folder = loaded.folder
    assert loaded.settings == Settings(
        broker_url=f"sqlite:///{folder}/.dray/dray.db", namespace="dray", heartbeat=10_000
    )
    assert loaded.settings.retention == Retention()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.settings.processes == cores() >= 1


def test_retention_follows_the_settings(empty: Path) -> None:
    settings = quiet(start=empty, result_ttl=1, error_ttl=2, done_ttl=3, dead_ttl=4).settings
    assert settings.retention == Retention(1_000, 2_000, 3_000, 4_000)


def test_the_namespace_is_the_name_of_the_app(empty: Path) -> None:
    assert load({}, app_name="shop", environ={}, start=empty).settings.namespace == "shop"
    given = load({}, app_name="shop", environ={"DRAY_NAMESPACE": "other"}, start=empty)
    assert given.settings.namespace == "other"


def test_an_app_whose_name_cannot_be_a_namespace_is_told_so(empty: Path) -> None:
    with pytest.raises(InvalidSettings, match="rename the App, or give namespace="):
        load({}, app_name="my shop", environ={}, start=empty)
    loaded = load({"namespace": "shop"}, app_name="my shop", environ={}, start=empty)
    assert loaded.settings.namespace == "shop"


def test_everything_wrong_is_told_at_once_with_where_it_was_said(empty: Path) -> None:
    project(empty, "dray.toml", 'lease = "soon"\nconcurency = 5\n')
    with pytest.raises(InvalidSettings) as caught:
        quiet({"DRAY_PROCESSES": "many"}, empty, mode="fat", retries=-1)
    origins = {problem.field: origin for problem, origin in caught.value.problems}
    file = str(empty / "dray.toml")
    assert origins == {
        "lease": file,
        "concurency": file,
        "processes": "DRAY_PROCESSES",
        "mode": "keyword",
        "retries": "keyword",
    }
    text = str(caught.value)
    assert text.startswith("wrong settings:\n")
    for part in ("'soon'", "did you mean concurrency?", "'many'", "one of thin, default", "DRAY_PROCESSES"):
        assert part in text
    assert isinstance(caught.value, InvalidInput)
    assert isinstance(caught.value, ValueError)


def test_a_wrong_value_hides_no_other_and_is_not_told_twice(empty: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        quiet(start=empty, mode="specialized", priorities="urgent", broker_url="x", namespace="a b")
    assert sorted(problem.field for problem, _ in caught.value.problems) == [
        "broker_url",
        "namespace",
        "priorities",
    ]


def test_a_wrong_value_in_a_weaker_source_does_not_matter_when_a_stronger_one_speaks(empty: Path) -> None:
    assert quiet({"DRAY_RETRIES": "many"}, empty, retries=5).settings.retries == 5


def test_an_unknown_keyword_is_refused_with_a_suggestion(empty: Path) -> None:
    with pytest.raises(InvalidSettings, match="did you mean broker_url"):
        quiet(start=empty, broker="redis://h")


def test_an_unknown_variable_is_a_warning_with_a_suggestion(empty: Path) -> None:
    with pytest.warns(SettingsWarning, match=r"DRAY_CONCURENCY: .* did you mean DRAY_CONCURRENCY\?"):
        quiet({"DRAY_CONCURENCY": "5"}, empty)
    with pytest.warns(SettingsWarning, match="DRAY_XYZZY: no setting has this name$"):
        quiet({"DRAY_XYZZY": "5"}, empty)


@pytest.mark.parametrize(
    "name",
    [
        *("DRAY_APP", "DRAY_DEBUG", "DRAY_SIM_SECONDS", "DRAY_CHAOS_JOBS", "DRAYMAN", "PATH"),
        *("DRAY_SERVICE_HOST", "DRAY_PORT", "DRAY_PORT_8000_TCP_ADDR", "DRAY_WEB_SERVICE_PORT_HTTP"),
    ],
)
def test_variables_of_other_things_are_left_alone(name: str, empty: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet({name: "tcp://10.0.0.1:8000"}, empty)


def test_an_empty_variable_counts_as_not_set(empty: Path) -> None:
    assert quiet({"DRAY_QUEUES": " ", "DRAY_APP": ""}, empty).settings.queues == ()


@pytest.mark.parametrize("text", ["all", "high,tenant-*", "a?,*", "x" * 128, " a , b "])
def test_queues_are_names_and_patterns(text: str, empty: Path) -> None:
    listed = tuple(part.strip() for part in text.split(","))
    assert quiet({"DRAY_QUEUES": text}, empty).settings.queues == listed


@pytest.mark.parametrize("text", ["a b", "a,[b]", "a/b", ",", "x" * 129, "{a,b}"])
def test_what_is_no_list_of_queues_is_refused(text: str, empty: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"queues.*patterns"):
        quiet({"DRAY_QUEUES": text}, empty)


def test_none_as_keyword_means_not_given_unless_the_setting_may_be_none(empty: Path) -> None:
    environ = {"DRAY_RETRIES": "7", "DRAY_DEAD_TTL": "1d", "DRAY_TASKS": "a"}
    settings = quiet(environ, empty, retries=None, dead_ttl=None, tasks=None).settings
    assert (settings.retries, settings.dead_ttl, settings.tasks) == (7, None, None)


@pytest.mark.parametrize("text", ["none", "None", "never", "off"])
def test_a_text_can_say_none(text: str, empty: Path) -> None:
    assert quiet({"DRAY_DEAD_TTL": text, "DRAY_HISTORY_URL": text}, empty).settings.dead_ttl is None
    assert quiet({"DRAY_PRIORITIES": "all", "DRAY_TASKS": "all"}, empty).settings.priorities is None


def test_the_nearest_project_folder_counts(tmp_path: Path) -> None:
    project(tmp_path, "pyproject.toml", "[tool.dray]\nretries = 1\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert quiet(start=inner).settings.retries == 1
    assert quiet(start=inner).folder == tmp_path.resolve()
    project(tmp_path / "a", "dray.toml", "retries = 2\n")
    assert quiet(start=inner).settings.retries == 2
    project(inner, "pyproject.toml", "[project]\nname='x'\n")
    loaded = quiet(start=inner)
    assert loaded.settings.retries == 3
    assert loaded.settings.broker_url == f"sqlite:///{inner.resolve()}/.dray/dray.db"


def test_the_current_folder_is_where_the_search_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project(tmp_path, "dray.toml", "retries = 9\n"))
    assert load(environ={}).settings.retries == 9
    monkeypatch.setenv("DRAY_RETRIES", "8")
    assert load().settings.retries == 8


def test_a_current_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); import dray.settings as s; s.load()"
    gone = tmp_path / "gone"
    gone.mkdir()
    run = subprocess.run([sys.executable, "-c", code, str(gone)], capture_output=True, text=True, check=False)
    assert "the current folder was removed" in run.stderr


def test_odd_characters_in_the_folder_survive_in_the_url(tmp_path: Path) -> None:
    from dray.broker.sqlite.options import read_url

    odd = tmp_path / "50% of? #all ü"
    (odd / ".git").mkdir(parents=True)
    url = quiet(start=odd).settings.broker_url
    assert read_url(url).path == str(odd.resolve() / ".dray" / "dray.db")
    assert unquote(url) == f"sqlite:///{odd.resolve()}/.dray/dray.db"


def test_a_relative_path_in_a_file_counts_from_its_folder_elsewhere_from_the_current_one(
    tmp_path: Path,
) -> None:
    project(tmp_path, "dray.toml", 'broker_url = "sqlite:///data/jobs.db?synchronous=full"\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    url = quiet(start=inner).settings.broker_url
    assert url == f"sqlite:///{tmp_path.resolve()}/data/jobs.db?synchronous=full"
    given = quiet({"DRAY_BROKER_URL": "sqlite:///x.db"}, inner)
    assert given.settings.broker_url == "sqlite:///x.db"
    project(tmp_path, "dray.toml", 'broker_url = "sqlite:////abs/jobs.db"\n')
    assert quiet(start=inner).settings.broker_url == "sqlite:////abs/jobs.db"


def test_the_app_comes_from_variable_or_file(empty: Path) -> None:
    assert quiet(start=empty).app is None
    project(empty, "pyproject.toml", '[tool.dray]\napp = "shop.jobs:app"\n')
    assert quiet(start=empty).app == "shop.jobs:app"
    assert quiet({"DRAY_APP": "other:app"}, empty).app == "other:app"
    project(empty, "pyproject.toml", "[tool.dray]\napp = 5\n")
    with pytest.raises(InvalidSettings, match="app=5: a text like module:attribute"):
        quiet(start=empty)


@pytest.mark.parametrize("name", ["dray.toml", "pyproject.toml"])
def test_broken_toml_is_told_with_file_and_line_along_with_the_rest(name: str, empty: Path) -> None:
    project(empty, name, "a = 1\nb = = 2\n")
    with pytest.raises(InvalidSettings) as caught:
        quiet({"DRAY_RETRIES": "x"}, empty)
    assert name in str(caught.value)
    assert "line 2" in str(caught.value)
    assert "retries='x'" in str(caught.value)


@pytest.mark.parametrize("text", ["[tool]\ndray = 5\n", "[tool.dray.deep]\nx = 1\n"])
def test_a_table_of_the_wrong_shape_is_refused(text: str, empty: Path) -> None:
    with pytest.raises(InvalidSettings):
        quiet(start=project(empty, "pyproject.toml", text))


@pytest.mark.parametrize("text", ["", "[tool]\n", "tool = 5\n", "[tool.other]\nretries = 5\n"])
def test_a_pyproject_that_is_silent_about_dray_is_no_source(text: str, empty: Path) -> None:
    project(empty, "dray.toml", "retries = 4\n")
    assert quiet(start=project(empty, "pyproject.toml", text)).settings.retries == 4


def test_two_files_with_settings_are_refused(empty: Path) -> None:
    project(empty, "dray.toml", "retries = 4\n")
    project(empty, "pyproject.toml", "[tool.dray]\nretries = 5\n")
    with pytest.raises(InvalidSettings, match=r"dray.toml and pyproject.toml both hold settings"):
        quiet(start=empty)


def test_a_file_that_is_not_text_or_not_readable_is_told(empty: Path) -> None:
    (empty / "dray.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSettings, match="cannot be read"):
        quiet(start=empty)
    (empty / "dray.toml").unlink()
    (empty / "dray.toml").mkdir()
    with pytest.raises(InvalidSettings, match="cannot be read"):
        quiet(start=empty)


def test_yaml_is_read(empty: Path) -> None:
    project(empty, "dray.yaml", "retries: 4\nqueues: [gpu, any]\nlease: 1m\ndead_ttl: null\n")
    settings = quiet(start=empty).settings
    assert (settings.retries, settings.queues, settings.lease) == (4, ("gpu", "any"), 60_000)
    project(empty, "dray.yaml", "")
    assert quiet(start=empty).settings.retries == 3


@pytest.mark.parametrize("text", ["a: [", "- a\n- b\n", "just text", "!!python/object/apply:os.getcwd []"])
def test_yaml_that_is_broken_or_of_the_wrong_shape_is_refused(text: str, empty: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"dray\.yaml"):
        quiet(start=project(empty, "dray.yaml", text))


def test_yaml_without_pyyaml_says_what_to_install(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(empty, "dray.yaml", "retries: 4\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'dray\[yaml\]', or use dray\.toml"):
        quiet(start=empty)


def test_concurrency_adapts_unless_it_is_given(empty: Path) -> None:
    assert quiet(start=empty).settings.concurrency is None
    assert quiet(start=empty).settings.slots == AUTO_START
    assert quiet(start=empty, concurrency=8).settings.slots == 8
    assert quiet(start=empty, environ={"DRAY_CONCURRENCY": " Auto "}).settings.concurrency is None
    project(empty, "dray.toml", 'concurrency = "auto"\n')
    assert quiet(start=empty).settings.concurrency is None
    assert quiet(start=empty, mode="thin", concurrency="auto").settings.concurrency is None


def test_thin_is_one_process_and_few_jobs(empty: Path) -> None:
    loaded = quiet(start=empty, mode="thin")
    assert (loaded.settings.processes, loaded.settings.concurrency) == (1, 4)
    assert loaded.origins["processes"] == "mode thin (keyword)"
    assert quiet(start=empty, mode="thin", concurrency=8).settings.concurrency == 8


def test_the_mode_on_the_command_line_outweighs_what_a_file_says_for_other_modes(empty: Path) -> None:
    project(empty, "dray.toml", "processes = 8\nconcurrency = 100\n")
    settings = quiet(start=empty, mode="thin").settings
    assert (settings.processes, settings.concurrency) == (1, 4)
    with pytest.raises(InvalidSettings, match="mode thin has one process"):
        quiet(start=empty, mode="thin", processes=2)


@pytest.mark.parametrize(("mode", "needs"), [("specialized", "priorities"), ("job-specialized", "tasks")])
def test_a_specialized_mode_needs_to_know_for_what(mode: str, needs: str, empty: Path) -> None:
    with pytest.raises(InvalidSettings, match=f"mode {mode} needs to know which: set {needs}"):
        quiet(start=empty, mode=mode)
    chosen: dict[str, Any] = {needs: "high" if needs == "priorities" else "a"}
    assert quiet(start=empty, mode=mode, **chosen).settings.mode == mode


def test_the_command_line_outweighs_keywords_and_what_hangs_on_it_follows(empty: Path) -> None:
    project(empty, "dray.toml", 'processes = 8\nbroker_url = "sqlite:///jobs.db"\n')
    loaded = load({"lease": "9s", "dead_ttl": "1d"}, app_name="shop", environ={}, start=empty)
    changed = override(loaded, {"lease": "30s", "mode": "thin"})
    assert (
        changed.settings
        == load(
            {"lease": "30s", "dead_ttl": "1d", "mode": "thin"}, app_name="shop", environ={}, start=empty
        ).settings
    )
    assert (changed.settings.heartbeat, changed.settings.processes) == (10_000, 1)
    assert changed.origins["lease"] == "command line"
    assert changed.origins["dead_ttl"] == "keyword"
    assert changed.origins["processes"] == "mode thin (command line)"
    assert changed.origins["broker_url"] == str(empty / "dray.toml")
    back = override(changed, {"mode": "default", "broker_url": "redis://h"})
    assert (back.settings.processes, back.settings.broker_url) == (cores(), "redis://h")
    assert override(loaded, {}) == loaded
    relative = override(loaded, {"broker_url": "sqlite:///x.db"})
    assert override(relative, {"retries": 1}).settings.broker_url == "sqlite:///x.db"
    with pytest.raises(InvalidSettings, match="mode thin has one process"):
        override(loaded, {"mode": "thin", "processes": 2})
    with pytest.raises(InvalidSettings, match=r"lease='soon': .* \(command line\)"):
        override(loaded, {"lease": "soon"})


def test_which_modes_run_jobs_and_which_make_scheduled_ones(empty: Path) -> None:
    def facts(mode: str) -> tuple[bool, bool]:
        needs: dict[str, str] = {"specialized": "priorities", "job-specialized": "tasks"}
        chosen: dict[str, Any] = {needs[mode]: "1"} if mode in needs else {}
        settings = quiet(start=empty, mode=mode, **chosen).settings
        return settings.runs_jobs, settings.schedules

    assert facts("thin") == (True, True)
    assert facts("default") == (True, True)
    assert facts("specialized") == (True, False)
    assert facts("job-specialized") == (True, False)
    assert facts("scheduler-only") == (False, True)


def test_the_scheduler_has_a_switch_of_its_own(empty: Path) -> None:
    assert not quiet(start=empty, scheduler=False).settings.schedules
    assert not quiet({"DRAY_SCHEDULER": "off"}, empty).settings.schedules
    assert quiet(start=empty, mode="specialized", priorities="high", scheduler="on").settings.schedules
    project(empty, "dray.yaml", "scheduler: off\n")
    loaded = quiet(start=empty)
    assert not loaded.settings.schedules
    assert show("scheduler", loaded.settings.scheduler) == "off"
    assert override(loaded, {"mode": "scheduler-only"}).settings.schedules, "it would do nothing at all"


def test_a_timeout_of_0_means_no_limit_for_the_app_as_for_a_task(empty: Path) -> None:
    settings = quiet(start=empty, timeout=0).settings
    app = App("t", broker="memory://", timeout=0)
    task = app.task(name="t", timeout=0)(lambda: None)
    assert settings.timeout == app.settings.timeout == task.options.timeout == MAX_DURATION
    assert show("timeout", settings.timeout) == "0"


def test_log_output_is_the_file_where_one_is_named(empty: Path) -> None:
    assert quiet(start=empty, log_file="w.log", log_output="file").settings.log_file == "w.log"
    assert quiet(start=empty).settings.log_output is None


def test_a_mode_that_runs_no_jobs_has_no_use_for_what_is_said_of_jobs_in_the_same_breath(empty: Path) -> None:
    with pytest.raises(InvalidSettings) as refused:
        quiet(start=empty, mode="scheduler-only", queues="a", tasks="b", priorities="high", rate="1/s")
    assert str(refused.value).count("mode scheduler-only runs no jobs: leave it out") == 4
    (empty / "dray.toml").write_text('queues = "a"\nconcurrency = 7\n')
    assert quiet({"DRAY_MODE": "scheduler-only"}, empty, tasks="b").settings.mode == "scheduler-only"


def test_the_heartbeat_is_a_third_of_the_lease_and_never_more_than_half(empty: Path) -> None:
    assert quiet(start=empty, lease="9s").settings.heartbeat == 3_000
    assert quiet(start=empty, lease="10s", heartbeat="5s").settings.heartbeat == 5_000
    with pytest.raises(InvalidSettings, match=r"heartbeat='6s': at most half of the lease \(10s\)"):
        quiet(start=empty, lease="10s", heartbeat="6s")


def test_pickle_as_codec_needs_permission(empty: Path) -> None:
    with pytest.raises(InvalidSettings, match="pickle needs allow_pickle=true"):
        quiet(start=empty, codec="pickle")
    assert quiet(start=empty, codec="pickle", allow_pickle=True).settings.codec == "pickle"


def test_settings_survive_the_way_to_another_process(empty: Path) -> None:
    given: dict[str, Any] = {name: value[0] for name, value in EXAMPLES.items()}
    settings = quiet(start=empty, **{**given, "mode": "specialized", "log_output": "file"}).settings
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=Settings) == settings


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://me:s3cr:et@host:6379/0", "redis://me:***@host:6379/0"),
        ("redis://:s3cret@host", "redis://:***@host"),
        ("redis://:s3c@ret@host", "redis://:***@host"),
        ("redis://host/0?password=s3cret&x=1", "redis://host/0?password=***&x=1"),
        ("redis+cluster://a:1,b:2", "redis+cluster://a:1,b:2"),
        ("sqlite:////a:b@c/jobs.db", "sqlite:////a:b@c/jobs.db"),
        ("redis://me:s3/c?r#e:t@host/0", "redis://me:***@host/0"),
        ("redis://me:s3 c\nret@host/0", "redis://me:***@host/0"),
        ("redis://s3cret@host", "redis://***@host"),
        ("redis://s3/cret:x@host", "redis://***@host"),
        ("redis://host?password=s3#c&r%20et&db=1", "redis://host?password=***&db=1"),
        (
            "cannot open redis://me:s3/cr#et@host: mail a@b.org",
            "cannot open redis://me:***@host: mail a@b.org",
        ),
        ("redis://:a/b@one,redis://:c?d@two", "redis://:***@two"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_no_secret_is_in_an_error(empty: Path) -> None:
    with pytest.raises(InvalidSettings) as caught:
        quiet(start=empty, broker_url="rediss_://me:s3cret@host", api_keys="s3cret and more")
    assert "s3cret" not in str(caught.value)
    assert show("api_keys", ("s3cret",)) == "1 hidden"
    assert show("broker_url", "redis://me:s3/cr#e?t@host") == "redis://me:***@host"
    for wrong in ("me:s3cret@host", "redis:/me:s3cret@host", f"redis_://me:{'s3cret' * 20}@host"):
        with pytest.raises(InvalidSettings) as caught:
            quiet(start=empty, broker_url=wrong)
        assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://me:s3/cret@host",
        "redis://me:12/3@host/0",
        "redis://me:12?s3cret=x@host",
        "redis://me:12/3?timeout=s3cret@host",
        "redis://me:1?s3cret@host?verify=x",
        f"http://me:{'s3cret/' * 20}@host",
        "redis+unix://me:s3cret@host",
    ],
)
def test_a_broker_that_cannot_be_opened_keeps_the_password_of_its_url_to_itself(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        asyncio.run(connect(url))
    assert "s3" not in str(caught.value)
    assert caught.value.field in ("broker_url", "verify")


def test_every_broker_that_can_be_opened_can_be_set(empty: Path) -> None:
    assert set(SCHEMES) == set(BROKER_SCHEMES) == {"memory", "sqlite", *redis_options.SCHEMES}
    for scheme in SCHEMES:
        assert quiet(start=empty, broker_url=f"{scheme}://x").settings.broker_url == f"{scheme}://x"


def test_every_default_is_described_as_its_own_form_reads_it() -> None:
    plain = Settings(broker_url="memory://", namespace="x")
    for info in describe():
        assert info.env == f"DRAY_{info.name.upper()}"
        assert info.help.endswith(".")
        assert info.allowed
        if info.name in (
            "broker_url",
            "namespace",
            "queues",
            "tasks",
            "imports",
            "processes",
            "concurrency",
            "heartbeat",
            "api_keys",
            "allowed_hosts",
            "cors_origins",
            "log_output",
        ):
            assert not info.default.isdigit()
        else:
            loaded = load({info.name: info.default}, environ={}, start=Path("/"))
            assert getattr(loaded.settings, info.name) == getattr(plain, info.name)


@given(st.integers(0, 1 << 50))
def test_a_size_is_read_back_as_it_is_shown(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 1000), st.sampled_from("kmgt"))
def test_units_of_size(number: int, unit: str) -> None:
    power = "kmgt".index(unit) + 1
    assert parse_size(f"{number}{unit.upper()}iB") == number * 1024**power
    assert parse_size(f" {number} {unit}") == number * 1024**power
    assert parse_size(f"{number}{unit}b") == number * 1000**power


@given(st.sets(st.integers(0, 9), min_size=1))
def test_priorities_are_read_back_as_they_are_shown(numbers: set[int]) -> None:
    text = format_priorities(frozenset(numbers))
    assert read_priorities(text) == numbers
    assert read_priorities(sorted(numbers)) == numbers


def test_the_bands_cover_every_priority_once() -> None:
    assert sorted(number for band in BANDS.values() for number in band) == list(range(10))


@given(st.integers(100, 86_400_000))
def test_a_duration_is_read_back_as_it_is_shown(length: int) -> None:
    loaded = load({"lease": show("lease", length)}, environ={}, start=Path("/"))
    assert loaded.settings.lease == length


@given(st.text())
def test_no_text_makes_a_reader_stumble(text: str) -> None:
    for name in EXAMPLES:
        try:
            load({name: text}, environ={}, start=Path("/"))
        except InvalidSettings as wrong:
            assert name in str(wrong) or wrong.field == "codec"  # noqa: PT017


def test_settings_load_nothing_heavy() -> None:
    code = "import sys, dray.settings; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    heavy = {"asyncio", "yaml", "sqlite3", "logging", "socket", "subprocess", "click", "dray.broker"}
    assert heavy & set(run.stdout.split()) == set()


def test_cores_are_what_this_process_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
