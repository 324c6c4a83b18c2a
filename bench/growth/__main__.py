"""`python -m bench.growth`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench import machine
from bench.command import choose, command, workplace
from bench.growth.cases import FULL, QUICK, TINY, Figure, Plan, measure
from bench.peers import servers
from bench.report import table, write_json


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


if __name__ == "__main__":
    main()
