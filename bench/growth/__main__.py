"""`python -m bench.growth`: Markdown on stdout, JSON in bench/out; a full run also writes docs/scale.md."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench import machine
from bench.command import choose, command, workplace
from bench.growth.cases import FULL, QUICK, TINY, Figure, Plan, measure
from bench.peers import pages, servers
from bench.peers.plots import OURS, Bar, bars
from bench.report import table, write_json

DOCS = Path(__file__).parents[2] / "docs"


def run(plan: Plan, kind: str, folder: Path) -> list[Figure]:
    folder.mkdir(exist_ok=True)
    tell = partial(_tell, kind)
    if kind == "sqlite":
        return measure(plan, f"sqlite:///{folder}/growth.db", folder, None, tell)
    with servers.running(servers.find(kind)) as server:
        return measure(plan, server.url, folder, server, tell)


def _tell(kind: str, case: str) -> None:
    print(f"{kind}: {case}", file=sys.stderr, flush=True)


def markdown(results: dict[str, list[Figure]]) -> str:
    head = ("broker", "case", "number", "figure", "to the first")
    rows = [
        (kind, one.case, f"{one.number:,}", f"{one.value:,.1f} {one.unit}", f"{one.ratio:.2f}")
        for kind, figures in results.items()
        for one in figures
    ]
    return table(head, rows)


def plots(results: dict[str, list[Figure]]) -> Iterator[tuple[str, str]]:
    """File names without their ending, and a plot of each broker and case."""
    for kind, figures in results.items():
        for case in dict.fromkeys(one.case for one in figures):
            found = [one for one in figures if one.case == case]
            if len(found) > 1:
                drawn = [Bar(f"{one.number:,}", one.value, OURS) for one in found]
                under = f"{kind}, {found[0].unit}; the first is what the others are compared with"
                name = re.sub(r"[^a-z]+", "-", f"growth-{kind}-{case}")
                yield name, bars(case.capitalize(), under, drawn, _shown)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.2f}"


def write_page(results: dict[str, list[Figure]]) -> None:
    """A full run of both brokers: the table and the plots of docs/scale.md."""
    drawn = dict(plots(results))
    for name, picture in drawn.items():
        (DOCS / "img" / f"{name}.svg").write_text(picture, "utf-8")
    facts = machine.describe()
    run = f"{str(facts['date'])[:10]}, {facts['cpu']}, {facts['cores']} cores, load {facts['load']}:"
    pictures = "\n\n".join(f"![{name}](img/{name}.svg)" for name in drawn)
    pages.write([DOCS / "scale.md"], {"growth": f"{run}\n\n{markdown(results)}\n{pictures}"})


def main() -> None:
    parser = command("growth", __doc__)
    parser.add_argument("--broker", choices=["sqlite", "valkey", "redis"], help="only this one")
    options = parser.parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    kinds = [options.broker] if options.broker else ["valkey", "sqlite"]
    with workplace(options.dir) as folder:
        results = {kind: run(plan, kind, folder / kind) for kind in kinds}
    figures = {kind: [asdict(one) for one in cases] for kind, cases in results.items()}
    write_json(options.out, {"machine": machine.describe(), "growth": figures})
    print(markdown(results))
    if plan is FULL and not options.broker:
        write_page(results)


if __name__ == "__main__":
    main()
