"""`take`: hands out jobs to a session.

The lease of a session is copied to every queue it takes from, and every queue keeps the last request and its
reply, so that a queue answers by itself: with one queue, `take` is one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import read_body, read_plain, to_json
from dray.broker.redis.outbox import follow_up_all
from dray.broker.redis.router import Command, command
from dray.broker.redis.settle import settle_in
from dray.broker.verbs import Filter
from dray.errors import CodecError, InvalidInput, SessionLost
from dray.job import Outcome, OutcomeKind, Taken, queue_of

STEP: Final = 500
"""Queues that are asked at once."""


@lru_cache
def filter_args(filter: Filter) -> tuple[int, bytes, bytes]:
    """Version, tasks and priorities as arguments of a script; empty means any."""
    tasks = b"" if filter.tasks is None else to_json(dict.fromkeys(filter.tasks, True))
    if filter.priorities is None:
        return filter.version, tasks, b""
    return filter.version, tasks, to_json({str(priority): True for priority in filter.priorities})


async def take(
    core: Core,
    session: str,
    request: int,
    queues: Sequence[str],
    filter: Filter,
    want: int,
    share: int,
    now: int | None,
) -> list[Taken]:
    before = core.requests.get(session, (0, ()))
    asked = await _queues_to_ask(core, session, request, tuple(dict.fromkeys(queues)), now)
    taker = _Taker(core, session, request, filter_args(filter), now)
    try:
        if share * len(asked) <= want:
            await taker.take_shares(asked, share)
        else:
            # Queues that are not needed any more promote their due jobs and note the request.
            for queue in asked:
                await taker.take_from([(queue, len(taker.taken), min(share, want - len(taker.taken)))])
    except SessionLost:
        core.requests[session] = before  # this request had no effect
        raise
    await follow_up_all(core, taker.aftermaths, now)
    return taker.taken


async def _queues_to_ask(
    core: Core, session: str, request: int, queues: tuple[str, ...], now: int | None
) -> tuple[str, ...]:
    """A repeated request goes to the queues of the first time, even if it names others now."""
    last, before = core.requests.get(session, (0, ()))
    if last == request:
        return before
    if last == 0 or request < last or not queues:
        last, before = await _last_request(core, session, now)
        if request < last:
            raise InvalidInput("request", request, f"{last} was the last; it only counts up")
        if request == last:
            queues = before
    core.requests[session] = (request, queues)
    return queues


async def _last_request(core: Core, session: str, now: int | None) -> tuple[int, tuple[str, ...]]:
    """The last request of a session that another broker object took for."""
    state, *facts = await core.call(core.on_own("session_enrol", now, session))
    if state != b"ok":
        raise SessionLost(session)
    names = [name.decode() for name in facts[3]]
    keys = [core.keys.queue(name) + "t" for name in names]
    replies = await core.calls([command(key, "HGET", key, session) for key in keys])
    requests = []
    for name, reply in zip(names, replies, strict=True):
        request, offset = (reply or b"0 0").partition(b"\n")[0].split()
        requests.append((int(request), int(offset), name))
    last = max((request for request, _, _ in requests), default=0)
    return last, tuple(name for request, _, name in sorted(requests) if request == last)


class _Taker:
    """One take: what it has asked the queues for, and got."""

    def __init__(
        self, core: Core, session: str, request: int, wanted: tuple[int, bytes, bytes], now: int | None
    ) -> None:
        self._core, self._session, self._request, self._wanted = core, session, request, wanted
        self._now = now
        self.taken: list[Taken] = []
        self.aftermaths: list[tuple[str, Any]] = []

    async def take_shares(self, queues: Sequence[str], share: int) -> None:
        """Ask many queues at once."""
        asks = [(queue, place * share, share) for place, queue in enumerate(queues)]
        for first in range(0, len(asks), STEP):
            await self.take_from(asks[first : first + STEP])

    async def take_from(self, asks: Sequence[tuple[str, int, int]]) -> None:
        """Of each queue: the number of jobs that earlier queues may have given, and the number wanted."""
        core = self._core
        replies = await core.calls([self._call(*ask) for ask in asks])
        unknown = [place for place, reply in enumerate(replies) if reply[0] == b"unknown"]
        if unknown:
            lease = await self._enrol([asks[place][0] for place in unknown])
            calls = [self._call(*asks[place], lease) for place in unknown]
            for place, reply in zip(unknown, await core.calls(calls), strict=True):
                replies[place] = reply
        for (queue, _, _), reply in zip(asks, replies, strict=True):
            await self._read(queue, reply)

    def _call(self, queue: str, offset: int, want: int, lease: str = "") -> Command:
        args = (self._session, self._request, offset, max(0, want), *self._wanted, lease)
        return self._core.on_queue("take", queue, self._now, *args)

    async def _enrol(self, queues: Sequence[str]) -> str:
        """List the queues with the session, before they hear of it; its lease."""
        call = self._core.on_own("session_enrol", self._now, self._session, *queues)
        state, *facts = await self._core.call(call)
        if state != b"ok":
            raise SessionLost(self._session)
        return f"{facts[0]},{facts[1].decode()},{facts[2].decode()}"

    async def _read(self, queue: str, reply: Any) -> None:
        if reply[0] in (b"lost", b"unknown"):
            raise SessionLost(self._session)
        if reply[0] == b"old":
            raise InvalidInput("request", self._request, f"{reply[1]} was the last; it only counts up")
        kind, given, aftermath = reply
        read = _read_fresh if kind == b"fresh" else _read_taken
        self.taken += await read(self._core, queue, self._session, given, self._now)
        self.aftermaths.append((queue, aftermath))


async def _read_fresh(
    core: Core, queue: str, session: str, given: Sequence[bytes], now: int | None
) -> list[Taken]:
    """Read simple jobs in their first run, the usual case."""
    try:
        taken = [
            Taken(read_plain(queue, id.decode(), stored), 1)
            for id, stored in zip(given[::2], given[1::2], strict=True)
        ]
    except CodecError:
        pairs = zip(given[::2], given[1::2], strict=True)
        full = [part for id, stored in pairs for part in (id, 1, 0, 0, 0, b"", b"", stored)]
        return await _read_taken(core, queue, session, full, now)
    for one in taken:
        if queue_of(one.job.id) is None:
            core.remember(one.job.id, queue)
    return taken


async def _read_taken(
    core: Core, queue: str, session: str, given: Sequence[Any], now: int | None
) -> list[Taken]:
    taken: list[Taken] = []
    unreadable: list[Outcome] = []
    for at in range(0, len(given), 8):
        id, number, failures, crashes, suspect, edited, deadline, stored = given[at : at + 8]
        run = int(number)
        try:
            whole = read_body(stored)
            job = whole.job(queue, id.decode(), edited.decode() or whole.class_)
        except CodecError as error:
            reason = f"undecodable: {error}"[:4096]
            unreadable.append(Outcome(id=id.decode(), run=run, kind=OutcomeKind.DEAD, reason=reason))
            continue
        if queue_of(job.id) is None:
            core.remember(job.id, queue)
        taken.append(Taken(job, run, failures + 1, crashes, suspect, deadline or None))
    if unreadable:
        await settle_in(core, queue, session, unreadable, now)
    return taken
