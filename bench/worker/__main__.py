"""`python -m bench.worker`: Markdown on stdout, JSON in bench/out, progress on stderr."""

from __future__ import annotations

from pathlib import Path

from bench import machine
from bench.command import choose, command, workplace
from bench.measure import interleave
from bench.progress import Progress
from bench.report import write_json
from bench.worker.drains import Drains
from bench.worker.enqueues import Enqueues
from bench.worker.footing import measure_idle, measure_starts
from bench.worker.plan import FULL, QUICK, TINY, Plan
from bench.worker.stages import measure_stages, profile
from bench.worker.tables import Results, data, markdown


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
    options = command("worker", __doc__).parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    with workplace(options.dir) as folder:
        results = run(plan, folder, Progress(5))
    write_json(options.out, data(results))
    print(markdown(results))


if __name__ == "__main__":
    main()
