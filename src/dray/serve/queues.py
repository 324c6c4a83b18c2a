"""Queues, workers and statistics over HTTP."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from dray.admin.queues import LimitOptions
from dray.admin.selection import ChangeResult
from dray.broker.actions import Pause
from dray.broker.verbs import QueueInfo
from dray.documents.queue_state import is_dedicated
from dray.documents.worker_registry import WorkerInfo
from dray.info import moment, plain
from dray.job import State, check_name
from dray.serve.auth import Caller
from dray.serve.errors import forbidden
from dray.serve.http_request import HttpRequest
from dray.serve.models import (
    MANY,
    AcceptedOut,
    ChangedOut,
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
from dray.serve.routes import Reply, Route
from dray.stats.arrivals import Counts

_STATES: Final = tuple(state for state in State if state is not State.NOT_FOUND)


def queue_out(info: QueueInfo, caller: Caller, workers: Sequence[WorkerInfo]) -> QueueOut:
    """A queue, without the tasks that are outside the caller's limits."""
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
        dedicated=is_dedicated(info, workers),
        workers=sum(worker.state == "running" and worker.serves_queue(info.name) for worker in workers),
    )


def _pause_out(pause: Pause) -> PauseOut:
    return PauseOut(by=pause.by, reason=pause.reason, at=_moment(pause.at))


def _moment(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


async def _queues(request: HttpRequest) -> list[QueueInfo]:
    return [info for info in await request.app.queues.alist() if request.caller.reaches(queue=info.name)]


async def list_queues(request: HttpRequest) -> Reply:
    workers = await request.app.workers.alist()
    return Reply(
        QueuesOut(queues=[queue_out(info, request.caller, workers) for info in await _queues(request)])
    )


def _scope(request: HttpRequest, task: str | None) -> str:
    """The queue that the path names. A key for certain tasks may not act on a whole queue."""
    queue = check_name("queue", request.path["queue"])
    request.caller.need(queue, task)
    if task is None and request.caller.tasks is not None:
        raise forbidden("this key is for certain tasks: name one of them", "task")
    return queue


async def _queue_reply(request: HttpRequest, queue: str) -> Reply:
    infos = await request.app.queues.alist()
    info = next((info for info in infos if info.name == queue), QueueInfo(name=queue, counts={}))
    return Reply(queue_out(info, request.caller, await request.app.workers.alist()))


async def pause(request: HttpRequest) -> Reply:
    """Hand out nothing of the queue (or of one task in it); running jobs finish, new ones are accepted."""
    given: PauseIn = request.body
    queue = _scope(request, given.task)
    await request.app.queues.apause(queue, task=given.task, reason=given.reason, by=request.caller.name)
    return await _queue_reply(request, queue)


async def resume(request: HttpRequest) -> Reply:
    given: ResumeIn = request.body
    queue = _scope(request, given.task)
    await request.app.queues.aresume(queue, task=given.task)
    return await _queue_reply(request, queue)


async def limit(request: HttpRequest) -> Reply:
    """Set limits, for all workers at once; they win over what tasks declare."""
    given: LimitsIn = request.body
    queue = _scope(request, given.task)
    named = {name: getattr(given, name) for name in LimitOptions.__annotations__}
    limits: LimitOptions = {  # type: ignore[assignment]  # the names are those of LimitOptions
        name: value for name, value in named.items() if value is not msgspec.UNSET
    }
    await request.app.queues.alimit(queue, task=given.task, **limits)
    return await _queue_reply(request, queue)


async def purge(request: HttpRequest) -> Reply:
    """Delete what waits in the queue; what runs is left alone."""
    given: PurgeIn = request.body
    queue = _scope(request, given.task)
    chosen: dict[str, Any] = {} if given.states is None else {"states": given.states}
    done = await request.app.queues.apurge(queue, task=given.task, dry_run=given.dry_run, **chosen)
    return Reply(changed_out([done], given.dry_run))


def changed_out(done: list[ChangeResult], dry_run: bool) -> ChangedOut:
    ids = [id for one in done for id in one.ids]
    refused = {id: why for one in done for id, why in one.refused.items()}
    return ChangedOut(changed=len(ids), ids=ids[:MANY], refused=refused, dry_run=dry_run)


# workers


def worker_out(info: WorkerInfo, caller: Caller) -> WorkerOut:
    shown = plain(info)
    return msgspec.convert(
        shown
        | {
            "queues": _served(info, caller),
            "tasks": [name for name in info.tasks if caller.reaches(task=name)],
            "running": info.running,
            "slots": info.slots,
            "started_at": moment(info.started),
            "seen_at": moment(info.seen),
        },
        WorkerOut,
    )


def _served(info: WorkerInfo, caller: Caller) -> list[str]:
    """The queues that a worker serves, as far as the caller may see them."""
    if caller.queues is None:
        return list(info.queues)
    return [queue for queue in sorted(caller.queues) if info.serves_queue(queue)]


async def _workers(request: HttpRequest) -> list[WorkerInfo]:
    """The workers that serve a queue of the caller's."""
    found = await request.app.workers.alist()
    if request.caller.queues is None:
        return found
    return [info for info in found if _served(info, request.caller)]


async def list_workers(request: HttpRequest) -> Reply:
    return Reply(WorkersOut(workers=[worker_out(info, request.caller) for info in await _workers(request)]))


async def stats(request: HttpRequest) -> Reply:
    infos, workers = await _queues(request), await _workers(request)
    counts: Counter[State] = Counter()
    for info in infos:
        counts.update(info.counts)
    return Reply(
        StatsOut(
            counts={str(state): counts[state] for state in _STATES},
            queues=len(infos),
            paused=[info.name for info in infos if info.paused],
            workers=len(workers),
            slots=sum(worker.slots for worker in workers),
            oldest_ready_at=_moment(
                min((info.oldest_ready for info in infos if info.oldest_ready), default=None)
            ),
            next_due_at=_moment(min((info.next_due for info in infos if info.next_due), default=None)),
            accepted=_accepted(request, (await request.app.astats()).accepted),
        )
    )


def _accepted(request: HttpRequest, counts: Counts) -> list[AcceptedOut]:
    return [
        AcceptedOut(task=task, queue=queue, source=source, jobs=jobs)
        for task, queues in sorted(counts.items())
        for queue, sources in sorted(queues.items())
        for source, jobs in sorted(sources.items())
        if request.caller.reaches(queue, task)
    ]


ROUTES: Final = (
    Route("GET", "/api/queues", list_queues, "read", "How queues stand", {200: QueuesOut}),
    Route(
        "POST",
        "/api/queues/{queue}/pause",
        pause,
        "admin",
        "Pause a queue, or one task in it",
        {200: QueueOut},
        body=PauseIn,
        body_needed=False,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/resume",
        resume,
        "admin",
        "Undo a pause",
        {200: QueueOut},
        body=ResumeIn,
        body_needed=False,
    ),
    Route(
        "POST",
        "/api/queues/{queue}/purge",
        purge,
        "admin",
        "Delete what waits in a queue",
        {200: ChangedOut},
        body=PurgeIn,
        body_needed=False,
        bulk=True,
    ),
    Route(
        "PUT",
        "/api/queues/{queue}/limits",
        limit,
        "admin",
        "Set limits of a queue, or of one task in it",
        {200: QueueOut},
        body=LimitsIn,
    ),
    Route("GET", "/api/workers", list_workers, "read", "Who is at work", {200: WorkersOut}),
    Route("GET", "/api/stats", stats, "read", "How everything stands, summed up", {200: StatsOut}),
)
