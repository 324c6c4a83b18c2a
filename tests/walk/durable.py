"""Random calls of durable jobs: what a run writes and waits for, and what is sent to it."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from dray.broker.durable import MemoWrite
from dray.job import Suspension
from walk.jobs import HOUR, MINUTE, SECOND

EVENTS: Final = ("go", "é 'v'")
MESSAGES: Final = ("m1", "m2", "m3", "m4")
VERBS: Final = ("memo", "recall", "send", "mailbox", "tally")


def suspension(rng: Random, known: list[str], now: int) -> Suspension:
    """What a job waits for: often one thing, sometimes several, sometimes nothing but a hand."""
    if rng.random() < 0.08:
        return Suspension(parked=True)
    fields: dict[str, Any] = {}
    if rng.random() < 0.5:
        fields["events"] = {name: rng.choice((0, 0, 1, 2)) for name in rng.sample(EVENTS, rng.randint(1, 2))}
    if known and rng.random() < 0.5:
        fields["jobs"] = tuple(rng.sample(known, min(len(known), rng.randint(1, 3))))
        fields["all_jobs"] = rng.random() < 0.5
    if not fields or rng.random() < 0.4:
        fields["until"] = max(0, now + rng.choice((-5, 0, 1, 100, 5 * SECOND, 5 * MINUTE, HOUR)))
    return Suspension(**fields)


def write(rng: Random, id: str, run: int, known: list[str]) -> MemoWrite:
    """Mostly one that fits the end of the log as it is known."""
    return MemoWrite(
        id=id,
        run=run,
        position=rng.choices((-1, -2, 0, 1, 7), (90, 4, 3, 2, 1))[0],
        entries=tuple(rng.choice((b"", b"\x00\xff'", b"step")) for _ in range(rng.choice((0, 1, 1, 2, 3)))),
        children=tuple(rng.sample(known, min(len(known), rng.choice((0, 0, 0, 1, 2))))),
        undo=rng.choice((None, True, True, True, False)),
        consumed={name: rng.randint(0, 3) for name in EVENTS if rng.random() < 0.15},
    )


def message(rng: Random, id: str) -> dict[str, Any]:
    return {
        "id": id,
        "name": rng.choice(EVENTS),
        "message": rng.choice(MESSAGES),
        "body": rng.choice((b"", b"\x00\xff", b"yes")),
    }
