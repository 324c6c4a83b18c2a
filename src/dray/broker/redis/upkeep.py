"""`sweep`: bounded steps; each kind of work has its own limit."""

from __future__ import annotations

from collections.abc import Sequence

from dray.broker.redis.accepting import finish_intents
from dray.broker.redis.core import Core
from dray.broker.redis.crossing import follow, forward
from dray.broker.redis.router import command
from dray.broker.redis.sessions import bring_to_end, release
from dray.broker.verbs import Swept


async def sweep(core: Core, limit: int, lapse: bool, now: int | None) -> Swept:
    queues = await core.queues()
    forwarded = await forward(core, queues, now, limit)
    promoted = [await _sweep_queue(core, name, "promote", limit, now) for name in queues]
    lapsed, freed, repaired = await _lapse(core, limit, lapse, now)
    expired = await _shared(core, queues, "expire", limit, now)
    pruned = await _shared(core, queues, "prune", limit, now)
    await core.call(core.on_own("doc_sweep", now, limit))
    repaired += await finish_intents(core, now)
    await forward(core, queues, now, limit)
    full = max([forwarded, lapsed, freed, expired, pruned, *promoted]) >= limit
    more = full or await _posted(core, queues)
    return Swept(forwarded, sum(promoted), lapsed, freed, expired, pruned, repaired, more)


async def _sweep_queue(core: Core, queue: str, kind: str, limit: int, now: int | None) -> int:
    done, aftermath = await core.call(core.on_queue("sweep", queue, now, kind, limit))
    await follow(core, queue, aftermath, now)
    return int(done)


async def _shared(core: Core, queues: Sequence[str], kind: str, limit: int, now: int | None) -> int:
    """One limit for all queues; a queue that gets nothing of it is seen to as well: other things run out there."""
    done = 0
    for queue in queues:
        done += await _sweep_queue(core, queue, kind, limit - done, now)
    return done


async def _lapse(core: Core, limit: int, lapse: bool, now: int | None) -> tuple[int, int, int]:
    """Free what lapsed sessions held, and finish what others began to free."""
    late, moved, ending = await core.call(core.on_own("session_late", now))
    for name, epoch, lease, expires, queues in moved:
        calls = [
            core.on_queue("renew_lease", queue.decode(), now, name, epoch, lease, expires) for queue in queues
        ]
        await core.calls(calls)
    repaired = 0
    for name, epoch, suspect, queues in ending:
        repaired += await bring_to_end(core, name.decode(), int(epoch), queues, now, suspect == b"1")
    lapsed = freed = 0
    while lapse and lapsed < len(late[:limit]) and freed < limit:
        held = await release(core, late[lapsed].decode(), now, late=True)
        freed += held or 0
        lapsed += 1
    return lapsed, freed, repaired


async def _posted(core: Core, queues: Sequence[str]) -> bool:
    keys = [core.keys.queue(name) + "out" for name in queues]
    return any(await core.calls([command(key, "EXISTS", key) for key in keys]))
