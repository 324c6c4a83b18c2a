"""The history over HTTP: searches, one job, statistics over time, errors by fingerprint."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from dray.history.api import LIMIT_MAX
from dray.history.broker_view import ErrorGroup, HistoryStats
from dray.history.search import HistoryJob, JobHistory
from dray.job import check_word
from dray.serve.errors import not_found
from dray.serve.http_request import HttpRequest
from dray.serve.models import In, Out
from dray.serve.routes import Reply, Route

Window = Annotated[str, Meta(max_length=32, description="How far back: 1h, 24h, 7d")]
Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX)]


class HistoryQuery(In):
    q: Annotated[
        str,
        Meta(max_length=2000, description='A search: task:email.* state:dead error:"timed out" after:1d'),
    ] = ""
    cursor: Annotated[str, Meta(max_length=32)] | None = None
    limit: Limit = 50


class WindowQuery(In):
    window: Window = "24h"


class ErrorsQuery(In):
    window: Window = "7d"
    limit: Limit = 100


class HistoryPageOut(Out):
    """Jobs, the newest change first, without their tracebacks."""

    jobs: list[HistoryJob]
    cursor: str | None


class ErrorsOut(Out):
    """Errors by fingerprint. Without a history `source` is `broker`, and `note` says what is missing."""

    errors: list[ErrorGroup]
    source: str
    note: str


def _seen_by(request: HttpRequest) -> dict[str, Any]:
    """What a key is limited to."""
    return {"queues": request.caller.queues, "tasks": request.caller.tasks}


def _shown_to(request: HttpRequest) -> bool:
    """A key that hides values sees no arguments, results and errors, and may not search for them."""
    return not request.caller.hides_values


async def find(request: HttpRequest) -> Reply:
    query: HistoryQuery = request.query
    page = await request.app.history.asearch(
        query.q, limit=query.limit, cursor=query.cursor, values=_shown_to(request), **_seen_by(request)
    )
    jobs = [msgspec.structs.replace(job, traceback=None) for job in page]
    return Reply(HistoryPageOut(jobs=jobs, cursor=page.cursor))


async def show(request: HttpRequest) -> Reply:
    """A job whose queue or task a key may not see does not exist for it."""
    id = check_word("id", request.path["id"])
    found = await request.app.history.ajob(id, values=_shown_to(request))
    seen = {(job.queue, job.task) for job in found.jobs} | {(run.queue, run.task) for run in found.attempts}
    hidden = not all(request.caller.reaches(queue, task) for queue, task in seen)
    if hidden or (request.caller.limited and not seen):
        raise not_found(id)
    return Reply(found)


async def stats(request: HttpRequest) -> Reply:
    query: WindowQuery = request.query
    return Reply(await request.app.history.astats(query.window, **_seen_by(request)))


async def errors(request: HttpRequest) -> Reply:
    query: ErrorsQuery = request.query
    found = await request.app.history.aerrors(
        query.window, limit=query.limit, values=_shown_to(request), **_seen_by(request)
    )
    return Reply(ErrorsOut(errors=list(found), source=found.source, note=found.note))


ROUTES: Final = (
    Route(
        "GET",
        "/api/history",
        find,
        "read",
        "Search what happened to jobs",
        {200: HistoryPageOut},
        query=HistoryQuery,
        errors=(409,),
    ),
    Route(
        "GET",
        "/api/history/stats",
        stats,
        "read",
        "Runs over time and by task",
        {200: HistoryStats},
        query=WindowQuery,
    ),
    Route(
        "GET",
        "/api/jobs/{id}/history",
        show,
        "read",
        "What the history knows of a job: its attempts and events",
        {200: JobHistory},
        errors=(409,),
    ),
    Route(
        "GET",
        "/api/errors",
        errors,
        "read",
        "Failed runs by fingerprint",
        {200: ErrorsOut},
        query=ErrorsQuery,
    ),
)
