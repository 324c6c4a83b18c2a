"""The duty that gives slow jobs a second run.

A job of a task marked `speculate=True` that runs for more than three times the task's 95th percentile, and
for at least a second, is offered to another session; of both runs the first to complete counts, which is the
broker's business, as is stopping the other. Here it is decided who gets one, and the outcome is counted.

The budget: each run of a task earns a twentieth of a second run, and no more than a hundred are saved up. So
there are never more second runs than 5 % of the runs. What is owed and under way stands in a document per
task, which is written with compare-and-set before an offer is made: whoever takes over the duty goes on from
there, and two who do it at once do not spend the same credit twice.
"""

from __future__ import annotations

from typing import Final

from dray.broker.verbs import PAGE_MAX, Broker, Ids, Query, Speculate
from dray.job import Record, State
from dray.stats import SecondRuns, Tallies, read_second_runs, read_tallies, together, write_second_runs
from dray.worker.lifeline import Lifeline

FACTOR: Final = 3.0
PERCENTILE: Final = 95.0
LEAST: Final = 1.0
"""Seconds that a job runs alone at least."""
SAMPLES: Final = 20
"""How many runs must have been measured before anything is called slow."""
SHARE: Final = 0.05
SAVED_MOST: Final = 100.0
STATS_EVERY: Final = 5.0
"""Seconds between two readings of the statistics."""
LOOK_EVERY: Final = 1.0
PAGES: Final = 5
"""How many pages of running jobs one step looks at."""
SHARE_OF_TIME: Final = 0.1
"""How much of its time the duty may spend looking."""


class Speculation:
    name = "second runs of slow jobs"

    def __init__(self) -> None:
        self._tasks: Tallies = {}
        """Those whose jobs may get a second run."""
        self._read_at: float | None = None
        self._cursor: str | None = None
        self._made: dict[str, str] = {}
        """Offers that were made, by job: its task."""

    async def step(self, line: Lifeline) -> float:
        began = line.monotonic()
        if self._read_at is None or began - self._read_at >= STATS_EVERY:
            tallies = await line.ask(_read)
            self._tasks = {task: tally for task, tally in tallies.items() if tally.speculate}
            self._read_at = began
        if not self._tasks:
            return STATS_EVERY
        await line.ask(self._look)
        return max(LOOK_EVERY, (line.monotonic() - began) / SHARE_OF_TIME)

    async def _look(self, broker: Broker) -> None:
        known = await read_second_runs(broker)
        slow = await self._slow(broker)
        for task, tally in self._tasks.items():
            second, version = known.get(task, (SecondRuns(), 0))
            changed = await _follow_up(broker, second)
            changed = earn(second, tally.runs) or changed
            chosen = choose(second, slow.get(task, []))
            if (changed or chosen) and not await write_second_runs(broker, task, second, version):
                continue  # somebody else does this too, and was quicker
            # Whoever wrote down the others may have died before they were offered.
            unsure = [id for id in second.offered if id not in self._made]
            if unsure:
                await broker.edit(Ids(tuple(unsure)), Speculate())
                self._made.update(dict.fromkeys(unsure, task))
            over = [id for id, of in self._made.items() if of == task and id not in second.offered]
            for id in over:
                del self._made[id]

    async def _slow(self, broker: Broker) -> dict[str, list[Record]]:
        """Jobs that run for too long, the slowest first; of a long list, a stretch at a time."""
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


async def _read(broker: Broker) -> Tallies:
    workers, past, _ = await read_tallies(broker)
    return together([past.tasks, *(told.tasks for told in workers.values())])


def _is_alone(record: Record) -> bool:
    return record.job.speculate and record.cancel is None and len(record.runs) == 1


def earn(second: SecondRuns, runs: int) -> bool:
    """Add the credit for the runs since the last time; whether there were any."""
    if runs == second.runs:
        return False
    second.credit = min(SAVED_MOST, second.credit + SHARE * max(0, runs - second.runs))
    second.runs = runs
    return True


def choose(second: SecondRuns, slow: list[Record]) -> list[Record]:
    """Write down who gets a second run, as far as the credit goes."""
    chosen = [one for one in slow if one.id not in second.offered and one.id not in second.begun]
    del chosen[int(second.credit) :]
    for record in chosen:
        second.offered[record.id] = (record.run, record.failures)
        second.credit -= 1
    return chosen


async def _follow_up(broker: Broker, second: SecondRuns) -> bool:
    """See what became of the offers made before; whether anything did."""
    ids = [*second.offered, *second.begun]
    if not ids:
        return False
    records = dict(zip(ids, await broker.get(ids), strict=True))
    changed = [_has_begun(second, id, records[id]) for id in list(second.offered)]
    changed += [_has_ended(second, id, records[id]) for id in list(second.begun)]
    return any(changed)


def _has_begun(second: SecondRuns, id: str, record: Record | None) -> bool:
    run, failures = second.offered[id]
    if record is not None and record.run > run and record.failures == failures:
        del second.offered[id]
        second.begun[id] = run + 1
        second.launched += 1
        return True
    if record is not None and record.run == run and record.state is State.RUNNING:
        return False
    del second.offered[id]
    # One that is not kept any more may have been taken: it counts as if it had been.
    if record is not None and record.run == run and record.state.finished:
        second.credit += 1  # it ended before anybody took it: that cost nothing
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
