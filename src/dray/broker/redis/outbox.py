"""Follow-up work in other cluster slots; every function may be repeated without effect.

A script ends with its *aftermath*: a flag for messages in the queue's outbox, (dependency, dependant) pairs
to remove, and ids that are gone. If the client dies before that is done, `sweep` delivers the outbox; other
remains (a dependant that no longer waits, a directory entry without a job) are harmless.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_NAME
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.router import Arg, command, script
from dray.broker.verbs import FORWARD_STEP
from dray.errors import BrokerError
from dray.job import FINISHED, State, queue_of

Pair = tuple[str, str]
"""A dependency, and its dependant."""
UNFINISHED: Final = frozenset(State) - FINISHED - {State.NOT_FOUND}
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


async def read_states(core: Core, ids: Iterable[str]) -> dict[str, State]:
    """The states of jobs, without those that do not exist."""
    places = await locate(core, ids)
    replies = await core.calls(
        [core.on_queue("job_states", queue, 0, stored_id(id, queue)) for id, queue in places.items()]
    )
    return {id: BY_NAME[reply[0]] for id, reply in zip(places, replies, strict=True) if reply[0]}


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
    if not core.backlog and not [aftermath for _, aftermath in left if any(aftermath)]:
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
            names = [public_id(name, queue) for name in forgotten]
            await remove_dependants(core, list(zip(names[::2], names[1::2], strict=True)))
        if gone:
            await free_ids(core, queue, [public_id(id, queue) for id in gone])


async def add_dependants(
    core: Core, pairs: Sequence[Pair], known: Mapping[str, str], *, any_end: bool = False
) -> dict[Pair, tuple[State, int]]:
    """Register (dependency, dependant) pairs; per pair the state of the dependency, and how new the pair is.

    `known`: queues of ids that the directory may not have. `any_end`: only a dependency that has not ended is
    waited for. One whose queue is not known does not exist.
    """
    if not pairs:
        return {}
    places = {**known, **await locate(core, {dependency for dependency, _ in pairs})}
    parts: dict[str, list[Pair]] = {}
    for pair in pairs:
        parts.setdefault(places.get(pair[0], ""), []).append(pair)
    found = dict.fromkeys(parts.pop("", ()), (State.NOT_FOUND, 0))
    calls = []
    for queue, part in parts.items():
        ids = [stored_id(id, queue) for pair in part for id in pair]
        calls.append(core.on_queue("add_dependants", queue, 0, int(any_end), *ids))
    for part, reply in zip(parts.values(), await core.calls(calls), strict=True):
        for place, pair in enumerate(part):
            found[pair] = (BY_NAME[reply[2 * place]], reply[2 * place + 1])
    return found


async def take_back(core: Core, pairs: Mapping[Pair, int]) -> None:
    """Undo registrations; how new each was: 1 new, 2 remembered before, 0 there before."""
    await remove_dependants(core, [pair for pair, new in pairs.items() if new == 1], forget=True)
    await remove_dependants(core, [pair for pair, new in pairs.items() if new == 2])


async def remove_dependants(core: Core, pairs: Sequence[Pair], *, forget: bool = False) -> None:
    """Remove (dependency, dependant) pairs; a node remembers them, unless `forget` is set."""
    if not pairs:
        return
    places = await locate(core, {dependency for dependency, _ in pairs})
    parts: dict[str, list[bytes]] = {}
    for pair in pairs:
        queue = places.get(pair[0])
        if queue is not None:
            parts.setdefault(queue, []).extend(stored_id(id, queue) for id in pair)
    calls = [
        core.on_queue("remove_dependants", queue, 0, int(forget), *args) for queue, args in parts.items()
    ]
    for queue, gone in zip(parts, await core.calls(calls), strict=True):
        await free_ids(core, queue, [public_id(id, queue) for id in gone])


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
    state, _, waited_for = await core.call(core.on_queue("job_states", queue, 0, stored_id(id, queue)))
    return not state and not waited_for


class _Message(NamedTuple):
    """A message of an outbox (see lua/ends.lua)."""

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
            number, ended, dependant, dependency, hint = text.split(b"\n")
            waits, waited_for = public_id(dependant, queue), public_id(dependency, queue)
            message = _Message(queue, text, int(number), ended.decode(), waits, waited_for, hint.decode())
            messages.append(message)
    rank = {id: place for place, id in reversed(list(enumerate(order)))}
    messages.sort(key=lambda message: (rank.get(message.dependency, -1), message.hint))
    return messages[:limit]


async def _deliver(core: Core, messages: Sequence[_Message], now: int | None) -> list[str]:
    """Deliver messages, in order per queue; returns the queues whose outboxes have messages now."""
    parts: dict[str, list[Arg]] = {}
    places = await locate(core, {message.dependant for message in messages})
    for message in messages:
        queue = places.get(message.dependant)
        if queue is not None:
            ids = (stored_id(id, queue) for id in (message.dependant, message.dependency))
            parts.setdefault(queue, []).extend((*ids, message.ended, f"{message.queue} {message.number}"))
    calls = [core.on_queue("deliver", queue, now, *args) for queue, args in parts.items()]
    replies = await core.calls(calls)
    left = [(queue, reply[1]) for queue, reply in zip(parts, replies, strict=True)]
    await clean_up(core, left)
    for queue, (_, _, revived) in zip(parts, replies, strict=True):
        left += await _wait_again(core, queue, [public_id(id, queue) for id in revived], now)
    return [*dict.fromkeys(queue for queue, aftermath in left if aftermath[0])]


async def _wait_again(
    core: Core, queue: str, ids: Sequence[str], now: int | None
) -> list[tuple[str, Sequence[Any]]]:
    """Register jobs that were revived with those they wait for; ends of these are delivered at once."""
    pairs = list(zip(ids[::2], ids[1::2], strict=True))
    states = await add_dependants(core, pairs, {})
    ended = [(pair, state) for pair, (state, _) in states.items() if state not in UNFINISHED]
    return await deliver_ends(core, queue, ended, now)


async def deliver_ends(
    core: Core, queue: str, ended: Sequence[tuple[Pair, State]], now: int | None
) -> list[tuple[str, Sequence[Any]]]:
    """Deliver ends (of a dependency, to a dependant of this queue) that no message tells; the aftermath."""
    if not ended:
        return []
    args: list[Arg] = []
    for (dependency, dependant), state in ended:
        args += (stored_id(dependant, queue), stored_id(dependency, queue), str(state), "")
    _, aftermath, _ = await core.call(core.on_queue("deliver", queue, now, *args))
    await clean_up(core, [(queue, aftermath)])
    return [(queue, aftermath)]
