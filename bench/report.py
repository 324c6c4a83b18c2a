"""Figures as text: Markdown tables for people, JSON for whoever computes with them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.measure import Row, Spread

Cells = Sequence[object]


def table(head: Cells, rows: Iterable[Cells]) -> str:
    """A Markdown table; columns of figures are aligned to the right."""
    body = [[str(cell) for cell in row] for row in rows]
    if not body:
        return ""
    figures = [all(_is_figure(row[column]) for row in body) for column in range(len(head))]
    rule = ["--:" if right else "---" for right in figures]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, rule, *body)) + "\n"


def _is_figure(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "+−–"


def count(number: float) -> str:
    """1234567 → 1,234,567; three digits that mean something are enough."""
    if number >= 1000:
        number = round(number, 3 - len(str(int(number))))
    return f"{number:,.0f}"


def short(number: float) -> str:
    """100000 → 100 k."""
    for size, unit in ((1_000_000, " M"), (1000, " k")):
        if number >= size and number % size == 0:
            return f"{number // size:.0f}{unit}"
    return f"{number:,.0f}"


def percent(part: float) -> str:
    return f"{part * 100:.0f} %"


def change(part: float) -> str:
    """0.07 → +7 %."""
    return f"{'−' if part < 0 else '+'}{abs(part) * 100:.0f} %"


def spread(figures: Spread) -> str:
    """The median, and in brackets the lowest and the highest."""
    return f"{percent(figures.median)} ({figures.low * 100:.0f}–{figures.high * 100:.0f})"


def micro(seconds: float) -> str:
    """Seconds in the unit that fits."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds:.2f} s"


def row_data(row: Row, subject: str, base: str) -> dict[str, object]:
    """A row for the JSON file: what was computed, and the samples it was computed from."""
    return {
        "name": row.name,
        **row.parameters,
        "ratio": asdict(row.ratio(subject, base)),
        "rates": {name: asdict(row.rate(name)) for name in row.samples},
        "cpu_microseconds": {name: asdict(row.cpu(name)) for name in row.samples},
        "samples": {name: [asdict(sample) for sample in samples] for name, samples in row.samples.items()},
    }


def write_json(path: Path, data: object) -> None:
    """Into a folder that git ignores by itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ignore(path.parent)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")


def ignore(folder: Path) -> None:
    (folder / ".gitignore").write_text("*\n", "utf-8")
