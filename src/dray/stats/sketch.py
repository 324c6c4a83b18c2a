"""Durations in little space: counts in 64 buckets, two to an octave, from 61 µs to three days.

A percentile is usually off by a tenth at most, and never by more than one bucket (a factor of 1.41). Sketches
of several workers are added bucket by bucket, so that their common percentiles are as good as those of one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from math import frexp
from typing import Final

import msgspec

BUCKETS: Final = 64
PER_OCTAVE: Final = 2
LOWEST: Final = 2.0**-14
"""Seconds where the second bucket begins; shorter durations are in the first."""
KEPT: Final = 4096.0
"""The number of values that a sketch stands for at most; then older ones count for less and less."""
RECENT: Final = 0.05
"""The share by which one more value moves the average."""
MINUTE: Final = 60.0
_HALF: Final = 2.0**-0.5
_SHIFT: Final = PER_OCTAVE * 15
_FADED: Final = 0.1


def bucket_of(seconds: float) -> int:
    if seconds < LOWEST:
        return 0
    mantissa, exponent = frexp(seconds)
    place = PER_OCTAVE * (exponent - 1) + (mantissa >= _HALF) + _SHIFT - 1
    return place if place < BUCKETS else BUCKETS - 1


def bounds_of(bucket: int) -> tuple[float, float]:
    """Where a bucket begins and ends, in seconds."""
    if bucket == 0:
        return LOWEST * _HALF, LOWEST
    return LOWEST * 2 ** ((bucket - 1) / PER_OCTAVE), LOWEST * 2 ** (bucket / PER_OCTAVE)


class RecentMaximum:
    """The largest of the values that were added within the last minute."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._values: deque[tuple[float, float]] = deque()

    def add(self, value: float) -> None:
        self._values.append((self._monotonic(), value))

    @property
    def value(self) -> float:
        while self._values and self._values[0][0] < self._monotonic() - MINUTE:
            self._values.popleft()
        return max((value for _, value in self._values), default=0.0)


class Sketch(msgspec.Struct, array_like=True):
    """Durations in seconds, mostly recent ones."""

    counts: dict[int, float] = msgspec.field(default_factory=dict)
    average: float = 0.0
    """Of the recent values: each one moves it by `RECENT`."""
    longest: float = 0.0
    """Of the values that still count."""

    @property
    def weight(self) -> float:
        """The number of values it stands for; old ones count in part."""
        return sum(self.counts.values())

    def add(self, values: Iterable[float]) -> None:
        counts, number, total = self.counts, 0, 0.0
        for value in values:
            place = bucket_of(value)
            counts[place] = counts.get(place, 0.0) + 1.0
            number += 1
            total += value
            if value > self.longest:
                self.longest = value
        if number:
            self._move(total / number, number)
            self._fade()

    def merge(self, newer: Sketch) -> None:
        """Add a sketch of more recent values."""
        if newer.counts:
            before = self.weight
            self._take(newer)
            self._move(newer.average, newer.weight, before)
            self._fade()

    def beside(self, other: Sketch) -> Sketch:
        """The sum of two sketches of the same time."""
        both = Sketch(dict(self.counts), self.average, self.longest)
        mine, theirs = self.weight, other.weight
        if theirs:
            both._take(other)
            both.average = (self.average * mine + other.average * theirs) / (mine + theirs)
        return both

    def _take(self, other: Sketch) -> None:
        for place, count in other.counts.items():
            self.counts[place] = self.counts.get(place, 0.0) + count
        self.longest = max(self.longest, other.longest)

    def _move(self, mean: float, number: float, before: float | None = None) -> None:
        if before is None:
            before = self.weight - number
        # The first few values count the same; later ones by `RECENT`.
        share = max(1 - (1 - RECENT) ** number, number / (before + number))
        self.average += (mean - self.average) * share

    def _fade(self) -> None:
        while self.weight > KEPT:
            halved = {place: count / 2 for place, count in self.counts.items()}
            self.counts = {place: count for place, count in halved.items() if count > _FADED}
            self.longest = min(self.longest, bounds_of(max(self.counts))[1])

    def percentile(self, percent: float) -> float:
        """The duration in seconds that so many percent do not exceed; 0 if nothing was counted."""
        if not self.counts:
            return 0.0
        left = self.weight * percent / 100
        for place in sorted(self.counts):
            count = self.counts[place]
            if left <= count:
                break
            left -= count
        begin, end = bounds_of(place)
        within = min(1.0, max(0.0, left / count))
        return float(min(begin * (end / begin) ** within, self.longest))
