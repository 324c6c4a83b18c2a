"""The goals, each with the figures of this run that decide it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bench.peers.alone import Alone
from bench.peers.figures import QUANTILES, RATES, Figured
from bench.report import count

CELERY = ("celery solo", "celery prefork")
NODE = "BullMQ"
OURS = ("dray", "dray, no settings", "dray, embedded", "bare loop")
NOOPS = ("drain noop", "drain plain")


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
    python = [name for name in figured.subjects if name not in (*OURS, *CELERY, NODE)]
    everyone = [name for name in figured.subjects if name not in OURS]
    ours = figured.median("dray", "drain noop")
    yield _times("async no-ops: ≥ 20 × Celery's best", ours, _best(figured, CELERY, *NOOPS), 20)
    yield _times(
        "async no-ops: ≥ 5 × the fastest other Python queue", ours, _best(figured, python, *NOOPS), 5
    )
    yield _times("async no-ops: ≥ 3 × BullMQ", ours, _best(figured, (NODE,), *NOOPS), 3)
    yield _times(
        "async no-ops: ≥ 50 % of the bare loop", ours, _best(figured, ("bare loop",), "drain noop"), 0.5
    )
    plain = figured.median("dray", "drain plain")
    yield _times(
        "sync no-ops: ≥ 3 × the fastest Python peer",
        plain,
        _best(figured, [*python, *CELERY], "drain plain"),
        3,
    )
    yield _times("sync no-ops: ≥ 10 × Celery's best", plain, _best(figured, CELERY, "drain plain"), 10)
    for how, times, who in (("blocking", 1, everyone), ("awaited", 1, everyone), ("concurrent", 4, everyone)):
        name = f"enqueue {how}"
        text = (
            f"{name}: ≥ {times} × the fastest peer" if times > 1 else f"{name}: at or above the fastest peer"
        )
        yield _times(text, figured.median("dray", name), _best(figured, who, name), times)
    bulk = _best(figured, [*python, *CELERY], "enqueue bulk", "enqueue blocking", "enqueue concurrent")
    yield _times(
        "enqueue bulk: ≥ 5 × the fastest Python peer", figured.median("dray", "enqueue bulk"), bulk, 5
    )
    yield _times(
        "10 ms of I/O: ≥ 1.5 × the fastest peer",
        figured.median("dray", "drain io"),
        _best(figured, everyone, "drain io"),
        1.5,
    )
    yield from _delays(figured, everyone)
    yield _memory(figured, everyone)
    yield from _alone(alone)
    yield _events(alone)
    yield _defaults(figured)


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
    for name, called in (("start idle", "enqueue to start, idle"), ("trip idle", "round trip, idle")):
        for percent, most in ((50, 2), (99, 4)):
            measure = f"{name} p{percent}"
            ours, floor = figured.median("dray", measure), figured.median("bare loop", measure)
            text = f"{called}, p{percent}: ≤ {most} × the bare loop's"
            if ours is None or floor is None:
                yield Goal(text, "not measured")
            else:
                verdict = "met" if ours <= most * floor else "missed"
                yield Goal(text, verdict, f"{ours / floor:.2f} × ({ours:.2f} ms against {floor:.2f} ms)")
            others = {one: figure for one in peers if (figure := figured.median(one, measure)) is not None}
            yield _least(f"{called}, p{percent}: better than every peer", ours, others, "ms")


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
    text = "memory per pending job: ≤ 450 bytes, and below every peer that stores a record per job"
    others = {
        name: figure for name in RECORDS if name in peers and (figure := figured.median(name, "memory"))
    }
    if ours is None or not others:
        return Goal(text, "not measured")
    name = min(others, key=lambda one: others[one])
    why = f"{ours:.0f} bytes; the least of theirs is {others[name]:.0f} ({name})"
    return Goal(text, "met" if ours <= 450 and ours < others[name] else "missed", why)


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
    text = "no settings at all: ≥ 80 % of dray tuned, in every row"
    parts: dict[str, float] = {}
    for measure in (*RATES, *(f"start idle p{percent}" for percent in QUANTILES[:1]), "trip idle p50"):
        plain, tuned = figured.median("dray, no settings", measure), figured.median("dray", measure)
        if plain is not None and tuned is not None:
            parts[measure] = plain / tuned if measure in RATES else tuned / plain
    if not parts:
        return Goal(text, "not measured")
    worst = min(parts, key=lambda one: parts[one])
    return Goal(
        text, "met" if parts[worst] >= 0.8 else "missed", f"the least is {parts[worst] * 100:.0f} % ({worst})"
    )
