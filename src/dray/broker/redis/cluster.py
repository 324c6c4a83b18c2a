"""The known nodes of a cluster: which one serves which slots, and which one to ask next."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from dray.broker.redis.keys import SLOTS, slot
from dray.broker.redis.options import Address

FRESH: Final = 0.05
"""Seconds for which a map of slots is not requested again after a failure."""


class SlotMap:
    """The reply to `CLUSTER SLOTS`: the primary of every slot."""

    def __init__(self, asked: Address, reply: Sequence[Any]) -> None:
        self._slots: list[Address] = [asked] * SLOTS
        self.nodes: dict[Address, None] = {}
        """Primaries and replicas."""
        self.covered = 0
        for first, last, *nodes in reply:
            found = [Address((host or b"").decode() or asked.host, port) for host, port, *_ in nodes]
            self._slots[first : last + 1] = found[:1] * (last + 1 - first)
            self.nodes |= dict.fromkeys(found)
            self.covered += last + 1 - first
        self.primaries = frozenset(self._slots)

    @property
    def complete(self) -> bool:
        return self.covered == SLOTS

    def primary(self, key: str) -> Address:
        return self._slots[slot(key)]


class Nodes:
    """All nodes that may be asked for the map of slots, and which of them failed."""

    def __init__(self, seeds: Iterable[Address]) -> None:
        self._seeds = tuple(seeds)
        self._failed: dict[Address, float] = {}
        self.home: Address | None = None
        """The node that answered last, or a primary if that is a replica. Subscribers connect to it."""
        self.map: SlotMap | None = None
        self.stale = False
        """The map must be requested again before it is used."""
        self._learned = 0.0
        self.version = 0

    @property
    def fresh(self) -> bool:
        return time.monotonic() - self._learned < FRESH

    def in_order(self, first: Address | None = None) -> list[Address]:
        """`first`, then nodes that have not failed since they answered, then the rest by age of failure."""
        known = dict.fromkeys(
            one
            for one in (first, self.home, *(self.map.nodes if self.map else ()), *self._seeds)
            if one is not None
        )
        failed = self._failed
        return sorted(known, key=lambda one: -1.0 if one == first else failed.get(one, 0.0))

    def answered(self, address: Address, map: SlotMap | None) -> frozenset[Address]:
        """Store the map that a node returned; returns the nodes that are no longer primaries."""
        before = frozenset[Address]() if self.map is None or map is None else self.map.primaries
        self._failed.pop(address, None)
        self.map, self.stale = map, False
        self.home = address
        if map is not None and address not in map.primaries:
            self.home = min(map.primaries, key=lambda one: self._failed.get(one, 0.0))
        self._learned = time.monotonic()
        self.version += 1
        return before - map.primaries if map else before

    def failed(self, address: Address) -> None:
        """Note that a node did not answer or cannot serve: the others are asked before it."""
        self._failed[address] = time.monotonic()
        self.stale = True
        if self.home == address:
            self.home = None
