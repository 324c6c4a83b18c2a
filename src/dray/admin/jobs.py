"""`app.jobs`: find jobs, and cancel, retry, delete or reschedule many at once."""

from __future__ import annotations

from datetime import datetime
from typing import Unpack

from dray.admin.selection import ChangeResult, JobFilter, OnProgress, Selection, change_selected, read_filter
from dray.broker.actions import Cancel, Delete, Query, Reschedule, Retry
from dray.broker.verbs import PAGE_MAX
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.errors import InvalidInput
from dray.info import JobInfo, describe
from dray.options import Duration, read_due


class JobList(list[JobInfo]):
    """A page of jobs; `cursor` leads to the next one, None if this was the last."""

    cursor: str | None = None


class Jobs(AppApi):
    """`app.jobs`: find jobs, and change many at once.

    A change takes either jobs (ids, handles, infos) or a filter by keyword; with `dry_run` it changes
    nothing and returns the jobs it would change. `progress` is called after each step with the number of jobs
    handled.
    """

    async def _find(
        self, link: Link, *, limit: int | None = 100, cursor: str | None = None, **where: Unpack[JobFilter]
    ) -> JobList:
        """Jobs that match, newest first. `limit=None` reads them all."""
        query = read_filter(where, self._app.now())
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidInput("limit", limit, "a number from 1, or None for all, is allowed")
        found = JobList()
        while limit is None or len(found) < limit:
            size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
            page = await link.broker.find(query, cursor=cursor, limit=size, newest=True)
            found += [describe(record, self._app) for record in page.records]
            cursor = found.cursor = page.cursor
            if cursor is None:
                break
        return found

    async def _count(self, link: Link, **where: Unpack[JobFilter]) -> int | None:
        """The number of jobs that match; None unless the filter is only by state and queue."""
        query = read_filter(where, self._app.now())
        if query != Query(state=query.state, queue=query.queue):
            return None
        counts = [one.counts for one in await link.broker.queues() if query.queue in (None, one.name)]
        return sum(n for one in counts for state, n in one.items() if query.state in (None, state))

    async def _cancel(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        reason: str = "cancelled",
        force: bool = False,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **where: Unpack[JobFilter],
    ) -> ChangeResult:
        """Cancel jobs. Running ones are asked to stop; with `force` they stop at once, and isolated runs are
        killed. Cancelled jobs are never retried."""
        return await change_selected(link, selection, where, Cancel(reason, force), dry_run, progress)

    async def _retry(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **where: Unpack[JobFilter],
    ) -> ChangeResult:
        """Run finished jobs again, and delayed ones now."""
        return await change_selected(link, selection, where, Retry(), dry_run, progress)

    async def _delete(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **where: Unpack[JobFilter],
    ) -> ChangeResult:
        """Delete jobs. Running ones are refused: cancel them first."""
        return await change_selected(link, selection, where, Delete(), dry_run, progress)

    async def _reschedule(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **where: Unpack[JobFilter],
    ) -> ChangeResult:
        """Set when jobs that are scheduled, retrying or ready may start: `delay` from now, or `at` a time."""
        due = Reschedule(read_due(delay, at, self._app.now()))
        return await change_selected(link, selection, where, due, dry_run, progress)

    find, afind = sync_and_async(_find)
    count, acount = sync_and_async(_count)
    cancel, acancel = sync_and_async(_cancel)
    retry, aretry = sync_and_async(_retry)
    delete, adelete = sync_and_async(_delete)
    reschedule, areschedule = sync_and_async(_reschedule)
