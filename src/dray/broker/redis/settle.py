"""`settle`: records the outcomes of runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import BY_NAME, encode, to_json
from dray.broker.redis.ids import stored_id
from dray.broker.redis.outbox import (
    UNFINISHED,
    Pair,
    add_dependants,
    deliver_ends,
    follow_up,
    follow_up_all,
    locate,
    read_states,
    take_back,
)
from dray.broker.redis.router import Arg, Command
from dray.job import Outcome, OutcomeKind, Settled, State, Suspension, Verdict

_VERDICTS: Final = {verdict.value.encode(): verdict for verdict in Verdict}
MANY: Final = 100
"""Jobs beyond which lua/waits.lua keeps them apart."""
_SUCCEEDED: Final = Settled(Verdict.ACCEPTED, State.SUCCEEDED)


async def settle(core: Core, session: str, outcomes: Sequence[Outcome], now: int | None) -> list[Settled]:
    step = _Step(core, session, now)
    ids, waited_for = {outcome.id for outcome in outcomes}, [job for one in outcomes for job in _jobs(one)]
    if waited_for and (len(ids) < len(outcomes) or not ids.isdisjoint(waited_for)):
        # One may end what another waits for: they are settled one after the other.
        settled = [one for outcome in outcomes for one in await step.settle([outcome])]
    else:
        settled = await step.settle(outcomes)
    if core.taken_from:
        for outcome in outcomes:
            core.taken_from.pop(outcome.id, None)
    await follow_up_all(core, step.left, now, [outcome.id for outcome in outcomes])
    if step.lost:
        await _forget_lost(core, session, step.lost, now)
    return settled


def _jobs(outcome: Outcome) -> tuple[str, ...]:
    """The jobs that a suspended job waits for."""
    return () if outcome.suspend is None else outcome.suspend.jobs


class _Step:
    """One call of `settle`. Its messages are delivered at the end."""

    def __init__(self, core: Core, session: str, now: int | None) -> None:
        self._core, self._session, self._now = core, session, now
        self.left: list[tuple[str, Any]] = []
        self.lost: list[Outcome] = []
        """Outcomes of jobs that are gone."""

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Register jobs with those they are going to wait for, settle, and look at these once more."""
        pairs = [(job, outcome.id) for outcome in outcomes for job in _jobs(outcome)]
        seen = await add_dependants(self._core, pairs, {}, any_end=True)
        missing: dict[str, list[str]] = {}
        for (job, id), (state, _) in seen.items():
            if state in UNFINISHED:
                missing.setdefault(id, []).append(job)
        settled = await self._settle(outcomes, missing)
        if seen:
            await self._look_again(outcomes, settled, seen)
        return settled

    async def _look_again(
        self,
        outcomes: Sequence[Outcome],
        settled: Sequence[Settled],
        seen: dict[Pair, tuple[State, int]],
    ) -> None:
        """Deliver ends between registering and settling; remove registrations of jobs that do not wait."""
        replies = list(zip(outcomes, settled, strict=True))
        accepted = {outcome.id for outcome, reply in replies if reply.verdict is Verdict.ACCEPTED}
        waiting = {outcome.id for outcome, reply in replies if reply.state is State.WAITING} & accepted
        needless = {
            pair: new
            for pair, (state, new) in seen.items()
            if pair[1] not in (waiting if state in UNFINISHED else accepted)
        }
        await take_back(self._core, needless)
        kept = [pair for pair, (state, _) in seen.items() if pair[1] in waiting and state in UNFINISHED]
        states = await read_states(self._core, {job for job, _ in kept}) if kept else {}
        ended = [pair for pair in kept if states.get(pair[0]) not in UNFINISHED]
        places = await locate(self._core, {id for _, id in ended})
        for pair in ended:
            end = (pair, states.get(pair[0], State.NOT_FOUND))
            self.left += await deliver_ends(self._core, places[pair[1]], [end], self._now)

    async def _settle(
        self, outcomes: Sequence[Outcome], missing: Mapping[str, Sequence[str]]
    ) -> list[Settled]:
        core = self._core
        places = await locate(core, {outcome.id for outcome in outcomes}, held=True)
        parts: dict[str, list[int]] = {}
        for index, outcome in enumerate(outcomes):
            if outcome.id in places:
                parts.setdefault(places[outcome.id], []).append(index)
            else:
                self.lost.append(outcome)
        settled = [Settled(Verdict.REFUSED, State.NOT_FOUND)] * len(outcomes)
        calls = [
            _settling(core, queue, self._session, [outcomes[index] for index in part], self._now, missing)
            for queue, part in parts.items()
        ]
        for (queue, part), (answers, aftermath) in zip(parts.items(), await core.calls(calls), strict=True):
            self.left.append((queue, aftermath))
            for place, index in enumerate(part):
                settled[index] = _SUCCEEDED if answers == 1 else _settled(*answers[2 * place : 2 * place + 2])
        return settled


def _settled(verdict: bytes, state: bytes) -> Settled:
    return Settled(_VERDICTS[verdict], BY_NAME[state])


def _settling(
    core: Core,
    queue: str,
    session: str,
    outcomes: Sequence[Outcome],
    now: int | None,
    missing: Mapping[str, Sequence[str]],
) -> Command:
    args: list[Arg] = []
    for outcome in outcomes:
        result = b"" if outcome.result is None else b"=" + outcome.result
        if outcome.suspend is not None:
            result = _suspension(queue, outcome.suspend, missing.get(outcome.id, ()))
        args += (stored_id(outcome.id, queue), outcome.run, result, _rest(outcome))
    return core.on_queue("settle", queue, now, session, *args)


def _suspension(queue: str, suspend: Suspension, missing: Sequence[str]) -> bytes:
    """What a job waits for, in the form that lua/settle.lua takes."""
    waits = {name: value for name, value in msgspec.structs.asdict(suspend).items() if value}
    if suspend.until is not None:
        waits["until"] = suspend.until
    stored, whole = to_json(waits), b""
    if len(suspend.jobs) > MANY:
        del waits["jobs"]
        stored, whole = to_json({**waits, "many": len(suspend.jobs)}), stored
    left = to_json([stored_id(id, queue).decode() for id in missing])
    return b"=%d %d %b%b%b" % (len(stored), len(whole), stored, whole, left)


def _rest(outcome: Outcome) -> bytes:
    """The last argument of an outcome in lua/settle.lua; empty for a success."""
    if outcome.kind is OutcomeKind.SUCCEEDED and outcome.error is None:
        return b""
    reason = (outcome.reason or "").encode()
    error = b"" if outcome.error is None else encode(outcome.error)
    number = outcome.together if outcome.kind is OutcomeKind.CRASHED else outcome.at
    at = "" if number is None else number
    return f"{outcome.kind.value} {at} {len(reason)} ".encode() + reason + error


async def settle_in(
    core: Core, queue: str, session: str, outcomes: Sequence[Outcome], now: int | None
) -> None:
    _, aftermath = await core.call(_settling(core, queue, session, outcomes, now, {}))
    await follow_up(core, queue, aftermath, now)


async def _forget_lost(core: Core, session: str, lost: Sequence[Outcome], now: int | None) -> None:
    """Drop the notifications of runs whose jobs are gone, in all queues of the session."""
    state, *facts = await core.call(core.on_own("session_enrol", now, session))
    for queue in facts[2] if state != b"unknown" else ():
        await settle_in(core, queue.decode(), session, lost, now)
