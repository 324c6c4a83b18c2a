"""Jobs over HTTP: look for them, look at one, wait for its result, stop, repeat and forget it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from dray.broker.verbs import PAGE_MAX
from dray.errors import DecodeError, JobCancelled, JobFailed, JobTimeout, ResultGone
from dray.info import JobInfo, plain
from dray.job import check_word
from dray.serve.callers import Scope
from dray.serve.models import (
    Acted,
    Failure,
    JobOut,
    JobPage,
    JobsQuery,
    ResultOut,
    ResultQuery,
    WhyOut,
    job_out,
)
from dray.serve.refusals import Refused, not_found
from dray.serve.routes import Ask, Reply, Route

SCAN_MAX: Final = 5000
"""Jobs that one request looks through for a text."""


async def seen(ask: Ask) -> JobInfo:
    """The job that the path names; one that is none of the caller's business does not exist for it."""
    id = check_word("id", ask.path["id"])
    info = await ask.app.job(id).ainfo()
    if not ask.caller.reaches(info.queue, info.task):
        raise not_found(id)
    return info


async def find(ask: Ask) -> Reply:
    """Jobs that fit, a page at a time."""
    query: JobsQuery = ask.query
    where: dict[str, Any] = {
        name: value for name in ("state", "tag", "group", "key") if (value := getattr(query, name))
    }
    if query.priority is not None:
        where["priority"] = int(query.priority) if query.priority.isdigit() else query.priority
    scopes = ask.caller.scopes(query.queue, query.task)
    jobs, cursor = await page(ask, scopes, where, query.cursor, query.limit, _holds(query.q))
    return Reply(JobPage(jobs=jobs, cursor=cursor))


def _holds(text: str | None) -> Callable[[JobInfo], bool] | None:
    if text is None:
        return None
    wanted = text.lower()

    def holds(info: JobInfo) -> bool:
        words = (info.id, info.task, info.key or "", info.description, *info.tags)
        return any(wanted in word.lower() for word in words)

    return holds


async def page(
    ask: Ask,
    scopes: list[Scope],
    where: dict[str, Any],
    cursor: str | None,
    limit: int,
    fits: Callable[[JobInfo], bool] | None = None,
) -> tuple[list[JobOut], str | None]:
    """Go through the scopes one after the other; the cursor is the scope's number and its own cursor."""
    place, inner = _read_cursor(cursor, len(scopes))
    found: list[JobOut] = []
    looked = 0
    while len(found) < limit and looked < SCAN_MAX:
        queue, task = scopes[place]
        size = min(PAGE_MAX, limit - len(found))
        some = await ask.app.jobs.afind(limit=size, cursor=inner, queue=queue, task=task, **where)
        looked += size
        found += [job_out(info) for info in some if fits is None or fits(info)]
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


async def show(ask: Ask) -> Reply:
    return Reply(job_out(await seen(ask)))


async def result(ask: Ask) -> Reply:
    """How it ended; 202 while it has not. With `wait`, the reply comes as soon as it ends."""
    query: ResultQuery = ask.query
    info = await seen(ask)
    if not info.status.finished and not query.wait:
        return Reply(ResultOut(id=info.id, status=info.status), 202)
    try:
        value = await ask.unless_leaving(_wrapped(ask, info.id, query.wait))
    except JobTimeout:
        value = None
    except JobFailed as error:
        failure = Failure(type=error.type, message=error.message, traceback=error.traceback)
        return Reply(ResultOut(id=info.id, status="dead", error=failure))
    except JobCancelled as error:
        return Reply(
            ResultOut(id=info.id, status="cancelled", error=Failure(type="JobCancelled", message=str(error)))
        )
    except ResultGone as error:
        raise Refused(404, "result_gone", str(error)) from error
    if value is None:
        status = await ask.app.job(info.id).astatus()
        return Reply(ResultOut(id=info.id, status=status), 202)
    return Reply(ResultOut(id=info.id, status="succeeded", result=plain(value[0])))


async def _wrapped(ask: Ask, id: str, wait: float) -> tuple[Any]:
    """The result in a tuple: None means that there is none yet."""
    job = ask.app.job(id)
    try:
        return (await job.aget(wait),)
    except DecodeError:  # not what the task is annotated to return: as it is
        return ((await job.ainfo()).result,)


async def why(ask: Ask) -> Reply:
    info = await seen(ask)
    told = await ask.app.job(info.id).awhy()
    return Reply(
        WhyOut(
            id=told.id,
            status=told.status,
            code=told.code,
            text=told.text,
            details={} if ask.caller.limited else plain(told.details),
        )
    )


async def cancel(ask: Ask) -> Reply:
    """Not started if it was not running, told to stop if it was. `changed` is false if it had ended."""
    info = await seen(ask)
    job = ask.app.job(info.id)
    changed = await job.acancel(f"cancelled by {ask.caller.name}")
    return Reply(Acted(id=info.id, status=await job.astatus(), changed=changed))


async def retry(ask: Ask) -> Reply:
    """Run it again, with all its retries. `changed` is false if it waits or runs already."""
    info = await seen(ask)
    job = ask.app.job(info.id)
    changed = await job.aretry()
    return Reply(Acted(id=info.id, status=await job.astatus(), changed=changed))


async def delete(ask: Ask) -> Reply:
    """Forget it. A running job is refused: cancel it first."""
    info = await seen(ask)
    done = await ask.app.jobs.adelete([info.id])
    if done.ids:
        return Reply(Acted(id=info.id, status="not_found", changed=True))
    reason = done.refused.get(info.id, "it could not be deleted")
    if await ask.app.job(info.id).astatus() == "not_found":
        raise not_found(info.id)
    raise Refused(409, "not_deleted", f"job {info.id}: {reason}")


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/jobs",
        handler=find,
        role="read",
        summary="Find jobs",
        query=JobsQuery,
        replies={200: JobPage},
    ),
    Route(
        method="GET",
        path="/api/jobs/{id}",
        handler=show,
        role="read",
        summary="Everything known of a job",
        replies={200: JobOut},
    ),
    Route(
        method="GET",
        path="/api/jobs/{id}/result",
        handler=result,
        role="read",
        summary="How a job ended; 202 while it has not",
        query=ResultQuery,
        replies={200: ResultOut, 202: ResultOut},
        waits=True,
    ),
    Route(
        method="GET",
        path="/api/jobs/{id}/why",
        handler=why,
        role="read",
        summary="Why a job stands where it stands",
        replies={200: WhyOut},
    ),
    Route(
        method="DELETE",
        path="/api/jobs/{id}/cancel",
        handler=cancel,
        role="submit",
        summary="Cancel a job",
        replies={200: Acted},
    ),
    Route(
        method="POST",
        path="/api/jobs/{id}/retry",
        handler=retry,
        role="admin",
        summary="Run a job again",
        replies={200: Acted},
    ),
    Route(
        method="DELETE",
        path="/api/jobs/{id}",
        handler=delete,
        role="admin",
        summary="Forget a job",
        replies={200: Acted},
        errors=(409,),
    ),
)
