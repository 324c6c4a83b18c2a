"""The log and the mailbox of durable jobs, and counts of the nodes of a flow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast

from dray.broker.checks import check_log_size
from dray.broker.durable import (
    MAILBOX_MAX,
    MEMO_BYTES_MAX,
    MEMOS_MAX,
    MESSAGE_IDS_MAX,
    RECALL_BYTES,
    MemoWrite,
    Message,
    Sent,
)
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_NAME, to_json
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.outbox import follow_up, locate
from dray.broker.redis.router import Arg, command
from dray.job import State, Verdict

_VERDICTS: Final = {verdict.value.encode(): verdict for verdict in Verdict}


async def memo(core: Core, session: str, writes: Sequence[MemoWrite], now: int | None) -> list[Verdict]:
    places = await locate(core, {write.id for write in writes}, held=True)
    parts: dict[str, list[int]] = {}
    for index, write in enumerate(writes):
        if write.id in places:
            parts.setdefault(places[write.id], []).append(index)
    calls = []
    for queue, part in parts.items():
        args: list[Arg] = [session, MEMOS_MAX, MEMO_BYTES_MAX]
        for index in part:
            args += _write_args(queue, writes[index])
        calls.append(core.on_queue("memo", queue, now, *args))
    verdicts = [Verdict.REFUSED] * len(writes)
    for (queue, part), reply in zip(parts.items(), await core.calls(calls), strict=True):
        if reply[0] == b"large":
            check_log_size(public_id(reply[1], queue), reply[2], reply[3])
        for index, verdict in zip(part, reply[0], strict=True):
            verdicts[index] = _VERDICTS[verdict]
    return verdicts


def _write_args(queue: str, write: MemoWrite) -> list[Arg]:
    beside = {
        "children": [stored_id(child, queue).decode() for child in write.children],
        "undo": write.undo,
        "consumed": write.consumed,
    }
    given = {name: value for name, value in beside.items() if value is not None and value not in ({}, [])}
    id = stored_id(write.id, queue)
    return [id, write.run, write.position, to_json(given), len(write.entries), *write.entries]


async def recall(core: Core, id: str, position: int, limit: int) -> list[bytes]:
    """A page of the log: at least one entry, if there is one."""
    queue = (await locate(core, [id])).get(id)
    if queue is None:
        return []
    key = f"{core.keys.queue(queue)}log:{stored_id(id, queue).decode()}"
    page, size = list[bytes](), 0
    for entry in await core.call(command(key, "LRANGE", key, position, position + limit - 1)):
        page.append(entry)
        size += len(entry)
        if size >= RECALL_BYTES:
            break
    return page


async def send(core: Core, id: str, name: str, message: str, body: bytes, now: int | None) -> Sent:
    queue = (await locate(core, [id])).get(id)
    if queue is None:
        return Sent("not_found", State.NOT_FOUND)
    args = (stored_id(id, queue), name, message, body, MAILBOX_MAX, MESSAGE_IDS_MAX)
    verdict, state, aftermath = await core.call(core.on_queue("send", queue, now, *args))
    await follow_up(core, queue, aftermath, now)
    named = cast('Literal["accepted", "already", "finished", "not_found", "full"]', verdict.decode())
    return Sent(named, BY_NAME[state])


async def mailbox(core: Core, id: str, name: str, after: int, limit: int) -> list[Message]:
    queue = (await locate(core, [id])).get(id)
    if queue is None:
        return []
    found = await core.call(core.on_queue("mailbox", queue, 0, stored_id(id, queue), name, after, limit))
    return [
        Message(number, message.decode(), body)
        for number, message, body in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


async def tally(core: Core, owner: str, queues: Sequence[str]) -> dict[State, int]:
    """The nodes of a flow in these queues, by state."""
    keys = [f"{core.keys.queue(queue)}flow:{owner}" for queue in dict.fromkeys(queues)]
    counts: dict[State, int] = {}
    for reply in await core.calls([command(key, "HGETALL", key) for key in keys]):
        for state, number in zip(reply[::2], reply[1::2], strict=True):
            counts[BY_NAME[state]] = counts.get(BY_NAME[state], 0) + int(number)
    return {state: counts[state] for state in State if state in counts}
