"""What sweeps have repaired, kept where operators see it.

A sound store needs no repair. That one was needed is logged as a warning by whoever swept, and added up in a
small document, which `dray doctor` shows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from dray.broker.repairs import describe
from dray.broker.verbs import Broker

KIND: Final = "recovery"
NAME: Final = "repairs"
TRIES: Final = 5

log = logging.getLogger("dray.recovery")


class Repairs(msgspec.Struct, frozen=True):
    """All repairs since the store was made."""

    counts: dict[str, int] = {}
    """How many of each kind (`dray.broker.repairs`)."""
    first: int = 0
    last: int = 0
    """When, in milliseconds since the epoch by the clock of whoever swept."""
    latest: dict[str, int] = {}
    """What the last sweep that found something repaired."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Repairs).decode


async def note_repairs(broker: Broker, repairs: Mapping[str, int]) -> None:
    """Warn of what a sweep has repaired, and add it up."""
    if not repairs:
        return
    log.warning("the store was inconsistent and has been repaired: %s", describe(repairs))
    now = time.time_ns() // 1_000_000
    for _ in range(TRIES):  # another sweeper may write at the same moment
        version, before = await _read(broker)
        counts = {
            kind: before.counts.get(kind, 0) + repairs.get(kind, 0) for kind in {*before.counts, *repairs}
        }
        after = Repairs(dict(sorted(counts.items())), before.first or now, now, dict(repairs))
        if (await broker.doc(KIND, NAME, _encode(after), expect_version=version)).written:
            return


async def read_repairs(broker: Broker) -> Repairs:
    """What was ever repaired."""
    return (await _read(broker))[1]


async def _read(broker: Broker) -> tuple[int, Repairs]:
    doc = (await broker.doc(KIND, NAME)).doc
    if doc is None:
        return 0, Repairs()
    try:
        return doc.version, _decode(doc.value)
    except msgspec.DecodeError:  # a stray hand was here too
        return doc.version, Repairs()
