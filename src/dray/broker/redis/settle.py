"""`settle`: records the outcomes of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_BYTE, encode
from dray.broker.redis.outbox import follow_up, follow_up_all, locate
from dray.broker.redis.router import Arg, Command
from dray.job import Outcome, OutcomeKind, Settled, State, Verdict

_KINDS: Final = {
    OutcomeKind.SUCCEEDED: "o",
    OutcomeKind.RETRY: "t",
    OutcomeKind.DEAD: "d",
    OutcomeKind.CANCELLED: "c",
    OutcomeKind.GIVE_BACK: "g",
    OutcomeKind.CRASHED: "x",
}
_VERDICTS: Final = {b"a": Verdict.ACCEPTED, b"y": Verdict.ALREADY, b"n": Verdict.REFUSED}
_SUCCEEDED: Final = Settled(Verdict.ACCEPTED, State.SUCCEEDED)


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
    await follow_up_all(core, left, now, [outcome.id for outcome in outcomes])
    if lost:
        await _forget_lost(core, session, lost, now)
    return settled


def _settled(verdict: bytes, state: bytes) -> Settled:
    return Settled(_VERDICTS[verdict], BY_BYTE[state])


def _settling(core: Core, queue: str, session: str, outcomes: Sequence[Outcome], now: int | None) -> Command:
    args: list[Arg] = []
    for outcome in outcomes:
        result = b"" if outcome.result is None else b"=" + outcome.result
        args += (outcome.id, outcome.run, result, _rest(outcome))
    return core.on_queue("settle", queue, now, session, *args)


def _rest(outcome: Outcome) -> bytes:
    """The last argument of an outcome in lua/settle.lua; empty for a success."""
    if outcome.kind is OutcomeKind.SUCCEEDED and outcome.error is None:
        return b""
    reason = (outcome.reason or "").encode()
    error = b"" if outcome.error is None else encode(outcome.error)
    number = outcome.together if outcome.kind is OutcomeKind.CRASHED else outcome.at
    at = "" if number is None else number
    return f"{_KINDS[outcome.kind]}{at} {len(reason)} ".encode() + reason + error


async def settle_in(
    core: Core, queue: str, session: str, outcomes: Sequence[Outcome], now: int | None
) -> None:
    _, aftermath = await core.call(_settling(core, queue, session, outcomes, now))
    await follow_up(core, queue, aftermath, now)


async def _forget_lost(core: Core, session: str, lost: Sequence[Outcome], now: int | None) -> None:
    """Drop the notifications of runs whose jobs are gone, in all queues of the session."""
    state, *facts = await core.call(core.on_own("session_enrol", now, session))
    for queue in facts[3] if state != b"unknown" else ():
        await settle_in(core, queue.decode(), session, lost, now)
