"""The duty that gives slow jobs a second run.

A job of a task marked `speculate=True` that runs for more than three times the task's 95th percentile, and
for at least a second, is offered to another session. The broker lets the first run to complete count, and
stops the other. This duty chooses the jobs, and counts the outcomes.

The budget: each run of a task earns a twentieth of a second run, up to a hundred. So there are never more
second runs than 5 % of the runs. A document per task holds the credit and the offers. It is written with
compare-and-set before an offer is made: the next leader goes on from there, and two leaders at once do not
spend the same credit twice.
"""

from __future__ import annotations

from typing import Final

from dray.broker.actions import Ids, Query, Speculate
from dray.broker.verbs import PAGE_MAX, Broker
from dray.job import Record, State
from dray.stats.tallies import (
    SecondRuns,
    Tallies,
    read_second_runs,
    read_totals,
    write_second_runs,
)
from dray.worker.retrying_broker import RetryingBroker

FACTOR: Final = 3.0
PERCENTILE: Final = 95.0
LEAST: Final = 1.0
"""Seconds before a job may get a second run."""
SAMPLES: Final = 20
"""Measured runs of a task that are needed before a job of it counts as slow."""
SHARE: Final = 0.05
SAVED_MOST: Final = 100.0
STATS_EVERY: Final = 5.0
"""Seconds between two reads of the statistics."""
LOOK_EVERY: Final = 1.0
PAGES: Final = 5
"""Pages of running jobs that one step reads."""
SHARE_OF_TIME: Final = 0.1
"""The share of its time that the duty may spend reading."""


class Speculation:
    name = "second runs of slow jobs"

    def __init__(self) -> None:
        self._tasks: Tallies = {}
        """The tasks whose jobs may get a second run."""
        self._read_at: float | None = None
        self._cursor: str | None = None
        self._made: dict[str, str] = {}
        """Offers that this process has made: job → task."""

    async def step(self, retrying: RetryingBroker) -> float:
        began = retrying.monotonic()
        if self._read_at is None or began - self._read_at >= STATS_EVERY:
            tallies = await retrying.ask(read_totals)
            self._tasks = {task: tally for task, tally in tallies.items() if tally.speculate}
            self._read_at = began
        if not self._tasks:
            return STATS_EVERY
        await retrying.ask(self._look)
        return max(LOOK_EVERY, (retrying.monotonic() - began) / SHARE_OF_TIME)

    async def _look(self, broker: Broker) -> None:
        known = await read_second_runs(broker)
        slow = await self._slow(broker)
        for task, tally in self._tasks.items():
            second, version = known.get(task, (SecondRuns(), 0))
            changed = await _follow_up(broker, second)
            changed = earn(second, tally.runs) or changed
            chosen = choose(second, slow.get(task, []))
            if (changed or chosen) and not await write_second_runs(broker, task, second, version):
                continue  # another worker was faster
            # The worker that wrote the other offers may have died before it made them.
            unsure = {id: run for id, (run, _) in second.offered.items() if id not in self._made}
            for run in dict.fromkeys(unsure.values()):
                ids = [id for id, of in unsure.items() if of == run]
                await broker.edit(Ids(tuple(ids)), Speculate(run))
                self._made.update(dict.fromkeys(ids, task))
            over = [id for id, of in self._made.items() if of == task and id not in second.offered]
            for id in over:
                del self._made[id]

    async def _slow(self, broker: Broker) -> dict[str, list[Record]]:
        """Slow jobs by task, the slowest first; of many running jobs, a few pages in each step."""
        limits = {
            task: max(LEAST, FACTOR * tally.took.percentile(PERCENTILE)) * 1000
            for task, tally in self._tasks.items()
            if tally.took.weight >= SAMPLES
        }
        found: dict[str, list[tuple[float, Record]]] = {}
        if not limits:
            return {}
        query = Query(state=State.RUNNING, task=next(iter(limits)) if len(limits) == 1 else None)
        for _ in range(PAGES):
            page = await broker.find(query, cursor=self._cursor, limit=PAGE_MAX)
            self._cursor, now = page.cursor, broker.clock()
            for record in page.records:
                limit = limits.get(record.job.task)
                if limit is not None and _is_alone(record):
                    beyond = (now - record.runs[0].since) / limit
                    if beyond > 1:
                        found.setdefault(record.job.task, []).append((beyond, record))
            if self._cursor is None:
                break
        return {
            task: [record for _, record in sorted(records, key=lambda one: -one[0])]
            for task, records in found.items()
        }


def _is_alone(record: Record) -> bool:
    return record.job.speculate and record.cancel is None and len(record.runs) == 1


def earn(second: SecondRuns, runs: int) -> bool:
    """Add the credit for the runs since the last time; True if there were any."""
    if runs == second.runs:
        return False
    second.credit = min(SAVED_MOST, second.credit + SHARE * max(0, runs - second.runs))
    second.runs = runs
    return True


def choose(second: SecondRuns, slow: list[Record]) -> list[Record]:
    """Note the jobs that get a second run, as far as the credit goes."""
    chosen = [one for one in slow if one.id not in second.offered and one.id not in second.begun]
    del chosen[int(second.credit) :]
    for record in chosen:
        second.offered[record.id] = (record.run, record.failures)
        second.credit -= 1
    return chosen


async def _follow_up(broker: Broker, second: SecondRuns) -> bool:
    """Count the outcomes of earlier offers; True if there were any."""
    ids = [*second.offered, *second.begun]
    if not ids:
        return False
    records = dict(zip(ids, await broker.get(ids), strict=True))
    changed = [_has_begun(second, id, records[id]) for id in list(second.offered)]
    changed += [_has_ended(second, id, records[id]) for id in list(second.begun)]
    return any(changed)


def _has_begun(second: SecondRuns, id: str, record: Record | None) -> bool:
    run, failures = second.offered[id]
    died = record is not None and record.state is State.DEAD  # its last failure counts as well
    if record is not None and record.run > run and record.failures - died <= failures:
        del second.offered[id]
        second.begun[id] = run + 1
        second.launched += 1
        return True
    if record is not None and record.run == run and record.state is State.RUNNING:
        return False
    del second.offered[id]
    # A job that is not kept any more may have been taken: it counts as if it had been.
    if record is not None and record.run == run and record.state.finished:
        second.credit += 1  # it ended before the offer was taken: that cost nothing
    return True


def _has_ended(second: SecondRuns, id: str, record: Record | None) -> bool:
    number = second.begun[id]
    if record is not None and any(run.number == number for run in record.runs):
        return False
    del second.begun[id]
    if record is not None and record.state.finished and record.settled == number:
        second.won += 1
    else:
        second.wasted += 1
    return True
