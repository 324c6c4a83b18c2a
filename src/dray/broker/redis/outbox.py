"""Follow-up work in other cluster slots; every function may be repeated without effect.

A script ends with its *aftermath*: a flag for messages in the queue's outbox, (dependency, dependant) pairs
to remove, and ids that are gone. If the client dies before that is done, `sweep` delivers the outbox; other
remains (a dependant that no longer waits, a directory entry without a job) are harmless.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dray.broker.redis.core import Core
from dray.broker.redis.router import command, script
from dray.broker.verbs import FORWARD_STEP
from dray.errors import BrokerError
from dray.job import queue_of

PAGE: Final = 500
WATCHER_TTL: Final = 2 * 24 * 3600
WATCHER_AGAIN: Final = 60.0
"""Seconds after which a watcher is registered with a queue again."""


async def locate(core: Core, ids: Iterable[str], held: bool = False) -> dict[str, str]:
    """The queue of each known id. A generated id names its queue; others are in the directory.

    `held`: this client took these jobs, so that their queue may be remembered in `core.taken_from`.
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
    """Note the queues in which a watcher waits, before it does; once a minute is enough."""
    now = time.monotonic()
    new = [queue for queue in queues if now - core.watched.get((watcher, queue), -math.inf) > WATCHER_AGAIN]
    if not new:
        return
    key = f"{core.keys.own}w:{watcher}"
    await core.calls([command(key, "SADD", key, *new), command(key, "EXPIRE", key, WATCHER_TTL)])
    if len(core.watched) > 10_000:
        core.watched.clear()
    core.watched |= {(watcher, queue): now for queue in new}


async def follow_up(core: Core, queue: str, aftermath: Sequence[Any], now: int | None) -> None:
    await follow_up_all(core, [(queue, aftermath)], now)


async def follow_up_all(
    core: Core, left: Sequence[tuple[str, Sequence[Any]]], now: int | None, order: Sequence[str] = ()
) -> None:
    """Do the follow-up work of scripts in several queues; its failure does not fail the verb.

    `order` lists ended jobs: messages are delivered in that order.
    """
    if not core.backlog and not any(part for _, aftermath in left for part in aftermath):
        return
    with contextlib.suppress(BrokerError):
        await clean_up(core, left)
        posted = [*core.backlog, *(queue for queue, aftermath in left if aftermath[0])]
        if posted:
            core.backlog = []
            await forward(core, list(dict.fromkeys(posted)), now, order=order)


async def clean_up(core: Core, left: Sequence[tuple[str, Sequence[Any]]]) -> None:
    """All follow-up work except for the outboxes."""
    for queue, (_, forgotten, gone) in left:
        if forgotten:
            names = [name.decode() for name in forgotten]
            await remove_dependants(core, list(zip(names[::2], names[1::2], strict=True)))
        if gone:
            await free_ids(core, queue, [id.decode() for id in gone])


async def remove_dependants(core: Core, pairs: Sequence[tuple[str, str]]) -> None:
    """Remove (dependency, dependant) pairs."""
    if not pairs:
        return
    places = await locate(core, {dependency for dependency, _ in pairs})
    parts: dict[str, list[str]] = {}
    for dependency, dependant in pairs:
        if dependency in places:
            parts.setdefault(places[dependency], []).extend((dependency, dependant))
    calls = [core.on_queue("remove_dependants", queue, 0, *args) for queue, args in parts.items()]
    for queue, gone in zip(parts, await core.calls(calls), strict=True):
        await free_ids(core, queue, [id.decode() for id in gone])


async def free_ids(core: Core, queue: str, ids: Sequence[str]) -> None:
    """Remove ids without a job from the directory; checked again afterwards, as one may be put meanwhile."""
    made_up = [id for id in dict.fromkeys(ids) if queue_of(id) is None]
    vacant = [id for id in made_up if await _is_vacant(core, queue, id)]
    if not vacant:
        return
    await core.calls([script("id_directory", core.keys.directory(id), "free", id, queue) for id in vacant])
    for id in vacant:
        if not await _is_vacant(core, queue, id):
            await core.call(script("id_directory", core.keys.directory(id), "claim", id, queue))


async def _is_vacant(core: Core, queue: str, id: str) -> bool:
    state, _, waited_for = await core.call(core.on_queue("job_states", queue, 0, id))
    return not state and not waited_for


class _Message(NamedTuple):
    """A message of an outbox: a dependency of the dependant ended."""

    queue: str
    stored: bytes
    number: int
    ended: str
    dependant: str
    dependency: str
    hint: str
    """Orders the messages that one call caused in several queues."""


async def forward(
    core: Core, queues: Sequence[str], now: int | None, limit: int = FORWARD_STEP, order: Sequence[str] = ()
) -> int:
    """Deliver the messages of outboxes, and those that result, in order. `sweep` delivers the rest."""
    sent = 0
    while queues and sent < limit:
        messages = await _read_messages(core, queues, limit - sent, order)
        more = await _deliver(core, messages, now)
        delivered: dict[str, list[bytes]] = {}
        for message in messages:
            delivered.setdefault(core.keys.queue(message.queue) + "out", []).append(message.stored)
        await core.calls([command(key, "ZREM", key, *texts) for key, texts in delivered.items()])
        sent += len(messages)
        order = [message.dependant for message in messages]
        queues = [*dict.fromkeys([*(message.queue for message in messages), *more])]
    core.backlog = [*dict.fromkeys([*core.backlog, *queues])] if sent >= limit else core.backlog
    return sent


async def _read_messages(
    core: Core, queues: Sequence[str], limit: int, order: Sequence[str]
) -> list[_Message]:
    keys = [core.keys.queue(queue) + "out" for queue in queues]
    most = min(PAGE, limit) - 1
    replies = await core.calls([command(key, "ZRANGE", key, 0, most) for key in keys])
    messages = []
    for queue, texts in zip(queues, replies, strict=True):
        for text in texts:
            number, *rest = text.decode().split("\n")
            messages.append(_Message(queue, text, int(number), *rest))
    rank = {id: place for place, id in reversed(list(enumerate(order)))}
    messages.sort(key=lambda message: (rank.get(message.dependency, -1), message.hint))
    return messages[:limit]


async def _deliver(core: Core, messages: Sequence[_Message], now: int | None) -> list[str]:
    """Deliver messages, in order per queue; returns the queues whose outboxes have messages now."""
    parts: dict[str, list[str]] = {}
    places = await locate(core, {message.dependant for message in messages})
    for message in messages:
        if message.dependant in places:
            args = parts.setdefault(places[message.dependant], [])
            args += (message.dependant, message.dependency, message.ended)
    calls = [core.on_queue("deliver", queue, now, *args) for queue, args in parts.items()]
    left = [(queue, reply[1]) for queue, reply in zip(parts, await core.calls(calls), strict=True)]
    await clean_up(core, left)
    return [queue for queue, aftermath in left if aftermath[0]]
