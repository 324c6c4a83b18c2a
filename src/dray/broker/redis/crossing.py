"""What a step leaves to do in other slots. Every part may be repeated: nothing happens twice.

A script ends with its *aftermath*: whether it left word in the queue's outbox, which jobs do not wait any more
for which others, and which ids are gone. If we die before that is done, `sweep` delivers the outbox; what else is
left behind (a dependant that does not wait any more, a directory entry without a job) is harmless.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.router import Call, command, script
from dray.broker.verbs import FORWARD_STEP
from dray.errors import BrokerError
from dray.job import queue_of

PAGE = 500


async def locate(core: Core, ids: Iterable[str]) -> dict[str, str]:
    """The queue of each id, as far as it is known. A generated id names it; others are in the directory."""
    found: dict[str, str] = {}
    asked: dict[str, list[str]] = {}
    for id in ids:
        queue = queue_of(id) or core.taken_from.get(id)
        if queue is not None:
            found[id] = queue
        else:
            asked.setdefault(core.keys.directory(id), []).append(id)
    replies = await core.calls([command(key, "HMGET", key, *names) for key, names in asked.items()])
    for names, queues in zip(asked.values(), replies, strict=True):
        found |= {id: queue.decode() for id, queue in zip(names, queues, strict=True) if queue is not None}
    return found


async def follow(core: Core, queue: str, aftermath: Sequence[Any], now: int | None) -> None:
    """Do what a step left to do. What it did itself must not fail for that."""
    posted, forgotten, gone = aftermath
    if not (posted or forgotten or gone):
        return
    with contextlib.suppress(BrokerError):
        await _tidy(core, queue, forgotten, gone)
        if posted:
            await forward(core, [queue], now)


async def _tidy(core: Core, queue: str, forgotten: Sequence[bytes], gone: Sequence[bytes]) -> None:
    if forgotten:
        pairs = [name.decode() for name in forgotten]
        await undepend(core, list(zip(pairs[::2], pairs[1::2], strict=True)))
    if gone:
        await free(core, queue, [id.decode() for id in gone])


async def undepend(core: Core, pairs: Sequence[tuple[str, str]]) -> None:
    """Take (dependency, dependant) pairs apart."""
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


async def forward(core: Core, queues: Sequence[str], now: int | None, limit: int = FORWARD_STEP) -> int:
    """Deliver word from outboxes, and what that leads to. `sweep` does what is left."""
    sent, work = 0, list(queues)
    while work and sent < limit:
        queue = work.pop(0)
        key = core.keys.queue(queue) + "out"
        messages = await core.call(command(key, "ZRANGE", key, 0, min(PAGE, limit - sent) - 1))
        if not messages:
            continue
        work += await _deliver(core, messages, now)
        await core.call(command(key, "ZREM", key, *messages))
        sent += len(messages)
        work.append(queue)
    return sent


async def _deliver(core: Core, messages: Sequence[bytes], now: int | None) -> list[str]:
    """Deliver messages, in order per queue; the queues whose outboxes have word now."""
    parts: dict[str, list[str]] = {}
    parsed = [message.decode().split("\n") for message in messages]
    places = await locate(core, {dependant for _, _, dependant, _ in parsed})
    for _, ended, dependant, dependency in parsed:
        if dependant in places:
            parts.setdefault(places[dependant], []).extend((dependant, dependency, ended))
    replies = await core.calls([_delivery(core, queue, args, now) for queue, args in parts.items()])
    posted = []
    for queue, (_, aftermath) in zip(parts, replies, strict=True):
        await _tidy(core, queue, aftermath[1], aftermath[2])
        if aftermath[0]:
            posted.append(queue)
    return posted


def _delivery(core: Core, queue: str, args: Sequence[str], now: int | None) -> Call:
    return core.on_queue("deliver", queue, now, *args)
