"""Sessions: the namespace keeps their leases, every queue the runs they hold (see lua/session_*.lua)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.encoding import encode
from dray.broker.redis.ids import public_id, stored_id
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
    calls: list[tuple[int, str, Command]] = []
    for index, (beat, (opened, epoch, lease, queues)) in enumerate(zip(beats, answers, strict=True)):
        if opened:
            core.requests.pop(beat.session, None)
        names = [queue.decode() for queue in queues]
        calls += [(index, name, _beat(core, beat, name, epoch, lease, places, now)) for name in names]
    news: list[tuple[list[Ref], ...]] = [([], [], []) for _ in beats]
    replies = await core.calls([call for _, _, call in calls])
    for (index, queue, _), (_, *lists) in zip(calls, replies, strict=True):
        for refs, new in zip(news[index], lists, strict=True):
            refs.extend(read_ref(ref, queue) for ref in new)
    return [
        Heard(bool(answer[0]), answer[1], *(tuple(sorted(refs)) for refs in lists))
        for answer, lists in zip(answers, news, strict=True)
    ]


def _beat(
    core: Core, beat: Beat, queue: str, epoch: int, lease: bytes, places: dict[str, str], now: int | None
) -> Command:
    reports: list[Arg] = []
    for report in beat.progress:
        if places.get(report.id) == queue:
            reports += (stored_id(report.id, queue), report.run, encode(report.progress))
    return core.on_queue("renew", queue, now, beat.session, epoch, lease, *reports)


def read_ref(text: bytes, queue: str) -> Ref:
    run, _, id = text.partition(b" ")
    return public_id(id, queue), int(run)


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
    freed, left = 0, []
    for name in queues:
        queue = name.decode()
        refs = [b"%d %b" % (run, stored_id(id, queue)) for id, run in blamed]
        call = core.on_queue("release", queue, now, session, epoch, int(suspect), "", *refs)
        count, aftermath = await core.call(call)
        freed += count
        left.append((queue, aftermath))
    if queues:
        await core.call(core.on_own("session_end_done", now, session, epoch))
    else:
        await core.call(command(core.keys.own, "PUBLISH", core.keys.session_channel(session), "1"))
    return freed, left
