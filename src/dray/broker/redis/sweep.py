"""`sweep`: one bounded step of each kind of upkeep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from dray.broker.checks import FEED_KEPT, FREE_STEP
from dray.broker.interest import CONFIRM_WITHIN
from dray.broker.redis.core import Core
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.outbox import UNFINISHED, clean_up, follow_up_all, forward, read_states
from dray.broker.redis.put import finish_intents
from dray.broker.redis.repair import Repair
from dray.broker.redis.router import Arg, command
from dray.broker.redis.sessions import bring_to_end
from dray.broker.repairs import found
from dray.broker.verbs import Swept

QUEUES: Final = 200
"""Queues that one sweep visits; the next one goes on with the others. Nothing waits for it: `take` makes due
jobs ready, and leases end where the namespace keeps them."""
QUEUE_KEPT: Final = 60 * 60_000
"""Milliseconds after its newest feed entry for which the counters of an empty queue are kept."""


class _Sweep:
    """One sweep. Its messages are delivered at the end."""

    def __init__(self, core: Core, queues: Sequence[str], limit: int, now: int | None) -> None:
        self.core, self.queues, self.limit, self.now = core, queues, limit, now
        self.left: list[tuple[str, Any]] = []
        self.freed_by: dict[str, int] = {}
        self.idle: dict[str, int] = {}
        """Queues that may be forgotten, with the newest numbers of their feeds."""
        self.owned: dict[str, list[tuple[str, str]]] = {}
        """Per queue, finished jobs past their retention, and their owners."""

    async def queue(self, name: str, kind: str, limit: int, args: Sequence[Arg] = ()) -> int:
        args = (kind, limit, FEED_KEPT, QUEUE_KEPT, CONFIRM_WITHIN, *args)
        done, aftermath, newest, owned = await self.core.call(
            self.core.on_queue("sweep", name, self.now, *args)
        )
        self.left.append((name, aftermath))
        if newest:
            self.idle[name] = newest
        if owned:
            self.owned[name] = [(public_id(id, name), owner.decode()) for id, owner in _pairs(owned)]
        return int(done)

    async def withdraw(self) -> int:
        """End runs that were handed over and not confirmed."""
        keys = [self.core.keys.queue(name) + "handed" for name in self.queues]
        found = await self.core.calls([command(key, "EXISTS", key) for key in keys])
        handing = [name for name, exists in zip(self.queues, found, strict=True) if exists]
        return sum([await self.queue(name, "withdraw", self.limit) for name in handing])

    async def expire(self) -> int:
        """Bury jobs past their ttl or deadline, the longest overdue of all queues first."""
        places = [(name, index) for name in self.queues for index in ("ttl", "deadline")]
        keys = [self.core.keys.queue(name) + index for name, index in places]
        late = ("-inf", self.core.time(self.now), "WITHSCORES", "LIMIT", 0, self.limit)
        replies = await self.core.calls([command(key, "ZRANGEBYSCORE", key, *late) for key in keys])
        since: dict[tuple[str, bytes], float] = {}
        for (name, _), reply in zip(places, replies, strict=True):
            for member, score in zip(reply[::2], reply[1::2], strict=True):
                since[name, member] = min(since.get((name, member), math.inf), float(score))
        overdue = sorted((at, member[:16], name) for (name, member), at in since.items())
        shares = Counter(name for _, _, name in overdue[: self.limit])
        return sum([await self.queue(name, "expire", share) for name, share in sorted(shares.items())])

    async def prune(self) -> tuple[int, int]:
        """Delete old records, with one limit for all queues; other expired data goes in every queue.

        How many jobs were deleted, and how many were looked at: those of an owner that lives are kept.
        """
        looked = 0
        for name in self.queues:
            looked += await self.queue(name, "prune", self.limit - looked)
        kept = sum(map(len, self.owned.values()))
        return looked - kept + await self._prune_owned(), looked

    async def _prune_owned(self) -> int:
        """Delete jobs whose owner has ended or is gone; look again later at the others."""
        owners = {owner for jobs in self.owned.values() for _, owner in jobs}
        states = await read_states(self.core, owners) if owners else {}
        done = 0
        for name, jobs in self.owned.items():
            args: list[Arg] = []
            for id, owner in jobs:
                args += (stored_id(id, name), int(states.get(owner) in UNFINISHED))
            done += await self.queue(name, "owned", 0, args)
        return done

    async def lapse(self, judge: bool) -> tuple[int, int]:
        """End late sessions, and finish ends that others began; returns the numbers of sessions and runs."""
        core, now = self.core, self.now
        late, moved, ending = await core.call(core.on_own("session_lapsed", now))
        for name, epoch, lease, queues in moved:
            args = (name, epoch, lease)
            await core.calls([core.on_queue("copy_lease", queue.decode(), now, *args) for queue in queues])
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
        """Free a bounded number of the runs of an ended session; the next sweep goes on."""
        limit = max(room, FREE_STEP)
        keys = [f"{self.core.keys.queue(queue.decode())}h:{name}" for queue in queues]
        held = await self.core.calls([command(key, "SCARD", key) for key in keys])
        if sum(held) <= limit:
            freed, left = await bring_to_end(self.core, name, epoch, queues, self.now, suspect)
            self.left += left
            return self._freed(name, freed)
        freed = 0
        for queue, count in zip(queues, held, strict=True):
            share = min(count, limit - freed)
            if share:
                args = (name, epoch, int(suspect), share)
                call = self.core.on_queue("release", queue.decode(), self.now, *args)
                done, aftermath = await self.core.call(call)
                self.left.append((queue.decode(), aftermath))
                freed += done
        return self._freed(name, freed)

    def _freed(self, session: str, count: int) -> int:
        if count:
            self.freed_by[session] = self.freed_by.get(session, 0) + count
        return count


async def sweep(core: Core, limit: int, lapse: bool, now: int | None) -> Swept:
    all = await core.queues()
    queues = core.next_queues("/sweep", all, QUEUES)
    repair = Repair(core, now)
    await repair.run(all, queues)
    await follow_up_all(core, repair.left, now)
    forwarded = await forward(core, queues, now, limit)
    step = _Sweep(core, queues, limit, now)
    promoted = [await step.queue(name, "promote", limit) for name in queues]
    withdrawn = await step.withdraw() if lapse else 0
    lapsed, freed = await step.lapse(lapse)
    freed += repair.freed
    expired = await step.expire()
    pruned, looked = await step.prune()
    await core.call(core.on_own("doc_sweep", now, limit))
    repair.finished["intent"] += await finish_intents(core, now)
    await clean_up(core, step.left)
    await _forget_queues(core, step.idle, now)
    touched = list(dict.fromkeys([*queues, *(name for name, _ in step.left)]))
    await forward(core, touched, now, limit)
    full = max([forwarded, withdrawn, lapsed, freed, expired, looked, *promoted]) >= limit
    more = full or await _posted(core, touched)
    repairs, finished = found(repair.repairs), found(repair.finished)
    done = (forwarded, sum(promoted), lapsed, freed, expired, pruned)
    return Swept(*done, repairs, more, step.freed_by, finished, withdrawn)


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))


async def _forget_queues(core: Core, idle: dict[str, int], now: int | None) -> None:
    """Forget queues that were empty and unused for long; also those that a dead sweeper began to forget.

    The counters of a queue say that it is listed. They go first, so that the next put lists it again; the
    counters are checked once more afterwards, because a put may have come before the queue was unlisted.
    """
    listed, leaving = core.keys.own + "queues", core.keys.own + "leaving"
    begun = [name.decode() for name in await core.call(command(leaving, "SMEMBERS", leaving))]
    for name in [*begun, *(one for one in idle if one not in begun)]:
        counters = core.keys.queue(name) + "n"
        if name in idle:
            await core.call(core.on_own("forget_queue_name", now, "begin", name, idle[name]))
        if await core.call(core.on_queue("forget_queue_counters", name, now)):
            await core.call(core.on_own("forget_queue_name", now, "unlist", name))
        if await core.call(command(counters, "EXISTS", counters)):
            await core.call(command(listed, "SADD", listed, name))
        await core.call(command(leaving, "SREM", leaving, name))


async def _posted(core: Core, queues: Sequence[str]) -> bool:
    keys = [core.keys.queue(name) + "out" for name in queues]
    return any(await core.calls([command(key, "EXISTS", key) for key in keys]))
