"""Frees lapsed sessions, buries expired jobs, prunes old records."""

from __future__ import annotations

from dray.broker.checks import FEED_KEPT, FREE_STEP
from dray.broker.interest import CONFIRM_WITHIN
from dray.broker.memory.store import JobStore
from dray.broker.rules import NOT_STARTED, look_again_at, why_too_late


class Upkeep:
    """The part of the broker behind `sweep`."""

    _store: JobStore

    def _mind_the_clock(self, now: int) -> None:
        """After the clock went back no lease ends later than if it had been renewed just now."""
        for session in self._store.sessions.values():
            session.expires = min(session.expires, now + session.lease)

    def _withdraw(self, now: int, limit: int) -> int:
        """End runs that were handed over and not confirmed: their sessions may be frozen."""
        store = self._store
        for session in store.sessions.values():  # as if handed over just now, if the clock went back
            session.handed = {ref: min(at, now) for ref, at in session.handed.items()}
        late = [
            (at, store.jobs[id].number, id, run)
            for session in store.sessions.values()
            for (id, run), at in session.handed.items()
            if now >= at + CONFIRM_WITHIN
        ]
        for _, _, id, run in sorted(late)[:limit]:
            session = store.sessions[store.jobs[id].runs[run].session]
            store.crash(store.jobs[id], run, now, suspect=False)
            session.void[id, run] = None
        return len(late[:limit])

    def _lapse(self, now: int, limit: int) -> tuple[int, dict[str, int]]:
        """Free what sessions past their lease held; how many sessions ended, how many runs of each are free.

        One that holds more than a step may free ends in a later step, and hears of what it lost if it lives.
        """
        store, lapsed, freed = self._store, 0, 0
        freed_by: dict[str, int] = {}
        late = [name for name, session in store.sessions.items() if now >= session.expires]
        for name in late[:limit]:
            session = store.sessions[name]
            for id, run in store.held(session)[: max(limit - freed, FREE_STEP)]:
                store.crash(store.jobs[id], run, now)
                session.void[id, run] = None
                freed += 1
                freed_by[name] = freed_by.get(name, 0) + 1
            if session.holds:
                break
            del store.sessions[name]
            lapsed += 1
            if freed >= limit:
                break
        return lapsed, freed_by

    def _expire(self, now: int, limit: int) -> int:
        """Bury jobs past their ttl or deadline, the longest overdue first. A run that is held goes on."""
        late = [
            (min(at for at in (entry.expires, entry.deadline) if at is not None), entry.number, reason, entry)
            for entry in self._store.jobs.values()
            if entry.state in NOT_STARTED
            and (reason := why_too_late(entry.expires, entry.deadline, now)) is not None
        ]
        for _, _, reason, entry in sorted(late)[:limit]:
            self._store.bury(entry, now, reason)
        return len(late[:limit])

    def _prune(self, now: int, limit: int) -> tuple[int, int]:
        """Forget finished jobs past their retention, and what has run out: documents, keys, rates.

        How many jobs were forgotten, and how many were looked at: those of an owner that lives are kept.
        """
        store, pruned, looked = self._store, 0, 0
        for _, queue in sorted(store.queues.items()):
            for id in queue.ended.until(now, limit - looked):
                entry = store.jobs[id]
                owner = store.jobs.get(entry.job.owner or "")
                looked += 1
                if owner is not None and not owner.state.finished:
                    queue.ended.remove(id)
                    queue.ended.add(look_again_at(entry.finished or 0, now), entry.number, id)
                else:
                    store.forget(entry, now)
                    pruned += 1
            queue.line.forget_rates(now)
        for key in [key for key, doc in store.docs.items() if doc.expires is not None and now >= doc.expires]:
            del store.docs[key]
        for name in [name for name, (_, until) in store.keys.items() if until is not None and now >= until]:
            del store.keys[name]
        store.drop_mail(now)
        self._drop_feeds(now)
        return pruned, looked

    def _drop_feeds(self, now: int) -> None:
        """Drop old feeds of queues without jobs. A reader that comes back finds a gap."""
        idle = [q for q in self._store.queues.values() if q.feed and now >= q.feed[-1].at + FEED_KEPT]
        in_use = {entry.job.queue for entry in self._store.jobs.values()} if idle else set()
        for queue in idle:
            if queue.name not in in_use:
                queue.feed.clear()
                queue.entries += 1  # a number that no reader has seen
