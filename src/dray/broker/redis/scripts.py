"""The scripts: each file of `lua/` that is no part of others, with the parts it names put before it.

A verb may have a short way, `<verb>_plain.lua`, that comes before all parts: it deals with what nearly every
call is, or leaves everything as it is and lets the whole script go on. The parts define about a hundred
functions each time a script runs, which costs more than the work of a small call.
"""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from typing import Final

import msgspec

PARTS: Final = frozenset({"base", "job", "line", "moves", "namespace"})
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
    for name, text in texts.items():
        if name in PARTS or name.endswith(SHORT):
            continue
        uses = _USES.search(text)
        parts = [texts[part] for part in uses[1].split()] if uses else []
        short = [texts[name + SHORT]] if name + SHORT in texts else []
        source = "".join(map(_stripped, [*short, *parts, text]))
        scripts[name] = Script(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
    return scripts


def _stripped(text: str) -> str:
    """Without comments: the server keeps every script it was ever given."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--")) + "\n"


SCRIPTS: Final = _read()
