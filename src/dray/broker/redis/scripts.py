"""The scripts: each file of `lua/` that is no part of others, with the parts it names put before it.

A verb may have a short way, `<verb>_plain.lua`, that comes before most parts: it deals with what nearly every
call is, or leaves everything as it is and lets the whole script go on. The parts define about a hundred
functions each time a script runs, which costs more than the work of a small call; a short way names the few
that it shares with the rest.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Final

import msgspec

PARTS: Final = frozenset({"base", "due", "job", "line", "moves", "namespace", "plain"})
SHORT: Final = "_plain"
_USES = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


class Script(msgspec.Struct, frozen=True):
    name: str
    source: str
    sha: str


def _read() -> dict[str, Script]:
    folder = files(__package__) / "lua"
    texts = {
        file.name.removesuffix(".lua"): file.read_text("utf-8")
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }
    scripts = {}
    for name in texts:
        if name in PARTS or name.endswith(SHORT):
            continue
        placed: list[str] = []
        if name + SHORT in texts:
            _place(name + SHORT, texts, placed)
        _place(name, texts, placed)
        source = "".join(_stripped(texts[part]) for part in placed)
        scripts[name] = Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
    return scripts


def _place(name: str, texts: dict[str, str], placed: list[str]) -> None:
    """Once each, what a text uses before it."""
    uses = _USES.search(texts[name])
    for part in uses[1].split() if uses else ():
        if part not in placed:
            _place(part, texts, placed)
    placed.append(name)


def _stripped(text: str) -> str:
    """Without comments: the server keeps every script it was ever given."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")) + "\n"


SCRIPTS: Final = _read()
