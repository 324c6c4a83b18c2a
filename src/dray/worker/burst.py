"""When a worker with `--burst` is done: no job that it could run is ready, running or retrying.

Jobs that are scheduled for later are not waited for, nor those of tasks it does not know, nor what is paused:
it would wait for ever.
"""

from __future__ import annotations

from collections.abc import Collection

from dray.broker.verbs import PAGE_MAX, Broker, Filter, Query, QueueInfo
from dray.job import State

LEFT = (State.READY, State.RUNNING, State.RETRYING)


async def nothing_left(broker: Broker, queues: Collection[str], filter: Filter) -> bool:
    """Whether no job of these queues that passes the filter is ready, running or retrying."""
    for info in await broker.queues():
        if info.name not in queues:
            continue
        for state in LEFT:
            if info.counts.get(state, 0) and await _any(broker, info, state, filter):
                return False
    return True


async def _any(broker: Broker, info: QueueInfo, state: State, filter: Filter) -> bool:
    if state is not State.RUNNING and info.paused is not None:
        return False
    query = Query(state=state, queue=info.name, priorities=filter.priorities)
    cursor = None
    while True:
        page = await broker.find(query, cursor=cursor, limit=PAGE_MAX)
        for record in page.records:
            job = record.job
            known = filter.tasks is None or job.task in filter.tasks
            paused = state is not State.RUNNING and job.task in info.paused_tasks
            if known and not paused and job.version <= filter.version:
                return True
        cursor = page.cursor
        if cursor is None:
            return False
