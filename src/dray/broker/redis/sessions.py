"""Sessions: the namespace keeps who is alive, every queue what is held there (see lua/session_*.lua)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from dray.broker.redis.core import Core
from dray.broker.redis.crossing import locate
from dray.broker.redis.router import Arg, Call, command
from dray.broker.redis.rows import encode
from dray.broker.verbs import Beat, Heard, Ref

Aftermaths = list[tuple[str, Any]]


async def renew(core: Core, beats: Sequence[Beat], now: int | None) -> list[Heard]:
    if not beats:
        return []
    args: list[Arg] = [word for beat in beats for word in (beat.session, beat.lease)]
    answers = await core.call(core.on_own("session_renew", now, *args))
    places = await locate(core, {report.id for beat in beats for report in beat.progress}, held=True)
    calls: list[tuple[int, Call]] = []
    for index, (beat, (opened, epoch, expires, queues)) in enumerate(zip(beats, answers, strict=True)):
        if opened:
            core.requests.pop(beat.session, None)
        calls += [(index, _beat(core, beat, q.decode(), epoch, expires, places, now)) for q in queues]
    words: list[tuple[list[Ref], list[Ref]]] = [([], []) for _ in beats]
    replies = await core.calls([call for _, call in calls])
    for (index, _), (_, lost, cancelled) in zip(calls, replies, strict=True):
        words[index][0].extend(map(read_ref, lost))
        words[index][1].extend(map(read_ref, cancelled))
    return [
        Heard(bool(answer[0]), answer[1], tuple(sorted(lost)), tuple(sorted(cancelled)))
        for answer, (lost, cancelled) in zip(answers, words, strict=True)
    ]


def _beat(
    core: Core, beat: Beat, queue: str, epoch: int, expires: bytes, places: dict[str, str], now: int | None
) -> Call:
    reports: list[Arg] = []
    for report in beat.progress:
        if places.get(report.id) == queue:
            reports += (report.id, report.run, encode(report.progress))
    return core.on_queue("renew", queue, now, beat.session, epoch, beat.lease, expires, *reports)


def read_ref(text: bytes) -> Ref:
    run, _, id = text.decode().partition(" ")
    return id, int(run)


async def release(
    core: Core,
    session: str,
    now: int | None,
    *,
    suspect: bool = True,
    blamed: Collection[Ref] = (),
    late: bool = False,
) -> tuple[int, Aftermaths] | None:
    """End a session; how many runs it held, or None if there is none (or, if asked, none that is late)."""
    core.requests.pop(session, None)
    epoch, queues = await core.call(core.on_own("session_end", now, session, int(late), int(suspect)))
    if not epoch:
        return None
    return await bring_to_end(core, session, epoch, queues, now, suspect, blamed)


async def bring_to_end(
    core: Core,
    session: str,
    epoch: int,
    queues: Sequence[Any],
    now: int | None,
    suspect: bool,
    blamed: Collection[Ref] = (),
) -> tuple[int, Aftermaths]:
    """Free what a session held, queue by queue. If we die midway, `sweep` finds where to go on."""
    refs = [f"{run} {id}" for id, run in blamed]
    freed, left = 0, []
    for name in queues:
        queue = name.decode()
        call = core.on_queue("release", queue, now, session, epoch, int(suspect), *refs)
        count, aftermath = await core.call(call)
        freed += count
        left.append((queue, aftermath))
    if queues:
        await core.call(core.on_own("session_ended", now, session, epoch))
    else:
        await core.call(_announce(core, session))
    return freed, left


def _announce(core: Core, session: str) -> Call:
    return command(core.keys.own, "PUBLISH", core.keys.session_channel(session), "1")
