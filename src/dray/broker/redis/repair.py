"""What `sweep` puts right: what no script leaves behind, and what a client did that died between two slots.

Within a queue one script looks at the next stretch of everything and mends it (lua/mend.lua): it sees a state
that no other is in the middle of. What crosses slots may be under way at this very moment, so it is only
noted as a *doubt*; if it is still so in a sweep some seconds later, nobody is going to finish it.

- A queue that still knows a session which the namespace has ended: what it holds there is freed. One whose
  copy of a lease is out of date gets the new one.
- A job that waits for one that has ended, or that does not know of it; one that is told of an end though it
  does not wait.
- An id of the directory that leads to no job, and a job that its id does not lead to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dray.broker.checks import FREE_STEP
from dray.broker.redis.core import Core
from dray.broker.redis.crossing import free, locate
from dray.broker.redis.keys import BUCKETS
from dray.broker.redis.router import Arg, command, script
from dray.broker.redis.rows import BY_BYTE
from dray.broker.repairs import found
from dray.job import FINISHED, State, queue_of

LOOK: Final = 200
"""How many entries of each kind one sweep looks at in a queue."""
QUEUES: Final = 50
"""How many queues one sweep looks at; the next one goes on with the others."""
GRACE: Final = 5_000
"""For how many milliseconds what crosses slots may be under way."""
DOUBTS_MAX: Final = 1_000


class Doubt(NamedTuple):
    """Something that crosses slots and looks wrong."""

    kind: str
    id: str
    other: str
    """The dependency, or nothing."""
    queue: str


class Mending:
    """One sweep's look at what may be wrong."""

    def __init__(self, core: Core, now: int | None) -> None:
        self.core, self.now, self.at = core, now, core.time(now)
        self.left: list[tuple[str, Any]] = []
        self.repairs: Counter[str] = Counter()
        self.freed = 0
        """Runs of sessions that had ended: a late one took from a queue that its end had not reached."""

    async def look(self, queues: Sequence[str]) -> dict[str, int]:
        await self._resolve()
        for name in self._some(queues):
            await self._queue(name)
        await self._unfinished(queues)
        await self._directory()
        return found(self.repairs)

    def _some(self, queues: Sequence[str]) -> Sequence[str]:
        if len(queues) <= QUEUES:
            return queues
        start = self.core.looked_at.get("/queues", 0) % len(queues)
        self.core.looked_at["/queues"] = start + QUEUES
        return [*queues[start:], *queues[:start]][:QUEUES]

    # within a queue

    async def _queue(self, name: str) -> None:
        reply = await self.core.call(self.core.on_queue("mend", name, self.now, LOOK))
        repairs, made_up, edges, aftermath = reply
        self.left.append((name, aftermath))
        for kind, count in zip(repairs[::2], repairs[1::2], strict=True):
            self.repairs[kind.decode()] += count
        ids = [id.decode() for id in made_up]
        self._doubt(Doubt("lead", id, "", name) for id in await self._unled(ids, name))
        pairs = [word.decode() for word in edges]
        await self._look_at_edges(list(zip(pairs[::2], pairs[1::2], strict=True)), name)

    # between queues

    async def _unfinished(self, queues: Sequence[str]) -> None:
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
            await self._look_at_waits(waiting, name)

    async def _session(self, queue: str, session: str, epoch: int) -> None:
        state, *facts = await self.core.call(self.core.on_own("session_enrol", self.now, session, ""))
        if state == b"unknown" or facts[0] > epoch:
            key = f"{self.core.keys.queue(queue)}h:{session}"
            many = await self.core.call(command(key, "SCARD", key)) > FREE_STEP
            args: tuple[Arg, ...] = (session, epoch, 1, FREE_STEP) if many else (session, epoch, 1)
            call = self.core.on_queue("free" if many else "release", queue, self.now, *args)
            freed, aftermath = await self.core.call(call)
            self.left.append((queue, aftermath))
            self.freed += freed
        elif state == b"ok":
            lease = (session, epoch, facts[1], facts[2])
            await self.core.call(self.core.on_queue("renew_lease", queue, self.now, *lease))

    async def _look_at_waits(self, waiting: Sequence[Sequence[bytes]], queue: str) -> None:
        """Waiting jobs (id, orphan, dependencies) as their queue has them."""
        pairs = [(id.decode(), word.decode()) for id, _, *words in waiting for word in words]
        patient = {id.decode() for id, orphan, *_ in waiting if orphan == b"wait"}
        places = await locate(self.core, {dependency for _, dependency in pairs})
        parts: dict[str, list[tuple[str, str]]] = {}
        for dependant, dependency in pairs:
            if dependency in places:
                parts.setdefault(places[dependency], []).append((dependency, dependant))
        for home, part in parts.items():
            for (dependency, dependant), (state, told) in zip(
                part, await self._told(home, part), strict=True
            ):
                ended = state is State.SUCCEEDED or (dependant not in patient and state in FINISHED)
                if state is not None and (ended or not told):
                    self._doubt([Doubt("wait", dependant, dependency, queue)])

    async def _look_at_edges(self, pairs: Sequence[tuple[str, str]], home: str) -> None:
        """Pairs (dependency, dependant) as the dependency's queue has them."""
        places = await locate(self.core, {dependant for _, dependant in pairs})
        parts: dict[str, list[tuple[str, str]]] = {}
        for dependency, dependant in pairs:
            parts.setdefault(places.get(dependant, ""), []).append((dependant, dependency))
        for queue, part in parts.items():
            waits = await self._wait(queue, part)
            lost = [pair for pair, wait in zip(part, waits, strict=True) if not wait]
            self._doubt(Doubt("edge", dependant, dependency, home) for dependant, dependency in lost)

    async def _told(self, home: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[State | None, bool]]:
        args: list[Arg] = [word for pair in pairs for word in pair]
        reply = await self.core.call(self.core.on_queue("edge", home, 0, "told", *args))
        return [
            (BY_BYTE[state] if state else None, bool(told))
            for state, told in zip(reply[::2], reply[1::2], strict=True)
        ]

    async def _wait(self, queue: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Per pair (dependant of this queue, dependency) whether it waits; nobody does in no queue."""
        if not queue:
            return [False] * len(pairs)
        args: list[Arg] = [word for pair in pairs for word in pair]
        reply = await self.core.call(self.core.on_queue("edge", queue, 0, "waits", *args))
        return [bool(waits) for waits in reply]

    # the directory

    async def _unled(self, ids: Sequence[str], queue: str) -> list[str]:
        """Ids of jobs that nobody would find by them."""
        places = await locate(self.core, ids)
        return [id for id in ids if id not in places and queue_of(id) is None]

    async def _directory(self) -> None:
        """The next stretch of one of its parts: ids that lead to nothing."""
        seen = self.core.looked_at
        bucket, cursor = seen.get("/bucket", 0), seen.get("/cursor", 0)
        key = self.core.keys.bucket(bucket)
        after, entries = await self.core.call(command(key, "HSCAN", key, cursor, "COUNT", LOOK))
        seen["/cursor"] = int(after)
        if not int(after):
            seen["/bucket"] = (bucket + 1) % BUCKETS
        parts: dict[str, list[str]] = {}
        for id, queue in zip(entries[::2], entries[1::2], strict=True):
            parts.setdefault(queue.decode(), []).append(id.decode())
        for queue, ids in parts.items():
            self._doubt(Doubt("claim", id, "", queue) for id in await self._vacant(queue, ids))

    async def _vacant(self, queue: str, ids: Sequence[str]) -> list[str]:
        reply = await self.core.call(self.core.on_queue("probe", queue, 0, *ids))
        states, waited = reply[::3], reply[2::3]
        return [id for id, state, wait in zip(ids, states, waited, strict=True) if state == b"" and not wait]

    # doubts

    def _doubt(self, doubts: Iterable[Doubt]) -> None:
        for doubt in doubts:
            if len(self.core.doubts) < DOUBTS_MAX:
                self.core.doubts.setdefault(doubt, self.at)

    async def _resolve(self) -> None:
        """Look again at what was in doubt some time ago: what is still so is put right."""
        doubts = self.core.doubts
        for doubt, since in list(doubts.items()):
            if since > self.at:  # the clock went back
                doubts[doubt] = self.at
            elif self.at - since >= GRACE:
                del doubts[doubt]
                await _RESOLVE[doubt[0]](self, Doubt(*doubt))

    async def _tell(self, doubt: Doubt) -> None:
        """A job waits for one that has ended, or that does not know of it."""
        home = (await locate(self.core, [doubt.other])).get(doubt.other)
        if home is None or not (await self._wait(doubt.queue, [(doubt.id, doubt.other)]))[0]:
            return
        letter, added = await self.core.call(self.core.on_queue("depend", home, 0, doubt.other, doubt.id))
        self.repairs["dependency"] += added
        state = BY_BYTE[letter] if letter else None
        if state is not None and state.finished:
            args = (doubt.id, doubt.other, str(state))
            effects, aftermath = await self.core.call(
                self.core.on_queue("deliver", doubt.queue, self.now, *args)
            )
            self.left.append((doubt.queue, aftermath))
            self.repairs["dependency"] += 0 if added else effects

    async def _part(self, doubt: Doubt) -> None:
        """A job is told of an end that it does not wait for."""
        places = await locate(self.core, [doubt.id])
        told = await self._told(doubt.queue, [(doubt.other, doubt.id)])
        if told[0][1] and not (await self._wait(places.get(doubt.id, ""), [(doubt.id, doubt.other)]))[0]:
            self.repairs["dependency"] += 1
            call = self.core.on_queue("undepend", doubt.queue, 0, doubt.other, doubt.id)
            await free(self.core, doubt.queue, [id.decode() for id in await self.core.call(call)])

    async def _unclaim(self, doubt: Doubt) -> None:
        places = await locate(self.core, [doubt.id])
        if places.get(doubt.id) == doubt.queue and await self._vacant(doubt.queue, [doubt.id]):
            self.repairs["id"] += 1
            await free(self.core, doubt.queue, [doubt.id])

    async def _lead(self, doubt: Doubt) -> None:
        vacant = await self._vacant(doubt.queue, [doubt.id])
        if not vacant and await self._unled([doubt.id], doubt.queue):
            self.repairs["id"] += 1
            key = self.core.keys.directory(doubt.id)
            await self.core.call(script("claim", key, "claim", doubt.id, doubt.queue))


_RESOLVE: Final = {
    "wait": Mending._tell,
    "edge": Mending._part,
    "claim": Mending._unclaim,
    "lead": Mending._lead,
}
