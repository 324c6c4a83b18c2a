"""The environments of the subjects, each made once from its pinned versions and kept below bench/out/envs."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from bench.report import ignore

ROOT = Path(__file__).parents[2]
PINS = Path(__file__).parent / "pins"
ENVS = ROOT / "bench" / "out" / "envs"
PATIENCE = 900


class NotInstalled(Exception):
    """An environment could not be made; the text says why."""


def pins_of(name: str) -> Path:
    return next(path for kind in ("txt", "json", "deb") if (path := PINS / f"{name}.{kind}").exists())


def pinned(name: str) -> dict[str, str]:
    """Package → version, as pinned."""
    if (path := pins_of(name)).suffix == ".json":
        import json

        data = json.loads(path.read_text("utf-8"))
        return {**data["dependencies"], **data["overrides"]}
    lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def make(name: str) -> Path:
    """The folder of an environment, installed if it is not there yet."""
    pins = pins_of(name)
    stamp = hashlib.sha256(pins.read_bytes() + platform.python_version().encode()).hexdigest()[:10]
    folder = ENVS / f"{name}-{stamp}"
    if (folder / "ready").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ignore(ENVS)
    install = {".json": _install_node, ".deb": _unpack_debian}.get(pins.suffix, _install_python)
    install(pins, folder)
    (folder / "ready").touch()
    return folder


def _install_python(pins: Path, folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--no-deps", "-r", str(pins)], folder)


def _install_node(pins: Path, folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstalled("node and npm are not installed")
    shutil.copy(pins, folder / "package.json")
    _run([npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"], folder)


def _unpack_debian(pins: Path, folder: Path) -> None:
    """Packages of Debian, below the folder alone; `bin/ruby` runs what is in them."""
    apt, unpack = shutil.which("apt-get"), shutil.which("dpkg-deb")
    if apt is None or unpack is None:
        raise NotInstalled("apt-get is not installed")
    _run([apt, "download", *(f"{name}={version}" for name, version in pinned(pins.stem).items())], folder)
    for package in sorted(folder.glob("*.deb")):
        _run([unpack, "-x", str(package), str(folder)], folder)
        package.unlink()
    _write_ruby(folder)


RUBY = """#!/bin/sh
export LD_LIBRARY_PATH='{libraries}' RUBYLIB='{modules}'
exec '{program}' "$@"
"""


def _write_ruby(folder: Path) -> None:
    usr = folder / "usr"
    shared = next(usr.glob("lib/*/libruby-*.so.*")).parent
    modules = [*usr.glob("share/rubygems-integration/all/gems/*/lib"), *usr.glob("lib/ruby/*")]
    modules += shared.glob("ruby/*")
    start = folder / "bin" / "ruby"
    start.parent.mkdir()
    program = next(usr.glob("bin/ruby*"))
    text = RUBY.format(libraries=shared, modules=":".join(map(str, modules)), program=program)
    start.write_text(text, "utf-8")
    start.chmod(0o755)


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(str(error)) from error
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise NotInstalled(said[-1] if said else f"{command[0]} failed with {done.returncode}")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """The environ of a program: its own packages and this checkout, no settings from outside."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DRAY_", "PYTHON", "CELERY", "BENCH_", "VIRTUAL_ENV"))
    }
    return {
        **kept,
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
        "PYTHONWARNINGS": "ignore",
        "PYTHONDONTWRITEBYTECODE": "",
        "NODE_PATH": str(folder / "node_modules"),
        **more,
    }
