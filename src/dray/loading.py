"""Find the app that a command names: `module:attribute`."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from pathlib import Path

from dray.app import App
from dray.errors import AppNotFound


def load_app(path: str, folder: Path | None = None) -> App:
    """The App at `module:attribute` (or `module`, when it has one App). Modules in `folder` can be found."""
    module_name, _, attribute = path.partition(":")
    if not module_name or module_name.endswith(".py") or "/" in module_name:
        guess = module_name.removesuffix(".py").strip("./").replace("/", ".") or "module"
        raise AppNotFound(f"{path!r} does not name an app: write module:attribute, for example {guess}:app")
    here = str(folder or Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise AppNotFound(_why(module_name, error, here)) from error
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


def _why(name: str, error: BaseException, folder: str) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (name == missing or name.startswith(missing + ".")):
        return (
            f"there is no module {missing!r}: looked in {folder} and in what is installed; "
            "start from the folder that holds it, or install it"
        )
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    where = f" at {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}, line {error.lineno}"
    shown = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1]
    return f"importing {name!r} failed{where}: {shown}"
