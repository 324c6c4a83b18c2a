"""`app.queues`: list queues, pause and resume them, set their limits, delete their waiting jobs."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TypedDict, Unpack

from dray.admin.selection import ChangeResult, OnProgress, change_matching, check_names, read_state
from dray.broker.actions import Delete, Pause, Query, Resume, Scope, SetLimits
from dray.broker.verbs import QueueInfo
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.documents.queue_state import check_dedicated, dedicate, read_queues
from dray.errors import InvalidInput
from dray.job import Overflow, State, check_name

_UNSTARTED = (State.READY, State.SCHEDULED, State.RETRYING, State.WAITING)


class LimitOptions(TypedDict, total=False):
    """Limits of a queue, or of one task in it. None removes the operator's setting."""

    rate: str | None
    enqueue_rate: str | None
    """Jobs the queue accepts; more are refused, or wait (`overflow="wait"`)."""
    max_running: int | None
    max_ready: int | None
    overflow: Overflow | None
    group_running: int | None
    dedicated: bool | None
    """Served only by workers that list the queue by its name."""


class Queues(AppApi):
    """`app.queues`."""

    async def _list(self, link: Link) -> builtins.list[QueueInfo]:
        """Every queue that holds a job or a setting."""
        options = (task.options for task in self._app.tasks.values())
        return await read_queues(link.broker, {one.queue for one in options if one.dedicated})

    async def _pause(
        self, link: Link, queue: str, *, task: str | None = None, reason: str = "", by: str = ""
    ) -> None:
        """Stop handing out jobs of the queue (or of one task in it); running jobs finish."""
        await link.broker.edit(Scope(queue, task), Pause(by, reason))

    async def _resume(self, link: Link, queue: str, *, task: str | None = None) -> None:
        """Undo `pause`."""
        await link.broker.edit(Scope(queue, task), Resume())

    async def _limit(
        self, link: Link, queue: str, *, task: str | None = None, **limits: Unpack[LimitOptions]
    ) -> None:
        """Set limits, for all workers at once; they override the limits of tasks.

        With `dedicated=True` only workers that list the queue by its name serve it.
        """
        changes, dedicated = _read_limits(limits), check_dedicated(limits, queue, task)
        if changes != SetLimits():
            await link.broker.edit(Scope(queue, task), changes)
        if dedicated is not None:
            await dedicate(link.broker, queue, dedicated)

    async def _purge(
        self,
        link: Link,
        queue: str,
        *,
        states: State | str | Sequence[State | str] = _UNSTARTED,
        task: str | None = None,
        dry_run: bool = False,
        progress: OnProgress | None = None,
    ) -> ChangeResult:
        """Delete the jobs of a queue that have not started (ready, scheduled, retrying, waiting)."""
        wanted = [read_state(state) for state in ((states,) if isinstance(states, str) else states)]
        if State.RUNNING in wanted:
            raise InvalidInput("states", "running", "running jobs cannot be deleted: cancel them first")
        queries = [Query(state=state, queue=check_name("queue", queue), task=task) for state in wanted]
        return await change_matching(link, queries, Delete(), dry_run, progress)

    list, alist = sync_and_async(_list)
    pause, apause = sync_and_async(_pause)
    resume, aresume = sync_and_async(_resume)
    limit, alimit = sync_and_async(_limit)
    purge, apurge = sync_and_async(_purge)


def _read_limits(limits: LimitOptions) -> SetLimits:
    check_names("limit", limits, LimitOptions)
    if not limits:
        raise InvalidInput("limit", None, f"one of {', '.join(LimitOptions.__annotations__)} is allowed")
    return SetLimits(**{name: value for name, value in limits.items() if name != "dedicated"})  # type: ignore[arg-type]
