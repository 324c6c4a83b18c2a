"""Pages of the documentation as programs: their blocks, and a reader who does all that they say.

| block | what the reader does |
|---|---|
| any, first line a comment with a file name (`# shop.py`) | saves it under that name |
| `python` | runs it; one interpreter per page, so names carry over; log lines do not count as printed |
| `sh` | runs it with bash, which must end well; `sh fails` must not |
| `sh background` | starts it, and stops it with SIGTERM after the last block |
| `text` | compares it with what the block before printed; `…` stands for anything |
| no language | a drawing: looks at it |
| any with `no-run` | nothing: a test lists these with the reason |
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS = {"no-run", "fails", "background"}
STEP_SECONDS = 150.0
_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)```[ ]*$", re.M | re.S)
_FILE = re.compile(r"(?:#|//|;) (?P<name>[\w./-]+\.\w+)\s*")

INTERPRETER = """
import contextlib, io, json, sys, traceback, warnings
warnings.simplefilter("error")
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in iter(sys.stdin.readline, ""):
    step = json.loads(line)
    printed, logged, failed = io.StringIO(), io.StringIO(), ""
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(logged):
        try:
            code = "\\n" * step["line"] + step["code"]
            exec(compile(code, step["page"], "exec", dont_inherit=True), names)
        except BaseException:
            failed = logged.getvalue() + traceback.format_exc()
    print(json.dumps({"printed": printed.getvalue(), "failed": failed}), file=sys.__stdout__, flush=True)
"""


class Mistake(AssertionError):
    """A page does not do what it says."""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    """Of its first line, from 1."""
    language: str
    words: frozenset[str]
    body: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file it is to be saved as."""
        found = _FILE.fullmatch(self.body.partition("\n")[0])
        return found["name"] if found and self.language not in ("", "text", "sh") else None

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and "no-run" not in self.words and self.file is None

    @property
    def first_line(self) -> str:
        return self.body.partition("\n")[0]


def blocks_of(page: Path) -> list[Block]:
    text, name = page.read_text("utf-8"), page.relative_to(ROOT).as_posix()
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        indent = match["indent"]
        body = re.sub(rf"^{indent}", "", match["body"], flags=re.M) if indent else match["body"]
        line = text.count("\n", 0, match.start("body")) + 1
        found.append(Block(name, line, language, frozenset(words), body))
    return found


def prose_of(page: Path) -> str:
    """The page without its blocks; their lines stay, empty, so that lines keep their numbers."""
    return _FENCE.sub(lambda match: "\n" * match[0].count("\n"), page.read_text("utf-8"))


def fits(expected: str, printed: str) -> bool:
    """Whether a text is as expected; `…` stands for anything in a line, alone on a line for any lines.

    How many spaces there are between two words does not count: columns are as wide as what is in them.
    """
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, _tidy(line).split("…"))) + r"\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, "".join(f"{_tidy(line)}\n" for line in printed.splitlines())) is not None


def _tidy(line: str) -> str:
    return re.sub(r"(?<=\S) +", " ", line).rstrip()


class Reader:
    """Works through one page in an empty folder. Whatever it started has ended when `close` returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.printed: str | None = None
        """What the block before printed, if nobody has looked at it yet."""
        self.last: Block | None = None
        self._python: subprocess.Popen[str] | None = None
        self._background: list[tuple[Block, subprocess.Popen[str], IO[str]]] = []

    def do(self, block: Block) -> None:
        if unknown := block.words - WORDS:
            raise Mistake(f"{block.where}: no such mark: {', '.join(sorted(unknown))}")
        if block.language == "text":
            self._compare(block)
            return
        self._nothing_unseen()
        self.last = block
        if "no-run" in block.words:
            return
        if block.file is not None:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.body, "utf-8")
        elif block.language == "python":
            self.printed = self._run_python(block)
        elif block.language == "sh":
            self.printed = self._run_shell(block)
        elif block.language:
            raise Mistake(f"{block.where}: nobody knows how to run {block.language}; mark it no-run")

    def _compare(self, block: Block) -> None:
        if self.last is None or self.printed is None:
            raise Mistake(f"{block.where}: output of what? Nothing ran just before")
        if not fits(block.body, self.printed):
            raise Mistake(
                f"{self.last.where} does not print what {block.where} says\n"
                f"--- said\n{block.body}--- printed\n{self.printed}"
            )
        self.printed = None

    def _nothing_unseen(self) -> None:
        """What Python prints is part of the example; a command's output may be left to the reader."""
        last, printed, self.printed = self.last, self.printed, None
        if last is not None and last.language == "python" and printed:
            raise Mistake(f"{last.where} prints what the page does not show:\n{printed}")

    # python

    def _run_python(self, block: Block) -> str:
        if self._python is None:
            self._python = subprocess.Popen(
                [sys.executable, "-c", INTERPRETER],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        step = {"page": block.page, "line": block.line - 1, "code": block.body}
        self._python.stdin.write(json.dumps(step) + "\n")
        self._python.stdin.flush()
        line = self._python.stdout.readline()
        if not line:
            raise Mistake(f"{block.where} ended the interpreter")
        told: dict[str, Any] = json.loads(line)
        if told["failed"]:
            raise Mistake(f"{block.where} failed\n{told['printed']}{told['failed']}")
        return str(told["printed"])

    # shell

    def _run_shell(self, block: Block) -> str | None:
        if "background" in block.words:
            self._start(block)
            return None
        # A group of its own: what a command that hangs has started ends with it.
        process = subprocess.Popen(
            ["bash", "-euc", block.body],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            printed, _ = process.communicate(timeout=STEP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
            raise Mistake(f"{block.where} did not end within {STEP_SECONDS:.0f} s\n{printed}") from None
        if (process.returncode != 0) != ("fails" in block.words):
            raise Mistake(f"{block.where} ended with {process.returncode}\n{printed}")
        return printed

    def _start(self, block: Block) -> None:
        output = (self.folder.parent / f"{self.folder.name}-{block.line}.log").open("w+")
        started = subprocess.Popen(
            ["bash", "-euc", f"exec {block.body}"],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._background.append((block, started, output))

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("DRAY_", "PYTEST"))}
        kept.pop("PYTHONPATH", None)
        path = f"{sysconfig.get_path('scripts')}{os.pathsep}{kept.get('PATH', os.defpath)}"
        plain = {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "120", "PYTHONIOENCODING": "utf-8"}
        return kept | plain | {"PATH": path, "HOME": str(self.folder)}

    # the end

    def finish(self) -> None:
        """The last block is behind us: is everything seen, and do those in the background end well?"""
        self._nothing_unseen()
        for _, process, _ in self._background:
            process.send_signal(signal.SIGTERM)
        for block, process, output in self._background:
            code = process.wait(STEP_SECONDS)
            if code != 0:
                output.seek(0)
                raise Mistake(f"{block.where} ended with {code}\n{output.read()}")

    def close(self) -> None:
        if self._python is not None:
            assert self._python.stdin is not None
            assert self._python.stdout is not None
            self._python.stdin.close()
            self._python.wait(STEP_SECONDS)
            self._python.stdout.close()
        for _, process, output in self._background:
            if process.poll() is None:
                process.terminate()
                _wait_or_kill(process)
            output.close()


def _wait_or_kill(process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        process.wait()


def read(blocks: Iterable[Block], folder: Path) -> None:
    """Do everything the blocks of a page say, in an empty folder."""
    reader = Reader(folder)
    try:
        for block in blocks:
            reader.do(block)
        reader.finish()
    finally:
        reader.close()
