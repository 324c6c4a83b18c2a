"""Writes the figures of a full run into docs/performance.md and README.md, between markers.

A block begins with `<!-- bench: NAME -->` and ends with `<!-- end -->`; people write the rest of the page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_BLOCK = re.compile(r"(<!-- bench: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """The page with its blocks filled; one that this run has nothing for stays as it is."""

    def block(match: re.Match[str]) -> str:
        made = blocks.get(match[2])
        return match[0] if made is None else f"{match[1]}\n{made.strip()}\n\n{match[3]}"

    return _BLOCK.sub(block, text)


def names(text: str) -> list[str]:
    """The blocks of a page."""
    return [match[2] for match in _BLOCK.finditer(text)]


def write(pages: list[Path], blocks: Mapping[str, str]) -> None:
    for page in pages:
        page.write_text(fill(page.read_text("utf-8"), blocks), "utf-8")
