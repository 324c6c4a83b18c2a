"""`sweep`: bounded steps; each kind of work has its own limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from dray.broker.checks import FREE_STEP
from dray.broker.redis.accepting import finish_intents
from dray.broker.redis.core import Core
from dray.broker.redis.crossing import follow_all, forward, tidy
from dray.broker.redis.mending import Mending
from dray.broker.redis.router import command
from dray.broker.redis.sessions import bring_to_end
from dray.broker.verbs import Swept


class _Sweep:
    """One sweep. Word is delivered in the end, as all of it is one step."""

    def __init__(self, core: Core, queues: Sequence[str], limit: int, now: int | None) -> None:
        self.core, self.queues, self.limit, self.now = core, queues, limit, now
        self.left: list[tuple[str, Any]] = []

    async def queue(self, name: str, kind: str, limit: int) -> int:
        call = self.core.on_queue("sweep", name, self.now, kind, limit)
        done, aftermath = await self.core.call(call)
        self.left.append((name, aftermath))
        return int(done)

    async def expire(self) -> int:
        """The longest overdue first, whatever queue they are in."""
        at, keys = self.core.time(self.now), [self.core.keys.queue(name) + "ttl" for name in self.queues]
        late = ("-inf", at, "WITHSCORES", "LIMIT", 0, self.limit)
        replies = await self.core.calls([command(key, "ZRANGEBYSCORE", key, *late) for key in keys])
        overdue = sorted(
            (float(at), text[:16], name)
            for name, reply in zip(self.queues, replies, strict=True)
            for text, at in zip(reply[::2], reply[1::2], strict=True)
        )
        shares = Counter(name for _, _, name in overdue[: self.limit])
        return sum([await self.queue(name, "expire", share) for name, share in sorted(shares.items())])

    async def prune(self) -> int:
        """One limit for all queues; one that gets nothing of it is seen to as well: other things run out."""
        done = 0
        for name in self.queues:
            done += await self.queue(name, "prune", self.limit - done)
        return done

    async def lapse(self, judge: bool) -> tuple[int, int]:
        """Free what lapsed sessions held, and finish what others began to free; how many of both."""
        core, now = self.core, self.now
        late, moved, ending = await core.call(core.on_own("session_late", now))
        for name, epoch, lease, expires, queues in moved:
            args = (name, epoch, lease, expires)
            await core.calls([core.on_queue("renew_lease", queue.decode(), now, *args) for queue in queues])
        freed = 0
        for name, epoch, suspect, queues in ending:
            if freed < self.limit:
                freed += await self._end(
                    name.decode(), int(epoch), queues, self.limit - freed, suspect == b"1"
                )
        lapsed = 0
        while judge and lapsed < len(late[: self.limit]) and freed < self.limit:
            name = late[lapsed].decode()
            core.requests.pop(name, None)
            epoch, queues = await core.call(core.on_own("session_end", now, name, 1, 1))
            if epoch:
                freed += await self._end(name, epoch, queues, self.limit - freed, True)
            lapsed += 1
        return lapsed, freed

    async def _end(self, name: str, epoch: int, queues: Sequence[bytes], room: int, suspect: bool) -> int:
        """Free a step's worth of what an ended session held; if it held more, the next sweep goes on."""
        limit = max(room, FREE_STEP)
        keys = [f"{self.core.keys.queue(queue.decode())}h:{name}" for queue in queues]
        held = await self.core.calls([command(key, "SCARD", key) for key in keys])
        if sum(held) <= limit:
            freed, left = await bring_to_end(self.core, name, epoch, queues, self.now, suspect)
            self.left += left
            return freed
        freed = 0
        for queue, count in zip(queues, held, strict=True):
            share = min(count, limit - freed)
            if share:
                args = (name, epoch, int(suspect), share)
                call = self.core.on_queue("free", queue.decode(), self.now, *args)
                done, aftermath = await self.core.call(call)
                self.left.append((queue.decode(), aftermath))
                freed += done
        return freed


async def sweep(core: Core, limit: int, lapse: bool, now: int | None) -> Swept:
    queues = await core.queues()
    mending = Mending(core, now)
    repairs = await mending.look(queues)
    await follow_all(core, mending.left, now)
    forwarded = await forward(core, queues, now, limit)
    step = _Sweep(core, queues, limit, now)
    promoted = [await step.queue(name, "promote", limit) for name in queues]
    lapsed, freed = await step.lapse(lapse)
    freed += mending.freed
    expired = await step.expire()
    pruned = await step.prune()
    await core.call(core.on_own("doc_sweep", now, limit))
    if intents := await finish_intents(core, now):
        repairs["intent"] = intents
    await tidy(core, step.left)
    await forward(core, queues, now, limit)
    full = max([forwarded, lapsed, freed, expired, pruned, *promoted]) >= limit
    more = full or await _posted(core, queues)
    return Swept(forwarded, sum(promoted), lapsed, freed, expired, pruned, repairs, more)


async def _posted(core: Core, queues: Sequence[str]) -> bool:
    keys = [core.keys.queue(name) + "out" for name in queues]
    return any(await core.calls([command(key, "EXISTS", key) for key in keys]))
