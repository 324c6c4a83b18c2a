"""The file that holds settings: which folder, which file in it, and what it says."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path
from typing import Final

import msgspec

from dray.errors import InvalidInput

MARKS: Final = ("dray.toml", "dray.yaml", "pyproject.toml", ".git")
"""A folder with one of these is the project's."""
FILES: Final = ("dray.toml", "dray.yaml", "pyproject.toml")


class File(msgspec.Struct, frozen=True):
    """What was read, and where it stands, as it is named in messages."""

    path: Path
    values: dict[str, object]


def project_folder(start: Path) -> Path:
    """The nearest folder, from `start` upward, that is a project's; else `start` itself."""
    for folder in (start, *start.parents):
        if any((folder / mark).exists() for mark in MARKS):
            return folder
    return start


def read_folder(folder: Path) -> File | None:
    """The settings in a folder; None if no file there has any. Two files with settings are refused."""
    found = [file for name in FILES if (file := _read(folder / name)) is not None]
    if len(found) > 1:
        both = " and ".join(file.path.name for file in found)
        raise InvalidInput("file", folder.name, f"{both} both hold settings of dray: keep one of them")
    return found[0] if found else None


def _read(path: Path) -> File | None:
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("file", path.name, f"it cannot be read: {error}") from error
    values = _yaml(path, text) if path.suffix == ".yaml" else _toml(path, text)
    if path.name == "pyproject.toml":
        tools = values.get("tool") if isinstance(values, dict) else None
        if not isinstance(tools, dict) or "dray" not in tools:
            return None
        values = tools["dray"]
    if not isinstance(values, dict):
        raise InvalidInput("file", path.name, "names with values are expected")
    return File(path, {str(name): value for name, value in values.items()})


def _toml(path: Path, text: str) -> object:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("file", path.name, f"it is not TOML: {error}") from error


def _yaml(path: Path, text: str) -> object:
    try:
        yaml = import_module("yaml")
    except ImportError as error:
        raise InvalidInput(
            "file", path.name, "reading it needs PyYAML: pip install pyyaml, or use dray.toml"
        ) from error
    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise InvalidInput("file", path.name, f"it is not YAML: {reason}") from error
