"""What operators do: look through jobs, queues, dead jobs and workers, and change them.

Every operation exists twice, see `dray.twins`: `app.queues.pause("email")` blocks, and
`await app.queues.apause("email")` is awaited.
"""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import msgspec

from dray.broker.verbs import (
    PAGE_MAX,
    Broker,
    Cancel,
    Delete,
    Ids,
    JobAction,
    Pause,
    Query,
    QueueInfo,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
)
from dray.call import Duration, Priority, read_due
from dray.client import Client, Link
from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.handle import JobHandle
from dray.info import JobInfo, describe
from dray.job import BANDS, Overflow, Record, State, check_name, check_word, parse_priority
from dray.roster import WorkerInfo, read_workers
from dray.twins import awaits, blocks

if TYPE_CHECKING:
    from dray.app import App

Progressed = Callable[[int], None]
"""Told, after each step of a long change, how many jobs it has dealt with so far."""

_UNSTARTED = (State.READY, State.SCHEDULED, State.RETRYING, State.WAITING)


class Where(TypedDict, total=False):
    """Which jobs: all that fit every word given."""

    state: State | str | None
    queue: str | None
    task: str | None
    tag: str | None
    priority: Priority | None
    """A name means its band: high 0-3, normal 4-6, low 7-9."""
    group: str | None
    key: str | None
    parent: str | None


class Found(list[JobInfo]):
    """A page of jobs; `cursor` leads to the next one, None if this was the last."""

    cursor: str | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What a change did, or would do (`dry_run`)."""

    ids: list[str]
    refused: dict[str, str]
    """Jobs that were named but could not be changed, and why."""
    dry_run: bool = False

    def __len__(self) -> int:
        return len(self.ids)


Selection = str | JobHandle[Any] | JobInfo | Iterable[str | JobHandle[Any] | JobInfo]


class Desk:
    """Base of what hangs on an app to operate it."""

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def client(self) -> Client:
        return self._app.client


class Jobs(Desk):
    """`app.jobs`: find jobs, and change many at once.

    A change takes either jobs (ids, handles, infos) or a filter by keyword; with `dry_run` it only tells what
    it would do. `progress` is called after each step with the number of jobs dealt with.
    """

    async def _find(
        self, link: Link, *, limit: int | None = 100, cursor: str | None = None, **where: Unpack[Where]
    ) -> Found:
        """Jobs that fit, by state and queue. `limit=None` reads them all."""
        return await _find(link, self._app, read_where(where), limit, cursor)

    async def _cancel(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        reason: str = "cancelled",
        dry_run: bool = False,
        progress: Progressed | None = None,
        **where: Unpack[Where],
    ) -> Changed:
        """Cancel jobs: not started if they were not running, told to stop if they were, never retried."""
        return await _change(link, selection, where, Cancel(reason), dry_run, progress)

    async def _retry(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: Progressed | None = None,
        **where: Unpack[Where],
    ) -> Changed:
        """Run finished jobs again, and delayed ones now."""
        return await _change(link, selection, where, Retry(), dry_run, progress)

    async def _delete(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: Progressed | None = None,
        **where: Unpack[Where],
    ) -> Changed:
        """Forget jobs. Running ones are refused: cancel them first."""
        return await _change(link, selection, where, Delete(), dry_run, progress)

    async def _reschedule(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        dry_run: bool = False,
        progress: Progressed | None = None,
        **where: Unpack[Where],
    ) -> Changed:
        """Set when jobs that are scheduled, retrying or ready may start: `delay` from now, or `at` a time."""
        due = Reschedule(read_due(delay, at, self._app.now()))
        return await _change(link, selection, where, due, dry_run, progress)

    find, afind = blocks(_find), awaits(_find)
    cancel, acancel = blocks(_cancel), awaits(_cancel)
    retry, aretry = blocks(_retry), awaits(_retry)
    delete, adelete = blocks(_delete), awaits(_delete)
    reschedule, areschedule = blocks(_reschedule), awaits(_reschedule)


class Limit(TypedDict, total=False):
    """Limits of a queue, or of one task in it. None takes the operator's word back."""

    rate: str | None
    enqueue_rate: str | None
    """Jobs the queue accepts; more are refused, or wait (`overflow="wait"`)."""
    max_running: int | None
    max_ready: int | None
    overflow: Overflow | None
    group_running: int | None


class Queues(Desk):
    """`app.queues`."""

    async def _list(self, link: Link) -> builtins.list[QueueInfo]:
        """Every queue that holds a job or a setting."""
        return await link.broker.queues()

    async def _pause(
        self, link: Link, queue: str, *, task: str | None = None, reason: str = "", by: str = ""
    ) -> None:
        """Hand out nothing of the queue (or of one task in it); running jobs finish."""
        await link.broker.edit(Scope(queue, task), Pause(by, reason))

    async def _resume(self, link: Link, queue: str, *, task: str | None = None) -> None:
        """Undo `pause`."""
        await link.broker.edit(Scope(queue, task), Resume())

    async def _limit(
        self, link: Link, queue: str, *, task: str | None = None, **limits: Unpack[Limit]
    ) -> None:
        """Set limits, for all workers at once; they win over what tasks declare."""
        await link.broker.edit(Scope(queue, task), _limits(limits))

    async def _purge(
        self,
        link: Link,
        queue: str,
        *,
        states: State | str | Sequence[State | str] = _UNSTARTED,
        task: str | None = None,
        dry_run: bool = False,
        progress: Progressed | None = None,
    ) -> Changed:
        """Delete what waits in the queue (ready, scheduled, retrying, waiting); what runs is left alone."""
        wanted = [_state(state) for state in ((states,) if isinstance(states, str) else states)]
        if State.RUNNING in wanted:
            raise InvalidInput("states", "running", "running jobs cannot be deleted: cancel them first")
        queries = [Query(state=state, queue=check_name("queue", queue), task=task) for state in wanted]
        return await _change_all(link, queries, Delete(), dry_run, progress)

    list, alist = blocks(_list), awaits(_list)
    pause, apause = blocks(_pause), awaits(_pause)
    resume, aresume = blocks(_resume), awaits(_resume)
    limit, alimit = blocks(_limit), awaits(_limit)
    purge, apurge = blocks(_purge), awaits(_purge)


class Graves(TypedDict, total=False):
    """Which dead jobs; `older="7d"` means those that died at least that long ago."""

    task: str | None
    queue: str | None
    older: Duration | None


class Dead(Desk):
    """`app.dead`: jobs that will not be retried by themselves."""

    async def _list(
        self, link: Link, *, limit: int | None = 100, **which: Unpack[Graves]
    ) -> builtins.list[JobInfo]:
        """Dead jobs; `older="7d"` only those that died at least that long ago."""
        found: builtins.list[JobInfo] = []
        async for record in self._fitting(link, which):
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
        progress: Progressed | None = None,
        **which: Unpack[Graves],
    ) -> Changed:
        """Run dead jobs again, with all their retries."""
        return await self._change(link, selection, which, Retry(), dry_run, progress)

    async def _purge(
        self,
        link: Link,
        selection: Selection | None = None,
        *,
        dry_run: bool = False,
        progress: Progressed | None = None,
        **which: Unpack[Graves],
    ) -> Changed:
        """Forget dead jobs."""
        return await self._change(link, selection, which, Delete(), dry_run, progress)

    list, alist = blocks(_list), awaits(_list)
    replay, areplay = blocks(_replay), awaits(_replay)
    purge, apurge = blocks(_purge), awaits(_purge)

    async def _fitting(self, link: Link, which: Graves) -> AsyncIterator[Record]:
        query, older = _dead(which), which.get("older")
        before = None if older is None else self._app.now() - parse_duration("older", older)
        async for record in _records(link.broker, query):
            if before is None or (record.finished or 0) <= before:
                yield record

    async def _change(
        self,
        link: Link,
        selection: Selection | None,
        which: Graves,
        action: JobAction,
        dry_run: bool,
        progress: Progressed | None,
    ) -> Changed:
        if selection is None and which.get("older") is None:
            # By query, so that what somebody else replays in the same moment is let alone.
            return await _change_all(link, [_dead(which)], action, dry_run, progress)
        if selection is None:
            ids = [record.id async for record in self._fitting(link, which)]
            return await _change_ids(link, ids, action, dry_run, progress)
        if any(value is not None for value in which.values()):
            raise InvalidInput("selection", selection, "give either jobs or a filter, not both")
        ids, refused = _ids(selection), {}
        for id, record in zip(ids, await link.broker.get(ids), strict=True):
            if record is None or record.state is not State.DEAD:
                refused[id] = "there is no such job" if record is None else f"it is {record.state}, not dead"
        changed = await _change_ids(link, [id for id in ids if id not in refused], action, dry_run, progress)
        return msgspec.structs.replace(changed, refused=refused | changed.refused)


class Workers(Desk):
    """`app.workers`: who is at work."""

    async def _list(self, link: Link) -> builtins.list[WorkerInfo]:
        """Every worker that was heard of within two leases."""
        return await read_workers(link.broker)

    list, alist = blocks(_list), awaits(_list)


# operations


def read_where(where: Where) -> Query:
    """Check a filter; every wrong value is refused by its name."""
    unknown = sorted(where.keys() - Where.__annotations__.keys())
    if unknown:
        raise InvalidInput("filter", unknown[0], f"one of {', '.join(Where.__annotations__)} is allowed")
    fields: dict[str, Any] = {name: value for name, value in where.items() if value is not None}
    if "state" in fields:
        fields["state"] = _state(fields["state"])
    priority = fields.pop("priority", None)
    if priority is not None:
        band = BANDS.get(priority) if isinstance(priority, str) else None
        fields["priorities"] = frozenset(band or (parse_priority(priority),))
    return Query(**fields)


def _dead(which: Graves) -> Query:
    unknown = sorted(which.keys() - Graves.__annotations__.keys())
    if unknown:
        raise InvalidInput("filter", unknown[0], f"one of {', '.join(Graves.__annotations__)} is allowed")
    return Query(state=State.DEAD, task=which.get("task"), queue=which.get("queue"))


def _state(value: object) -> State:
    try:
        state = State(value)  # type: ignore[arg-type]  # anything else raises
        if state is State.NOT_FOUND:
            raise ValueError(state)
        return state
    except ValueError:
        allowed = ", ".join(state for state in State if state is not State.NOT_FOUND)
        raise InvalidInput("state", value, f"one of {allowed} is allowed") from None


async def _records(broker: Broker, query: Query) -> AsyncIterator[Record]:
    cursor = None
    while True:
        page = await broker.find(query, cursor=cursor, limit=PAGE_MAX)
        for record in page.records:
            yield record
        cursor = page.cursor
        if cursor is None:
            return


async def _find(link: Link, app: App, query: Query, limit: int | None, cursor: str | None) -> Found:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InvalidInput("limit", limit, "a number from 1, or None for all, is allowed")
    found = Found()
    while limit is None or len(found) < limit:
        size = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
        page = await link.broker.find(query, cursor=cursor, limit=size)
        found += [describe(record, app) for record in page.records]
        cursor = found.cursor = page.cursor
        if cursor is None:
            break
    return found


def _limits(limits: Limit) -> SetLimits:
    unknown = sorted(limits.keys() - Limit.__annotations__.keys())
    if unknown:
        raise InvalidInput("limit", unknown[0], f"one of {', '.join(Limit.__annotations__)} is allowed")
    if not limits:
        raise InvalidInput("limit", None, f"give one of {', '.join(Limit.__annotations__)}")
    return SetLimits(**limits)


def _ids(selection: Selection) -> list[str]:
    if isinstance(selection, str | JobHandle | JobInfo):
        selection = [selection]
    if not isinstance(selection, Iterable):
        raise InvalidInput("selection", selection, "ids, handles or infos of jobs are allowed")
    return list(dict.fromkeys(_id(one) for one in selection))


def _id(one: object) -> str:
    if isinstance(one, JobHandle | JobInfo):
        return one.id
    return check_word("id", one)


async def _change(
    link: Link,
    selection: Selection | None,
    where: Where,
    action: JobAction,
    dry_run: bool,
    progress: Progressed | None,
) -> Changed:
    query = read_where(where)
    # A filter whose every word is None would fit all jobs there are: nobody who deletes means that.
    if (selection is None) == (query == Query()):
        raise InvalidInput("selection", selection, "give either jobs or a filter such as queue= or state=")
    if selection is not None:
        return await _change_ids(link, _ids(selection), action, dry_run, progress)
    return await _change_all(link, [query], action, dry_run, progress)


async def _change_all(
    link: Link, queries: Sequence[Query], action: JobAction, dry_run: bool, progress: Progressed | None
) -> Changed:
    ids: list[str] = []
    for query in queries:
        cursor = None
        while True:
            edited = await link.broker.edit(query, action, cursor=cursor, dry_run=dry_run)
            ids += edited.changed
            if progress is not None:
                progress(len(ids))
            cursor = edited.cursor
            if cursor is None:
                break
    return Changed(ids=ids, refused={}, dry_run=dry_run)


async def _change_ids(
    link: Link, ids: Sequence[str], action: JobAction, dry_run: bool, progress: Progressed | None
) -> Changed:
    changed: list[str] = []
    refused: dict[str, str] = {}
    for first in range(0, len(ids), PAGE_MAX):
        batch = tuple(ids[first : first + PAGE_MAX])
        edited = await link.broker.edit(Ids(batch), action, dry_run=dry_run)
        changed += edited.changed
        refused |= dict(edited.refused)
        if progress is not None:
            progress(first + len(batch))
    return Changed(ids=changed, refused=refused, dry_run=dry_run)
