"""The settings file of a project: dray.toml, dray.yaml, or [tool.dray] in pyproject.toml.

Only files of this user and of root are followed, as git does: a settings file names modules to import and
brokers to take jobs from, and another user may have put one, or a `.dray` folder, above the current folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from dray.errors import InvalidInput

MARKS: Final = ("dray.toml", "dray.yaml", "pyproject.toml", ".git")
"""A folder with one of these is the project's."""
FILES: Final = ("dray.toml", "dray.yaml", "pyproject.toml")
TRUST_VARIABLE: Final = "DRAY_TRUST_FOLDER"


class File(msgspec.Struct, frozen=True):
    """A settings file and its values, not checked yet."""

    path: Path
    values: dict[str, object]


def project_folder(start: Path) -> Path:
    """The nearest folder, from `start` upward, that is a project's; else `start` itself."""
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in MARKS):
            return folder
    return start


def read_folder(folder: Path, environ: Mapping[str, str]) -> File | None:
    """The settings in a folder; None if no file there has any. Two files with settings are refused."""
    found = [file for name in FILES if (file := _read(folder, name, environ)) is not None]
    if len(found) > 1:
        both = " and ".join(file.path.name for file in found)
        raise InvalidInput("file", folder.name, f"{both} both hold settings of dray: keep one of them")
    return found[0] if found else None


def _read(folder: Path, name: str, environ: Mapping[str, str]) -> File | None:
    path = folder / name
    if name != "pyproject.toml" and os.path.lexists(path):  # checked below, if it has a part for dray
        check_owner("file", folder, path, environ)
    try:
        text = _text(path)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", path.name, f"it cannot be read: {error}") from error
    values = _yaml(path, text) if path.suffix == ".yaml" else _toml(path, text)
    if path.name == "pyproject.toml":
        tools = values.get("tool") if isinstance(values, dict) else None
        if not isinstance(tools, dict) or "dray" not in tools:
            return None
        check_owner("file", folder, path, environ)
        values = tools["dray"]
    if not isinstance(values, dict):
        raise InvalidInput("file", path.name, "names with values are expected")
    return File(path, {str(name): value for name, value in values.items()})


def _text(path: Path) -> str:
    """The text of a regular file: reading a pipe or device could block."""
    if path.exists() and not path.is_file():
        raise OSError("it is no regular file")
    return path.read_text("utf-8")


def _toml(path: Path, text: str) -> object:
    import tomllib  # many programs have no such file

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("file", path.name, f"it is not TOML: {error}") from error


def _yaml(path: Path, text: str) -> object:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise InvalidInput(
            "file", path.name, "reading it needs PyYAML: pip install 'dray[yaml]', or use dray.toml"
        ) from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidInput("file", path.name, f"it is not YAML: {reason}") from error


def check_owner(field: str, folder: Path, path: Path, environ: Mapping[str, str]) -> None:
    """Refuse a file or folder in a project's `folder`, or the folder itself, that is another user's."""
    trusted = [text for text in environ.get(TRUST_VARIABLE, "").split(os.pathsep) if text]
    if "*" in trusted or any(Path(text).resolve() == folder for text in trusted):
        return
    for one in (folder, path):
        owner = _foreign_owner(one, environ)
        if owner is not None:
            raise InvalidInput(
                field,
                str(path),
                f"{one} belongs to another user (uid {owner}), who could make you run their code;"
                f" if you trust them, set {TRUST_VARIABLE}={folder}",
            )


def _foreign_owner(path: Path, environ: Mapping[str, str]) -> int | None:
    """The owner, if it is neither this user nor root; of a link and of what it leads to."""
    me = os.geteuid()
    trusted = {me, 0}
    if me == 0 and environ.get("SUDO_UID", "").isdecimal():
        trusted.add(int(environ["SUDO_UID"]))
    for follow in (False, True):
        try:
            owner = path.stat(follow_symlinks=follow).st_uid
        except OSError:  # nothing is there to follow
            return None
        if owner not in trusted:
            return owner
    return None
