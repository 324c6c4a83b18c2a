"""`python -m sim`: look for a seed that breaks a promise, or look at one."""

from __future__ import annotations

import argparse
import os
import sys

from sim.explorer import Found, explore, simulate
from sim.plan import from_text


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.plan, options.trace)
    seeds = None
    if options.seeds is not None:
        first, _, last = options.seeds.partition(":")
        seeds = range(int(first), int(last))
    found = explore(
        seconds=options.seconds if seeds is None else None,
        seeds=seeds,
        processes=options.processes,
        progress=_progress if sys.stderr.isatty() else None,
    )
    return _verdict(found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to look (default 60)")
    parser.add_argument("--seeds", metavar="A:B", help="run these seeds instead")
    parser.add_argument("--seed", type=int, help="run one seed")
    parser.add_argument("--plan", default="", metavar="NAME=VALUE,…", help="with --seed: change its plan")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happened")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    return parser


def _one(seed: int, changes: str, trace: bool) -> int:
    report = simulate(seed, plan=from_text(seed, changes), audit_every=1, keep_trace=trace)
    for line in report.trace:
        print(line)
    print(report.text())
    return 0 if report.ok else 1


def _progress(seeds: int, seconds: float) -> None:
    print(f"\r{seeds} seeds, {seeds / max(seconds, 0.001):.1f}/s ", end="", file=sys.stderr, flush=True)


def _verdict(found: Found) -> int:
    print(f"{found.seeds} seeds in {found.seconds:.1f} s ({found.seeds / max(found.seconds, 0.001):.1f}/s)")
    if found.failure is None:
        return 0
    print(found.failure.text())
    if found.shrunk is not None and found.shrunk != found.failure:
        print("\nthe smallest that fails alike:")
        print(found.shrunk.text())
    return 1


if __name__ == "__main__":
    sys.exit(main())
