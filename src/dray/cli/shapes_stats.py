"""How statistics of tasks look: as rows of a table, and as JSON."""

from __future__ import annotations

from typing import Any

from dray.cli.output import Column, plain
from dray.stats import TaskStats

_LEFT = ("TASK",)
_RIGHT = ("RUNS", "FAILED", "AVG", "P50", "P95", "P99", "WAIT P95", "CPU", "MEMORY", "STALLS", "SECOND RUNS")
TASK_COLUMNS = (*map(Column, _LEFT), *(Column(name, right=True) for name in _RIGHT))


def task_json(stats: TaskStats) -> dict[str, Any]:
    """Every field of `TaskStats`, under its own name; times in seconds."""
    shown: dict[str, Any] = plain(stats)
    return shown


def task_row(stats: TaskStats) -> list[str]:
    took = stats.duration
    times = [seconds(time) for time in (took.average, took.p50, took.p95, took.p99)]
    return [
        stats.task,
        str(stats.runs),
        str(stats.failed),
        *(times if stats.samples else ["-"] * len(times)),
        seconds(stats.wait.p95) if stats.wait.longest else "-",
        "-" if stats.cpu is None else seconds(stats.cpu),
        "-" if stats.memory is None else f"{stats.memory / (1 << 20):.0f} MiB",
        str(stats.stalls or "-"),
        f"{stats.won} won of {stats.launched}" if stats.launched else "-",
    ]


def seconds(time: float) -> str:
    """In the unit that fits: 840 µs, 12.3 ms, 4.56 s, 3.1 min."""
    if time < 0.001:
        return f"{time * 1e6:.0f} µs"
    if time < 1:
        return f"{time * 1e3:.3g} ms"
    return f"{time:.2f} s" if time < 100 else f"{time / 60:.1f} min"
