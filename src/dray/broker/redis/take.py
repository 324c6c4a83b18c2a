"""`take` and `settle`.

The lease of a session is copied to every queue it takes from, and every queue keeps the last request and what
it gave, so that a queue answers by itself: with one queue, `take` is one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.crossing import follow, follow_all, locate
from dray.broker.redis.router import Arg, Call
from dray.broker.redis.rows import BY_BYTE, encode, read_body, read_plain, to_json
from dray.broker.verbs import Filter
from dray.errors import CodecError, InvalidInput, SessionLost
from dray.job import Outcome, OutcomeKind, Settled, State, Taken, Verdict, queue_of

_KINDS = {
    OutcomeKind.SUCCEEDED: "o",
    OutcomeKind.RETRY: "t",
    OutcomeKind.DEAD: "d",
    OutcomeKind.CANCELLED: "c",
    OutcomeKind.GIVE_BACK: "g",
    OutcomeKind.CRASHED: "x",
}
_VERDICTS = {b"a": Verdict.ACCEPTED, b"y": Verdict.ALREADY, b"n": Verdict.REFUSED}
_SUCCEEDED = Settled(Verdict.ACCEPTED, State.SUCCEEDED)


def filter_args(filter: Filter) -> tuple[int, bytes, bytes]:
    """Version, tasks and priorities as scripts read them; nothing means any."""
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
    now: int | None,
) -> list[Taken]:
    before = core.requests.get(session, (0, ()))
    asked = await _queues_to_ask(core, session, request, tuple(dict.fromkeys(queues)), now)
    wanted = filter_args(filter)
    taken: list[Taken] = []
    left: list[tuple[str, Any]] = []
    try:
        # Queues that are not needed any more see to their due jobs, and know the request.
        for queue in asked:
            given, aftermath = await _take_from(core, queue, session, request, len(taken), want, wanted, now)
            taken += given
            left.append((queue, aftermath))
    except SessionLost:
        core.requests[session] = before  # this request never was
        raise
    await follow_all(core, left, now)
    return taken


async def _queues_to_ask(
    core: Core, session: str, request: int, queues: tuple[str, ...], now: int | None
) -> tuple[str, ...]:
    """A repeated request goes to the queues it went to at first, whatever it names now."""
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
    """What the queues remember of a session that this object has not taken for before."""
    state, *facts = await core.call(core.on_own("session_enrol", now, session, ""))
    if state != b"ok":
        raise SessionLost(session)
    names = [name.decode() for name in facts[3]]
    replies = await core.calls([core.on_queue("last", name, now, session) for name in names])
    last = max((reply[0] for reply in replies), default=0)
    given = sorted((reply[1], name) for reply, name in zip(replies, names, strict=True) if reply[0] == last)
    return last, tuple(name for _, name in given)


async def _take_from(
    core: Core,
    queue: str,
    session: str,
    request: int,
    offset: int,
    want: int,
    wanted: tuple[int, bytes, bytes],
    now: int | None,
) -> tuple[list[Taken], Any]:
    def call(enrol: str) -> Call:
        left = max(0, want - offset)
        return core.on_queue("take", queue, now, session, request, offset, left, *wanted, enrol)

    reply = await core.call(call(""))
    if reply[0] == b"unknown":
        state, *facts = await core.call(core.on_own("session_enrol", now, session, queue))
        if state != b"ok":
            raise SessionLost(session)
        reply = await core.call(call(f"{facts[0]},{facts[1].decode()},{facts[2].decode()}"))
    if reply[0] == b"lost":
        raise SessionLost(session)
    if reply[0] == b"old":
        raise InvalidInput("request", request, f"{reply[1]} was the last; it only counts up")
    kind, given, aftermath = reply
    if kind == b"fresh":
        return await _read_fresh(core, queue, session, given, now), aftermath
    return await _read_taken(core, queue, session, given, now), aftermath


async def _read_fresh(
    core: Core, queue: str, session: str, given: Sequence[bytes], now: int | None
) -> list[Taken]:
    """Plain jobs in their first run, nearly all."""
    try:
        taken = [
            Taken(read_plain(queue, id.decode(), stored), 1)
            for id, stored in zip(given[::2], given[1::2], strict=True)
        ]
    except CodecError:
        pairs = zip(given[::2], given[1::2], strict=True)
        full = [part for id, stored in pairs for part in (id, 1, 0, 0, 0, b"", stored)]
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
    for at in range(0, len(given), 7):
        id, number, failures, crashes, suspect, edited, stored = given[at : at + 7]
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
        taken.append(Taken(job, run, failures + 1, crashes, bool(suspect)))
    if unreadable:
        await _settle_in(core, queue, session, unreadable, now)
    return taken


# settle


async def settle(core: Core, session: str, outcomes: Sequence[Outcome], now: int | None) -> list[Settled]:
    places = await locate(core, {outcome.id for outcome in outcomes}, held=True)
    parts: dict[str, list[int]] = {}
    lost = []
    for index, outcome in enumerate(outcomes):
        if outcome.id in places:
            parts.setdefault(places[outcome.id], []).append(index)
        else:
            lost.append(outcome)
    settled = [Settled(Verdict.REFUSED, State.NOT_FOUND)] * len(outcomes)
    calls = [
        _settling(core, queue, session, [outcomes[index] for index in part], now)
        for queue, part in parts.items()
    ]
    left = []
    for (queue, part), (answers, aftermath) in zip(parts.items(), await core.calls(calls), strict=True):
        left.append((queue, aftermath))
        for place, index in enumerate(part):
            settled[index] = _SUCCEEDED if answers == 1 else _settled(*answers[2 * place : 2 * place + 2])
    if core.taken_from:
        for outcome in outcomes:
            core.taken_from.pop(outcome.id, None)
    await follow_all(core, left, now, [outcome.id for outcome in outcomes])
    if lost:
        await _forget_lost(core, session, lost, now)
    return settled


def _settled(verdict: bytes, state: bytes) -> Settled:
    return Settled(_VERDICTS[verdict], BY_BYTE[state])


def _settling(core: Core, queue: str, session: str, outcomes: Sequence[Outcome], now: int | None) -> Call:
    args: list[Arg] = []
    for outcome in outcomes:
        result = b"" if outcome.result is None else b"=" + outcome.result
        args += (outcome.id, outcome.run, result, _rest(outcome))
    return core.on_queue("settle", queue, now, session, *args)


def _rest(outcome: Outcome) -> bytes:
    """What there is to say beyond a success: see lua/settle.lua."""
    if outcome.kind is OutcomeKind.SUCCEEDED and outcome.error is None:
        return b""
    reason = (outcome.reason or "").encode()
    error = b"" if outcome.error is None else encode(outcome.error)
    due = "" if outcome.at is None else outcome.at
    return f"{_KINDS[outcome.kind]}{due} {len(reason)} ".encode() + reason + error


async def _settle_in(
    core: Core, queue: str, session: str, outcomes: Sequence[Outcome], now: int | None
) -> None:
    _, aftermath = await core.call(_settling(core, queue, session, outcomes, now))
    await follow(core, queue, aftermath, now)


async def _forget_lost(core: Core, session: str, lost: Sequence[Outcome], now: int | None) -> None:
    """Runs of jobs that are gone: whichever queue still tells the session of them stops doing so."""
    state, *facts = await core.call(core.on_own("session_enrol", now, session, ""))
    for queue in facts[3] if state != b"unknown" else ():
        await _settle_in(core, queue.decode(), session, lost, now)
