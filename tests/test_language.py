"""Docstrings and comments are plain English: nouns instead of pronouns, statements instead of riddles."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "dray"

UNCLEAR = re.compile(
    r"\b(who(m)?ever|told|somebody|nobody|anybody|comes to|came to|word of|there is word)\b", re.IGNORECASE
)
"""Words that make a reader ask who, or what: say the noun instead."""

LEFT: dict[str, int] = {"broker/sqlite": 3, "cli": 3}
"""Uses that are left, by room. Numbers here only get smaller; then the line goes."""


def prose_of(path: Path) -> str:
    """Docstrings and comments of a file of Python, Lua or SQL."""
    text = path.read_text("utf-8")
    if path.suffix != ".py":
        return "\n".join(line.partition("--")[2] for line in text.splitlines())
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return "\n".join([*comments, *_docstrings(ast.parse(text))])


def _docstrings(tree: ast.AST) -> list[str]:
    """Every text that stands as a statement of its own: docstrings, also those below fields and constants."""
    return [
        node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


def room_of(path: Path, root: Path) -> str:
    """A folder of the package, or a folder of its brokers and workers; `top` for the files beside them."""
    folders = path.relative_to(root).parent.parts
    depth = 2 if folders[:1] in (("broker",), ("worker",)) else 1
    return "/".join(folders[:depth]) or "top"


def unclear_words(root: Path) -> Counter[str]:
    """How often each room uses one of the words."""
    found: Counter[str] = Counter()
    for path in sorted(root.rglob("*")):
        if path.suffix in (".py", ".lua", ".sql"):
            found[room_of(path, root)] += len(UNCLEAR.findall(prose_of(path)))
    return +found


def test_docstrings_and_comments_are_plain() -> None:
    found = unclear_words(SOURCE)
    worse = {room: count for room, count in found.items() if count > LEFT.get(room, 0)}
    assert worse == {}, "say the noun instead of: who(m)ever, told, some-/no-/anybody, comes to, word"


def test_the_numbers_left_only_get_smaller() -> None:
    found = unclear_words(SOURCE)
    assert {room: count for room, count in LEFT.items() if count > found[room]} == {}, "lower these numbers"


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.py", '"""Whoever asks is told."""', 2),
        ("a.py", "x = 1  # nobody reads it\n", 1),
        ("a.py", 'x = 1\n"""What it came to."""', 1),
        ("a.py", 'print("nobody is told")', 0),
        ("a.py", '"""A retold story."""', 0),
        ("a.lua", "-- somebody waits\nlocal told = 1", 1),
        ("a.sql", "-- whoever waits\nSELECT told;", 1),
    ],
)
def test_words_are_found_in_prose_only(tmp_path: Path, name: str, text: str, count: int) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    assert unclear_words(tmp_path).total() == count
