"""The results as Markdown, and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from bench.measure import Row, Spread, compare
from bench.report import count, percent, row_data, spread, table
from bench.worker.drains import BARE, DRAY
from bench.worker.enqueues import PUT
from bench.worker.footing import Idle
from bench.worker.stages import Stage


@dataclass
class Results:
    facts: dict[str, object]
    drains: list[Row] = field(default_factory=list)
    enqueues: list[Row] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    profile: str = ""
    starts: dict[str, float] = field(default_factory=dict)
    idle: Idle | None = None


def markdown(results: Results) -> str:
    facts = results.facts
    parts = [
        f"{str(facts['date'])[:10]}, {facts['cpu']}, {facts['cores']} cores, {facts['system']}, "
        f"Python {facts['python']}, SQLite {facts['sqlite']}, {facts['plan']} run: "
        f"medians of {facts['rounds']} rounds, "
        f"load {facts['load']} at the start."
        + ("" if facts["quiet"] else " **The machine was not quiet: only ratios mean something.**"),
        "A real worker with one executor, against a bare loop of the same SQL in batches as large as the "
        "worker has slots (jobs/s):",
        drain_table(results.drains),
        "Enqueueing (jobs/s), against the bare insert and commit it comes down to:",
        enqueue_table(results.enqueues),
        "CPU time per job of an executor, by stage:",
        stage_table(results.stages),
        "Starting (wall time, the process itself included):",
        start_table(results.starts),
    ]
    if results.idle is not None:
        parts.append(idle_line(results.idle))
    parts += ["Goals:", "\n".join(f"- {line}" for line in goal_lines(results))]
    if results.profile:
        parts += ["Where an executor's time goes, by function:", results.profile]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def drain_table(rows: list[Row]) -> str:
    return table(
        ("tasks", "slots", "bare", "dray", "dray / bare"),
        [
            (
                row.parameters["tasks"],
                row.parameters["concurrency"],
                count(row.rate(BARE).median),
                count(row.rate(DRAY).median),
                spread(row.ratio(DRAY, BARE)),
            )
            for row in rows
        ],
    )


def enqueue_table(rows: list[Row]) -> str:
    return table(
        ("how", "bare", "verb `put`", "dray", "dray / bare", "CPU µs/job"),
        [
            (
                row.name,
                count(row.rate(BARE).median),
                count(row.rate(PUT).median),
                count(row.rate(DRAY).median),
                spread(row.ratio(DRAY, BARE)),
                f"{row.cpu(DRAY).median:.0f}",
            )
            for row in rows
        ],
    )


def stage_table(stages: list[Stage]) -> str:
    heads = list(stages[0].parts) if stages else []
    return table(
        ("tasks", *heads, "together", "jobs/s of CPU"),
        [
            (
                stage.name,
                *(f"{stage.parts[name]:.1f} µs" for name in heads),
                f"{stage.total:.1f} µs",
                count(1e6 / stage.total),
            )
            for stage in stages
        ],
    )


def start_table(starts: dict[str, float]) -> str:
    return table(("", "ms"), [(name, f"{ms:.0f}") for name, ms in starts.items()])


def idle_line(idle: Idle) -> str:
    return (
        f"An idle worker of {idle.processes} processes uses {idle.share * 100:.2f} % of one core "
        f"and {idle.memory:.0f} MiB of memory (PSS). From its start to its end, with one job to run, it uses "
        f"{idle.started:.2f} s of CPU time."
    )


def goal_lines(results: Results) -> Iterator[str]:
    """Each goal with the figure that decides it."""
    by_kind = {
        kind: [row for row in results.drains if row.parameters["tasks"] == kind] for kind in ("async", "sync")
    }
    if by_kind["async"]:
        worst = min((row.ratio(DRAY, BARE) for row in by_kind["async"]), key=lambda one: one.median)
        yield _goal("async no-ops reach at least 40 % of the bare batched loop, at worst", worst, 0.4)
    if by_kind["async"] and by_kind["sync"]:
        halves = [
            compare(sync.samples[DRAY], one.samples[DRAY])
            for sync, one in zip(by_kind["sync"], by_kind["async"], strict=True)
        ]
        least = min(halves, key=lambda one: one.median)
        yield _goal("sync no-ops reach at least half the async rate", least, 0.5)
    if results.enqueues:
        yield _goal(
            "a single blocking enqueue reaches at least 40 % of a bare insert and commit",
            results.enqueues[0].ratio(DRAY, BARE),
            0.4,
        )
    if results.idle is not None:
        verdict = "met" if results.idle.share < 0.01 else "missed"
        yield f"an idle worker uses less than 1 % CPU: {verdict}, {results.idle.share * 100:.2f} %"
        verdict = "met" if results.idle.memory <= 48 else "missed"
        yield f"an idle worker with 2 executors uses at most 48 MiB: {verdict}, {results.idle.memory:.0f} MiB"
        verdict = "met" if results.idle.started <= 0.5 else "missed"
        yield f"a worker starts, runs a job and ends in 0.5 s of CPU: {verdict}, {results.idle.started:.2f} s"
    if "import dray" in results.starts:
        over = results.starts["import dray"] - results.starts["python, nothing imported"]
        verdict = "met" if over <= 30 else "missed"
        yield f"`import dray` takes at most 30 ms more than Python alone: {verdict}, {over:.0f} ms"


def _goal(text: str, figure: Spread, least: float) -> str:
    return f"{text}: {'met' if figure.median >= least else 'missed'}, {percent(figure.median)}"


def data(results: Results) -> dict[str, object]:
    return {
        "facts": results.facts,
        "drains": [row_data(row, DRAY, BARE) for row in results.drains],
        "enqueues": [row_data(row, DRAY, BARE) for row in results.enqueues],
        "stages": [asdict(stage) for stage in results.stages],
        "starts_ms": results.starts,
        "idle": None if results.idle is None else asdict(results.idle),
    }
