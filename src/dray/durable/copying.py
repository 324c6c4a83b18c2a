"""A rerun from a step: the part of a log that the new job begins with."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.durable.entries import Child, Entry, Intent, Operation, Try, Value
from dray.errors import InvalidInput

RERUN: Final = "dray-rerun"
"""The header of a job that repeats another one: the id of that one."""
RERUN_FROM: Final = "dray-rerun-from"
"""The header of a rerun that begins with the log of the other job, up to this step."""


def entries_before(entries: list[Entry], step: str) -> list[Operation]:
    """The entries of operations that were called before `step`. Undos and children stay with the old job."""
    calls: dict[str, int] = {}
    for entry in entries:
        if isinstance(entry, Operation):
            calls.setdefault(entry.id, entry.call)
    if any(id.startswith("undo(") for id in calls):
        raise InvalidInput("step", step, "its steps were undone: it can only run again as a whole")
    if step not in calls:
        raise InvalidInput("step", step, f"one of {', '.join(list(calls)[:20]) or 'none'} is allowed")
    return [
        msgspec.structs.replace(entry, undo=None) if isinstance(entry, Value) else entry
        for entry in entries
        if isinstance(entry, Operation)
        and not isinstance(entry, Try | Intent | Child)
        and not entry.id.startswith("undo(")
        and entry.call < calls[step]
    ]
