"""Kills executors that hang, logs the task that is to blame, and releases the jobs of dead ones."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from dray.broker.actions import Query
from dray.broker.verbs import PAGE_MAX, Broker
from dray.errors import DrayError
from dray.job import Record, State
from dray.worker.retrying_broker import RetryingBroker
from dray.worker.supervisor.executor_process import ExecutorProcess
from dray.worker.supervisor.stalls import Culprit, find_culprit, find_task, read_stacks

LOOK_UP: Final = 2.0
"""Seconds for finding the jobs of a hanging executor: it is killed in any case."""
SHOWN: Final = 5

log = logging.getLogger("dray.worker")


class Reaper:
    def __init__(self, retrying: RetryingBroker) -> None:
        self._retrying = retrying

    async def kill(self, executor: ExecutorProcess, why: str) -> None:
        """Kill an executor, and log what it was doing."""
        executor.killing = True
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
        log.warning("%s", _report(executor, why, culprits, records, self._retrying.broker.clock()))

    async def clean_up(self, executor: ExecutorProcess) -> None:
        """Settle and release what an executor that has ended held, however long the broker is away."""
        session = executor.session
        if session is not None and executor.stuck:
            outcomes = executor.stuck
            try:
                await self._retrying.retry(lambda broker: broker.settle(session, outcomes))
            except DrayError:
                log.exception("runs of executor %d could not be settled; they are freed", executor.number)
        await self.release_former(executor)
        if session is None:
            return
        suspect = not executor.orderly
        freed = await self._release(session, suspect=suspect)
        if freed and suspect:
            log.warning(
                "executor %d held %s: to be run again, in a child process", executor.number, _jobs(freed)
            )
        elif freed:
            log.info("executor %d held %s: handed back", executor.number, _jobs(freed))

    async def release_former(self, executor: ExecutorProcess) -> None:
        """Release its lapsed sessions: jobs that a late `take` gave them need not wait for the lease."""
        while executor.former:
            await self._release(executor.former.pop(), suspect=False)

    async def _release(self, session: str, *, suspect: bool) -> int:
        return await self._retrying.retry(lambda broker: broker.release(session, suspect=suspect))

    async def _held(self, executor: ExecutorProcess) -> list[Record]:
        """The jobs it holds, the longest-running first; empty when the broker does not answer soon."""
        session = executor.session
        if session is None:
            return []
        try:
            async with asyncio.timeout(LOOK_UP):
                return await self._retrying.ask(lambda broker: _running(broker, session))
        except (DrayError, OSError):  # TimeoutError is an OSError
            return []


async def _running(broker: Broker, session: str) -> list[Record]:
    found, cursor = [], None
    while True:
        page = await broker.find(Query(state=State.RUNNING), cursor=cursor, limit=PAGE_MAX)
        found += [record for record in page.records if _since(record, session)]
        cursor = page.cursor
        if cursor is None:
            return sorted(found, key=lambda record: _since(record, session))


def _since(record: Record, session: str) -> int:
    return next((run.since for run in record.runs if run.session == session), 0)


def _report(
    executor: ExecutorProcess, why: str, culprits: list[Culprit], records: list[Record], now: int
) -> str:
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
