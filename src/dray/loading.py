"""Imports the app that a command names: `module:attribute`."""

from __future__ import annotations

import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from dray.app import App
from dray.errors import AppNotFound

_HERE: Final = f"{Path(__file__).parent}{os.sep}"


def load_app(path: str, folder: Path | None = None) -> App:
    """The App at `module:attribute` (or `module`, if it has one App), with `folder` on the import path."""
    module_name = path.partition(":")[0]
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").strip("./").replace("/", ".") or "module"
        raise AppNotFound(f"{path!r} does not name an app: write module:attribute, for example {guess}:app")
    here = str(folder or Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    app = _find(_import(module_name, here), path)
    for name in app.settings.imports:
        _import(name, here, f" (setting imports, from {app.loaded.origins['imports']})")
    return app


def _import(name: str, folder: str, origin: str = "") -> ModuleType:
    try:
        return import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise AppNotFound(_explain(name, error, folder, origin)) from error


def _find(module: ModuleType, path: str) -> App:
    module_name, _, attribute = path.partition(":")
    apps = {name: value for name, value in vars(module).items() if isinstance(value, App)}
    if attribute:
        found: object = module
        for part in attribute.split("."):
            found = getattr(found, part, None)
        if isinstance(found, App):
            return found
        known = f"it has {', '.join(apps)}" if apps else "it has no App at all"
        what = "nothing" if found is None else f"a {type(found).__name__}"
        raise AppNotFound(f"{path!r}: {what} is there, and an App is wanted; {known} ({module.__file__})")
    if len(apps) == 1:
        return next(iter(apps.values()))
    known = f"several Apps ({', '.join(apps)}): say which" if apps else "no App"
    raise AppNotFound(f"module {module_name!r} has {known}; write {module_name}:attribute")


def without_tasks(app: str) -> str:
    """The warning for an app that has no tasks: its workers would run nothing."""
    module = app.partition(":")[0]
    package = module.partition(".")[0] if "." in module else "package"
    return (
        f"{app} has no tasks, so its workers run no job at all. Either the modules that have them are not"
        f' imported: write app.autodiscover("{package}") below the app, or name them in the setting imports.'
        " Or their @app.task is that of another App object"
    )


def _installed() -> tuple[str, ...]:
    """Folders of the standard library and of installed packages."""
    from sysconfig import get_paths  # large, and only for errors

    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return ("<frozen", *(get_paths()[kind] + os.sep for kind in kinds))


def _explain(name: str, error: BaseException, folder: str, origin: str) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (name == missing or name.startswith(missing + ".")):
        return (
            f"there is no module {missing!r}{origin}: looked in {folder} and in what is installed; "
            "start from the folder that holds it, or install it"
        )
    # The fault is neither in dray nor in the import system, and seldom in an installed package.
    files = traceback.extract_tb(error.__traceback__)
    frames = [one for one in files if not one.filename.startswith(_HERE) and "importlib" not in one.filename]
    frames = [one for one in frames if not one.filename.startswith(_installed())] or frames
    where = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}, line {error.lineno}"
    shown = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return f"importing {name!r}{origin} failed{where}: {shown}"
