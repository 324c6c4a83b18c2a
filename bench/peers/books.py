"""Which jobs ran, how often and when: the marks that jobs left, read from outside."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path

from bench.peers.inside import HEAD

STILL = 20.0
"""Seconds without a single new mark after which a phase has failed."""


class Unfinished(Exception):
    """Not every job ran exactly once; the text says what was found."""


class Books:
    """The folder in which every process of a session keeps its marks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def done(self, phase: int, count: int) -> int:
        """How many of the phase's jobs have run."""
        found = self._marks(phase, count)
        return sum(count - marks.count(0) for _, _, marks in found)

    def verify(self, phase: int, count: int) -> None:
        """Every job ran, and only once."""
        times = [0] * count
        for _, _, marks in self._marks(phase, count):
            for place, ran in enumerate(marks):
                if ran:
                    times[place] += ran
        if (missing := times.count(0)) or (twice := sum(one > 1 for one in times)):
            more = f"{missing} did not run" if missing else f"{twice} ran more than once"
            raise Unfinished(f"of {count} jobs {more}")

    def seconds(self, phase: int) -> float:
        """From the first start to the last end."""
        heads = [(first, last) for first, last, _ in self._marks(phase, 0)]
        return (max(last for _, last in heads) - min(first for first, _ in heads)) / 1e9

    def delays(self, phase: int, count: int) -> list[float]:
        """Seconds from sending to start, of the probes that have started."""
        found: list[float] = []
        for path in self.folder.glob(f"delays-{phase}-*"):
            with path.open("rb") as file:
                data = file.read(count * 8)
            data = data.ljust(count * 8, b"\0")
            found += [one / 1e9 for (one,) in struct.iter_unpack("<q", data) if one]
        return found

    def _marks(self, phase: int, count: int) -> list[tuple[int, int, bytes]]:
        found = []
        for path in self.folder.glob(f"marks-{phase}-*"):
            with path.open("rb") as file:
                data = file.read(HEAD + count)
            if len(data) == HEAD + count:
                first, last = struct.unpack("<qq", data[:HEAD])
                found.append((first, last, data[HEAD:]))
        return [one for one in found if one[1]]


def wait_until(
    seen: Callable[[], int], count: int, alive: Callable[[], None], still: float = STILL, every: float = 0.01
) -> None:
    """Look until `seen` has reached `count`; `alive` raises when there is no sense in waiting."""
    last, since = -1, time.monotonic()
    while (now := seen()) < count:
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > still:
            raise Unfinished(f"{now} of {count} jobs ran, then nothing for {still:.0f} s")
        alive()
        time.sleep(every)
