"""The tables of the embedded broker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from bench.measure import Row, Spread, compare
from bench.report import change, count, micro, percent, row_data, short, spread, table
from bench.sqlite.processes import Crowd
from bench.sqlite.stage import BARE, DRAY
from bench.sqlite.store import PRIORITIES, TASKS
from bench.sqlite.waking import Waking

BATCH_GOAL = 0.5
"""Batches should reach this much of the bare loop."""
DEPTH_GOAL = 0.7
"""The deepest store should keep this much of the speed of the shallowest."""


@dataclass
class Results:
    """All that was measured."""

    facts: dict[str, object]
    rows: list[Row] = field(default_factory=list)
    crowds: list[Crowd] = field(default_factory=list)
    waking: Waking | None = None


def markdown(results: Results) -> str:
    """Everything, to be pasted into docs/performance.md."""
    return "\n".join(_parts(results))


def _parts(results: Results) -> Iterator[str]:
    yield facts_line(results.facts) + "\n"
    yield (
        f"Payloads of 100 bytes. Pending jobs are of {len(TASKS)} tasks in {len(PRIORITIES)} priorities, "
        f"mixed: {len(TASKS) * len(PRIORITIES)} lanes to choose from; a put of 100 joins all of them.\n"
    )
    plain = [row for row in results.rows if "limit" not in row.parameters]
    yield "Verbs against a bare loop of the same SQL (jobs/s, medians; in brackets lowest and highest):\n"
    yield verb_table(plain)
    if depths := depth_table(plain):
        yield "Speed with depth, relative to the shallowest store:\n"
        yield depths
    if limits := limit_table(results.rows):
        yield "What limits cost (time per job against no limit, in the same rounds):\n"
        yield limits
    if results.crowds:
        yield "Processes on one file, each put(10) + take(10) + settle(10):\n"
        yield crowd_table(results.crowds)
    if results.waking is not None:
        yield waking_line(results.waking) + "\n"
    if goals := list(goal_lines(plain)):
        yield "Goals:\n"
        yield "\n".join(f"- {line}" for line in goals) + "\n"


def facts_line(facts: dict[str, object]) -> str:
    line = (
        f"{str(facts['date'])[:10]}, {facts['cpu']}, {facts['cores']} cores, {facts['system']}, Python "
        f"{facts['python']}, SQLite {facts['sqlite']}, WAL, synchronous={facts['synchronous']}, "
        f"{facts['plan']} run: medians of {facts['rounds']} rounds, load {facts['load']} at the start."
    )
    return line if facts["quiet"] else f"{line} **The machine was not quiet: only ratios mean something.**"


def verb_table(rows: Sequence[Row]) -> str:
    head = ("verb", "batch", "pending", "bare", "dray", "dray / bare", "CPU µs/job", "of which SQL")
    return table(
        head,
        [
            (
                title(row),
                row.parameters["batch"],
                short(int(row.parameters["pending"])),
                count(row.rate(BARE).median),
                count(row.rate(DRAY).median),
                spread(row.ratio(DRAY, BARE)),
                f"{row.cpu(DRAY).median:.1f}",
                f"{row.cpu(BARE).median:.1f}",
            )
            for row in rows
        ],
    )


def title(row: Row) -> str:
    groups = row.parameters.get("groups")
    return f"{row.name}, {short(int(groups))} groups" if groups else row.name


def depth_table(rows: Sequence[Row]) -> str:
    """Dray alone: its rate at each depth, the shallowest as 1."""
    depths = sorted({int(row.parameters["pending"]) for row in rows})
    if len(depths) < 2:
        return ""
    lines = []
    for (name, batch), found in by_depth(rows).items():
        if len(found) > 1 and depths[0] in found:
            cells = [spread(relative(found, depth, depths[0])) if depth in found else "" for depth in depths]
            lines.append((name, batch, *cells))
    return table(("verb", "batch", *map(short, depths)), lines)


def by_depth(rows: Sequence[Row]) -> dict[tuple[str, int], dict[int, Row]]:
    found: dict[tuple[str, int], dict[int, Row]] = {}
    for row in rows:
        if "groups" not in row.parameters:
            key = row.name, int(row.parameters["batch"])
            found.setdefault(key, {})[int(row.parameters["pending"])] = row
    return found


def relative(found: dict[int, Row], depth: int, base: int) -> Spread:
    return compare(found[depth].samples[DRAY], found[base].samples[DRAY])


def limit_table(rows: Sequence[Row]) -> str:
    lines = []
    for row in rows:
        limit = row.parameters.get("limit")
        if limit is None or limit == "none":
            continue
        free = next(
            other
            for other in rows
            if other.parameters == {**row.parameters, "limit": "none"} and other.name == row.name
        )
        cost = 1 / compare(row.samples[DRAY], free.samples[DRAY]).median - 1
        lines.append(
            (
                limit,
                row.parameters["batch"],
                short(int(row.parameters["pending"])),
                count(free.rate(DRAY).median),
                count(row.rate(DRAY).median),
                change(cost),
                spread(row.ratio(DRAY, BARE)),
            )
        )
    return table(("limit", "batch", "pending", "without", "with", "cost", "dray / bare"), lines)


def crowd_table(crowds: Sequence[Crowd]) -> str:
    head = (
        "who",
        "processes",
        "jobs/s",
        "against one",
        "slowest / fastest",
        "call p50",
        "worst p99",
        "longest",
    )
    return table(
        head,
        [
            (
                one.subject,
                one.processes,
                count(one.rate.median),
                spread(one.scaling),
                spread(one.evenness),
                micro(one.p50),
                micro(one.p99),
                micro(one.longest),
            )
            for one in crowds
        ],
    )


def waking_line(waking: Waking) -> str:
    return (
        f"An idle worker in another process starts a job {micro(waking.p50)} (p50), {micro(waking.p99)} "
        f"(p99), {micro(waking.longest)} (longest of {waking.wakes}) after `put` was called; asleep it uses "
        f"{waking.idle_cpu * 100:.2f} % of a core (over {waking.idle_seconds:g} s)."
    )


def goal_lines(rows: Sequence[Row]) -> Iterator[str]:
    batches = [row for row in rows if int(row.parameters["batch"]) > 1]
    if batches:
        worst = min(batches, key=lambda row: row.ratio(DRAY, BARE).median)
        where = f"{title(worst)} × {worst.parameters['batch']}, {short(int(worst.parameters['pending']))}"
        yield _verdict("batches reach", worst.ratio(DRAY, BARE).median, BATCH_GOAL, "the bare loop", where)
    depths = sorted({int(row.parameters["pending"]) for row in rows})
    kept = [
        (relative(found, depths[-1], depths[0]).median, f"{name} × {batch}")
        for (name, batch), found in by_depth(rows).items()
        if len(depths) > 1 and depths[0] in found and depths[-1] in found
    ]
    if kept:
        least, where = min(kept)
        goal = f"the speed at {short(depths[0])}"
        yield _verdict(f"{short(depths[-1])} pending keep", least, DEPTH_GOAL, goal, where)


def _verdict(what: str, least: float, goal: float, of: str, where: str) -> str:
    met = "met" if least >= goal else "missed"
    return f"{what} at least {percent(goal)} of {of}: {met}, the least is {percent(least)} ({where})"


def data(results: Results) -> dict[str, object]:
    """For the JSON file."""
    return {
        "facts": results.facts,
        "verbs": [row_data(row, DRAY, BARE) for row in results.rows],
        "processes": [asdict(crowd) for crowd in results.crowds],
        "waking": None if results.waking is None else asdict(results.waking),
    }
