"""A run in short: dray, the best peer and the floor in each row, in a table and in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench.peers.figures import RATES, Figured
from bench.peers.goals import CELERY, NODE, NOOPS, OTHER_LANGUAGES, ROWS, RUBY, ahead, peers_of
from bench.report import count, table

NONE = "–"
TUNED, DEFAULTS, FLOOR = "dray", "dray, no settings", "bare command"
_DELAYS = {"start idle": "enqueue to start, ms p50 / p99", "trip idle": "round trip, ms p50 / p99"}


def summary_table(figured: Figured) -> str:
    heads = ("", "dray tuned", "dray, no settings", "best peer", "floor (one bare command, no guarantees)")
    return table(heads, list(_rows(figured)))


def _rows(figured: Figured) -> Iterator[tuple[str, ...]]:
    for measure, called in RATES.items():
        yield _row(figured, f"{called} /s", (measure,), count, max)
    for name, called in _DELAYS.items():
        yield _row(figured, called, (f"{name} p50", f"{name} p99"), "{:.2f}".format, min)
    yield _row(figured, "bytes per pending job (100 B payload)", ("memory",), count, min)
    yield _row(figured, "idle worker tree, MiB (PSS)", ("pss",), count, min)


def _row(
    figured: Figured,
    called: str,
    measures: tuple[str, ...],
    shown: Callable[[float], str],
    better: Callable[..., str],
) -> tuple[str, ...]:
    def cell(name: str) -> str:
        found = [figured.median(name, measure) for measure in measures]
        known = [figure for figure in found if figure is not None]
        return " / ".join(map(shown, known)) or NONE

    rated = {
        name: figure
        for name in peers_of(figured)
        if (figure := figured.median(name, measures[0])) is not None
    }
    best = better(rated, key=lambda name: rated[name]) if rated else ""
    return (called, cell(TUNED), cell(DEFAULTS), f"{best} {cell(best)}" if best else NONE, cell(FLOOR))


def words(figured: Figured) -> str:
    """What the run says of dray, with the rows in which a peer is ahead."""
    ours = figured.median(TUNED, "drain noop")
    if ours is None:
        return "dray was not measured."
    python = [name for name in peers_of(figured) if name not in (*CELERY, *OTHER_LANGUAGES)]
    sets = {"Celery": list(CELERY), "the next Python queue": python, NODE: [NODE], RUBY: [RUBY]}
    times = [
        f"{ours / best:.1f} times {called}"
        for called, names in sets.items()
        if (best := max((figured.best(name, *NOOPS) or 0 for name in names), default=0))
    ]
    text = f"Jobs that do nothing: {count(ours)} per second" + "".join(f", {one}" for one in times) + "."
    start = figured.median(TUNED, "start idle p50")
    if start is not None:
        text += f" An idle worker starts a job {start:.2f} ms after it was enqueued, in the median."
    behind = [found for measure in ROWS if (found := ahead(figured, TUNED, peers_of(figured), measure))]
    rows = f"A peer is ahead in: {'; '.join(behind)}" if behind else "No peer is ahead in any row"
    return f"{text} {rows}."
