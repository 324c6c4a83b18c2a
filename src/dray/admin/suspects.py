"""Suspects of external workers: a job whose holder disappeared runs alone, under a mark.

The mark is a document with the number of the run. If that run is lost too, the next holder finds the mark and
settles its own run as crashed: so a job that kills every worker is dead after `max_crashes` such runs.
"""

from __future__ import annotations

from typing import Final

from dray.broker.verbs import Broker
from dray.duration import DAY
from dray.job import Error, Outcome, OutcomeKind, Taken

_KIND: Final = "external"
_TTL: Final = 7 * DAY


async def mark(broker: Broker, taken: Taken) -> Outcome | None:
    """Mark the run of a suspect; its outcome instead, if its last run, alone with its holder, was lost."""
    id = taken.job.id
    found = (await broker.doc(_KIND, id)).doc
    if found is not None and found.value == b"%d" % (taken.run - 1):
        await broker.doc(_KIND, id, None)
        crash = Error("Crashed", "the lease of its run, alone with its holder, ran out")
        return Outcome(id=id, run=taken.run, kind=OutcomeKind.CRASHED, error=crash)
    await broker.doc(_KIND, id, b"%d" % taken.run, ttl=_TTL)
    return None


async def unmark(broker: Broker, id: str, run: int) -> None:
    """Remove the mark of a run that its holder ended, before its outcome is settled: a mark that outlives
    its run would count as a crash of the next."""
    found = (await broker.doc(_KIND, id)).doc
    if found is not None and found.value == b"%d" % run:
        await broker.doc(_KIND, id, None, expect_version=found.version)
