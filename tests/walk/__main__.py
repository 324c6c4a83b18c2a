"""`python -m walk`: walk for a while, or replay one seed, and print the shortest failure."""

from __future__ import annotations

import argparse
import itertools
import sys
import time

from walk import Coverage, Options, shrink, side, walk


def main(argv: list[str] | None = None) -> int:
    args = _arguments().parse_args(argv)
    sides = [side(url, blocking=place > 0 and args.blocking) for place, url in enumerate(args.brokers)]
    first, second, *more = sides
    options = Options(steps=args.steps, backwards=not args.steady)
    coverage = Coverage()
    start = time.monotonic()
    seconds = args.minutes * 60 if args.minutes else args.seconds
    seeds = [args.seed] if args.seed is not None else itertools.count(args.first_seed)
    walks = 0
    for seed in seeds:
        if args.seed is None and time.monotonic() - start > seconds:
            break
        found = walk(seed, first, second, *more, options=options, coverage=coverage)
        walks += 1
        if found is not None:
            print(found if args.long else shrink(found, first, second, *more))
            return 1
    spent = time.monotonic() - start
    print(f"{walks} walks agree: {coverage.ops} calls in {spent:.1f} s, {coverage.ops / spent:.0f} calls/s")
    if args.coverage:
        print(coverage.table())
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m walk", description=__doc__)
    parser.add_argument("--brokers", nargs="+", default=["memory://", "memory://"], metavar="URL")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--blocking", action="store_true", help="open all but the first with blocking=True")
    parser.add_argument("--steady", action="store_true", help="the clock never goes back")
    parser.add_argument("--long", action="store_true", help="print a failure as it was found, not shrunk")
    parser.add_argument("--coverage", action="store_true", help="print what has happened")
    return parser


if __name__ == "__main__":
    sys.exit(main())
