"""Reads jobs, queues, documents and the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from dray.broker.actions import Pause, Query
from dray.broker.checks import TIME_MAX, query_matches, read_number
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import StoredJob, read_limits, read_pause, read_stored
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.outbox import locate, watch_queues
from dray.broker.redis.router import command
from dray.broker.verbs import Doc, Entry, Event, Feed, Limits, Page, QueueInfo, Usage
from dray.errors import InvalidInput
from dray.job import PLACES, Job, Move, Place, Record, Sign, State

SCAN_FACTOR: Final = 10
"""Jobs that a page may examine for each one it may return."""
CHUNK: Final = 200
"""Jobs that one script reads, as payloads may be large."""
STATES: Final = tuple(State)
PLACE_NAMES: Final = {place: str(place) for place in Place} | {Place.DEAD: "ended", Place.DONE: "ended"}
"""The places of lua/list_ids.lua."""
_FIRST: Final = frozenset({State.WAITING, State.SCHEDULED, State.READY, State.RUNNING, State.SUCCEEDED})
"""The first of the states that share a place."""
KINDS: Final[dict[str, str]] = {
    "p": Move.PUT,
    "R": Move.RELEASED,
    "P": Move.PROMOTED,
    "t": Move.TAKEN,
    "S": Move.SUCCEEDED,
    "T": Move.RETRIED,
    "D": Move.DIED,
    "C": Move.CANCELLED,
    "G": Move.GIVEN_BACK,
    "X": Move.CRASHED,
    "H": Move.RESCHEDULED,
    "Y": Move.REPLAYED,
    "L": Move.DELETED,
    "Z": Move.SUSPENDED,
    "W": Move.WOKEN,
    "B": Move.UNDOING,
    "F": Move.REVIVED,
    "g": Sign.PROGRESS,
    "A": Sign.CANCEL_ASKED,
    "O": Sign.SPECULATED,
    "E": Sign.RUN_ENDED,
    "I": Sign.REPRIORITISED,
    "U": Sign.PAUSED,
    "V": Sign.RESUMED,
    "M": Sign.LIMITED,
}
"""The letters of events in the feed."""


async def get(core: Core, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]:
    places = await locate(core, set(ids))
    if watch is not None and places:
        await watch_queues(core, watch, set(places.values()))
    parts: dict[str, list[str]] = {}
    for id, queue in places.items():
        parts.setdefault(queue, []).append(id)
    found: dict[str, StoredJob] = {}
    for queue, names in parts.items():
        found |= await read_jobs(core, queue, names, now, watch or "")
    return [found[id].record if id in found else None for id in ids]


async def read_jobs(
    core: Core, queue: str, ids: Sequence[str], now: int | None, watch: str = ""
) -> dict[str, StoredJob]:
    found: dict[str, StoredJob] = {}
    for first in range(0, len(ids), CHUNK):
        names = ids[first : first + CHUNK]
        own = [stored_id(id, queue) for id in names]
        at, *rows = await core.call(core.on_queue("get", queue, now, watch, *own))
        for id, row in zip(names, rows, strict=True):
            if row is not None:
                found[id] = read_stored(queue, id, row, at, core.retention)
    return found


async def pages(
    core: Core, queue: str, place: str, cursor: str, now: int | None
) -> AsyncIterator[tuple[list[str], str, bool]]:
    """The ids of a place, page by page: ids, the next cursor, true for the last page."""
    while True:
        whole, after, ids = await core.call(core.on_queue("list_ids", queue, now, place, cursor, CHUNK))
        cursor = after.decode()
        yield [public_id(id, queue) for id in ids], cursor, bool(whole)
        if whole:
            return


# find


async def find(
    core: Core,
    query: Query,
    cursor: str | None,
    limit: int,
    now: int | None,
    arrived_before: int | None = None,
) -> Page:
    """Jobs by state and queue. A cursor is `state:queue:number to skip:cursor of the place`."""
    state, queue, skip, after = _read_cursor(cursor)
    queues = [name for name in await core.queues() if query.queue in (None, name)]
    found: list[Record] = []
    looked = 0
    for number, which in enumerate(STATES):
        if number < state or query.state not in (None, which) or which not in PLACES:
            continue
        for name in queues:
            if number == state and name < queue:
                continue
            here = (number, name) == (state, queue)
            start, skipped = (after, skip) if here else ("", 0)
            async for ids, following, _ in pages(core, name, PLACE_NAMES[PLACES[which]], start, now):
                kept = await read_jobs(core, name, ids, now)
                standing = [kept[id] for id in ids if id in kept and _stands(kept[id], which)]
                order = standing if start or following else sorted(standing, key=lambda one: one.stamp)
                mark = 0
                for one in order:
                    # Stamps differ, unless the store is damaged.
                    mark = mark + 1 if start or following else max(one.stamp, mark + 1)
                    if mark <= skipped:
                        continue
                    if len(found) == limit or looked == limit * SCAN_FACTOR:
                        return Page(found, f"{number}:{name}:{skipped}:{start}")
                    looked += 1
                    skipped = mark
                    older = arrived_before is None or one.stamp // 1000 < arrived_before
                    if older and query_matches(query, one.record):
                        found.append(one.record)
                start, skipped = following, 0
    return Page(found, None)


def _stands(one: StoredJob, state: State) -> bool:
    """True if it is listed under this state; an unreadable job under the first state of its place."""
    return one.record.state is state if one.readable else state in _FIRST


def _read_cursor(cursor: str | None) -> tuple[int, str, int, str]:
    if cursor is None:
        return -1, "", 0, ""
    parts = cursor.split(":", 3)
    if len(parts) != 4:
        raise InvalidInput("cursor", cursor, "only a cursor that an earlier page returned is allowed")
    return read_number("cursor", parts[0]), parts[1], read_number("cursor", parts[2]), parts[3]


# queues


async def queue_infos(core: Core, now: int | None) -> list[QueueInfo]:
    names = await core.queues()
    replies = await core.calls([core.on_queue("queue_info", name, now) for name in names])
    infos = []
    for name, (counts, settings, due, lanes) in zip(names, replies, strict=True):
        numbers = read_counts(counts)
        ready = _ready(lanes, numbers.get(State.READY, 0))
        if not any(numbers.values()) and not settings:
            continue
        infos.append(
            QueueInfo(
                name=name,
                counts={state: numbers[state] for state in State if numbers.get(state)},
                next_due=None if due is None else int(min(max(float(due), 0.0), TIME_MAX)),
                oldest_ready=min((oldest for _, oldest in ready.values()), default=None),
                ready=ready,
                **_settings(settings),
            )
        )
    return infos


def read_counts(stored: Sequence[bytes]) -> dict[State, int]:
    numbers = dict(zip(stored[::2], stored[1::2], strict=True))
    return {
        state: int(number)
        for state in State
        if (number := numbers.get(state.encode(), b"")).removeprefix(b"-").isdigit()
    }


def _ready(lanes: Sequence[int], whole: int) -> dict[int, tuple[int, int]]:
    """Ready jobs by priority. Those in unread groups are estimated by the number of these groups."""
    rows = sorted(zip(lanes[::4], lanes[1::4], lanes[2::4], lanes[3::4], strict=True))
    unseen, left = sum(row[3] for row in rows), whole - sum(row[1] for row in rows)
    found = {}
    for priority, count, oldest, groups in rows:
        more = round(max(0, left) * groups / unseen) if unseen else 0
        unseen, left = unseen - groups, left - more
        if count + more:
            found[priority] = (count + more, oldest)
    return found


async def usage(core: Core, job: Job, now: int | None) -> Usage:
    """The running jobs and used rates that count against the limits of a job."""
    held = {"queue": "q", "task": f"t:{job.task}", "group": job.group, "key": job.running_key}
    held |= {what: f"{what[0]}:{held[what]}" for what in ("group", "key") if held[what] is not None}
    names = {what: name for what, name in held.items() if name is not None}
    rated = {"queue": "q", "task": f"t:{job.task}"} | ({"key": f"k:{job.rate_key}"} if job.rate_key else {})
    prefix = core.keys.queue(job.queue)
    running, tats = prefix + "running", prefix + "rate"
    counts, times, (seconds, micros) = await core.calls(
        [
            command(running, "HMGET", running, *names.values()),
            command(tats, "ZMSCORE", tats, *rated.values()),
            command(tats, "TIME"),
        ]
    )
    return Usage(
        int(seconds) * 1000 + int(micros) // 1000 if core.given_time(now) is None else core.time(now),
        {what: int(count or 0) for what, count in zip(names, counts, strict=True)},
        {what: int(float(tat or 0)) for what, tat in zip(rated, times, strict=True)},
    )


def _settings(stored: Sequence[bytes]) -> dict[str, Any]:
    pause: Pause | None = None
    limits = Limits()
    pauses: dict[str, Pause] = {}
    task_limits: dict[str, Limits] = {}
    for field, packed in zip(stored[::2], stored[1::2], strict=True):
        kind, _, task = field.decode().partition(":")
        if kind == "pause":
            stop = read_pause(packed)
            pause, pauses = (stop, pauses) if not task else (pause, pauses | {task: stop})
        else:
            most = read_limits(packed)
            limits, task_limits = (most, task_limits) if not task else (limits, task_limits | {task: most})
    return {"paused": pause, "limits": limits, "paused_tasks": pauses, "task_limits": task_limits}


# documents


def read_doc(kind: str, name: str, stored: bytes | None) -> Doc | None:
    if stored is None:
        return None
    head, _, value = stored.partition(b"\n")
    version, _, expires = head.decode().partition(" ")
    return Doc(kind, name, value, int(version), int(expires) if expires else None)


async def docs(core: Core, kind: str, now: int | None) -> list[Doc]:
    stored = await core.call(core.on_own("docs", now, kind))
    found = [
        read_doc(kind, name.decode(), text) for name, text in zip(stored[::2], stored[1::2], strict=True)
    ]
    return sorted((doc for doc in found if doc is not None), key=lambda doc: doc.name)


# the feed


async def feed(core: Core, cursor: Mapping[str, int] | None, limit: int) -> Feed:
    names = await core.queues()
    stand = await core.calls([core.on_queue("feed", name, 0, 0, 0) for name in names])
    if cursor is None:
        ends = zip(names, stand, strict=True)
        return Feed([], {name: newest for name, (newest, oldest, _, _) in ends if oldest <= newest})
    entries: list[Entry] = []
    reached, gaps = dict(cursor), []
    for name, (newest, oldest, _, _) in zip(names, stand, strict=True):
        after = cursor.get(name, 0)
        if oldest > newest:  # it was dropped: the next entry shows the gap
            continue
        if name in cursor and (after + 1 < oldest or after > newest):
            gaps.append(name)
            after = min(after, oldest - 1)
        if len(entries) == limit or after >= newest:
            continue
        _, _, base, rows = await core.call(core.on_queue("feed", name, 0, after, limit - len(entries)))
        new = [_entry(name, base, row) for row in rows]
        entries += new
        if new:
            reached[name] = new[-1].number
    return Feed(entries, reached, tuple(gaps))


def _entry(queue: str, base: int, row: Sequence[Any]) -> Entry:
    number, (_, at, _, events) = row
    parsed = tuple(_event(queue, text) for text in events.split(b"\n"))
    return Entry(queue, base + int(number.partition(b"-")[0]), int(at), parsed)


def _event(queue: str, text: bytes) -> Event:
    run, _, id = text[1:].partition(b" ")
    return Event(KINDS[chr(text[0])], public_id(id, queue), int(run))
