"""What `sweep` puts right after somebody died between two steps in different slots.

- A queue that still knows a session which the namespace has ended: what it holds there is freed. One whose
  copy of a lease is out of date gets the new one.
- A job that waits for one that has ended, or that does not know of it: it is told, or registered again.

In a sound store there is nothing to do; a sweep looks at a few waiting jobs of each queue, in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.crossing import locate
from dray.broker.redis.router import Arg
from dray.broker.redis.rows import BY_BYTE

LOOK = 100
"""How many waiting jobs of a queue one sweep looks at."""


class Mending:
    """One sweep's look at what may be unfinished."""

    def __init__(self, core: Core, now: int | None) -> None:
        self.core, self.now = core, now
        self.left: list[tuple[str, Any]] = []
        self.mended = 0

    async def look(self, queues: Sequence[str]) -> int:
        starts = [self.core.looked_at.get(name, 0) for name in queues]
        calls = [
            self.core.on_queue("doubtful", name, self.now, start, LOOK)
            for name, start in zip(queues, starts, strict=True)
        ]
        replies = await self.core.calls(calls)
        for name, start, (late, waiting) in zip(queues, starts, replies, strict=True):
            for session, epoch in zip(late[::2], late[1::2], strict=True):
                await self._session(name, session.decode(), int(epoch))
            self.core.looked_at[name] = start + LOOK if len(waiting) == LOOK else 0
            for id, *dependencies in waiting:
                await self._waiting(name, id.decode(), [word.decode() for word in dependencies])
        return self.mended

    async def _session(self, queue: str, session: str, epoch: int) -> None:
        state, *facts = await self.core.call(self.core.on_own("session_enrol", self.now, session, ""))
        if state == b"unknown" or facts[0] > epoch:
            freed, aftermath = await self.core.call(
                self.core.on_queue("release", queue, self.now, session, epoch, 1)
            )
            self.left.append((queue, aftermath))
            self.mended += 1 + freed
        elif state == b"ok":
            lease = (session, epoch, facts[1], facts[2])
            await self.core.call(self.core.on_queue("renew_lease", queue, self.now, *lease))

    async def _waiting(self, queue: str, id: str, dependencies: Sequence[str]) -> None:
        places = await locate(self.core, dependencies)
        for dependency, home in places.items():
            pair: tuple[Arg, Arg] = (dependency, id)
            letter, added = await self.core.call(self.core.on_queue("depend", home, 0, *pair))
            state = BY_BYTE[letter]
            self.mended += added
            if state.finished:
                call = self.core.on_queue("deliver", queue, self.now, id, dependency, str(state))
                effects, aftermath = await self.core.call(call)
                self.left.append((queue, aftermath))
                self.mended += effects
