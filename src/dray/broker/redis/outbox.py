"""What a step leaves to do in other slots. Every part may be repeated: nothing happens twice.

A script ends with its *aftermath*: whether it left word in the queue's outbox, which jobs do not wait any
more for which others, and which ids are gone. If we die before that is done, `sweep` delivers the outbox;
what else is left behind (a dependant that waits no more, a directory entry without a job) is harmless.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dray.broker.redis.core import Core
from dray.broker.redis.router import Call, command, script
from dray.broker.verbs import FORWARD_STEP
from dray.errors import BrokerError
from dray.job import queue_of

PAGE = 500
WATCHER_TTL: Final = 2 * 24 * 3600
WATCHER_AGAIN: Final = 60.0


async def locate(core: Core, ids: Iterable[str], held: bool = False) -> dict[str, str]:
    """The queue of each id, as far as it is known. A generated id names it; others are in the directory.

    `held`: they were handed out to us, so that we may remember.
    """
    found: dict[str, str] = {}
    asked: dict[str, list[str]] = {}
    for id in ids:
        queue = queue_of(id) or (core.taken_from.get(id) if held else None)
        if queue is not None:
            found[id] = queue
        else:
            asked.setdefault(core.keys.directory(id), []).append(id)
    replies = await core.calls([command(key, "HMGET", key, *names) for key, names in asked.items()])
    for names, queues in zip(asked.values(), replies, strict=True):
        found |= {id: queue.decode() for id, queue in zip(names, queues, strict=True) if queue is not None}
    return found


async def watch_queues(core: Core, watcher: str, queues: Iterable[str]) -> None:
    """Write down where a watcher waits for jobs, before it does; once a minute is enough."""
    now = time.monotonic()
    new = [queue for queue in queues if now - core.watched.get((watcher, queue), -math.inf) > WATCHER_AGAIN]
    if not new:
        return
    key = f"{core.keys.own}w:{watcher}"
    await core.calls([command(key, "SADD", key, *new), command(key, "EXPIRE", key, WATCHER_TTL)])
    if len(core.watched) > 10_000:
        core.watched.clear()
    core.watched |= {(watcher, queue): now for queue in new}


async def follow(core: Core, queue: str, aftermath: Sequence[Any], now: int | None) -> None:
    await follow_all(core, [(queue, aftermath)], now)


async def follow_all(
    core: Core, left: Sequence[tuple[str, Sequence[Any]]], now: int | None, order: Sequence[str] = ()
) -> None:
    """Do what steps in several queues left to do. What they did themselves must not fail for that.

    `order` names jobs as they came: word of their ends is delivered in that order.
    """
    if not core.backlog and not any(part for _, aftermath in left for part in aftermath):
        return
    with contextlib.suppress(BrokerError):
        await tidy(core, left)
        posted = [*core.backlog, *(queue for queue, aftermath in left if aftermath[0])]
        if posted:
            core.backlog = []
            await forward(core, list(dict.fromkeys(posted)), now, order=order)


async def tidy(core: Core, left: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """All that is left to do, except for the outboxes."""
    for queue, (_, forgotten, gone) in left:
        await _tidy(core, queue, forgotten, gone)


async def _tidy(core: Core, queue: str, forgotten: Sequence[bytes], gone: Sequence[bytes]) -> None:
    if forgotten:
        pairs = [name.decode() for name in forgotten]
        await undepend(core, list(zip(pairs[::2], pairs[1::2], strict=True)))
    if gone:
        await free(core, queue, [id.decode() for id in gone])


async def undepend(core: Core, pairs: Sequence[tuple[str, str]]) -> None:
    """Take (dependency, dependant) pairs apart."""
    if not pairs:
        return
    places = await locate(core, {dependency for dependency, _ in pairs})
    parts: dict[str, list[str]] = {}
    for dependency, dependant in pairs:
        if dependency in places:
            parts.setdefault(places[dependency], []).extend((dependency, dependant))
    replies = await core.calls([core.on_queue("undepend", queue, 0, *args) for queue, args in parts.items()])
    for queue, gone in zip(parts, replies, strict=True):
        await free(core, queue, [id.decode() for id in gone])


async def free(core: Core, queue: str, ids: Sequence[str]) -> None:
    """Take ids out of the directory that lead to nothing any more.

    Somebody may put such an id at this very moment: so look again afterwards.
    """
    made_up = [id for id in dict.fromkeys(ids) if queue_of(id) is None]
    vacant = [id for id in made_up if await _vacant(core, queue, id)]
    if not vacant:
        return
    await core.calls([script("claim", core.keys.directory(id), "free", id, queue) for id in vacant])
    for id in vacant:
        if not await _vacant(core, queue, id):
            await core.call(script("claim", core.keys.directory(id), "claim", id, queue))


async def _vacant(core: Core, queue: str, id: str) -> bool:
    state, _, waited_for = await core.call(core.on_queue("probe", queue, 0, id))
    return not state and not waited_for


class _Word(NamedTuple):
    """A message of an outbox."""

    queue: str
    stored: bytes
    number: int
    ended: str
    dependant: str
    dependency: str
    hint: str
    """Orders what one call did in several queues."""


async def forward(
    core: Core, queues: Sequence[str], now: int | None, limit: int = FORWARD_STEP, order: Sequence[str] = ()
) -> int:
    """Deliver word from outboxes, and what that leads to, in order. `sweep` does what is left."""
    sent = 0
    while queues and sent < limit:
        words = await _words(core, queues, limit - sent, order)
        more = await _deliver(core, words, now)
        delivered: dict[str, list[bytes]] = {}
        for word in words:
            delivered.setdefault(core.keys.queue(word.queue) + "out", []).append(word.stored)
        await core.calls([command(key, "ZREM", key, *texts) for key, texts in delivered.items()])
        sent += len(words)
        order = [word.dependant for word in words]
        queues = [*dict.fromkeys([*(word.queue for word in words), *more])]
    core.backlog = [*dict.fromkeys([*core.backlog, *queues])] if sent >= limit else core.backlog
    return sent


async def _words(core: Core, queues: Sequence[str], limit: int, order: Sequence[str]) -> list[_Word]:
    keys = [core.keys.queue(queue) + "out" for queue in queues]
    most = min(PAGE, limit) - 1
    replies = await core.calls([command(key, "ZRANGE", key, 0, most) for key in keys])
    words = []
    for queue, messages in zip(queues, replies, strict=True):
        for message in messages:
            number, *rest = message.decode().split("\n")
            words.append(_Word(queue, message, int(number), *rest))
    rank = {id: place for place, id in reversed(list(enumerate(order)))}
    words.sort(key=lambda word: (rank.get(word.dependency, -1), word.hint))
    return words[:limit]


async def _deliver(core: Core, words: Sequence[_Word], now: int | None) -> list[str]:
    """Deliver word, in order per queue; the queues whose outboxes have word now."""
    parts: dict[str, list[str]] = {}
    places = await locate(core, {word.dependant for word in words})
    for word in words:
        if word.dependant in places:
            parts.setdefault(places[word.dependant], []).extend((word.dependant, word.dependency, word.ended))
    replies = await core.calls([_delivery(core, queue, args, now) for queue, args in parts.items()])
    posted = []
    for queue, (_, aftermath) in zip(parts, replies, strict=True):
        await _tidy(core, queue, aftermath[1], aftermath[2])
        if aftermath[0]:
            posted.append(queue)
    return posted


def _delivery(core: Core, queue: str, args: Sequence[str], now: int | None) -> Call:
    return core.on_queue("deliver", queue, now, *args)
