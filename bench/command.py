"""What the command lines of all benches have in common: how large a run, where files go."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from bench.report import ignore

OUT = Path(__file__).parent / "out"
P = TypeVar("P")


def command(name: str, described: str | None, *, tiny: bool = True) -> argparse.ArgumentParser:
    """`python -m bench.<name>` with `--quick`, `--tiny`, `--out` and `--dir`."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=described)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a short look (also: QUICK=1)")
    if tiny:
        size.add_argument("--tiny", action="store_true", help="only to see that it runs")
    parser.add_argument("--out", type=Path, default=OUT / f"{name}.json", help="where the JSON goes")
    parser.add_argument("--dir", type=Path, default=OUT, help="where the databases are (on a real disk)")
    return parser


def is_quick(options: argparse.Namespace) -> bool:
    return bool(options.quick) or os.environ.get("QUICK", "") not in ("", "0")


def choose(options: argparse.Namespace, full: P, quick: P, tiny: P) -> P:
    """The plan that was asked for."""
    return tiny if options.tiny else quick if is_quick(options) else full


@contextmanager
def workplace(folder: Path) -> Iterator[Path]:
    """A folder in it for the databases, gone afterwards."""
    prepare(folder)
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        yield Path(inside)


def prepare(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if folder == OUT:
        ignore(OUT)
