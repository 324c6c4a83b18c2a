"""`python -m bench.service`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import argparse
import os
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench import machine
from bench.peers import servers
from bench.progress import Progress
from bench.report import ignore, write_json
from bench.service import cases, overload
from bench.service.plan import FULL, QUICK, TINY, Plan
from bench.service.stage import valkey
from bench.service.tables import Results, data, markdown

OUT = Path(__file__).parents[1] / "out"


def run(plan: Plan, folder: Path, shown: Progress) -> Results:
    results = Results(describe(), plan)
    shown.step("requests of each kind")
    results.requests = cases.measure(plan, folder / "requests", shown.tell)
    shown.step("too much")
    results.ordeals = overload.measure(plan, folder / "overload", shown.tell)
    shown.end()
    return results


def describe() -> dict[str, object]:
    packages = ", ".join(f"{name} {version(name)}" for name in ("starlette", "uvicorn", "grpcio"))
    return {**machine.describe(), "valkey": servers.version(valkey()), "versions": packages}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.service", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    size.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--out", type=Path, default=OUT / "service.json", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, default=OUT, help="where the databases are (on a real disk)")
    options = parser.parse_args()
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    plan = TINY if options.tiny else QUICK if quick else FULL
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.dir == OUT:
        ignore(OUT)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        results = run(plan, Path(folder), Progress(2))
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
