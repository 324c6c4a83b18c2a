"""What `import dray` offers, and what it costs."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import time
from enum import StrEnum

import pytest

import dray
from dray import app, broker, errors, handle

ERRORS = {
    "AppNotFound",
    "BrokerAway",
    "BrokerBusy",
    "BrokerError",
    "BrokerFull",
    "BrokerGone",
    "BrokerReadOnly",
    "BrokerWarning",
    "CodecError",
    "DecodeError",
    "DrayError",
    "DuplicateJob",
    "EncodeError",
    "ForeignStore",
    "HistoryError",
    "HistoryOff",
    "InvalidInput",
    "InvalidSettings",
    "JobCancelled",
    "JobError",
    "JobFailed",
    "JobNotFound",
    "JobStopped",
    "JobTimeout",
    "LastAdminKey",
    "LeaseLost",
    "MissingLibrary",
    "NewerLayout",
    "NewerVersion",
    "EnqueueLimited",
    "QueueFull",
    "NoResult",
    "ResultGone",
    "ScheduleExists",
    "ScheduleNotFound",
    "SessionLost",
    "SettingsWarning",
    "TaskExit",
    "TooLarge",
    "UnknownDependency",
    "UnknownTask",
    "UnknownTaskWarning",
    "WorkerSilent",
    "WouldBlock",
    "EventTimeout",
    "JobFinished",
    "MailboxFull",
    "StepFailed",
    "StepUncertain",
}
LATE = {
    *("App", "Broker", "Call", "Codecs", "Context", "JobHandle", "JobInfo", "Reject", "Retry"),
    *("Flow", "FlowHandle", "FlowInfo", "FlowState", "FlowStatus", "Node", "ScheduleInfo", "Task", "Why"),
    *("aas_completed", "agather", "as_completed", "chain", "chord", "connect", "current", "gather", "group"),
}
"""What is loaded when it is first asked for."""
PUBLIC = ERRORS | LATE | {"State", "__version__"}

HEAVY = {
    *("asyncio", "concurrent.futures", "multiprocessing", "sqlite3", "ssl", "socket", "subprocess"),
    *("logging", "http", "email", "urllib.request", "argparse", "importlib.metadata", "importlib.resources"),
    *("pytest", "hypothesis", "pydantic", "google.protobuf", "click", "rich", "redis", "grpc", "starlette"),
    *("opentelemetry", "uvicorn", "asyncpg", "uuid_utils", "contextvars", "tomllib"),
    *(
        "dray.app",
        "dray.broker",
        "dray.client.client",
        "dray.settings",
        "dray.task",
        "dray.testing",
        "dray.worker",
    ),
}
THIRD_PARTY = {"dray", "msgspec", "typing_extensions"}
"""All that may be loaded beside the standard library; msgspec looks for typing_extensions by itself."""


def loaded_by(code: str) -> set[str]:
    """The modules a fresh interpreter has loaded after running `code`."""
    show = "import sys; names = sorted(sys.modules); import json; print(json.dumps(names))"
    run = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True
    )
    names: list[str] = json.loads(run.stdout)
    return set(names)


def test_the_public_names_are_exactly_these() -> None:
    assert set(dray.__all__) == PUBLIC
    assert len(dray.__all__) == len(PUBLIC), "a name is listed twice"
    assert dray.__all__ == sorted(dray.__all__)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_each_public_name_can_be_imported_and_is_shown_by_dir(name: str) -> None:
    space: dict[str, object] = {}
    exec(f"from dray import {name}", space)
    assert space[name] is not None
    assert name in dir(dray)


def test_what_is_loaded_late_is_the_same_object() -> None:
    assert dray.connect is broker.connect
    assert dray.Broker is broker.Broker
    assert dray.App is app.App
    assert dray.gather is handle.gather
    for name in LATE:
        assert getattr(dray, name) is vars(dray)[name], "found at once the second time"


def test_a_fresh_import_has_only_the_facts_and_dir_tells_of_the_rest() -> None:
    code = "import dray, json; print(json.dumps([sorted(vars(dray)), dir(dray)]))"
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    there, shown = json.loads(run.stdout)
    assert set(there) & LATE == set()
    assert set(shown) >= PUBLIC


def test_asking_for_the_app_loads_neither_the_database_nor_what_runs_jobs() -> None:
    fresh = loaded_by("import dray; dray.App")
    assert "dray.app" in fresh
    assert not {"sqlite3", "dray.broker.sqlite", "dray.testing", "dray.worker", "dray.cli"} & fresh


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'dray' has no attribute 'nonsense'"):
        getattr(dray, "nonsense")  # noqa: B009


def test_state_compares_as_text() -> None:
    assert issubclass(dray.State, StrEnum)
    assert dray.State("dead") == "dead"


def test_importing_dray_loads_nothing_heavy() -> None:
    fresh = loaded_by("import dray") - loaded_by("pass")
    assert "dray.errors" in fresh
    assert fresh & HEAVY == set()
    strangers = {name.partition(".")[0] for name in fresh} - sys.stdlib_module_names - THIRD_PARTY
    assert strangers == set()


def test_asking_for_connect_loads_the_brokers_but_not_the_database() -> None:
    fresh = loaded_by("import dray; dray.connect") - loaded_by("pass")
    assert "dray.broker" in fresh
    assert "sqlite3" not in fresh
    assert "dray.testing" not in fresh


def test_importing_dray_takes_little_more_than_its_one_dependency() -> None:
    def seconds(code: str) -> float:
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", code], check=True)
        return time.perf_counter() - begun

    rounds = [(seconds("import msgspec"), seconds("import dray")) for _ in range(5)]
    bare, ours = (min(times) for times in zip(*rounds, strict=True))
    assert ours < 3 * bare, f"{ours * 1000:.0f} ms, msgspec alone {bare * 1000:.0f} ms"


def drawn_tree(text: str) -> dict[str, str | None]:
    """Each name drawn in a docstring's tree, and the name it hangs under (None for a root)."""
    drawn: dict[str, str | None] = {}
    branch: list[str] = []
    for line in text.splitlines():
        match = re.match(r"((?:│   |    )*(?:[├└]── )?)([A-Z]\w+)(?: |$)", line)
        if match is None:
            continue
        depth, name = len(match[1]) // 4, match[2]
        if depth == 0 and name not in ("DrayError", "BrokerWarning", "UnknownTaskWarning"):
            continue  # prose
        del branch[depth:]
        drawn[name] = branch[-1] if branch else None
        branch.append(name)
    return drawn


def defined() -> dict[str, type[object]]:
    return {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    }


def test_every_error_is_drawn_in_the_tree_under_its_own_parent() -> None:
    parents = {}
    for name, cls in defined().items():
        assert issubclass(cls, Exception), name
        base = cls.__mro__[1]
        parents[name] = base.__name__ if base.__module__ == errors.__name__ else None
    parents |= {cls.__name__: cls.__mro__[1].__name__ for cls in (dray.Retry, dray.Reject)}
    assert errors.__doc__ is not None
    assert drawn_tree(errors.__doc__) == parents


def test_every_error_is_under_one_root_and_public() -> None:
    assert defined().keys() == ERRORS
    for name, cls in defined().items():
        root = UserWarning if issubclass(cls, Warning) else errors.DrayError
        assert issubclass(cls, root), name
        assert getattr(dray, name) is cls


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_every_error_says_in_its_docstring_what_it_means(name: str) -> None:
    assert vars(errors)[name].__doc__


def test_a_wrong_value_is_shown_but_never_at_full_length() -> None:
    error = dray.InvalidInput("queue", "x" * 10_000, "1-128 characters are allowed")
    assert str(error).startswith("queue='xxx")
    assert str(error).endswith("...: 1-128 characters are allowed")
    assert len(str(error)) < 200
    assert (error.field, error.allowed) == ("queue", "1-128 characters are allowed")
    assert isinstance(error, ValueError)
