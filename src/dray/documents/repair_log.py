"""The log of repairs that sweeps made, for `dray doctor`.

A sound store needs no repair: the worker that swept logs each as a warning, and adds it to a small document.
Steps that a killed process left half done are routine: the document counts them apart, and they are logged at
level info.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from dray.broker.repairs import INTERRUPTED, describe
from dray.broker.verbs import Broker, Swept
from dray.documents.reading import read_doc

KIND: Final = "recovery"
NAME: Final = "repairs"
TRIES: Final = 5

log = logging.getLogger("dray.recovery")


class Repairs(msgspec.Struct, frozen=True):
    """All repairs since the store was made."""

    counts: dict[str, int] = {}
    """By kind (`dray.broker.repairs`)."""
    first: int = 0
    last: int = 0
    """When, in milliseconds since the epoch by the clock of the worker that swept."""
    latest: dict[str, int] = {}
    """The repairs of the last sweep that made any."""
    finished: dict[str, int] = {}
    """Steps of killed processes that sweeps finished, by kind."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Repairs).decode


async def note_swept(broker: Broker, swept: Swept) -> None:
    """Log what a sweep has repaired (a warning) or finished, and add it to the document."""
    if swept.repairs:
        log.warning("the store was inconsistent and has been repaired: %s", describe(swept.repairs))
    if swept.finished:
        log.info("finished what a killed process had begun: %s", describe(swept.finished, INTERRUPTED))
    if not swept.repairs and not swept.finished:
        return
    now = time.time_ns() // 1_000_000
    for _ in range(TRIES):  # another sweeper may write at the same moment
        version, before = await _read(broker)
        after = msgspec.structs.replace(before, finished=_sum(before.finished, swept.finished))
        if swept.repairs:
            counts = _sum(before.counts, swept.repairs)
            after = Repairs(counts, before.first or now, now, dict(swept.repairs), after.finished)
        if (await broker.doc(KIND, NAME, _encode(after), expect_version=version)).written:
            return


def _sum(before: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {kind: before.get(kind, 0) + more.get(kind, 0) for kind in sorted({*before, *more})}


async def read_repairs(broker: Broker) -> Repairs:
    return (await _read(broker))[1]


async def _read(broker: Broker) -> tuple[int, Repairs]:
    doc = (await broker.doc(KIND, NAME)).doc
    return 0 if doc is None else doc.version, read_doc(_decode, doc) or Repairs()
