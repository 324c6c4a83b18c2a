"""When an executor ends: killing one that hangs, saying who is to blame, freeing what a dead one held."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from dray.broker.verbs import PAGE_MAX, Broker, Query
from dray.errors import DrayError
from dray.job import Record, State
from dray.worker.executors import Executor
from dray.worker.lifeline import Lifeline
from dray.worker.stacks import Culprit, find_culprit, find_task, read_stacks

LOOK_UP: Final = 2.0
"""Seconds that finding the jobs of a hanging executor may take: it is killed in any case."""
SHOWN: Final = 5

log = logging.getLogger("dray.worker")


class Endings:
    """Kills executors, and frees what the dead held."""

    def __init__(self, line: Lifeline, queues: Sequence[str]) -> None:
        self._line, self._queues = line, queues

    async def put_down(self, executor: Executor, why: str) -> None:
        """Kill an executor that cannot be helped, and say what it was doing."""
        executor.doomed = True
        stacks = read_stacks(await executor.dump())
        records = await self._held(executor)
        executor.kill()
        stuck = frozenset(outcome.id for outcome in executor.stuck)
        if stuck:
            wanted = frozenset(record.job.task for record in records if record.id in stuck)
            culprits = find_task(stacks, executor.tasks, wanted)
            records = [record for record in records if record.id in stuck]
        else:
            culprit = find_culprit(stacks, executor.tasks)
            culprits = [culprit] if culprit else []
        log.warning("%s", _report(executor, why, culprits, records, self._line.broker.clock()))

    async def settle_up(self, executor: Executor) -> None:
        """Settle and free what an executor that has ended left behind, however long the broker takes."""
        session = executor.session
        if session is not None and executor.stuck:
            outcomes = executor.stuck
            try:
                await self._line.insist(lambda broker: broker.settle(session, outcomes))
            except DrayError:
                log.exception("runs of executor %d could not be settled; they are freed", executor.number)
        await self.free_former(executor)
        if session is None:
            return
        suspect = not executor.orderly
        freed = await self._free(session, suspect=suspect)
        if freed and suspect:
            log.warning("executor %d held %s: to be run again, alone", executor.number, _jobs(freed))
        elif freed:
            log.info("executor %d held %s: handed back", executor.number, _jobs(freed))

    async def free_former(self, executor: Executor) -> None:
        """End the sessions that it went on from: what a late `take` gave them would wait for a lease."""
        while executor.former:
            await self._free(executor.former.pop(), suspect=False)

    async def _free(self, session: str, *, suspect: bool) -> int:
        return await self._line.insist(lambda broker: broker.release(session, suspect=suspect))

    async def _held(self, executor: Executor) -> list[Record]:
        """The jobs it holds, the longest-running first; empty when the broker does not answer soon."""
        session = executor.session
        if session is None:
            return []
        try:
            async with asyncio.timeout(LOOK_UP):
                return await self._line.ask(lambda broker: _running(broker, self._queues, session))
        except (DrayError, OSError):  # a timeout is one too
            return []


async def _running(broker: Broker, queues: Sequence[str], session: str) -> list[Record]:
    found = []
    for queue in queues:
        cursor = None
        while True:
            page = await broker.find(Query(state=State.RUNNING, queue=queue), cursor=cursor, limit=PAGE_MAX)
            found += [record for record in page.records if _since(record, session)]
            cursor = page.cursor
            if cursor is None:
                break
    return sorted(found, key=lambda record: _since(record, session))


def _since(record: Record, session: str) -> int:
    return next((run.since for run in record.runs if run.session == session), 0)


def _report(executor: Executor, why: str, culprits: list[Culprit], records: list[Record], now: int) -> str:
    lines = [f"executor {executor.number} (pid {executor.pid}) is killed: {why}"]
    named = {culprit.task for culprit in culprits} - {None}
    suspects = [record for record in records if record.job.task in named] or records
    for record in suspects[:SHOWN]:
        seconds = (now - _since(record, executor.session or "")) / 1000
        lines.append(f"  task {record.job.task}, job {record.id}, running for {seconds:.1f} s")
    if len(suspects) > SHOWN:
        lines.append(f"  and {_jobs(len(suspects) - SHOWN)} more")
    for culprit in culprits:
        where = f"in task {culprit.task}" if culprit.task else "in no task that is known"
        lines.append(f"  thread {culprit.stack.thread}, {where}:\n{culprit.stack}")
    if not culprits:
        lines.append("  no stack: it does not answer signals either (stopped, or hanging in the system)")
    return "\n".join(lines)


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"
