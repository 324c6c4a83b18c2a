"""Repairs damage in the store, and the work of clients that died between two slots. Part of `sweep`.

Within a queue one script checks and repairs the next stretch of everything (lua/repair.lua); no other script
is halfway through at that time. A step that crosses slots may be under way, so what looks wrong there is
first noted as a *doubt*, and acted upon if it is still so some seconds later.

- A queue still knows a session that the namespace has ended: its runs there are freed. An outdated copy of a
  lease is renewed.
- A job waits for one that has ended, or that does not list it as a dependant; or it is listed as a dependant
  though it does not wait.
- An id of the directory leads to no job, or a job is not found by its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dray.broker.checks import FREE_STEP
from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_NAME
from dray.broker.redis.ids import public_id, stored_id
from dray.broker.redis.keys import BUCKETS
from dray.broker.redis.outbox import free_ids, locate
from dray.broker.redis.router import Arg, command, script
from dray.job import FINISHED, State, queue_of

STRETCH: Final = 200
"""Entries of each kind that one sweep checks in a queue."""
QUEUES: Final = 50
"""Queues that one sweep checks; the next one goes on with the others."""
GRACE: Final = 5_000
"""Milliseconds for which a step across slots may be under way."""
DOUBTS_MAX: Final = 1_000


class Doubt(NamedTuple):
    """Damage across slots that one sweep suspects."""

    kind: str
    id: str
    other: str
    """The dependency, or empty."""
    queue: str


class Repair:
    """The repairs of one sweep."""

    def __init__(self, core: Core, now: int | None) -> None:
        self.core, self.now, self.at = core, now, core.time(now)
        self.left: list[tuple[str, Any]] = []
        self.repairs: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        """Steps that a client began and did not finish."""
        self.freed = 0
        """Runs that an ended session took from a queue before its end was known there."""

    async def run(self, all: Sequence[str], visited: Sequence[str]) -> None:
        """`visited` are the queues that this sweep visits."""
        await self._resolve()
        for name in self.core.next_queues("/repair", all, QUEUES):
            await self._queue(name)
        await self._unfinished(visited)
        await self._directory()

    # within a queue

    async def _queue(self, name: str) -> None:
        reply = await self.core.call(self.core.on_queue("repair", name, self.now, STRETCH))
        repairs, made_up, edges, aftermath = reply
        self.left.append((name, aftermath))
        for kind, count in zip(repairs[::2], repairs[1::2], strict=True):
            self.repairs[kind.decode()] += count
        ids = [public_id(id, name) for id in made_up]
        self._doubt(Doubt("lead", id, "", name) for id in await self._not_in_directory(ids))
        names = [public_id(id, name) for id in edges]
        await self._check_dependants(list(zip(names[::2], names[1::2], strict=True)), name)

    # between queues

    async def _unfinished(self, queues: Sequence[str]) -> None:
        starts = [self.core.looked_at.get(name, 0) for name in queues]
        calls = [
            self.core.on_queue("unfinished_cross_slot", name, self.now, start, STRETCH)
            for name, start in zip(queues, starts, strict=True)
        ]
        replies = await self.core.calls(calls)
        for name, start, (late, waiting) in zip(queues, starts, replies, strict=True):
            for session, epoch in zip(late[::2], late[1::2], strict=True):
                await self._session(name, session.decode(), int(epoch))
            self.core.looked_at[name] = start + STRETCH if len(waiting) == STRETCH else 0
            await self._check_waiting(waiting, name)

    async def _session(self, queue: str, session: str, epoch: int) -> None:
        state, *facts = await self.core.call(self.core.on_own("session_enrol", self.now, session))
        if state == b"unknown" or facts[0] > epoch:
            key = f"{self.core.keys.queue(queue)}h:{session}"
            many = await self.core.call(command(key, "SCARD", key)) > FREE_STEP
            limit = FREE_STEP if many else ""
            call = self.core.on_queue("release", queue, self.now, session, epoch, 1, limit)
            freed, aftermath = await self.core.call(call)
            self.left.append((queue, aftermath))
            self.freed += freed
        elif state == b"ok":
            lease = (session, epoch, facts[1])
            await self.core.call(self.core.on_queue("copy_lease", queue, self.now, *lease))

    async def _check_waiting(self, waiting: Sequence[Sequence[bytes]], queue: str) -> None:
        """Compare waiting jobs (id, orphan, dependencies) with their dependencies."""
        pairs = [
            (public_id(id, queue), public_id(name, queue)) for id, _, *names in waiting for name in names
        ]
        patient = {public_id(id, queue) for id, orphan, *_ in waiting if orphan == b"wait"}
        places = await locate(self.core, {dependency for _, dependency in pairs})
        parts: dict[str, list[tuple[str, str]]] = {}
        for dependant, dependency in pairs:
            if dependency in places:
                parts.setdefault(places[dependency], []).append((dependency, dependant))
        for home, part in parts.items():
            for (dependency, dependant), (state, listed) in zip(
                part, await self._listed(home, part), strict=True
            ):
                ended = state is State.SUCCEEDED or (dependant not in patient and state in FINISHED)
                if state is not None and (ended or not listed):
                    self._doubt([Doubt("wait", dependant, dependency, queue)])

    async def _check_dependants(self, pairs: Sequence[tuple[str, str]], home: str) -> None:
        """Compare pairs (dependency, dependant) of the dependency's queue with the dependants."""
        places = await locate(self.core, {dependant for _, dependant in pairs})
        parts: dict[str, list[tuple[str, str]]] = {}
        for dependency, dependant in pairs:
            parts.setdefault(places.get(dependant, ""), []).append((dependant, dependency))
        for queue, part in parts.items():
            waits = await self._waiting(queue, part)
            lost = [pair for pair, wait in zip(part, waits, strict=True) if not wait]
            self._doubt(Doubt("edge", dependant, dependency, home) for dependant, dependency in lost)

    async def _listed(self, home: str, pairs: Sequence[tuple[str, str]]) -> list[tuple[State | None, bool]]:
        """Per pair (dependency of this queue, dependant) its state, and true if it lists the dependant."""
        args: list[Arg] = [stored_id(id, home) for pair in pairs for id in pair]
        reply = await self.core.call(self.core.on_queue("compare_dependency", home, 0, "registered", *args))
        return [
            (BY_NAME[state] if state else None, bool(listed))
            for state, listed in zip(reply[::2], reply[1::2], strict=True)
        ]

    async def _waiting(self, queue: str, pairs: Sequence[tuple[str, str]]) -> list[bool]:
        """Per pair (dependant of this queue, dependency) true if it waits. No queue: false."""
        if not queue:
            return [False] * len(pairs)
        args: list[Arg] = [stored_id(id, queue) for pair in pairs for id in pair]
        reply = await self.core.call(self.core.on_queue("compare_dependency", queue, 0, "waits", *args))
        return [bool(waits) for waits in reply]

    # the directory

    async def _not_in_directory(self, ids: Sequence[str]) -> list[str]:
        places = await locate(self.core, ids)
        return [id for id in ids if id not in places and queue_of(id) is None]

    async def _directory(self) -> None:
        """Check the next stretch of one bucket for ids without a job."""
        seen = self.core.looked_at
        bucket, cursor = seen.get("/bucket", 0), seen.get("/cursor", 0)
        key = self.core.keys.bucket(bucket)
        after, entries = await self.core.call(command(key, "HSCAN", key, cursor, "COUNT", STRETCH))
        seen["/cursor"] = int(after)
        if not int(after):
            seen["/bucket"] = (bucket + 1) % BUCKETS
        parts: dict[str, list[str]] = {}
        for id, queue in zip(entries[::2], entries[1::2], strict=True):
            parts.setdefault(queue.decode(), []).append(id.decode())
        for queue, ids in parts.items():
            self._doubt(Doubt("claim", id, "", queue) for id in await self._vacant(queue, ids))

    async def _vacant(self, queue: str, ids: Sequence[str]) -> list[str]:
        own = [stored_id(id, queue) for id in ids]
        reply = await self.core.call(self.core.on_queue("job_states", queue, 0, *own))
        states, waited = reply[::3], reply[2::3]
        return [id for id, state, wait in zip(ids, states, waited, strict=True) if state == b"" and not wait]

    # doubts

    def _doubt(self, doubts: Iterable[Doubt]) -> None:
        for doubt in doubts:
            if len(self.core.doubts) < DOUBTS_MAX:
                self.core.doubts.setdefault(doubt, self.at)

    async def _resolve(self) -> None:
        """Check the older doubts again, and repair what is still wrong."""
        doubts = self.core.doubts
        for doubt, since in list(doubts.items()):
            if since > self.at:  # the clock went back
                doubts[doubt] = self.at
            elif self.at - since >= GRACE:
                del doubts[doubt]
                await _RESOLVE[doubt[0]](self, Doubt(*doubt))

    async def _resolve_wait(self, doubt: Doubt) -> None:
        """A job waits for one that has ended, or that does not list it."""
        home = (await locate(self.core, [doubt.other])).get(doubt.other)
        if home is None or not (await self._waiting(doubt.queue, [(doubt.id, doubt.other)]))[0]:
            return
        pair = [stored_id(id, home) for id in (doubt.other, doubt.id)]
        name, added = await self.core.call(self.core.on_queue("add_dependants", home, 0, 0, *pair))
        state = BY_NAME[name] if name else None
        ended = state is not None and state.finished
        # A job is registered before it is put, so only an end in between can have removed it from the list.
        # One that is revived is registered afterwards: until then it is only remembered.
        (self.finished if ended or added == 2 else self.repairs)["dependency"] += int(added > 0)
        if ended:
            ids = [stored_id(id, doubt.queue) for id in (doubt.id, doubt.other)]
            call = self.core.on_queue("deliver", doubt.queue, self.now, *ids, str(state), "")
            effects, aftermath, _ = await self.core.call(call)
            self.left.append((doubt.queue, aftermath))
            self.finished["dependency"] += 0 if added else effects

    async def _resolve_edge(self, doubt: Doubt) -> None:
        """A job is listed as a dependant though it does not wait."""
        places = await locate(self.core, [doubt.id])
        [(_, listed)] = await self._listed(doubt.queue, [(doubt.other, doubt.id)])
        if listed and not (await self._waiting(places.get(doubt.id, ""), [(doubt.id, doubt.other)]))[0]:
            self.finished["dependency"] += 1
            pair = [stored_id(id, doubt.queue) for id in (doubt.other, doubt.id)]
            gone = await self.core.call(self.core.on_queue("remove_dependants", doubt.queue, 0, 0, *pair))
            await free_ids(self.core, doubt.queue, [public_id(id, doubt.queue) for id in gone])

    async def _resolve_claim(self, doubt: Doubt) -> None:
        places = await locate(self.core, [doubt.id])
        if places.get(doubt.id) == doubt.queue and await self._vacant(doubt.queue, [doubt.id]):
            self.finished["id"] += 1
            await free_ids(self.core, doubt.queue, [doubt.id])

    async def _resolve_lead(self, doubt: Doubt) -> None:
        vacant = await self._vacant(doubt.queue, [doubt.id])
        if not vacant and await self._not_in_directory([doubt.id]):
            self.repairs["id"] += 1
            key = self.core.keys.directory(doubt.id)
            await self.core.call(script("id_directory", key, "claim", doubt.id, doubt.queue))


_RESOLVE: Final = {
    "wait": Repair._resolve_wait,
    "edge": Repair._resolve_edge,
    "claim": Repair._resolve_claim,
    "lead": Repair._resolve_lead,
}


async def audit(core: Core) -> list[str]:
    names = await core.queues()
    replies = await core.calls([core.on_queue("audit", name, 0) for name in names])
    return [
        f"{name}: {problem.decode()}"
        for name, problems in zip(names, replies, strict=True)
        for problem in problems
    ]
