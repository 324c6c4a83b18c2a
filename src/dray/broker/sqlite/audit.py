"""The invariants of the embedded broker, as queries for what must not exist."""

from __future__ import annotations

import sqlite3

from dray.broker.sqlite.statements import SQL

_AUDITS = [statement for name, statement in SQL.items() if name.startswith("audit_")]


def problems(db: sqlite3.Connection, ns: int) -> list[str]:
    """One sentence per inconsistency."""
    return [sentence for statement in _AUDITS for (sentence,) in db.execute(statement, (ns,))]
