"""Sessions: the namespace keeps their leases, every queue the runs they hold (see lua/session_*.lua)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import encode
from dray.broker.redis.outbox import follow_up_all, locate
from dray.broker.redis.router import Arg, Command, command
from dray.broker.verbs import Beat, Heard, Ref

Aftermaths = list[tuple[str, Any]]


async def renew(core: Core, beats: Sequence[Beat], now: int | None) -> list[Heard]:
    if not beats:
        return []
    args: list[Arg] = [arg for beat in beats for arg in (beat.session, beat.lease)]
    answers = await core.call(core.on_own("session_renew", now, *args))
    places = await locate(core, {report.id for beat in beats for report in beat.progress}, held=True)
    calls: list[tuple[int, Command]] = []
    for index, (beat, (opened, epoch, expires, queues)) in enumerate(zip(beats, answers, strict=True)):
        if opened:
            core.requests.pop(beat.session, None)
        calls += [(index, _beat(core, beat, q.decode(), epoch, expires, places, now)) for q in queues]
    news: list[tuple[list[Ref], ...]] = [([], [], []) for _ in beats]
    replies = await core.calls([call for _, call in calls])
    for (index, _), (_, *lists) in zip(calls, replies, strict=True):
        for refs, new in zip(news[index], lists, strict=True):
            refs.extend(map(read_ref, new))
    return [
        Heard(bool(answer[0]), answer[1], *(tuple(sorted(refs)) for refs in lists))
        for answer, lists in zip(answers, news, strict=True)
    ]


def _beat(
    core: Core, beat: Beat, queue: str, epoch: int, expires: bytes, places: dict[str, str], now: int | None
) -> Command:
    reports: list[Arg] = []
    for report in beat.progress:
        if places.get(report.id) == queue:
            reports += (report.id, report.run, encode(report.progress))
    return core.on_queue("renew", queue, now, beat.session, epoch, beat.lease, expires, *reports)


def read_ref(text: bytes) -> Ref:
    run, _, id = text.decode().partition(" ")
    return id, int(run)


async def release(core: Core, session: str, now: int | None, suspect: bool, blamed: Collection[Ref]) -> int:
    """End a session; returns the number of freed runs."""
    core.requests.pop(session, None)
    epoch, queues = await core.call(core.on_own("session_end", now, session, 0, int(suspect)))
    if not epoch:
        return 0
    freed, left = await bring_to_end(core, session, epoch, queues, now, suspect, blamed)
    await follow_up_all(core, left, now)
    return freed


async def bring_to_end(
    core: Core,
    session: str,
    epoch: int,
    queues: Sequence[Any],
    now: int | None,
    suspect: bool,
    blamed: Collection[Ref] = (),
) -> tuple[int, Aftermaths]:
    """Free the runs of an ended session, queue by queue. If we die midway, `sweep` goes on."""
    refs = [f"{run} {id}" for id, run in blamed]
    freed, left = 0, []
    for name in queues:
        queue = name.decode()
        call = core.on_queue("release", queue, now, session, epoch, int(suspect), "", *refs)
        count, aftermath = await core.call(call)
        freed += count
        left.append((queue, aftermath))
    if queues:
        await core.call(core.on_own("session_end_done", now, session, epoch))
    else:
        await core.call(command(core.keys.own, "PUBLISH", core.keys.session_channel(session), "1"))
    return freed, left
