"""Loads settings: keyword over environment over file over default, all checked at once."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from dray.errors import InvalidInput, InvalidSettings, SettingsWarning, near_names
from dray.settings.files import File, check_owner, project_folder, read_folder
from dray.settings.model import Settings
from dray.settings.table import TABLE, THIN_CONCURRENCY, show, variable

COMMAND_LINE: Final = "command line"
KEYWORD: Final = "keyword"
DEFAULT: Final = "default"
_BY_MODE: Final = "mode"
_FOR_JOBS: Final = ("queues", "priorities", "tasks", "processes", "concurrency", "rate")
"""Settings without meaning for a worker that runs no jobs."""

_OTHER_VARIABLES: Final = re.compile(
    r"DRAY_(APP|DEBUG|TRUST_FOLDER"
    r"|(SIM|WALK|CHAOS|CROWD|BENCH|TEST|EXECUTOR)(_\w+)?"  # of dray's own tests and processes
    r"|(\w+_)?SERVICE_(HOST|PORT\w*)|(\w+_)?PORT(_\d+_\w+)?)"  # set by Kubernetes for a service named dray
)


class Loaded(msgspec.Struct, frozen=True):
    """Settings and the origin of each."""

    settings: Settings
    origins: dict[str, str]
    """Setting → `keyword`, the name of an environment variable, a file's path, or `default`."""
    folder: Path
    """The project's: the nearest with pyproject.toml, dray.toml, dray.yaml or .git, else the current one."""
    app: str | None = None
    """`module:attribute` from `DRAY_APP` or the file."""

    def check_place(self) -> None:
        """Refuse to open the embedded broker where no setting names one and the folder is another user's."""
        if self.origins["broker_url"] == DEFAULT:
            try:
                check_owner("broker_url", self.folder, self.folder / ".dray", os.environ)
            except InvalidInput as problem:
                raise InvalidSettings([(problem, DEFAULT)]) from None


class _Given(msgspec.Struct, frozen=True):
    value: object
    origin: str
    rank: int
    """Of the source: 4 command line, 3 keyword, 2 environment, 1 file."""


class _Sources:
    """The values as given, strongest source first, and every problem found in them."""

    def __init__(self) -> None:
        self.given: dict[str, _Given] = {}
        self.problems: list[tuple[InvalidInput, str]] = []

    def add(self, name: str, value: object, origin: str, rank: int) -> None:
        if name not in TABLE:
            self.refuse(InvalidInput(name, value, _unknown(name, TABLE)), origin)
        elif name not in self.given:
            self.given[name] = _Given(value, origin, rank)

    def refuse(self, problem: InvalidInput, origin: str) -> None:
        self.problems.append((problem, origin))

    def rank(self, name: str) -> int:
        return self.given[name].rank if name in self.given else 0

    def origin(self, name: str) -> str:
        return self.given[name].origin if name in self.given else DEFAULT


def load(
    overrides: Mapping[str, object] | None = None,
    *,
    app_name: str | None = None,
    environ: Mapping[str, str] | None = None,
    start: Path | None = None,
) -> Loaded:
    """The settings of this program. All problems are raised together, as `InvalidSettings`.

    `overrides` are keywords of the program; None means "not given" for a setting that cannot be none. The
    search for a file begins at `start`, by default the current folder.
    """
    environ = os.environ if environ is None else environ
    sources = _Sources()
    folder = project_folder(_start(start))
    file = _file(folder, sources, environ)
    for name, value in (overrides or {}).items():
        if value is not None or name not in TABLE or _may_be_none(name):
            sources.add(name, value, KEYWORD, 3)
    _add_environment(environ, sources)
    app = environ.get("DRAY_APP", "").strip() or None
    for name, value in (file.values if file else {}).items():
        if name != "app":
            sources.add(name, value, str(file.path) if file else "", 1)
        elif isinstance(value, str) and value.strip():
            app = app or value.strip()
        else:
            sources.refuse(InvalidInput("app", value, "a text like module:attribute is allowed"), str(folder))
    return _together(_read_values(sources), sources, folder, app_name, app)


def override(loaded: Loaded, values: Mapping[str, object], origin: str = COMMAND_LINE) -> Loaded:
    """The same settings with stronger values on top; values derived from mode and lease are derived again."""
    sources = _Sources()
    for name, value in values.items():
        sources.add(name, value, origin, 4)
    read = _read_values(sources)
    for name, source in loaded.origins.items():
        derived = source == DEFAULT or source.startswith(_BY_MODE)
        if name not in sources.given and (not derived or name in ("broker_url", "namespace")):
            read[name] = getattr(loaded.settings, name)
            sources.given[name] = _Given(read[name], source, _rank(source))
    return _together(read, sources, loaded.folder, None, loaded.app)


def _rank(origin: str) -> int:
    if origin.startswith("DRAY_"):
        return 2
    return {COMMAND_LINE: 4, KEYWORD: 3, DEFAULT: 0}.get(origin, 1)


def _together(
    values: dict[str, object], sources: _Sources, folder: Path, app_name: str | None, app: str | None
) -> Loaded:
    origins = {name: sources.origin(name) for name in TABLE}
    _fill_in(values, sources, origins, folder, app_name)
    _check_together(values, sources)
    if sources.problems:
        raise InvalidSettings(sources.problems)
    return Loaded(msgspec.convert(values, Settings), origins, folder, app)


def _start(start: Path | None) -> Path:
    try:
        return (start or Path.cwd()).resolve()
    except FileNotFoundError as error:
        problem = InvalidInput("settings", ".", "the current folder was removed: change to another one")
        raise InvalidSettings([(problem, "current folder")]) from error


def _file(folder: Path, sources: _Sources, environ: Mapping[str, str]) -> File | None:
    try:
        return read_folder(folder, environ)
    except InvalidInput as problem:
        sources.refuse(problem, str(folder))
        return None


def _add_environment(environ: Mapping[str, str], sources: _Sources) -> None:
    known = {variable(name): name for name in TABLE}
    for key in sorted(environ):
        if not key.startswith("DRAY_"):
            continue
        if key in known:
            # Many tools set a variable to nothing to mean "not set".
            if environ[key].strip():
                sources.add(known[key], environ[key], key, 2)
        elif not _OTHER_VARIABLES.fullmatch(key):
            warnings.warn(f"{key}: {_unknown(key, known)}", SettingsWarning, stacklevel=4)


def _unknown(name: str, known: Mapping[str, object]) -> str:
    short = {other.removeprefix("DRAY_"): other for other in known}
    bare = name.removeprefix("DRAY_")
    found = near_names(bare, short, 1, 0.7)
    found = found or [other for other in short if other.startswith(f"{bare}_")][:2]
    near = [short[other] for other in found]
    return "no setting has this name" + (f": did you mean {' or '.join(near)}?" if near else "")


def _may_be_none(name: str) -> bool:
    try:
        TABLE[name].form.read(None)
    except ValueError:
        return False
    return True


def _read_values(sources: _Sources) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, given in sources.given.items():
        form = TABLE[name].form
        try:
            values[name] = form.read(given.value)
        except (ValueError, OverflowError):
            reason = f"{form.allowed} is allowed"
            sources.refuse(InvalidInput(name, _presentable(name, given.value), reason), given.origin)
    return values


def _presentable(name: str, value: object) -> object:
    if name == "api_keys":
        return "(hidden)"
    if (
        name.endswith("_url") and isinstance(value, str) and "://" not in value
    ):  # no URL, yet it may hold one's login
        return f"***@{value.rpartition('@')[2]}" if "@" in value else value
    return value


def _fill_in(
    values: dict[str, object], sources: _Sources, origins: dict[str, str], folder: Path, app_name: str | None
) -> None:
    """Fill in the defaults that depend on the folder, the app or the mode."""
    wrong = {problem.field for problem, _ in sources.problems}
    url = values.get("broker_url")
    if url is None and "broker_url" not in wrong:
        values["broker_url"] = f"sqlite:///{quote(str(folder))}/.dray/dray.db"
    elif isinstance(url, str) and sources.rank("broker_url") == 1:
        values["broker_url"] = _from_folder(url, folder)
    history = values.get("history_url")
    if isinstance(history, str) and sources.rank("history_url") == 1:
        values["history_url"] = _from_folder(history, folder)
    if "namespace" not in values and "namespace" not in wrong:
        try:
            values["namespace"] = TABLE["namespace"].form.read(app_name or "dray")
        except ValueError:
            allowed = f"{TABLE['namespace'].form.allowed} is allowed: rename the App, or give namespace="
            sources.refuse(InvalidInput("namespace", app_name, allowed), "the App's name")
    if values.get("mode") == "thin":
        for name, fit in (("processes", 1), ("concurrency", THIN_CONCURRENCY)):
            # A value from a weaker source was not chosen with this mode in mind.
            if sources.rank(name) < sources.rank("mode"):
                values[name], origins[name] = fit, f"{_BY_MODE} thin ({sources.origin('mode')})"


def _from_folder(url: str, folder: Path) -> str:
    """A relative path in a file counts from that file's folder, wherever the program starts."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path.startswith("/"):
        return url
    return f"sqlite:///{quote(str(folder))}/{path}"


def _check_together(values: dict[str, object], sources: _Sources) -> None:
    """Refuse values that contradict each other."""

    def refuse(name: str, allowed: str) -> None:
        value = values.get(name)
        shown = show(name, value) if name in values else None
        sources.refuse(InvalidInput(name, shown, allowed), sources.origin(name))

    mode = values.get("mode")
    wrong = {problem.field for problem, _ in sources.problems}
    if mode == "thin" and values.get("processes", 1) != 1:
        refuse("processes", "mode thin has one process: leave it out, or choose another mode")
    if mode == "specialized" and values.get("priorities") is None and "priorities" not in wrong:
        refuse("priorities", "mode specialized needs to know which: set priorities")
    if mode == "job-specialized" and values.get("tasks") is None and "tasks" not in wrong:
        refuse("tasks", "mode job-specialized needs to know which: set tasks")
    if mode == "scheduler-only":
        # Only values of the same source: an app's own settings are for all its workers.
        for name in _FOR_JOBS:
            if values.get(name) is not None and sources.rank(name) == sources.rank("mode"):
                refuse(name, "mode scheduler-only runs no jobs: leave it out, or choose another mode")
        if values.get("scheduler") is False and sources.rank("scheduler") == sources.rank("mode"):
            refuse("scheduler", "mode scheduler-only does nothing else: leave it out, or choose another mode")
    output, file = values.get("log_output"), values.get("log_file")
    if output == "file" and file is None and "log_file" not in wrong:
        refuse("log_file", "log_output=file needs to know which: set log_file")
    if file is not None and output in ("stderr", "stdout"):
        refuse("log_output", "log_file is set: set log_output to file, or leave one of the two out")
    lease, beat = values.get("lease", 30_000), values.get("heartbeat")
    if isinstance(lease, int) and isinstance(beat, int) and beat * 2 > lease:
        refuse("heartbeat", f"at most half of the lease ({show('lease', lease)}) is allowed")
    if values.get("codec") == "pickle" and not values.get("allow_pickle", False):
        refuse("codec", "pickle needs allow_pickle=true, and trust in everybody who can write to the broker")
