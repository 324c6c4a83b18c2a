"""Resource use of the servers behind a broker."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """One server, by its own report; None where it reports nothing."""

    address: str
    cpu_seconds: float | None = None
    """CPU time it has used since it started."""
    used_memory: int | None = None
    """Bytes, like the next."""
    max_memory: int | None = None
    """None: no bound."""
    clients: int | None = None


@runtime_checkable
class HasServers(Protocol):
    """A broker whose jobs live in servers."""

    async def servers(self) -> list[ServerUse]:
        """The current use of each server."""
        ...
