"""How far a run has come, on stderr: plain lines, or a bar where somebody watches."""

from __future__ import annotations

import sys
import time
from typing import TextIO

WIDTH = 24


class Progress:
    """`step` when one of `total` parts begins, `tell` for what happens within it."""

    def __init__(self, total: int, stream: TextIO | None = None) -> None:
        self._total, self._stream = total, stream or sys.stderr
        self._done = 0
        self._text = ""
        self._start = time.monotonic()
        self._bar = self._stream.isatty()

    def step(self, text: str) -> None:
        self._done, self._text = self._done + 1, text
        if self._bar:
            self._draw("")
        else:
            self._line(text)

    def tell(self, text: str) -> None:
        if self._bar:
            self._draw(text)

    def warn(self, text: str) -> None:
        if self._bar:
            self._stream.write("\r\x1b[K")
        self._line(text)

    def end(self) -> None:
        if self._bar:
            self._stream.write("\r\x1b[K")
        self._line("done")

    def _line(self, text: str) -> None:
        seconds = time.monotonic() - self._start
        self._stream.write(f"{seconds:6.1f} s  {self._done}/{self._total}  {text}\n")
        self._stream.flush()

    def _draw(self, detail: str) -> None:
        full = WIDTH * (self._done - 1) // max(self._total, 1)
        bar = "█" * full + "░" * (WIDTH - full)
        text = f"{self._text}, {detail}" if detail else self._text
        self._stream.write(f"\r\x1b[K{bar} {self._done}/{self._total} {text}")
        self._stream.flush()
