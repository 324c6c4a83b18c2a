"""Every SQL statement of the embedded broker, by name, from the .sql files beside this one."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from dray.broker.sqlite.layout import load_statements


def _load() -> dict[str, str]:
    statements: dict[str, str] = {}
    for file in sorted((files("dray.broker.sqlite") / "sql").iterdir(), key=lambda file: file.name):
        found = load_statements(file)
        if twice := statements.keys() & found:
            raise ValueError(f"{file.name}: {', '.join(sorted(twice))} is named in another file too")
        statements |= found
    return statements


SQL: Final = _load()


def where(name: str, condition: str) -> str:
    """A statement that lists rows, for some of them."""
    return f"{SQL[name]} WHERE {condition}"
