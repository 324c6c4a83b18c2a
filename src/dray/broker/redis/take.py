"""`take`: hands out jobs to a session.

The lease of a session is copied to every queue it takes from, and every queue keeps the last request and its
reply, so that a queue answers by itself: with one queue, `take` is one round trip.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import read_body, read_plain
from dray.broker.redis.ids import public_id
from dray.broker.redis.outbox import follow_up_all
from dray.broker.redis.router import Command, command
from dray.broker.redis.scripts import SCRIPTS
from dray.broker.redis.settle import settle_in
from dray.broker.verbs import Filter
from dray.errors import CodecError, InvalidInput, SessionLost
from dray.job import Outcome, OutcomeKind, Taken, Undo

STEP: Final = 500
"""Queues that are asked at once."""
_AGAIN: Final = re.compile(rb"run=(\d+) failures=(\d+)")


@lru_cache
def filter_args(filter: Filter) -> tuple[int, str, str]:
    """Version, tasks and priorities as arguments of a script: lists as `,a,b,`; empty means any."""
    return filter.version, _list(filter.tasks), _list(filter.priorities)


def _list(names: Collection[object] | None) -> str:
    return "" if names is None else f",{','.join(map(str, names))},"


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
        if session in core.handed:
            asked = await taker.confirm(asked)
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
    names = [name.decode() for name in facts[2]]
    keys = [core.keys.queue(name) + "t" for name in names]
    replies = await core.calls([command(key, "HGET", key, session) for key in keys])
    requests = []
    for name, reply in zip(names, replies, strict=True):
        request, offset = (reply or b"0 0").partition(b"\n")[0].split()
        requests.append((int(request), int(offset), name))
    last = max((request for request, _, _ in requests), default=0)
    return last, tuple(name for request, _, name in sorted(requests) if request == last)


_LOAD_CONFIRM: Final = ("SCRIPT", "LOAD", SCRIPTS["confirm"].source)


class _Taker:
    """One take: what it has asked the queues for, and got."""

    def __init__(
        self, core: Core, session: str, request: int, wanted: tuple[int, str, str], now: int | None
    ) -> None:
        self._core, self._session, self._request, self._wanted = core, session, request, wanted
        self._now = now
        self.taken: list[Taken] = []
        self.aftermaths: list[tuple[str, Any]] = []

    async def confirm(self, queues: tuple[str, ...]) -> tuple[str, ...]:
        """Confirm the runs that came with a wake-up for this request; the queues that are left to ask.

        A run that was confirmed before, or is withdrawn, is not in `handed`: its queue knows its state.
        """
        core = self._core
        request, runs = core.handed.pop(self._session)
        known = [queue for queue in queues if queue in runs] if request == self._request else []
        calls = [call for queue in known for call in self._confirmation(queue, runs[queue][0])]
        for queue, done in zip(known, (await core.calls(calls))[1::2], strict=True):
            if done < 0:
                raise SessionLost(self._session)
            if done:
                self.taken.append(runs[queue][1])
        got = {one.job.queue for one in self.taken}
        return tuple(queue for queue in queues if queue not in got)

    def _confirmation(self, queue: str, ref: bytes) -> tuple[Command, Command]:
        """Sent behind its script: loading that when missed takes too long if the job blocks the loop."""
        call = self._core.on_queue("confirm", queue, self._now, self._session, ref)
        return Command(None, call.key, _LOAD_CONFIRM), call

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

    def _call(self, queue: str, offset: int, want: int, lease: bytes = b"") -> Command:
        args = (self._session, self._request, offset, max(0, want), *self._wanted, lease)
        return self._core.on_queue("take", queue, self._now, *args)

    async def _enrol(self, queues: Sequence[str]) -> bytes:
        """List the queues with the session, before they hear of it; its lease."""
        call = self._core.on_own("session_enrol", self._now, self._session, *queues)
        state, *facts = await self._core.call(call)
        if state != b"ok":
            raise SessionLost(self._session)
        lease: bytes = facts[1]
        return lease

    async def _read(self, queue: str, reply: Any) -> None:
        if reply[0] in (b"lost", b"unknown"):
            raise SessionLost(self._session)
        if reply[0] == b"old":
            raise InvalidInput("request", self._request, f"{reply[1]} was the last; it only counts up")
        _, given, aftermath = reply
        self.taken += await _read_taken(self._core, queue, self._session, given, self._now)
        self.aftermaths.append((queue, aftermath))


def read_handed(core: Core, queue: str, message: bytes) -> tuple[int, bytes, Taken] | None:
    """The time of a hand-over, the reference and the run that a wake-up brings (see takers.lua).

    None if it cannot be read: the take that is repeated settles it.
    """
    line, _, rest = message.partition(b"\n")
    _, at, id_size, facts_size = line.split()
    end = int(id_size) + int(facts_size)
    stored, facts, body = rest[: int(id_size)], rest[int(id_size) : end], rest[end:]
    try:
        taken = _read_one(queue, public_id(stored, queue), facts, body)
    except CodecError:
        return None
    if stored[:1] != b":" or stored[1:2] == b":":
        core.remember(taken.job.id, queue)
    return int(at), b"%d %s" % (taken.run, stored), taken


def _read_one(queue: str, id: str, facts: bytes, body: bytes) -> Taken:
    return _read_changed(queue, id, facts, body) if facts else Taken(read_plain(queue, id, body), 1)


_decode_undo = msgspec.json.Decoder(Undo).decode


async def _read_taken(
    core: Core, queue: str, session: str, given: Sequence[bytes], now: int | None
) -> list[Taken]:
    taken: list[Taken] = []
    unreadable: list[Outcome] = []
    for stored, facts, body in zip(given[::3], given[1::3], given[2::3], strict=True):
        id = public_id(stored, queue)
        try:
            taken.append(_read_one(queue, id, facts, body))
        except CodecError as error:
            reason = f"undecodable: {error}"[:4096]
            run = int(_facts(facts.partition(b"\n")[0]).get("run", 1))
            unreadable.append(Outcome(id=id, run=run, kind=OutcomeKind.DEAD, reason=reason))
            continue
        if stored[:1] != b":" or stored[1:2] == b":":
            core.remember(id, queue)
    if unreadable:
        await settle_in(core, queue, session, unreadable, now)
    return taken


def _facts(facts: bytes) -> dict[str, str]:
    return dict(fact.split("=", 1) for fact in facts.decode().split(" ")) if facts else {}


def _read_changed(queue: str, id: str, stored: bytes, body: bytes) -> Taken:
    """A job that was started before, or edited."""
    if (again := _AGAIN.fullmatch(stored)) is not None:
        return Taken(read_plain(queue, id, body), int(again[1]), int(again[2]) + 1)
    line, _, undo = stored.partition(b"\n")
    facts = _facts(line)
    whole = read_body(body)
    return Taken(
        whole.job(queue, id, facts.get("class", whole.class_)),
        int(facts["run"]),
        int(facts["failures"]) + 1,
        int(facts.get("crashes", 0)),
        int(facts.get("suspect", 0)),
        int(facts["deadline"]) if "deadline" in facts else None,
        int(facts.get("memos", 0)),
        int(facts.get("replayed", 0)),
        _decode_undo(undo) if undo else None,
    )
