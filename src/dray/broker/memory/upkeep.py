"""What `sweep` clears away."""

from __future__ import annotations

from dray.broker.checks import FREE_STEP
from dray.broker.memory.world import World


class Upkeep:
    """The part of the broker behind `sweep`."""

    _world: World

    def _mind_the_clock(self, now: int) -> None:
        """After the clock went back no lease ends later than if it had been renewed just now."""
        for session in self._world.sessions.values():
            session.expires = min(session.expires, now + session.lease)

    def _lapse(self, now: int, limit: int) -> tuple[int, int]:
        """Free what sessions past their lease held; how many sessions ended, how many runs were freed.

        One that holds more than a step may free ends in a later step, and hears of what it lost if it lives.
        """
        world, lapsed, freed = self._world, 0, 0
        late = [name for name, session in world.sessions.items() if now >= session.expires]
        for name in late[:limit]:
            session = world.sessions[name]
            for id, run in world.held(session)[: max(limit - freed, FREE_STEP)]:
                world.crash(world.jobs[id], run, now)
                session.void[id, run] = None
                freed += 1
            if session.holds:
                break
            del world.sessions[name]
            lapsed += 1
            if freed >= limit:
                break
        return lapsed, freed

    def _expire(self, now: int, limit: int) -> int:
        late = [
            kept for kept in self._world.jobs.values() if kept.expires is not None and now >= kept.expires
        ]
        late.sort(key=lambda kept: (kept.expires, kept.number))
        for kept in late[:limit]:
            self._world.bury(kept, now, "expired: it was not started within its ttl")
        return len(late[:limit])

    def _prune(self, now: int, limit: int) -> int:
        """Forget finished jobs past their retention, and what has run out: documents, keys, rates."""
        world, pruned = self._world, 0
        for _, queue in sorted(world.queues.items()):
            for id in queue.ended.until(now, limit - pruned):
                world.forget(world.jobs[id], now)
                pruned += 1
            queue.line.forget_rates(now)
        for key in [key for key, doc in world.docs.items() if doc.expires is not None and now >= doc.expires]:
            del world.docs[key]
        for name in [name for name, (_, until) in world.keys.items() if until is not None and now >= until]:
            del world.keys[name]
        world.drop_mail(now)
        return pruned
