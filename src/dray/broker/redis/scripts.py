"""Builds the scripts from `lua/`: each file, behind the shared parts that its `-- uses:` line names.

A verb may have a fast path, `<verb>_plain.lua`, which comes before most parts. It does the usual call, or
changes nothing and lets the full script go on. The parts define about a hundred functions each time a script
runs, which costs more than the work of a small call; a fast path uses only a few of them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

FAST_PATH: Final = "_plain"
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    name: str
    source: str
    sha: str


def _read_files() -> dict[str, str]:
    folder = Path(__file__).parent / "lua"  # importlib.resources would load much more
    return {
        file.name.removesuffix(".lua"): file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }


def _uses(text: str) -> list[str]:
    uses = _USES.search(text)
    return uses[1].split() if uses else []


def _build(name: str, texts: dict[str, str]) -> Script:
    placed: list[str] = []
    if name + FAST_PATH in texts:
        _place(name + FAST_PATH, texts, placed)
    _place(name, texts, placed)
    source = "".join(_stripped(texts[part]) for part in placed)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _place(name: str, texts: dict[str, str], placed: list[str]) -> None:
    """Append a file behind the parts it uses, each part once."""
    for part in _uses(texts[name]):
        if part not in placed:
            _place(part, texts, placed)
    placed.append(name)


def _stripped(text: str) -> str:
    """Without comments, because the server keeps every script in memory."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")) + "\n"


_TEXTS: Final = _read_files()
PARTS: Final = frozenset(part for text in _TEXTS.values() for part in _uses(text))
SCRIPTS: Final = {
    name: _build(name, _TEXTS) for name in _TEXTS if name not in PARTS and not name.endswith(FAST_PATH)
}
