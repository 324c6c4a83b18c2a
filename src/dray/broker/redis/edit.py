"""`edit`: changing jobs and queues by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from msgspec import UNSET

from dray.broker.actions import (
    Cancel,
    Continue,
    Delete,
    Edited,
    JobAction,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Resume,
    Retry,
    Scope,
    SetLimits,
    Speculate,
)
from dray.broker.checks import query_matches, read_number
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import StoredJob, rate_numbers, to_json
from dray.broker.redis.ids import stored_id
from dray.broker.redis.outbox import follow_up_all, locate
from dray.broker.redis.read import SCAN_FACTOR, pages, read_jobs
from dray.errors import InvalidInput

SMALL = 2000
"""Up to so many jobs in its queues, a query edits them in the order of their arrival."""
_PLACES = ("waiting", "due", "ready", "held", "ended")


async def edit_ids(
    core: Core,
    ids: Sequence[str],
    action: JobAction,
    cursor: str | None,
    limit: int,
    dry: bool,
    now: int | None,
) -> Edited:
    start = read_number("cursor", cursor)
    chosen = ids[start : start + limit]
    more = str(start + limit) if len(ids) > start + limit else None
    answers = await _change(core, chosen, action, dry, now)
    changed = tuple(id for id, why in answers if why == "")
    return Edited(changed, tuple((id, why) for id, why in answers if why), more)


async def _change(
    core: Core,
    ids: Sequence[str],
    action: JobAction,
    dry: bool,
    now: int | None,
    state: str = "",
    skip_same: bool = False,
) -> list[tuple[str, str]]:
    """Change jobs, in order; returns per id nothing or the reason of the refusal."""
    places = await locate(core, set(ids))
    name, value = _action_args(action)
    answers: list[tuple[str, str]] = []
    left = []
    for queue, group in groupby(ids, places.get):
        part = list(group)
        if queue is None:
            answers += [(id, "not_found") for id in part]
            continue
        own = [stored_id(id, queue) for id in part]
        call = core.on_queue("edit", queue, now, name, value, int(dry), state, int(skip_same), *own)
        reasons, aftermath = await core.call(call)
        left.append((queue, aftermath))
        answers += [(id, reason.decode()) for id, reason in zip(part, reasons, strict=True)]
    await follow_up_all(core, left, now, ids)
    return answers


def _action_args(action: JobAction) -> tuple[str, str | int]:
    match action:
        case Cancel(reason=reason, force=force):
            return "force" if force else "cancel", reason
        case Retry():
            return "retry", ""
        case Delete():
            return "delete", ""
        case Reschedule(due=due):
            return "reschedule", due
        case Reprioritise(priority=priority):
            return "reprioritise", priority
        case Speculate(run=run):
            return "speculate", "" if run is None else run
        case Continue():
            return "continue", ""


# by query


async def edit_query(
    core: Core, query: Query, action: JobAction, cursor: str | None, limit: int, dry: bool, now: int | None
) -> Edited:
    """A cursor is the stamp of the last job examined; of many jobs, `queue/place/cursor of the place`."""
    if cursor is not None and "/" in cursor:
        return await _edit_large(core, query, action, cursor, limit, dry, now)
    after = read_number("cursor", cursor)
    queues = [name for name in await core.queues() if query.queue in (None, name)]
    if await _count(core, queues) > SMALL and cursor is None:
        return await _edit_large(core, query, action, "/waiting/", limit, dry, now)
    arrived = [one for one in await _all(core, queues, now) if one.stamp > after]
    chosen: list[StoredJob] = []
    more = None
    for looked, one in enumerate(arrived):
        if len(chosen) == limit or looked == limit * SCAN_FACTOR:
            more = str(after)
            break
        if query_matches(query, one.record):
            chosen.append(one)
        after = one.stamp
    return await _changed(core, query, [one.record.id for one in chosen], action, dry, now, more)


async def _changed(
    core: Core,
    query: Query,
    ids: Sequence[str],
    action: JobAction,
    dry: bool,
    now: int | None,
    more: str | None,
    skip_same: bool = False,
) -> Edited:
    state = "" if query.state is None else str(query.state)
    answers = await _change(core, ids, action, dry, now, state, skip_same)
    return Edited(tuple(id for id, why in answers if why == ""), (), more)


async def _count(core: Core, queues: Sequence[str]) -> int:
    replies = await core.calls([core.on_queue("state_counts", name, 0) for name in queues])
    return sum(int(number) for counts in replies for number in counts[1::2])


async def _all(core: Core, queues: Sequence[str], now: int | None) -> list[StoredJob]:
    found: list[StoredJob] = []
    for queue in queues:
        for place in _PLACES:
            async for ids, _, _ in pages(core, queue, place, "", now):
                found += (await read_jobs(core, queue, ids, now)).values()
    return sorted(found, key=lambda one: one.stamp)


async def _edit_large(
    core: Core, query: Query, action: JobAction, cursor: str, limit: int, dry: bool, now: int | None
) -> Edited:
    """Queue by queue, place by place; a job that an edit moved to a later place is met again, and skipped."""
    queue, place, after = cursor.split("/", 2)
    if place not in _PLACES:
        raise InvalidInput("cursor", cursor, "only a cursor that an earlier page returned is allowed")
    for name in await core.queues():
        if name < queue or query.queue not in (None, name):
            continue
        for where in _PLACES[_PLACES.index(place) if name == queue else 0 :]:
            start = after if (name, where) == (queue, place) else ""
            async for ids, following, whole in pages(core, name, where, start, now):
                kept = await read_jobs(core, name, ids[: limit * SCAN_FACTOR], now)
                chosen = [id for id, one in kept.items() if query_matches(query, one.record)]
                if not chosen and whole:
                    continue
                more = f"{name}/{where}/{following}" if not whole else _next(name, where)
                return await _changed(core, query, chosen[:limit], action, dry, now, more, skip_same=True)
    return Edited()


def _next(queue: str, place: str) -> str:
    later = _PLACES[_PLACES.index(place) + 1 :]
    return f"{queue}/{later[0]}/" if later else f"{queue}!/waiting/"


# queues and tasks


async def set_scope(core: Core, scope: Scope, action: Pause | Resume | SetLimits, now: int | None) -> None:
    if not core.knows(scope.queue):
        await core.enlist([scope.queue])
    kind, values = _scope_args(action)
    known = await core.call(
        core.on_queue("pause_or_limit", scope.queue, now, kind, scope.task or "", to_json(values))
    )
    if not known:
        await core.enlist([scope.queue])


def _scope_args(action: Pause | Resume | SetLimits) -> tuple[str, dict[str, Any]]:
    match action:
        case Pause(by=by, reason=reason):
            return "pause", {"by": by, "reason": reason}
        case Resume():
            return "resume", {}
        case SetLimits(rate=rate):
            values: dict[str, Any] = {
                "max_running": action.max_running,
                "max_ready": action.max_ready,
                "overflow": action.overflow,
                "group_running": action.group_running,
            }
            if isinstance(rate, str | None):
                values |= {"rate_text": rate, "rate": rate_numbers(rate)}
            if isinstance(action.enqueue_rate, str | None):
                numbers = rate_numbers(action.enqueue_rate)
                values |= {"enqueue_rate_text": action.enqueue_rate, "enqueue_rate": numbers}
            return "limits", {name: value for name, value in values.items() if value is not UNSET}
