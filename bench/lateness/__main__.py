"""`python -m bench.lateness`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bench import machine
from bench.command import choose, command, workplace
from bench.lateness.cases import FULL, QUICK, TINY, Bench, Late, Plan, worker
from bench.peers import servers
from bench.report import table, write_json


@contextmanager
def store(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/lateness.db"
    else:
        with servers.running(servers.find(kind)) as server:
            yield server.url


def run(plan: Plan, kind: str, folder: Path) -> list[Late]:
    folder.mkdir(exist_ok=True)
    marks = folder / "marks"
    with store(kind, folder) as url, worker(url, marks):
        bench = Bench(url, marks)
        try:
            return bench.measure(plan, lambda case: print(f"{kind}: {case}", file=sys.stderr, flush=True))
        finally:
            bench.app.close()


def markdown(results: dict[str, list[Late]]) -> str:
    head = ("broker", "case", "jobs", "median ms", "99 % ms", "worst ms")
    rows = [
        (
            kind,
            one.case,
            f"{one.jobs:,}",
            *(f"{figure * 1000:,.1f}" for figure in (one.median, one.p99, one.worst)),
        )
        for kind, cases in results.items()
        for one in cases
    ]
    return table(head, rows)


def main() -> None:
    parser = command("lateness", __doc__)
    parser.add_argument("--broker", choices=["sqlite", "valkey", "redis"], help="only this one")
    options = parser.parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    kinds = [options.broker] if options.broker else ["sqlite", "valkey"]
    with workplace(options.dir) as folder:
        results = {kind: run(plan, kind, folder / kind) for kind in kinds}
    figures = {kind: [asdict(one) for one in cases] for kind, cases in results.items()}
    write_json(options.out, {"machine": machine.describe(), "lateness": figures})
    print(markdown(results))


if __name__ == "__main__":
    main()
