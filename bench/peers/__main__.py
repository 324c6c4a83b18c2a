"""`python -m bench.peers`: Markdown and JSON in bench/out; a full run also writes plots, docs and README."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from bench import machine
from bench.command import OUT, choose, prepare
from bench.peers import envs, lineup, pages, servers
from bench.peers.alone import measure_alone
from bench.peers.lineup import Subject
from bench.peers.plan import FULL, QUICK, TINY, Plan
from bench.peers.run import install, rounds
from bench.peers.session import Place
from bench.peers.tables import Results, blocks, data, markdown, plots
from bench.progress import Progress
from bench.report import write_json

IMAGES = envs.ROOT / "docs" / "img"
PAGES = [envs.ROOT / "docs" / "performance.md", envs.ROOT / "README.md"]
"""A full run of all writes its figures there."""


def run(plan: Plan, subjects: Sequence[Subject], server: str, out: Path, shown: Progress) -> Results:
    """Install, then measure; `server` is a kind, or empty where no subject needs one."""
    facts = {**machine.describe(), "plan": plan.name, "rounds": plan.rounds, "durability": servers.DURABILITY}
    results = Results(facts)
    shown.step("installing (once)")
    beside = [lineup.bare()] if lineup.DRAY in subjects else []  # dray alone is measured against it
    folders = install([*subjects, *beside], results.figured, shown.tell)
    program = servers.find(server) if server else ""
    facts["server"] = servers.version(program) if program else "no server"
    place, began = Place(program, folders, out), time.monotonic()
    shown.step("measuring")
    rounds(plan, subjects, place, results.figured, shown.tell)
    results.versions = {one.name: version(one) for one in subjects}
    results.settings = {one.name: one.settings for one in subjects}
    shown.step("dray alone")
    if lineup.DRAY in subjects:
        results.alone = measure_alone(plan, place, shown.tell)
    facts["minutes"] = round((time.monotonic() - began) / 60)
    shown.end()
    return results


def version(subject: Subject) -> str:
    if subject.package == "dray":
        text = (envs.ROOT / "src" / "dray" / "__init__.py").read_text("utf-8")
        return next(line.split('"')[1] for line in text.splitlines() if line.startswith("__version__"))
    return f"{subject.package} {envs.pinned(subject.env)[subject.package]}" if subject.package else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    size.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument(
        "--server", choices=("valkey", "redis"), default="valkey", help="from the wheel, or installed"
    )
    parser.add_argument("--only", help="names of subjects, separated by semicolons")
    parser.add_argument("--out", type=Path, default=OUT, help="where JSON and Markdown go")
    parser.add_argument(
        "--images", type=Path, help="where the plots go (docs/img after a full run of all, else --out)"
    )
    options = parser.parse_args()
    plan = choose(options, FULL, QUICK, TINY)
    names = options.only.split(";") if options.only else [one.name for one in lineup.ALL]
    left_out = () if options.only else plan.without
    subjects = [one for one in lineup.ALL if one.name in names and one.name not in left_out]
    prepare(options.out)
    results = run(plan, subjects, options.server, options.out, Progress(3))
    results.left_out = left_out
    complete = plan is FULL and len(subjects) == len(lineup.ALL)
    write(results, options.out, options.images or (IMAGES if complete else options.out))
    if complete:
        pages.write(PAGES, blocks(results))


def write(results: Results, out: Path, images: Path) -> None:
    write_json(out / "peers.json", data(results))
    text = markdown(results)
    (out / "peers.md").write_text(text, "utf-8")
    images.mkdir(parents=True, exist_ok=True)
    for name, drawn in plots(results):
        (images / f"{name}.svg").write_text(drawn, "utf-8")
    print(text)


if __name__ == "__main__":
    main()
