"""What was measured: one figure per measure, subject and round, and why where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field

from bench.measure import Spread

RATES = {
    "enqueue blocking": "enqueue one by one, blocking",
    "enqueue awaited": "enqueue one by one, awaited",
    "enqueue concurrent": "enqueue, 100 callers on one loop",
    "enqueue bulk": "enqueue in bulk, 1000 a call",
    "drain noop": "drain, no-op (async where there is async)",
    "drain plain": "drain, no-op, plain function",
    "drain io": "drain, 10 ms of I/O",
}
"""Measures in jobs per second, and how they are called."""
QUANTILES = (50, 95, 99)
DELAYS = {
    "start idle": "enqueue to start, idle",
    "trip idle": "round trip, idle",
    "start loaded": "enqueue to start, half load",
}
OTHERS = {"memory": "bytes per pending job", "idle": "CPU of an idle worker", "pss": "MiB of an idle worker"}


def called(measure: str) -> str:
    """`start idle p50` → `enqueue to start, idle, p50`."""
    name, _, quantile = measure.rpartition(" ")
    return f"{DELAYS[name]}, {quantile}" if name in DELAYS else RATES.get(measure, measure)


Figures = dict[str, list[float]]
"""Measure → a figure per round."""


@dataclass
class Figured:
    """All figures of a run."""

    subjects: list[str] = field(default_factory=list)
    figures: dict[str, Figures] = field(default_factory=dict)
    """By subject."""
    failures: dict[str, str] = field(default_factory=dict)
    """Subject → why it failed; what it delivered before is kept."""

    def add(self, subject: str, found: dict[str, float]) -> None:
        mine = self.figures.setdefault(subject, {})
        for measure, figure in found.items():
            mine.setdefault(measure, []).append(figure)

    def spread(self, subject: str, measure: str) -> Spread | None:
        found = self.figures.get(subject, {}).get(measure)
        return Spread.of(found) if found else None

    def median(self, subject: str, measure: str) -> float | None:
        found = self.spread(subject, measure)
        return None if found is None else found.median

    def best(self, subject: str, *measures: str) -> float | None:
        """The highest median of several measures."""
        found = [figure for one in measures if (figure := self.median(subject, one)) is not None]
        return max(found, default=None)
