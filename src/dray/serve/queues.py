"""Queues, workers and sums over HTTP."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any, Final

import msgspec

from dray.broker.verbs import Pause, QueueInfo
from dray.info import moment, plain
from dray.job import State, check_name
from dray.operate import Changed as Change
from dray.operate import Limit
from dray.roster import WorkerInfo
from dray.serve.callers import Caller
from dray.serve.models import (
    MANY,
    Changed,
    LimitsIn,
    PauseIn,
    PauseOut,
    PurgeIn,
    QueueOut,
    QueuesOut,
    ResumeIn,
    StatsOut,
    WorkerOut,
    WorkersOut,
)
from dray.serve.refusals import forbidden
from dray.serve.routes import Ask, Reply, Route

_STATES: Final = tuple(state for state in State if state is not State.NOT_FOUND)


def queue_out(info: QueueInfo, caller: Caller) -> QueueOut:
    """A queue as a caller may see it: tasks that are none of its business are left out."""
    return QueueOut(
        name=info.name,
        counts={str(state): info.counts.get(state, 0) for state in _STATES},
        paused=_pause_out(info.paused) if info.paused else None,
        limits=plain(info.limits),
        paused_tasks={
            task: _pause_out(pause) for task, pause in info.paused_tasks.items() if caller.reaches(task=task)
        },
        task_limits={
            task: plain(limits) for task, limits in info.task_limits.items() if caller.reaches(task=task)
        },
        next_due_at=_moment(info.next_due),
        oldest_ready_at=_moment(info.oldest_ready),
    )


def _pause_out(pause: Pause) -> PauseOut:
    return PauseOut(by=pause.by, reason=pause.reason, at=_moment(pause.at))


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


async def _queues(ask: Ask) -> list[QueueInfo]:
    return [info for info in await ask.app.queues.alist() if ask.caller.reaches(queue=info.name)]


async def list_queues(ask: Ask) -> Reply:
    return Reply(QueuesOut(queues=[queue_out(info, ask.caller) for info in await _queues(ask)]))


def _scope(ask: Ask, task: str | None) -> str:
    """The queue that the path names. A key for certain tasks may not act on a whole queue."""
    queue = check_name("queue", ask.path["queue"])
    ask.caller.need(queue, task)
    if task is None and ask.caller.tasks is not None:
        raise forbidden("this key is for certain tasks: name one of them", "task")
    return queue


async def _as_it_stands(ask: Ask, queue: str) -> Reply:
    infos = await ask.app.queues.alist()
    info = next((info for info in infos if info.name == queue), QueueInfo(name=queue, counts={}))
    return Reply(queue_out(info, ask.caller))


async def pause(ask: Ask) -> Reply:
    """Hand out nothing of the queue (or of one task in it); running jobs finish, new ones are accepted."""
    given: PauseIn = ask.body
    queue = _scope(ask, given.task)
    await ask.app.queues.apause(queue, task=given.task, reason=given.reason, by=ask.caller.name)
    return await _as_it_stands(ask, queue)


async def resume(ask: Ask) -> Reply:
    given: ResumeIn = ask.body
    queue = _scope(ask, given.task)
    await ask.app.queues.aresume(queue, task=given.task)
    return await _as_it_stands(ask, queue)


async def limit(ask: Ask) -> Reply:
    """Set limits, for all workers at once; they win over what tasks declare."""
    given: LimitsIn = ask.body
    queue = _scope(ask, given.task)
    named = {name: getattr(given, name) for name in Limit.__annotations__}
    limits: Limit = {  # type: ignore[assignment]  # the names are those of Limit
        name: value for name, value in named.items() if value is not msgspec.UNSET
    }
    await ask.app.queues.alimit(queue, task=given.task, **limits)
    return await _as_it_stands(ask, queue)


async def purge(ask: Ask) -> Reply:
    """Delete what waits in the queue; what runs is left alone."""
    given: PurgeIn = ask.body
    queue = _scope(ask, given.task)
    chosen: dict[str, Any] = {} if given.states is None else {"states": given.states}
    done = await ask.app.queues.apurge(queue, task=given.task, dry_run=given.dry_run, **chosen)
    return Reply(changed_out([done], given.dry_run))


def changed_out(done: list[Change], dry_run: bool) -> Changed:
    ids = [id for one in done for id in one.ids]
    refused = {id: why for one in done for id, why in one.refused.items()}
    return Changed(count=len(ids), ids=ids[:MANY], refused=refused, dry_run=dry_run)


# workers


def worker_out(info: WorkerInfo, caller: Caller) -> WorkerOut:
    shown = plain(info)
    return msgspec.convert(
        shown
        | {
            "queues": [name for name in info.queues if caller.reaches(queue=name)],
            "tasks": [name for name in info.tasks if caller.reaches(task=name)],
            "running": info.running,
            "started_at": moment(info.started),
            "seen_at": moment(info.seen),
        },
        WorkerOut,
    )


async def _workers(ask: Ask) -> list[WorkerInfo]:
    """Those that serve a queue of the caller's."""
    found = await ask.app.workers.alist()
    if ask.caller.queues is None:
        return found
    return [info for info in found if ask.caller.queues & set(info.queues)]


async def list_workers(ask: Ask) -> Reply:
    return Reply(WorkersOut(workers=[worker_out(info, ask.caller) for info in await _workers(ask)]))


async def stats(ask: Ask) -> Reply:
    infos, workers = await _queues(ask), await _workers(ask)
    counts: Counter[State] = Counter()
    for info in infos:
        counts.update(info.counts)
    return Reply(
        StatsOut(
            counts={str(state): counts[state] for state in _STATES},
            queues=len(infos),
            paused=[info.name for info in infos if info.paused],
            workers=len(workers),
            slots=sum(worker.processes * worker.concurrency for worker in workers),
            oldest_ready_at=_moment(
                min((info.oldest_ready for info in infos if info.oldest_ready), default=None)
            ),
            next_due_at=_moment(min((info.next_due for info in infos if info.next_due), default=None)),
        )
    )


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/queues",
        handler=list_queues,
        role="read",
        summary="How queues stand",
        replies={200: QueuesOut},
    ),
    Route(
        method="POST",
        path="/api/queues/{queue}/pause",
        handler=pause,
        role="admin",
        summary="Pause a queue, or one task in it",
        body=PauseIn,
        body_needed=False,
        replies={200: QueueOut},
    ),
    Route(
        method="POST",
        path="/api/queues/{queue}/resume",
        handler=resume,
        role="admin",
        summary="Undo a pause",
        body=ResumeIn,
        body_needed=False,
        replies={200: QueueOut},
    ),
    Route(
        method="POST",
        path="/api/queues/{queue}/purge",
        handler=purge,
        role="admin",
        summary="Delete what waits in a queue",
        body=PurgeIn,
        body_needed=False,
        replies={200: Changed},
        bulk=True,
    ),
    Route(
        method="PUT",
        path="/api/queues/{queue}/limits",
        handler=limit,
        role="admin",
        summary="Set limits of a queue, or of one task in it",
        body=LimitsIn,
        replies={200: QueueOut},
    ),
    Route(
        method="GET",
        path="/api/workers",
        handler=list_workers,
        role="read",
        summary="Who is at work",
        replies={200: WorkersOut},
    ),
    Route(
        method="GET",
        path="/api/stats",
        handler=stats,
        role="read",
        summary="How everything stands, summed up",
        replies={200: StatsOut},
    ),
)
