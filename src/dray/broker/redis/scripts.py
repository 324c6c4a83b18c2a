"""Builds the scripts from `lua/`: each file, behind the shared parts that its `-- uses:` line names.

A verb may have a fast path, `<verb>_fast.lua`, which comes before most parts. It does the usual call, or
changes nothing and lets the full script go on. The parts define about a hundred functions each time a script
runs, which costs more than the work of a small call; a fast path uses only a few of them.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

FAST_PATH: Final = "_fast"
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_AS_FUNCTION = re.compile(r"^-- as a function$", re.MULTILINE)


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
    """What follows the fast path, and the verb itself, are functions: Lua allows each 200 local names."""
    placed: list[str] = []
    if name + FAST_PATH in texts:
        _place(name + FAST_PATH, texts, placed)
    fast = len(placed)
    _place(name, texts, placed)
    levels = [placed[:fast], placed[fast:-1], placed[-1:]] if fast else [placed[:-1], placed[-1:]]
    parts = ["".join(_part(part, texts[part]) for part in level) for level in levels]
    source = "return (function()\n".join(parts) + "end)()\n" * (len(levels) - 1)
    return Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())


def _place(name: str, texts: dict[str, str], placed: list[str]) -> None:
    """Append a file behind the parts it uses, each part once."""
    for part in _uses(texts[name]):
        if part not in placed:
            _place(part, texts, placed)
    placed.append(name)


def _part(name: str, text: str) -> str:
    """A part; as a function of its name if its head says so, so that it costs only where it is called."""
    stripped = _stripped(text)
    return f"local function {name}(...)\n{stripped}end\n" if _AS_FUNCTION.search(text) else stripped


def _stripped(text: str) -> str:
    """Without comments, because the server keeps every script in memory."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")) + "\n"


_TEXTS: Final = _read_files()
PARTS: Final = frozenset(part for text in _TEXTS.values() for part in _uses(text))
SCRIPTS: Final = {
    name: _build(name, _TEXTS) for name in _TEXTS if name not in PARTS and not name.endswith(FAST_PATH)
}
