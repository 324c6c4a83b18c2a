"""`get`, `find`, `queues`, documents and the feed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from dray.broker.checks import query_matches, read_number
from dray.broker.redis.core import Core
from dray.broker.redis.crossing import locate, watch_queues
from dray.broker.redis.router import command
from dray.broker.redis.rows import LETTERS, Kept, decode_pause, read_kept, read_limits
from dray.broker.verbs import Doc, Entry, Event, Feed, Limits, Page, Pause, Query, QueueInfo, Usage
from dray.errors import InvalidInput
from dray.job import PLACES, Job, Move, Place, Record, Sign, State

SCAN_FACTOR: Final = 10
"""How many jobs a page may look at for each one it may return."""
CHUNK: Final = 200
"""How many jobs one script reads: payloads may be large."""
STATES: Final = tuple(State)
_PLACE_LETTERS: Final = {
    Place.WAITING: "w",
    Place.DUE: "d",
    Place.READY: "r",
    Place.HELD: "h",
    Place.DEAD: "e",
    Place.DONE: "e",
}
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
    "g": Sign.PROGRESS,
    "A": Sign.CANCEL_ASKED,
    "O": Sign.SPECULATED,
    "E": Sign.RUN_ENDED,
    "I": Sign.REPRIORITISED,
    "U": Sign.PAUSED,
    "V": Sign.RESUMED,
    "M": Sign.LIMITED,
}
"""The letters by which scripts note events."""


async def get(core: Core, ids: Sequence[str], watch: str | None, now: int | None) -> list[Record | None]:
    places = await locate(core, set(ids))
    if watch is not None and places:
        await watch_queues(core, watch, set(places.values()))
    parts: dict[str, list[str]] = {}
    for id, queue in places.items():
        parts.setdefault(queue, []).append(id)
    found: dict[str, Kept] = {}
    for queue, names in parts.items():
        found |= await read_jobs(core, queue, names, now, watch or "")
    return [found[id].record if id in found else None for id in ids]


async def read_jobs(
    core: Core, queue: str, ids: Sequence[str], now: int | None, watch: str = ""
) -> dict[str, Kept]:
    found: dict[str, Kept] = {}
    for first in range(0, len(ids), CHUNK):
        names = ids[first : first + CHUNK]
        at, *rows = await core.call(core.on_queue("get", queue, now, watch, *names))
        for id, row in zip(names, rows, strict=True):
            if row is not None:
                found[id] = read_kept(queue, id, row, at, core.retention)
    return found


async def pages(
    core: Core, queue: str, place: str, cursor: str, now: int | None
) -> AsyncIterator[tuple[list[str], str, bool]]:
    """The ids of a place, page by page: ids, where to go on, whether these were all."""
    while True:
        whole, after, ids = await core.call(core.on_queue("list", queue, now, place, cursor, CHUNK))
        cursor = after.decode()
        yield [id.decode() for id in ids], cursor, bool(whole)
        if whole:
            return


# find


async def find(core: Core, query: Query, cursor: str | None, limit: int, now: int | None) -> Page:
    """By state and queue. A cursor is `state:queue:how many to skip:where to go on`."""
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
            async for ids, following, _ in pages(core, name, _PLACE_LETTERS[PLACES[which]], start, now):
                kept = await read_jobs(core, name, ids, now)
                standing = [kept[id] for id in ids if id in kept and kept[id].record.state is which]
                order = standing if start or following else _by_stamp(standing, which)
                for place, one in enumerate(order):
                    mark = one.stamp if not (start or following) else place + 1
                    if mark <= skipped:
                        continue
                    if len(found) == limit or looked == limit * SCAN_FACTOR:
                        return Page(found, f"{number}:{name}:{skipped}:{start}")
                    looked += 1
                    skipped = mark
                    if query_matches(query, one.record):
                        found.append(one.record)
                start, skipped = following, 0
    return Page(found, None)


def _by_stamp(kept: list[Kept], state: State) -> list[Kept]:
    return sorted(kept, key=lambda one: one.stamp)


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
    replies = await core.calls([core.on_queue("info", name, now) for name in names])
    infos = []
    for name, (counts, settings, due, told) in zip(names, replies, strict=True):
        numbers = {LETTERS[k.decode()]: int(v) for k, v in zip(counts[::2], counts[1::2], strict=True)}
        ready = _ready(told, numbers.get(State.READY, 0))
        if not any(numbers.values()) and not settings:
            continue
        infos.append(
            QueueInfo(
                name=name,
                counts={state: numbers[state] for state in State if numbers.get(state)},
                next_due=None if due is None else int(float(due)),
                oldest_ready=min((oldest for _, oldest in ready.values()), default=None),
                ready=ready,
                **_settings(settings),
            )
        )
    return infos


def _ready(told: Sequence[int], whole: int) -> dict[int, tuple[int, int]]:
    """By priority. What is in groups that were not looked at is shared out by the number of those groups."""
    rows = sorted(zip(told[::4], told[1::4], told[2::4], told[3::4], strict=True))
    unseen, left = sum(row[3] for row in rows), whole - sum(row[1] for row in rows)
    found = {}
    for priority, count, oldest, groups in rows:
        more = round(max(0, left) * groups / unseen) if unseen else 0
        unseen, left = unseen - groups, left - more
        if count + more:
            found[priority] = (count + more, oldest)
    return found


async def usage(core: Core, job: Job, now: int | None) -> Usage:
    """How much is in use of what may limit a job."""
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
        int(seconds) * 1000 + int(micros) // 1000 if core.told_time(now) is None else core.time(now),
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
            stop = decode_pause(packed)
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
        return Feed([], {name: newest for name, (newest, _, _) in zip(names, stand, strict=True) if newest})
    entries: list[Entry] = []
    reached, gaps = dict(cursor), []
    for name, (newest, oldest, _) in zip(names, stand, strict=True):
        after = cursor.get(name, 0)
        if name in cursor and (after + 1 < oldest or after > newest):
            gaps.append(name)
            after = min(after, oldest - 1)
        if len(entries) == limit or after >= newest:
            continue
        _, _, rows = await core.call(core.on_queue("feed", name, 0, after, limit - len(entries)))
        new = [_entry(name, row) for row in rows]
        entries += new
        if new:
            reached[name] = new[-1].number
    return Feed(entries, reached, tuple(gaps))


def _entry(queue: str, row: Sequence[Any]) -> Entry:
    number, (_, at, _, events) = row
    return Entry(
        queue, int(number.partition(b"-")[0]), int(at), tuple(map(_event, events.decode().split("\n")))
    )


def _event(text: str) -> Event:
    run, _, id = text[1:].partition(" ")
    return Event(KINDS[text[0]], id, int(run))
