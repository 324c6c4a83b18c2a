"""The processes of a session: a driver that enqueues, and the worker tree, which can be frozen."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 600.0
REST, REST_SHARE, REST_MOST = 0.03, 0.2, 0.5
"""A worker that used less than that share of a core for so long (seconds) has come to rest."""
SHOWN = 3
"""Last lines of a log that are worth repeating."""


class Broken(Exception):
    """A process of the session failed; the text has its last words."""


class Driver:
    """The producer's side, in the subject's environment."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                command,
                env=dict(environ),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=log.parent,
            )

    def hello(self) -> dict[str, Any]:
        """What it can do, once it is ready."""
        return self._read(PATIENCE)

    def ask(self, do: str, **more: object) -> dict[str, Any]:
        self.tell(do, **more)
        return self.answer()

    def tell(self, do: str, **more: object) -> None:
        """Begin something; `answer` waits for its end."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise Broken(f"the driver is gone: {last_words(self._log)}") from None

    def answer(self) -> dict[str, Any]:
        return self._read(PATIENCE)

    def _read(self, patience: float) -> dict[str, Any]:
        out = self._process.stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], patience)
        line = out.readline() if ready else b""
        if not line:
            why = "said nothing" if not ready else f"failed: {last_words(self._log)}"
            raise Broken(f"the driver {why}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class Workers:
    """One or more worker commands with all their children."""

    def __init__(self, commands: Sequence[Sequence[str]], environ: Mapping[str, str], log: Path) -> None:
        self._log = log
        with log.open("ab") as said:
            self._roots = [
                subprocess.Popen(
                    command,
                    env=dict(environ),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    cwd=log.parent,
                )
                for command in commands
            ]

    def check(self) -> None:
        """Raise if one of them has ended."""
        for root in self._roots:
            if root.poll() is not None:
                raise Broken(f"the worker ended with {root.returncode}: {last_words(self._log)}")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing runs in the meantime: parents stop before their children, and go on after them."""
        self._rest()
        tree = self.tree()
        _signal(tree, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(tree[::-1], signal.SIGCONT)

    def _rest(self) -> None:
        """Let it acknowledge its last jobs; nobody is stopped with a lock in hand."""
        deadline, used = time.monotonic() + REST_MOST, self.cpu()
        while time.monotonic() < deadline:
            time.sleep(REST)
            before, used = used, self.cpu()
            if used - before < REST * REST_SHARE:
                return

    def tree(self) -> list[int]:
        found = [root.pid for root in self._roots]
        for pid in found:  # grows while it is walked
            found += _children(pid)
        return found

    def cpu(self) -> float:
        """Seconds that all of them have used so far."""
        return sum(_cpu(pid) for pid in self.tree())

    def memory(self) -> float:
        """MiB of all of them; pages that they share count once (PSS)."""
        return sum(_pss(pid) for pid in self.tree()) / 1024

    def stop(self) -> None:
        """At once: the server they worked on goes as well."""
        tree = self.tree()
        _signal(tree, signal.SIGSTOP)
        _signal(tree, signal.SIGKILL)
        for root in self._roots:
            root.wait()
        deadline = time.monotonic() + 5
        while any(map(_lives, tree)) and time.monotonic() < deadline:
            time.sleep(0.005)


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _lives(pid: int) -> bool:
    """Not gone, and not merely waiting for somebody to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _pss(pid: int) -> float:
    """KiB."""
    found = re.search(r"^Pss: +(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0.0


def _cpu(pid: int) -> float:
    """Of all its threads, with the precision of the scheduler."""
    used = 0.0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            used += int((task / "schedstat").read_text().split()[0]) / 1e9
    return used


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-SHOWN:]) or "(it said nothing)"
