"""`python -m bench.worker`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from bench import machine
from bench.measure import interleave
from bench.progress import Progress
from bench.report import ignore, write_json
from bench.worker.drains import Drains
from bench.worker.enqueues import Enqueues
from bench.worker.footing import measure_idle, measure_starts
from bench.worker.plan import FULL, QUICK, TINY, Plan
from bench.worker.stages import measure_stages, profile
from bench.worker.tables import Results, data, markdown

OUT = Path(__file__).parents[1] / "out"


def run(plan: Plan, folder: Path, shown: Progress) -> Results:
    facts = {**machine.describe(), "plan": plan.name, "rounds": plan.rounds}
    results = Results(facts)
    shown.step("a worker drains no-ops")
    results.drains = interleave(Drains(plan, folder / "drains").measurements(), plan.rounds, shown.tell)
    shown.step("enqueueing")
    results.enqueues = interleave(Enqueues(plan, folder / "enqueues").measurements(), plan.rounds, shown.tell)
    shown.step("stages of a run")
    results.stages = measure_stages(plan, folder / "stages")
    results.profile = profile(plan, folder / "profile")
    shown.step("starting")
    results.starts = measure_starts(plan.imports)
    shown.step("idling")
    results.idle = measure_idle(folder / "idle", plan.idle)
    shown.end()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.worker", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    size.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--out", type=Path, default=OUT / "worker.json", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, default=OUT, help="where the databases are (on a real disk)")
    options = parser.parse_args()
    quick = options.quick or os.environ.get("QUICK", "") not in ("", "0")
    plan = TINY if options.tiny else QUICK if quick else FULL
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.dir == OUT:
        ignore(OUT)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        results = run(plan, Path(folder), Progress(5))
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
