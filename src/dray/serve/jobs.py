"""Jobs and dead jobs over HTTP: find, show, wait for a result, cancel, retry, delete."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from dray.admin.selection import ChangeResult
from dray.broker.verbs import PAGE_MAX
from dray.duration import parse_duration
from dray.errors import (
    DecodeError,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimeout,
    NoResult,
    ResultGone,
)
from dray.info import JobInfo, plain
from dray.serve.auth import Scope
from dray.serve.durable import JobWithSteps, steps_out
from dray.serve.errors import Refused, forbidden, not_found
from dray.serve.http_request import HttpRequest
from dray.serve.models import (
    Acted,
    CancelIn,
    CancelQuery,
    ChangedOut,
    DeadIn,
    DeadQuery,
    Failure,
    JobOut,
    JobPage,
    JobsQuery,
    ResultOut,
    ResultQuery,
    WhyOut,
    job_out,
)
from dray.serve.queues import changed_out
from dray.serve.routes import Reply, Route

SCAN_MAX: Final = 5000
"""Jobs that one request looks through for a text."""
BulkAction = Callable[..., Awaitable[ChangeResult]]


async def find(request: HttpRequest) -> Reply:
    """Jobs that fit, a page at a time."""
    query: JobsQuery = request.query
    where = filter_of(query)
    scopes = request.caller.scopes(query.queue, query.task)
    jobs, cursor = await _page(request, scopes, where, query.cursor, query.limit, _text_filter(query.q))
    total = await _total(request, scopes, where, query) if query.cursor is None else None
    if query.cursor is None and cursor is None:
        total = len(jobs)
    return Reply(JobPage(jobs=jobs, cursor=cursor, total=total))


def filter_of(given: Any) -> dict[str, Any]:
    """The filter that a query or a body names, but for queue and task: see the caller's scopes."""
    where: dict[str, Any] = {
        name: value for name in ("state", "tag", "group", "key", "parent") if (value := getattr(given, name))
    }
    if given.since is not None:
        where["since"] = _since(given.since)
    if given.priority is not None:
        where["priority"] = int(given.priority) if given.priority.isdigit() else given.priority
    return where


async def _total(
    request: HttpRequest, scopes: list[Scope], where: dict[str, Any], query: JobsQuery
) -> int | None:
    if query.q is not None:
        return None
    counts = [await request.app.jobs.acount(queue=queue, task=task, **where) for queue, task in scopes]
    return None if None in counts else sum(count or 0 for count in counts)


def _since(text: str) -> str | datetime:
    try:
        parse_duration("since", text)
        return text
    except InvalidInput:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is no duration like 30m and no time like 2027-01-31T08:00Z"
        raise Refused(422, "invalid_since", message, "since") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _text_filter(text: str | None) -> Callable[[JobInfo], bool] | None:
    if text is None:
        return None
    wanted = text.lower()

    def holds(info: JobInfo) -> bool:
        words = (info.id, info.task, info.key or "", info.description, *info.tags)
        return any(wanted in word.lower() for word in words)

    return holds


async def _page(
    request: HttpRequest,
    scopes: list[Scope],
    where: dict[str, Any],
    cursor: str | None,
    limit: int,
    fits: Callable[[JobInfo], bool] | None = None,
) -> tuple[list[JobOut], str | None]:
    """A page of jobs, scope by scope; the cursor is the number of the scope and the cursor within it."""
    place, inner = _read_cursor(cursor, len(scopes))
    found: list[JobOut] = []
    looked = 0
    while len(found) < limit and looked < SCAN_MAX:
        queue, task = scopes[place]
        size = min(PAGE_MAX, limit - len(found))
        some = await request.app.jobs.afind(limit=size, cursor=inner, queue=queue, task=task, **where)
        looked += size
        found += [job_out(request.visible(info)) for info in some if fits is None or fits(info)]
        inner = some.cursor
        if inner is None:
            place += 1
            if place == len(scopes):
                return found, None
    return found, f"{place}.{inner or ''}"


def _read_cursor(cursor: str | None, scopes: int) -> tuple[int, str | None]:
    if cursor is None:
        return 0, None
    place, dot, inner = cursor.partition(".")
    if not dot or not (place.isascii() and place.isdigit() and len(place) < 6 and int(place) < scopes):
        message = "only a cursor that an earlier page returned is allowed"
        raise Refused(422, "invalid_cursor", message, "cursor")
    return int(place), inner or None


async def show(request: HttpRequest) -> Reply:
    """With the steps that a durable job remembers, and their values."""
    info = await request.find_job(request.path["id"])
    shown = msgspec.convert(plain(info), JobWithSteps)
    if info.log_entries and not request.caller.hides_values:
        shown.steps = await steps_out(request, info.id)
    return Reply(shown)


async def result(request: HttpRequest) -> Reply:
    """How it ended; 202 while it has not. With `wait`, the reply comes as soon as it ends."""
    query: ResultQuery = request.query
    if request.caller.hides_values:
        raise forbidden("this key does not see results")
    info = await request.find_job(request.path["id"])
    if not info.status.finished and not query.wait:
        return Reply(ResultOut(id=info.id, status=info.status), 202)
    try:
        value = await request.unless_stopping(_wrapped(request, info.id, query.wait))
    except JobTimeout:
        value = None
    except JobFailed as error:
        failure = Failure(type=error.type, message=error.message, traceback=error.traceback)
        return Reply(ResultOut(id=info.id, status="dead", error=failure))
    except JobCancelled as error:
        failure = Failure(type="JobCancelled", message=str(error))
        return Reply(ResultOut(id=info.id, status="cancelled", error=failure))
    except ResultGone as error:
        code = "no_result" if isinstance(error, NoResult) else "result_gone"
        raise Refused(404, code, str(error)) from error
    if value is None:
        status = await request.app.job(info.id).astatus()
        return Reply(ResultOut(id=info.id, status=status), 202)
    return Reply(ResultOut(id=info.id, status="succeeded", result=plain(value[0])))


async def _wrapped(request: HttpRequest, id: str, wait: float) -> tuple[Any]:
    """The result in a tuple, as it may be None."""
    job = request.app.job(id)
    try:
        return (await job.aget(wait),)
    except DecodeError:  # it does not fit the task's annotation: as it is
        return ((await job.ainfo()).result,)


async def explain(request: HttpRequest) -> Reply:
    info = await request.find_job(request.path["id"])
    why = await request.app.job(info.id).awhy()
    hidden = request.caller.hides_values and info.error is not None
    text = f"its last run failed with {info.error.type}" if hidden and info.error is not None else why.text
    details = {} if request.caller.limited or hidden else plain(why.details)
    return Reply(WhyOut(id=why.id, status=why.status, code=why.code, text=text, details=details))


async def cancel(request: HttpRequest) -> Reply:
    """Not started if it was not running, asked to stop if it was. `changed` is false if it had ended."""
    query: CancelQuery = request.query
    given: CancelIn = request.body
    info = await request.find_job(request.path["id"])
    job = request.app.job(info.id)
    reason = given.reason or query.reason or f"cancelled by {request.caller.name}"
    changed = await job.acancel(reason, force=given.force or query.force)
    return Reply(Acted(id=info.id, status=await job.astatus(), changed=changed))


async def retry(request: HttpRequest) -> Reply:
    """Run it again, with all its retries. `changed` is false if it waits or runs already."""
    info = await request.find_job(request.path["id"])
    job = request.app.job(info.id)
    changed = await job.aretry()
    return Reply(Acted(id=info.id, status=await job.astatus(), changed=changed))


async def delete(request: HttpRequest) -> Reply:
    """Forget it. A running job is refused: cancel it first."""
    info = await request.find_job(request.path["id"])
    done = await request.app.jobs.adelete([info.id])
    if done.ids:
        return Reply(Acted(id=info.id, status="not_found", changed=True))
    reason = done.refused.get(info.id, "it could not be deleted")
    if await request.app.job(info.id).astatus() == "not_found":
        raise not_found(info.id)
    raise Refused(409, "not_deleted", f"job {info.id}: {reason}")


async def list_dead(request: HttpRequest) -> Reply:
    query: DeadQuery = request.query
    scopes = request.caller.scopes(query.queue, query.task)
    jobs, cursor = await _page(request, scopes, {"state": "dead"}, query.cursor, query.limit)
    return Reply(JobPage(jobs=jobs, cursor=cursor))


async def replay_dead(request: HttpRequest) -> Reply:
    """Run dead jobs again, with all their retries."""
    return await _change_dead(request, request.app.dead.areplay)


async def purge_dead(request: HttpRequest) -> Reply:
    """Forget dead jobs."""
    return await _change_dead(request, request.app.dead.apurge)


async def _change_dead(request: HttpRequest, act: BulkAction) -> Reply:
    given: DeadIn = request.body
    filtered = given.queue or given.task or given.older is not None
    if (given.ids is not None) + bool(filtered) + given.all != 1:
        message = "give either ids, or a filter (queue, task, older), or all"
        raise Refused(422, "invalid_selection", message)
    if given.ids is not None:
        return Reply(await by_id(request, act, given.ids, given.dry_run))
    more: dict[str, Any] = {} if given.older is None else {"older": given.older}
    scopes = request.caller.scopes(given.queue, given.task)
    done = [await act(queue=queue, task=task, dry_run=given.dry_run, **more) for queue, task in scopes]
    return Reply(changed_out(done, given.dry_run))


async def by_id(request: HttpRequest, act: BulkAction, ids: list[str], dry_run: bool) -> ChangedOut:
    """A job outside the caller's limits does not exist for it."""
    hidden = {}
    if request.caller.limited:
        for id in ids:
            try:
                await request.find_job(id)
            except (JobNotFound, Refused):
                hidden[id] = "there is no such job"
    done = await act([id for id in ids if id not in hidden], dry_run=dry_run)
    shown = changed_out([done], dry_run)
    shown.refused |= hidden
    return shown


ROUTES: Final = (
    Route("GET", "/api/jobs", find, "read", "Find jobs", {200: JobPage}, query=JobsQuery),
    Route("GET", "/api/jobs/{id}", show, "read", "Everything known of a job", {200: JobWithSteps}),
    Route(
        "GET",
        "/api/jobs/{id}/result",
        result,
        "read",
        "How a job ended; 202 while it has not",
        {200: ResultOut, 202: ResultOut},
        query=ResultQuery,
        waits=True,
    ),
    Route("GET", "/api/jobs/{id}/why", explain, "read", "Why a job stands where it stands", {200: WhyOut}),
    Route(
        "DELETE",
        "/api/jobs/{id}/cancel",
        cancel,
        "submit",
        "Cancel a job",
        {200: Acted},
        query=CancelQuery,
        body=CancelIn,
        body_needed=False,
    ),
    Route(
        "POST",
        "/api/jobs/{id}/cancel",
        cancel,
        "submit",
        "Cancel a job, for clients that cannot send a body with DELETE",
        {200: Acted},
        query=CancelQuery,
        body=CancelIn,
        body_needed=False,
    ),
    Route("POST", "/api/jobs/{id}/retry", retry, "admin", "Run a job again", {200: Acted}),
    Route("DELETE", "/api/jobs/{id}", delete, "admin", "Forget a job", {200: Acted}, errors=(409,)),
)
DEAD_ROUTES: Final = (
    Route("GET", "/api/dead", list_dead, "read", "Dead jobs", {200: JobPage}, query=DeadQuery),
    Route(
        "POST",
        "/api/dead/replay",
        replay_dead,
        "admin",
        "Run dead jobs again",
        {200: ChangedOut},
        body=DeadIn,
        bulk=True,
    ),
    Route(
        "POST",
        "/api/dead/purge",
        purge_dead,
        "admin",
        "Forget dead jobs",
        {200: ChangedOut},
        body=DeadIn,
        bulk=True,
    ),
)
