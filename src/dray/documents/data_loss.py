"""Detects that the broker has lost its data: FLUSHALL, a restart without persistence, a replaced file.

A document without a ttl, the store's identity, is written once into each namespace; no command deletes it. A
worker remembers it. When it is missing later, or is another one, all earlier data is gone. So a schedule that
a user deleted is never mistaken for a lost one.
"""

from __future__ import annotations

import secrets
from typing import Final

import msgspec
from msgspec.structs import replace

from dray.broker.verbs import Broker
from dray.documents.reading import read_doc

KIND: Final = "recovery"
NAME: Final = "birth"
TRIES: Final = 5


class StoreIdentity(msgspec.Struct, frozen=True):
    """The identity of a namespace's data."""

    token: str
    """Random, and never used again."""
    at: int
    """When the data began: milliseconds since the epoch by the broker's clock."""
    losses: int = 0
    """How often workers detected a loss of all data."""

    @property
    def lost(self) -> int | None:
        """When the last loss was detected; None if there never was one."""
        return self.at if self.losses else None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(StoreIdentity).decode


class DataLossDetector:
    """One worker's memory of the store's identity."""

    def __init__(self) -> None:
        self._known: StoreIdentity | None = None

    async def look(self, broker: Broker) -> bool:
        """True if all data was lost since the last call. Writes an identity where there is none."""
        for _ in range(TRIES):  # another worker may write at the same moment
            doc = (await broker.doc(KIND, NAME)).doc
            identity = read_doc(_decode, doc)
            if doc is not None and identity is None:
                return False
            after = self._expected(identity, broker.clock())
            version = 0 if doc is None else doc.version
            if after == identity or (await self._write(broker, after, version)):
                before, self._known = self._known, after
                return before is not None and before.token != after.token
        return False

    def _expected(self, identity: StoreIdentity | None, now: int) -> StoreIdentity:
        """The identity to be stored. Its writer may have started after losses that only we know of."""
        losses = 0 if self._known is None else self._known.losses + 1
        if identity is None:
            return StoreIdentity(secrets.token_hex(8), now, losses)
        if self._known is None or self._known.token == identity.token:
            return identity
        return replace(identity, losses=max(identity.losses, losses))

    async def _write(self, broker: Broker, identity: StoreIdentity, version: int) -> bool:
        return (await broker.doc(KIND, NAME, _encode(identity), expect_version=version)).written


async def read_store_identity(broker: Broker) -> StoreIdentity | None:
    """The identity of the namespace's data; None before the first worker."""
    return read_doc(_decode, (await broker.doc(KIND, NAME)).doc)
