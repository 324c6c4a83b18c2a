"""Dead jobs over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dray.operate import Changed as Change
from dray.serve.jobs import page
from dray.serve.models import Changed, DeadIn, DeadQuery, JobPage
from dray.serve.queues import changed_out
from dray.serve.refusals import Refused
from dray.serve.routes import Ask, Reply, Route

Act = Callable[..., Awaitable[Change]]


async def list_dead(ask: Ask) -> Reply:
    query: DeadQuery = ask.query
    scopes = ask.caller.scopes(query.queue, query.task)
    jobs, cursor = await page(ask, scopes, {"state": "dead"}, query.cursor, query.limit)
    return Reply(JobPage(jobs=jobs, cursor=cursor))


async def replay(ask: Ask) -> Reply:
    """Run dead jobs again, with all their retries."""
    return await _change(ask, ask.app.dead.areplay)


async def purge(ask: Ask) -> Reply:
    """Forget dead jobs."""
    return await _change(ask, ask.app.dead.apurge)


async def _change(ask: Ask, act: Act) -> Reply:
    given: DeadIn = ask.body
    filtered = given.queue or given.task or given.older is not None
    if (given.ids is not None) + bool(filtered) + given.all != 1:
        message = "give either ids, or a filter (queue, task, older), or all"
        raise Refused(422, "invalid_selection", message)
    if given.ids is not None:
        return Reply(await _by_id(ask, act, given.ids, given.dry_run))
    more: dict[str, Any] = {} if given.older is None else {"older": given.older}
    scopes = ask.caller.scopes(given.queue, given.task)
    done = [await act(queue=queue, task=task, dry_run=given.dry_run, **more) for queue, task in scopes]
    return Reply(changed_out(done, given.dry_run))


async def _by_id(ask: Ask, act: Act, ids: list[str], dry_run: bool) -> Changed:
    """Each job is looked at: one that is none of the caller's business does not exist for it."""
    hidden = {}
    if ask.caller.limited:
        for id in ids:
            if not await _reaches(ask, id):
                hidden[id] = "there is no such job"
    done = await act([id for id in ids if id not in hidden], dry_run=dry_run)
    told = changed_out([done], dry_run)
    told.refused |= hidden
    return told


async def _reaches(ask: Ask, id: str) -> bool:
    job = ask.app.job(id)
    if await job.astatus() == "not_found":
        return False
    info = await job.ainfo()
    return ask.caller.reaches(info.queue, info.task)


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/dead",
        handler=list_dead,
        role="read",
        summary="Dead jobs",
        query=DeadQuery,
        replies={200: JobPage},
    ),
    Route(
        method="POST",
        path="/api/dead/replay",
        handler=replay,
        role="admin",
        summary="Run dead jobs again",
        body=DeadIn,
        replies={200: Changed},
        bulk=True,
    ),
    Route(
        method="POST",
        path="/api/dead/purge",
        handler=purge,
        role="admin",
        summary="Forget dead jobs",
        body=DeadIn,
        replies={200: Changed},
        bulk=True,
    ),
)
