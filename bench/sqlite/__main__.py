"""`python -m bench.sqlite`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench.report import ignore, write_json
from bench.sqlite.plan import FULL, QUICK, TINY
from bench.sqlite.profiling import profiles
from bench.sqlite.run import run
from bench.sqlite.tables import data, markdown

OUT = Path(__file__).parents[1] / "out"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sqlite", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    size.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--out", type=Path, default=OUT / "sqlite.json", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, default=OUT, help="where the databases are (on a real disk)")
    parser.add_argument("--profile", type=int, metavar="DEPTH", help="only show where time goes at a depth")
    options = parser.parse_args()
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    plan = TINY if options.tiny else QUICK if quick else FULL
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.dir == OUT:
        ignore(OUT)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        if options.profile is not None:
            for section in profiles(plan, Path(folder), options.profile):
                print(section)
            return
        results = run(plan, Path(folder))
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
