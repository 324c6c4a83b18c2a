"""The results as Markdown, as data and as plots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.measure import Spread
from bench.peers.alone import Alone
from bench.peers.figures import DELAYS, QUANTILES, Figured
from bench.peers.goals import Goal, goals
from bench.peers.plots import FLOOR, OURS, THEIRS, Bar, bars
from bench.peers.summary import summary_table, words
from bench.report import count, short, table

NONE = "–"


@dataclass
class Results:
    facts: dict[str, object]
    figured: Figured = field(default_factory=Figured)
    alone: Alone = field(default_factory=Alone)
    versions: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def goals(self) -> list[Goal]:
        return goals(self.figured, self.alone)


def blocks(results: Results) -> dict[str, str]:
    """What a full run writes into the pages, by the name of its block."""
    goals_met = [(g.text, g.verdict, g.why or NONE) for g in results.goals()]
    return {
        "peers-run": heading(results.facts),
        "peers-summary": summary_table(results.figured),
        "peers-words": words(results.figured),
        "peers-rates": rate_table(results.figured),
        "peers-delays": delay_table(results.figured),
        "peers-lineup": lineup_table(results),
        "peers-alone": f"{alone_table(results.alone)}\n{longest_line(results.alone)}",
        "peers-goals": table(("goal", "", "figures"), goals_met),
    }


def markdown(results: Results) -> str:
    figured = results.figured
    parts = [
        heading(results.facts),
        words(figured),
        summary_table(figured),
        "Jobs per second (medians):",
        rate_table(figured),
        "Milliseconds (medians of each round's percentile), memory and idle CPU:",
        delay_table(figured),
        "Who they are:",
        lineup_table(results),
    ]
    if results.left_out:
        parts.append(
            f"A {results.facts['plan']} run leaves out {' and '.join(results.left_out)}, and measures that "
            "take a worker with other settings (10 ms of I/O on threads, for one)."
        )
    if figured.failures:
        parts += ["Failed:", "\n".join(f"- {name}: {why}" for name, why in figured.failures.items())]
    if results.alone.rows:
        parts += ["dray alone (jobs per second):", alone_table(results.alone)]
    if results.alone.longest:
        parts.append(longest_line(results.alone))
    if results.alone.failures:
        parts.append("\n".join(f"- failed: {line}" for line in results.alone.failures))
    parts += [
        "Goals:",
        table(("goal", "", "figures"), [(g.text, g.verdict, g.why or NONE) for g in results.goals()]),
    ]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def heading(facts: dict[str, object]) -> str:
    text = (
        f"{str(facts['date'])[:10]}, {facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python "
        f"{facts['python']}, {facts['server']} ({facts['durability']}), SQLite {facts['sqlite']}, "
        f"{facts['plan']} run: medians of {facts['rounds']} rounds, interleaved, {facts['minutes']} minutes, "
        f"load {facts['load']} at the start."
    )
    return text if facts["quiet"] else f"{text} **The machine was not quiet: only ratios mean something.**"


def rate_table(figured: Figured) -> str:
    heads = {
        "enqueue blocking": "enqueue, blocking",
        "enqueue awaited": "awaited",
        "enqueue concurrent": "100 callers",
        "enqueue bulk": "bulk",
        "drain noop": "drain, no-op",
        "drain plain": "no-op, sync",
        "drain io": "10 ms I/O",
    }
    rows = [(name, *(_rate(figured, name, measure) for measure in heads)) for name in figured.subjects]
    return table(("", *heads.values()), rows)


def _rate(figured: Figured, name: str, measure: str) -> str:
    if (rate := figured.median(name, measure)) is not None:
        return count(rate)
    return "failed" if name in figured.failures and name not in figured.figures else NONE


def delay_table(figured: Figured) -> str:
    shown = {name: called for name, called in DELAYS.items() if _any(figured, f"{name} p50")}
    heads = [f"{called} {'/'.join(f'p{percent}' for percent in QUANTILES)}" for called in shown.values()]
    rows = []
    for name in figured.subjects:
        cells = [_quantiles(figured, name, measure) for measure in shown]
        memory, idle, pss = (figured.median(name, measure) for measure in ("memory", "idle", "pss"))
        cells.append(NONE if memory is None else f"{memory:,.0f}")
        cells.append(NONE if idle is None else f"{idle * 100:.2f} %")
        cells.append(NONE if pss is None else f"{pss:.0f}")
        rows.append((name, *cells))
    return table(("", *heads, "bytes/pending job", "idle CPU", "idle MiB (PSS)"), rows)


def _any(figured: Figured, measure: str) -> bool:
    return any(figured.median(name, measure) is not None for name in figured.subjects)


def _quantiles(figured: Figured, name: str, measure: str) -> str:
    found = [figured.median(name, f"{measure} p{percent}") for percent in QUANTILES]
    known = [figure for figure in found if figure is not None]
    return " / ".join(_ms(figure) for figure in known) if known else NONE


def _ms(figure: float) -> str:
    return f"{figure:.2f}" if figure < 10 else f"{figure:.0f}"


def lineup_table(results: Results) -> str:
    rows = [
        (name, results.versions.get(name, NONE), results.settings.get(name, NONE))
        for name in results.figured.subjects
    ]
    return table(("", "version", "settings"), rows)


def alone_table(alone: Alone) -> str:
    rows = []
    for what, by_value in alone.rows.items():
        for value in by_value:
            found = alone.spread(what, value)
            assert found is not None
            span = f"{count(found.low)}–{count(found.high)}"
            shown = short(float(value)) if value[0].isdigit() else value
            rows.append((what, shown, f"{count(found.median)} ({span})"))
    return table(("", "value", "jobs/s (lowest–highest)"), rows)


def longest_line(alone: Alone) -> str:
    """The longest that any script kept the server from other work, over all rounds."""
    found = [
        f"{max(times):.1f} ms at {short(float(depth))} jobs pending" for depth, times in alone.longest.items()
    ]
    return f"Longest script (puts of 1,000 and takes of 100 jobs): {', '.join(found)}."


def data(results: Results) -> dict[str, object]:
    return {
        "facts": results.facts,
        "versions": results.versions,
        "settings": results.settings,
        "figures": {
            name: {measure: {"samples": found, **asdict(Spread.of(found))} for measure, found in by.items()}
            for name, by in results.figured.figures.items()
        },
        "failures": results.figured.failures,
        "alone": {what: dict(by) for what, by in results.alone.rows.items()},
        "alone_failures": results.alone.failures,
        "longest_script_ms": results.alone.longest,
        "goals": [asdict(goal) for goal in results.goals()],
    }


PLOTS = {
    "peers-drain": ("drain noop", "Jobs drained per second, no-op", "more is better"),
    "peers-drain-sync": ("drain plain", "Jobs drained per second, no-op, plain functions", "more is better"),
    "peers-io": ("drain io", "Jobs drained per second, 10 ms of I/O each", "more is better"),
    "peers-enqueue": ("enqueue concurrent", "Jobs enqueued per second by 100 callers", "more is better"),
    "peers-bulk": ("enqueue bulk", "Jobs enqueued per second in bulk", "more is better"),
    "peers-start": (
        "start idle p50",
        "Milliseconds from enqueue to start, idle worker, median",
        "less is better",
    ),
    "peers-trip": (
        "trip idle p50",
        "Milliseconds from enqueue to result, idle worker, median",
        "less is better",
    ),
    "peers-memory": ("memory", "Bytes of Redis memory per pending job of 100 bytes", "less is better"),
}


def plots(results: Results) -> Iterator[tuple[str, str]]:
    """File names without their ending, and what is in them."""
    facts = results.facts
    machine = f"{facts['cpu']}, {facts['cores']} cores"
    foot = f"{str(facts['date'])[:10]}, {machine}, {facts['server']}, {facts['durability']}"
    for name, (measure, title, sense) in PLOTS.items():
        found = [
            bar
            for one in results.figured.subjects
            if (bar := _bar(results.figured, one, measure)) is not None
        ]
        found.sort(
            key=lambda bar: (bar.figure is None, (bar.figure or 0) * (-1 if sense.startswith("more") else 1))
        )
        if any(bar.figure is not None for bar in found):
            under = f"{sense}; median of {facts['rounds']} rounds, the line goes from lowest to highest"
            yield name, bars(title, under, found, _ms if measure.endswith("p50") else count, foot)
    yield from alone_plots(results.alone, foot)


ALONE_PLOTS = {
    "depth": "Jobs drained per second, by how many are pending",
    "payload": "Jobs put and drained per second, by bytes of payload",
    "executors": "Jobs drained per second, by executor processes",
    "events": "Jobs drained per second, with events and statistics and without",
}


def alone_plots(alone: Alone, foot: str) -> Iterator[tuple[str, str]]:
    for name, title in ALONE_PLOTS.items():
        found = []
        for what, by_value in alone.rows.items():
            if what.partition(",")[0] != name:
                continue
            floor = "bare" in what
            for value in by_value:
                if (spread := alone.spread(what, value)) is not None:
                    shown = short(float(value)) if value[0].isdigit() else value
                    label = f"bare loop, {shown}" if floor else f"dray, {shown}"
                    colour = FLOOR if floor else OURS
                    found.append(Bar(label, spread.median, colour, spread.low, spread.high))
        if found:
            under = "more is better; the line goes from lowest to highest"
            yield f"alone-{name}", bars(title, under, found, count, foot)


def _bar(figured: Figured, name: str, measure: str) -> Bar | None:
    spread = figured.spread(name, measure)
    colour = FLOOR if name.startswith("bare") else OURS if name.startswith("dray") else THEIRS
    if spread is None:
        return Bar(name, None, colour, note="failed") if name in figured.failures else None
    return Bar(name, spread.median, colour, spread.low, spread.high)
