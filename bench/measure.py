"""Measurements in interleaved rounds, so that whatever slows the machine for a while slows everyone alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Parameters = dict[str, str | int]


@dataclass(frozen=True)
class Sample:
    """One measured stretch: wall time, how many jobs it handled, and the CPU time of this process."""

    seconds: float
    count: int
    cpu: float = 0.0

    @property
    def rate(self) -> float:
        return self.count / self.seconds


@dataclass(frozen=True)
class Measurement:
    """Something that can be measured again and again. `run` gets the number of the round, from 0."""

    name: str
    parameters: Parameters
    subject: str
    """Who does the work: `dray`, `bare`, or later a peer."""
    run: Callable[[int], Sample]


@dataclass(frozen=True)
class Spread:
    """The median of some figures, and how far apart they are."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures))


@dataclass
class Row:
    """All samples of one name and parameters, by subject; the n-th samples come from the same round."""

    name: str
    parameters: Parameters
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def rate(self, subject: str) -> Spread:
        """Jobs per second."""
        return Spread.of([sample.rate for sample in self.samples[subject]])

    def cpu(self, subject: str) -> Spread:
        """CPU microseconds per job."""
        return Spread.of([sample.cpu / sample.count * 1e6 for sample in self.samples[subject]])

    def ratio(self, subject: str, base: str) -> Spread:
        """How fast the subject is, with the base as 1, compared round by round."""
        return compare(self.samples[subject], self.samples[base])


def compare(samples: Sequence[Sample], base: Sequence[Sample]) -> Spread:
    """Rates as ratios to those of the same round in `base`."""
    return Spread.of([one.rate / other.rate for one, other in zip(samples, base, strict=True)])


def interleave(
    measurements: Sequence[Measurement], rounds: int, tell: Callable[[str], None] = lambda text: None
) -> list[Row]:
    """Measure each once per round, every other round in reverse; one row per name and parameters."""
    rows: dict[tuple[object, ...], Row] = {}
    for one in measurements:
        rows.setdefault(_key(one), Row(one.name, one.parameters)).samples[one.subject] = []
    for number in range(rounds):
        for one in measurements if number % 2 == 0 else reversed(measurements):
            rows[_key(one)].samples[one.subject].append(one.run(number))
        tell(f"round {number + 1} of {rounds}")
    return list(rows.values())


def _key(one: Measurement) -> tuple[object, ...]:
    return one.name, *one.parameters.items()


def percentile(figures: Sequence[float], percent: float) -> float:
    """The smallest figure that so many percent do not exceed."""
    ordered = sorted(figures)
    return ordered[min(len(ordered) - 1, max(0, -(-int(len(ordered) * percent) // 100) - 1))]


class Stopwatch:
    """Adds up wall and CPU time over stretches."""

    def __init__(self) -> None:
        self.seconds = self.cpu = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.cpu += time.process_time() - cpu
        self.seconds += time.perf_counter() - wall
