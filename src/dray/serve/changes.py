"""Changes to many jobs over HTTP."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from typing import Annotated, Final, Literal

from msgspec import Meta

from dray.admin.selection import ChangeResult
from dray.options import JsonDuration, Name, Word
from dray.serve.errors import Refused
from dray.serve.http_request import HttpRequest
from dray.serve.jobs import by_id, filter_of
from dray.serve.models import MANY, ChangedOut, In, Priorities, Reason, Since, StateName
from dray.serve.queues import changed_out
from dray.serve.routes import Reply, Route

_SELECTED: Final = ("state", "queue", "task", "tag", "priority", "group", "key", "parent", "since")


class BulkIn(In):
    """A change to many jobs: `ids`, or a filter. With `dry_run` nothing is changed."""

    action: Literal["cancel", "retry", "delete", "reschedule"]
    ids: Annotated[list[Word], Meta(min_length=1, max_length=MANY)] | None = None
    state: StateName | None = None
    queue: Name | None = None
    task: Name | None = None
    tag: Word | None = None
    priority: Priorities | None = None
    group: Word | None = None
    key: Word | None = None
    parent: Word | None = None
    since: Since | None = None
    reason: Reason = ""
    """Of a cancellation."""
    delay: JsonDuration | None = None
    """For `reschedule`: from now."""
    at: datetime | None = None
    dry_run: bool = False


async def change_many(request: HttpRequest) -> Reply:
    """Cancel, retry, delete or reschedule jobs by id or by filter."""
    given: BulkIn = request.body
    filtered = any(getattr(given, name) is not None for name in _SELECTED)
    if (given.ids is not None) == filtered:
        raise Refused(422, "invalid_selection", f"give either ids, or a filter ({', '.join(_SELECTED)})")
    act = _action(request, given)
    if given.ids is not None:
        return Reply(await by_id(request, act, given.ids, given.dry_run))
    where = filter_of(given)
    scopes = request.caller.scopes(given.queue, given.task)
    done = [await act(queue=queue, task=task, dry_run=given.dry_run, **where) for queue, task in scopes]
    return Reply(changed_out(done, given.dry_run))


def _action(request: HttpRequest, given: BulkIn) -> Callable[..., Awaitable[ChangeResult]]:
    jobs = request.app.jobs
    timed = given.delay is not None or given.at is not None
    if timed != (given.action == "reschedule"):
        raise Refused(422, "invalid_delay", "`reschedule`, and nothing else, takes delay or at", "delay")
    if given.action == "cancel":
        return partial(jobs.acancel, reason=given.reason or f"cancelled by {request.caller.name}")
    if given.action == "reschedule":
        return partial(jobs.areschedule, delay=given.delay, at=given.at)
    return jobs.aretry if given.action == "retry" else jobs.adelete


ROUTES: Final = (
    Route(
        "POST",
        "/api/jobs/bulk",
        change_many,
        "admin",
        "Change many jobs, by id or by filter",
        {200: ChangedOut},
        body=BulkIn,
        bulk=True,
    ),
)
