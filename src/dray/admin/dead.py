"""`app.dead`: list dead jobs, run them again, delete them."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from typing import TypedDict, Unpack

import msgspec

from dray.admin.selection import (
    ChangeResult,
    OnProgress,
    Selection,
    all_records,
    change_ids,
    change_matching,
    check_names,
    ids_of,
)
from dray.broker.actions import Delete, JobAction, Query, Retry
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.info import JobInfo, describe
from dray.job import Record, State
from dray.options import Duration


class DeadFilter(TypedDict, total=False):
    """Dead jobs that match; `older="7d"` means those that died at least that long ago."""

    task: str | None
    queue: str | None
    older: Duration | None


class Dead(AppApi):
    """`app.dead`: jobs that will not be retried by themselves."""

    async def _list(
        self, link: Link, *, limit: int | None = 100, **which: Unpack[DeadFilter]
    ) -> builtins.list[JobInfo]:
        """Dead jobs; `older="7d"` only those that died at least that long ago."""
        found: builtins.list[JobInfo] = []
        async for record in self._matching(link, which):
            if limit is not None and len(found) >= limit:
                break
            found.append(describe(record, self._app))
        return found

    async def _replay(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **which: Unpack[DeadFilter],
    ) -> ChangeResult:
        """Run dead jobs again, with all their retries."""
        return await self._change(link, selection, which, Retry(), dry_run, progress)

    async def _purge(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: OnProgress | None = None,
        **which: Unpack[DeadFilter],
    ) -> ChangeResult:
        """Delete dead jobs."""
        return await self._change(link, selection, which, Delete(), dry_run, progress)

    list, alist = sync_and_async(_list)
    replay, areplay = sync_and_async(_replay)
    purge, apurge = sync_and_async(_purge)

    async def _matching(self, link: Link, which: DeadFilter) -> AsyncIterator[Record]:
        query, older = _dead_query(which), which.get("older")
        before = None if older is None else self._app.now() - parse_duration("older", older)
        async for record in all_records(link.broker, query):
            if before is None or (record.finished or 0) <= before:
                yield record

    async def _change(
        self,
        link: Link,
        selection: Selection | None,
        which: DeadFilter,
        action: JobAction,
        dry_run: bool,
        progress: OnProgress | None,
    ) -> ChangeResult:
        if selection is None and which.get("older") is None:
            # By query: the broker leaves out jobs that were replayed in the same moment.
            return await change_matching(link, [_dead_query(which)], action, dry_run, progress)
        if selection is None:
            ids = [record.id async for record in self._matching(link, which)]
            return await change_ids(link, ids, action, dry_run, progress)
        if any(value is not None for value in which.values()):
            raise InvalidInput("selection", selection, "give either jobs or a filter, not both")
        ids, refused = ids_of(selection), {}
        for id, record in zip(ids, await link.broker.get(ids), strict=True):
            if record is None or record.state is not State.DEAD:
                refused[id] = "there is no such job" if record is None else f"it is {record.state}, not dead"
        changed = await change_ids(link, [id for id in ids if id not in refused], action, dry_run, progress)
        return msgspec.structs.replace(changed, refused=refused | changed.refused)


def _dead_query(which: DeadFilter) -> Query:
    check_names("filter", which, DeadFilter)
    return Query(state=State.DEAD, task=which.get("task"), queue=which.get("queue"))
