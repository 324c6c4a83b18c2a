"""Counts lines per room: installed code, tests, and their ratio. `make size` prints the table."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[1]
SOURCE: Final = ROOT / "src" / "dray"
CONFORMANCE: Final = SOURCE / "testing" / "conformance"
SUFFIXES: Final = {".py", ".lua", ".sql", ".proto"}
COMMENT: Final = {".py": "#", ".lua": "--", ".sql": "--", ".proto": "//"}


class Lines(NamedTuple):
    """All lines, and the lines of code: without blanks, comments and docstrings."""

    total: int = 0
    code: int = 0

    def plus(self, other: Lines) -> Lines:
        return Lines(self.total + other.total, self.code + other.code)


def count_lines(path: Path) -> Lines:
    text = path.read_text("utf-8")
    lines = text.splitlines()
    prose = _docstring_lines(text) if path.suffix == ".py" else set()
    comment = re.compile(rf"\s*({re.escape(COMMENT[path.suffix])}.*)?")
    code = [n for n, line in enumerate(lines, 1) if n not in prose and not comment.fullmatch(line)]
    return Lines(len(lines), len(code))


def _docstring_lines(text: str) -> set[int]:
    """Lines of strings that stand alone: docstrings, also those of constants and fields."""
    return {
        number
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def _count(paths: list[Path]) -> Lines:
    total = Lines()
    for path in paths:
        total = total.plus(count_lines(path))
    return total


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.suffix in SUFFIXES and not _is_generated(path)]


def _is_generated(path: Path) -> bool:
    return path.stem.endswith("_pb2")


def rooms() -> dict[str, Lines]:
    """The folders of the package, and its modules at the top as one room; without the conformance suite."""
    grouped: dict[str, list[Path]] = {}
    for path in _files(SOURCE):
        if not path.is_relative_to(CONFORMANCE):
            below = path.relative_to(SOURCE).parts
            grouped.setdefault(f"{below[0]}/" if len(below) > 1 else "(top)", []).append(path)
    return {room: _count(paths) for room, paths in sorted(grouped.items())}


def runtime() -> Lines:
    """Everything that is installed, except the conformance suite."""
    total = Lines()
    for lines in rooms().values():
        total = total.plus(lines)
    return total


def checks() -> Lines:
    """The tests of this repository and the conformance suite."""
    return _count(_files(ROOT / "tests")).plus(_count(_files(CONFORMANCE)))


def main() -> None:
    shown = rooms()
    shown["all"] = runtime()
    shown["tests, conformance"] = checks()
    print(f"{'ROOM':<20}{'LINES':>9}{'CODE':>9}")
    for room, lines in shown.items():
        print(f"{room:<20}{lines.total:>9,}{lines.code:>9,}")
    print(f"\ntests : runtime = {checks().total / runtime().total:.2f}")


if __name__ == "__main__":
    main()
