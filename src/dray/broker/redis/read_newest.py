"""`find` by arrival, the newest first.

There is no index by arrival, as it would cost every put. Few jobs are read and sorted. Many are read in the
order of the feed; those that are older than the feed come last, by state and queue.

A cursor is one of

    s<stamp>            few: the arrival stamp of the last job
    f<time>:<stamp>     by the feed: a time, and the arrival stamp of the last job of that time
    o<time>:<cursor>    older than the feed, before a time: a cursor of `find`
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from dray.broker.actions import Query
from dray.broker.checks import query_matches
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import StoredJob
from dray.broker.redis.ids import public_id
from dray.broker.redis.read import CHUNK, PLACE_NAMES, SCAN_FACTOR, find, pages, read_counts, read_jobs
from dray.broker.redis.router import command
from dray.broker.verbs import Page
from dray.errors import InvalidInput
from dray.job import PLACES, Record, State

FEW: Final = 2000
"""Number of jobs that are read and sorted."""
LATEST: Final = 10**16
"""Above every arrival stamp."""
LEAST: Final = 10
"""Least number of jobs to request from each queue's feed."""
_PLACES: Final = {state: PLACE_NAMES[place] for state, place in PLACES.items()}
_CURSOR: Final = re.compile(r"s([0-9]{1,17})|f([0-9]{1,16}):([0-9]{1,17})|o([0-9]{1,16}):(.*)", re.S)


async def newest(core: Core, query: Query, cursor: str | None, limit: int, now: int | None) -> Page:
    match = _CURSOR.fullmatch(cursor) if cursor is not None else None
    if cursor is not None and match is None:
        raise InvalidInput("cursor", cursor, "only a cursor that an earlier page returned is allowed")
    stamp, time, last, before, inner = match.groups() if match is not None else (None,) * 5
    queues = [name for name in await core.queues() if query.queue in (None, name)]
    if before is not None:
        return await _older(core, query, int(before), inner or None, limit, now)
    if time is not None:
        return await _by_feed(core, queues, query, int(time), int(last or 0), limit, now)
    below = LATEST if stamp is None else int(stamp)
    kept = await _few(core, queues, query.state, now)
    if kept is not None:
        return _sorted(kept, query, below, limit)
    # The page before may have been made from few jobs.
    start = None if stamp is None else below // 1000
    return await _by_feed(core, queues, query, start, below, limit, now)


# few jobs


async def _few(
    core: Core, queues: Sequence[str], state: State | None, now: int | None
) -> list[StoredJob] | None:
    """All jobs that may match, in no order; None if there are too many."""
    replies = await core.calls([core.on_queue("state_counts", name, now) for name in queues])
    counts = [read_counts(reply) for reply in replies]
    if state is State.NOT_FOUND:
        return []
    if state is State.DEAD:
        return await _dead(core, queues, [one.get(State.DEAD, 0) for one in counts], now)
    places = list(dict.fromkeys(_PLACES.values())) if state is None else [_PLACES[state]]
    total = sum(count for one in counts for of, count in one.items() if _PLACES[of] in places)
    if total > FEW:
        return None
    found: dict[str, StoredJob] = {}  # a job that moves meanwhile may be read twice
    for queue in queues:
        for place in places:
            async for ids, _, _ in pages(core, queue, place, "", now):
                found |= await read_jobs(core, queue, ids, now)
    return list(found.values())


async def _dead(
    core: Core, queues: Sequence[str], counts: Sequence[int], now: int | None
) -> list[StoredJob] | None:
    """Dead jobs are kept longest, so they stand at the end of `ended`."""
    if sum(counts) > FEW:
        return None
    found: dict[str, StoredJob] = {}
    for queue, count in zip(queues, counts, strict=True):
        key, most, looked = core.keys.queue(queue) + "ended", len(found) + count, 0
        while len(found) < most:
            members = await core.call(command(key, "ZREVRANGE", key, looked, looked + CHUNK - 1))
            kept = await read_jobs(core, queue, [public_id(member[16:], queue) for member in members], now)
            found |= {id: one for id, one in kept.items() if one.record.state is State.DEAD}
            looked += len(members)
            if not members:
                break
            if looked > 2 * FEW:
                return None
    return list(found.values())


def _sorted(kept: list[StoredJob], query: Query, below: int, limit: int) -> Page:
    found: list[Record] = []
    last, mark = below, LATEST
    for one in sorted(kept, key=lambda one: -one.stamp):
        mark = min(one.stamp, mark - 1)  # stamps differ, unless the store is damaged
        if mark >= below:
            continue
        if len(found) == limit:
            return Page(found, f"s{last}")
        last = mark
        if query_matches(query, one.record):
            found.append(one.record)
    return Page(found, None)


# by the feed


class _Put(NamedTuple):
    at: int
    queue: str
    id: str


async def _by_feed(
    core: Core,
    queues: Sequence[str],
    query: Query,
    start: int | None,
    below: int,
    limit: int,
    now: int | None,
) -> Page:
    """Jobs put up to `start`, by the feed; of that very time only those with a stamp below."""
    most = max(LEAST, SCAN_FACTOR * limit // 2 // max(1, len(queues)))
    latest = "" if start is None else start
    replies = await core.calls([core.on_queue("recent_puts", name, now, latest, most) for name in queues])
    floor = max((reply[0] for reply in replies), default=0)
    horizon = max((reply[1] for reply in replies), default=0)
    puts = _merged(queues, replies, floor)
    found: list[Record] = []
    looked = 0
    for at, group in groupby(puts, lambda put: put.at):
        if looked >= limit * SCAN_FACTOR:
            return Page(found, f"f{at}:{LATEST}")
        kept = await _read(core, list(group), now)
        looked += len(kept)
        last = bound = below if at == start else LATEST
        for one in sorted(kept, key=lambda one: -one.stamp):
            if one.stamp >= bound:
                continue
            if len(found) == limit:
                return Page(found, f"f{at}:{last}")
            last = one.stamp
            if horizon <= one.stamp // 1000 and query_matches(query, one.record):
                found.append(one.record)
    if query.since is not None and floor < query.since:
        return Page(found, None)
    if floor > horizon:
        return Page(found, f"f{floor - 1}:{LATEST}")
    cut = horizon if start is None else min(horizon, start)
    return Page(found, f"o{cut}:" if horizon else None)


def _merged(queues: Sequence[str], replies: Sequence[Any], floor: int) -> list[_Put]:
    """The puts after `floor`, the newest first; back to `floor` the feed of every queue is complete."""
    puts = [
        _Put(int(at), queue, public_id(id, queue))
        for queue, (_, _, found) in zip(queues, replies, strict=True)
        for at, id in zip(found[::2], found[1::2], strict=True)
        if int(at) >= floor
    ]
    return sorted(puts, key=lambda put: -put.at)  # stable: within a queue and a time as the feed has it


async def _read(core: Core, puts: Sequence[_Put], now: int | None) -> list[StoredJob]:
    found: list[StoredJob] = []
    for queue, group in groupby(puts, lambda put: put.queue):
        here = list(group)
        kept = await read_jobs(core, queue, [put.id for put in here], now)
        # An id that was put twice is listed where it was put last.
        found += [kept[put.id] for put in here if put.id in kept and _is_this(kept[put.id], put)]
    return found


def _is_this(kept: StoredJob, put: _Put) -> bool:
    return kept.record.created <= put.at + 1


async def _older(
    core: Core, query: Query, before: int, inner: str | None, limit: int, now: int | None
) -> Page:
    page = await find(core, query, inner, limit, now, arrived_before=before)
    return Page(page.records, None if page.cursor is None else f"o{before}:{page.cursor}")
