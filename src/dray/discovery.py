"""Imports the task modules of a package, and no other modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from dray.errors import InvalidInput


def import_below(package: str, module: str) -> list[str]:
    """Import every module of this name in a package and its subpackages; returns their full names."""
    names = [f"{package}.{found}" for found in sorted(_below(_folders_of(package), module))]
    for name in names:
        import_module(name)
    return names


def _folders_of(package: str) -> list[str]:
    try:
        imported = import_module(package)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}.".startswith(f"{error.name}."):
            raise InvalidInput("package", package, f"there is no {error.name!r} to import") from error
        raise  # something inside the package
    folders = getattr(imported, "__path__", None)
    if folders is None:
        raise InvalidInput("package", package, "this is a module: name the package (folder) that it is in")
    return list(folders)


def _below(folders: Iterable[str], module: str, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Dotted names relative to the package."""
    for folder in map(Path, folders):
        if (real := folder.resolve()) in seen:  # a link that leads back up
            continue
        if any(found.name == module for found in iter_modules([str(folder)])):
            yield module
        for inner in folder.iterdir() if folder.is_dir() else ():
            if inner.name.isidentifier() and inner.name not in ("__pycache__", module) and inner.is_dir():
                for found in _below([str(inner)], module, seen | {real}):
                    yield f"{inner.name}.{found}"
