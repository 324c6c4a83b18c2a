"""The goals, each with the figures of this run that decide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.peers.alone import Alone
from bench.peers.figures import RATES, Figured, called
from bench.peers.lineup import OURS
from bench.report import count

CELERY = ("celery solo", "celery prefork")
NODE, RUBY = "BullMQ", "Sidekiq"
OTHER_LANGUAGES = (NODE, RUBY)
NOOPS = ("drain noop", "drain plain")
ROWS = (*RATES, *(f"{name} p{percent}" for name in ("start idle", "trip idle") for percent in (50, 99)))
"""The measures that every goal of "every row" is about; those in milliseconds are better when less."""


@dataclass(frozen=True)
class Goal:
    """One line: what was to be reached, and what was."""

    text: str
    verdict: str
    """`met`, `missed` or `not measured`."""
    why: str = ""

    def __str__(self) -> str:
        return f"{self.text}: {self.verdict}" + (f", {self.why}" if self.why else "")


def goals(figured: Figured, alone: Alone | None = None) -> list[Goal]:
    return list(_goals(figured, alone or Alone()))


def _goals(figured: Figured, alone: Alone) -> Iterator[Goal]:
    python = [name for name in figured.subjects if name not in (*OURS, *CELERY, *OTHER_LANGUAGES)]
    peers = peers_of(figured)
    yield from _drains(figured, python)
    for measure in ("enqueue blocking", "enqueue awaited", "enqueue concurrent", "enqueue bulk", "drain io"):
        text = f"{RATES[measure]}: ahead of every peer"
        yield _times(text, figured.median("dray", measure), _best(figured, peers, measure), 1)
    yield from _delays(figured, peers)
    yield _memory(figured, peers)
    yield from _alone(alone)
    yield _events(alone)
    yield _defaults(figured)
    yield _defaults_ahead(figured, peers)


def peers_of(figured: Figured) -> list[str]:
    return [name for name in figured.subjects if name not in OURS]


def _drains(figured: Figured, python: list[str]) -> Iterator[Goal]:
    ours, plain = figured.median("dray", "drain noop"), figured.median("dray", "drain plain")
    yield _times("async no-ops: ≥ 20 × Celery's best", ours, _best(figured, CELERY, *NOOPS), 20)
    text = "async no-ops: ≥ 5 × the fastest other Python queue"
    yield _times(text, ours, _best(figured, python, *NOOPS), 5)
    yield _times("async no-ops: ≥ 3.5 × BullMQ", ours, _best(figured, (NODE,), *NOOPS), 3.5)
    yield _times("async no-ops: ahead of Sidekiq", ours, _best(figured, (RUBY,), *NOOPS), 1)
    loop = _best(figured, ("bare loop",), "drain noop")
    yield _times("async no-ops: ≥ 60 % of the bare loop", ours, loop, 0.6)
    text = "sync no-ops: ≥ 3 × the fastest Python peer"
    yield _times(text, plain, _best(figured, [*python, *CELERY], "drain plain"), 3)
    yield _times("sync no-ops: ≥ 10 × Celery's best", plain, _best(figured, CELERY, "drain plain"), 10)


Best = tuple[str, float] | None


def _best(figured: Figured, names: Iterable[str], *measures: str) -> Best:
    """The fastest of them, and its rate."""
    found = [(name, rate) for name in names if (rate := figured.best(name, *measures)) is not None]
    return max(found, key=lambda one: one[1], default=None)


def _times(text: str, ours: float | None, other: Best, least: float) -> Goal:
    if ours is None or other is None:
        return Goal(text, "not measured")
    name, theirs = other
    why = f"{ours / theirs:.2f} × ({count(ours)} against {count(theirs)} of {name})"
    return Goal(text, "met" if ours / theirs >= least else "missed", why)


def _delays(figured: Figured, peers: list[str]) -> Iterator[Goal]:
    for name in ("start idle", "trip idle"):
        for percent in (50, 99):
            measure = f"{name} p{percent}"
            ours, floor = figured.median("dray", measure), figured.median("bare command", measure)
            others = {one: figure for one in peers if (figure := figured.median(one, measure)) is not None}
            yield _least(f"{called(measure)}: better than every peer", ours, others, "ms")
            if name == "start idle":
                yield _near(f"{called(measure)}: ≤ 1.5 × one bare command", ours, floor)


def _near(text: str, ours: float | None, floor: float | None) -> Goal:
    if ours is None or floor is None:
        return Goal(text, "not measured")
    why = f"{ours / floor:.2f} × ({ours:.2f} ms against {floor:.2f} ms)"
    return Goal(text, "met" if ours <= 1.5 * floor else "missed", why)


def _least(text: str, ours: float | None, others: Mapping[str, float], unit: str) -> Goal:
    if ours is None or not others:
        return Goal(text, "not measured")
    name = min(others, key=lambda one: others[one])
    why = f"{ours:.2f} {unit} against {others[name]:.2f} {unit} of {name}"
    return Goal(text, "met" if ours < others[name] else "missed", why)


RECORDS = ("rq", "arq", "saq", "streaq", "pydocket", NODE)
"""Peers that store a record per job; the others have one message in a list or stream."""


def _memory(figured: Figured, peers: list[str]) -> Goal:
    ours = figured.median("dray", "memory")
    text = "memory per pending job: ≤ 250 bytes, and below every peer that stores a record per job"
    others = {
        name: figure for name in RECORDS if name in peers and (figure := figured.median(name, "memory"))
    }
    if ours is None or not others:
        return Goal(text, "not measured")
    name = min(others, key=lambda one: others[one])
    why = f"{ours:.0f} bytes; the least of theirs is {others[name]:.0f} ({name})"
    return Goal(text, "met" if ours <= 250 and ours < others[name] else "missed", why)


def _alone(alone: Alone) -> Iterator[Goal]:
    text = "payloads of 100 KB, in and out: ≥ 60 % of the bare loop"
    ours, floor = (alone.spread(f"payload, {who}, in and out", "100000") for who in ("dray", "bare loop"))
    if ours is None or floor is None:
        yield Goal(text, "not measured")
    else:
        part = ours.median / floor.median
        yield Goal(text, "met" if part >= 0.6 else "missed", f"{part * 100:.0f} %")
    text = "1 M pending: the drain rate is within 25 % of that at 1 k"
    shallow, deep = (alone.spread("depth", value) for value in ("1000", "1000000"))
    if shallow is None or deep is None:
        yield Goal(text, "not measured")
    else:
        part = deep.median / shallow.median
        yield Goal(text, "met" if part >= 0.75 else "missed", f"{part * 100:.0f} %")


def _events(alone: Alone) -> Goal:
    text = "events and statistics cost ≤ 15 % of the drain rate"
    on, off = (alone.spread("events", value) for value in ("on", "off"))
    if on is None or off is None:
        return Goal(text, "not measured")
    cost = 1 - on.median / off.median
    return Goal(text, "met" if cost <= 0.15 else "missed", f"{cost * 100:.0f} %")


def _defaults(figured: Figured) -> Goal:
    """Rates as they are, delays turned round, so that more is better."""
    text = "no settings at all: ≥ 95 % of dray tuned, in every row"
    parts: dict[str, float] = {}
    for measure in ROWS:
        plain, tuned = figured.median("dray, no settings", measure), figured.median("dray", measure)
        if plain is not None and tuned is not None:
            parts[measure] = plain / tuned if measure in RATES else tuned / plain
    if not parts:
        return Goal(text, "not measured")
    worst = min(parts, key=lambda one: parts[one])
    why = f"the least is {parts[worst] * 100:.0f} % ({called(worst)})"
    return Goal(text, "met" if parts[worst] >= 0.95 else "missed", why)


def _defaults_ahead(figured: Figured, peers: list[str]) -> Goal:
    text = "no settings at all: ahead of every tuned peer, in every row"
    behind = [found for measure in ROWS if (found := ahead(figured, "dray, no settings", peers, measure))]
    if not any(figured.median("dray, no settings", measure) for measure in ROWS):
        return Goal(text, "not measured")
    return Goal(text, "missed" if behind else "met", "; ".join(behind))


def ahead(figured: Figured, name: str, peers: list[str], measure: str) -> str:
    """The peer that is ahead of a subject in a measure, with its figure; empty if none is."""
    ours = figured.median(name, measure)
    found = {one: figure for one in peers if (figure := figured.median(one, measure)) is not None}
    if ours is None or not found:
        return ""
    more = measure in RATES
    best = (max if more else min)(found, key=lambda one: found[one])
    if ours >= found[best] if more else ours <= found[best]:
        return ""
    theirs = count(found[best]) if more else f"{found[best]:.2f}"
    return f"{called(measure)}: {count(ours) if more else f'{ours:.2f}'} against {theirs} of {best}"
