"""The part of a sleeper in a hand-over: the take that it offers, and the job that a wake-up brings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dray.broker.redis.core import Core
from dray.broker.redis.router import Arg
from dray.broker.redis.take import read_handed
from dray.broker.verbs import NextTake, Wake

MARK: Final = 1_000_000
"""The mark of a sleep in a queue: number of the sleep times this, plus the queue's place in the interest."""


def read_mark(message: bytes) -> tuple[bytes, int, int]:
    """The kind of a wake-up, the number of the sleep and the place of the queue.

    `w`: there is work, `c`: check again, `j`: a job was handed over, which follows.
    """
    mark = message[1:].split(b" ", 1)[0] if message[:1] == b"j" else message[1:]
    return message[:1], *divmod(int(mark), MARK)


def take_args(core: Core, take: NextTake | None, queue: str) -> tuple[Arg, Arg]:
    """The offered take as arguments of a script; empty if it is not offered to this queue."""
    offers = take is not None and queue in take.queues
    return take.request if take is not None and offers else "", int(core.router.cluster)


def hand_over(core: Core, session: str | None, take: NextTake | None, messages: Mapping[str, bytes]) -> Wake:
    """The runs of messages by queue; a queue whose message cannot be read has work."""
    if session is None or take is None:
        return Wake(work=True, queues=tuple(messages))
    found = {queue: read_handed(core, queue, message) for queue, message in messages.items()}
    runs = {queue: (ref, taken) for queue, one in found.items() if one is not None for _, ref, taken in [one]}
    core.handed[session] = (take.request, runs)
    unread = tuple(queue for queue, one in found.items() if one is None)
    times = [one[0] for one in found.values() if one is not None]
    taken = tuple(taken for _, taken in runs.values())
    return Wake(work=bool(unread), queues=unread, taken=taken, handed_at=min(times, default=0))
