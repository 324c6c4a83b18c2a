"""The SQL of the embedded broker: each statement has a name and a use."""

from __future__ import annotations

from pathlib import Path

import dray.broker.sqlite
from dray.broker.sqlite.statements import SQL

FOLDER = Path(dray.broker.sqlite.__file__).parent


def test_every_statement_is_used() -> None:
    code = "".join(file.read_text("utf-8") for file in FOLDER.glob("*.py"))
    unused = [name for name in SQL if f'"{name}"' not in code and not name.startswith("audit_")]
    assert unused == []
