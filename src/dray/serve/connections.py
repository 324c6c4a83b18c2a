"""Limits the number of connections, and the share of each address.

A connection costs a descriptor before anything is known of its client. So there are never more than the
process has descriptors for, no address holds most of them, and an idle one ends when its place is needed.
"""

from __future__ import annotations

import resource
from collections.abc import Collection
from ipaddress import IPv6Address, ip_address
from typing import Final, Generic, Protocol, TypeVar

MOST: Final = 10_000
LOCAL: Final = "this machine"


def allowed_connections() -> tuple[int, int]:
    """Connections over HTTP and over gRPC at a time: three parts and one part of the free descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 4 * MOST
    free = soft - min(128, soft // 4)  # the rest is for brokers, files and logs
    return max(1, min(MOST, free * 3 // 4)), max(1, min(MOST, free // 4))


def origin(address: str) -> str:
    """The client that an address belongs to: an IPv4 address, an IPv6 network, or this machine."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback:
        return LOCAL
    return str(IPv6Address(int(ip) >> 64 << 64)) if isinstance(ip, IPv6Address) else str(ip)


class Connection(Protocol):
    """One client."""

    origin: str

    @property
    def busy(self) -> bool:
        """A request is in progress."""

    def end(self) -> None:
        """Cut it off."""


C = TypeVar("C", bound=Connection)


class ConnectionLimit(Generic[C]):
    """The open connections by address; decides whether there is room for one more."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.share = max(1, most // 2)
        """Connections of one address. This machine has no such limit: a proxy on it serves many clients."""
        self._by_origin: dict[str, dict[C, None]] = {}
        self.taken = 0

    def add(self, connection: C) -> bool:
        """Count a connection, ending an idle one if there is no room; False if all are busy."""
        mine = self._by_origin.get(connection.origin, {})
        if connection.origin != LOCAL and len(mine) >= self.share:
            free = self._end_idle([mine])
        else:
            free = self.taken < self.most or self._end_idle(self._by_origin.values())
        if free:
            self._by_origin.setdefault(connection.origin, {})[connection] = None
            self.taken += 1
        return free

    def _end_idle(self, groups: Collection[dict[C, None]]) -> bool:
        """End the oldest idle connection, of the address that has most of them."""
        for group in sorted(groups, key=len, reverse=True):
            for one in group:
                if not one.busy:
                    self.remove(one)
                    one.end()
                    return True
        return False

    def remove(self, connection: C) -> None:
        mine = self._by_origin.get(connection.origin, {})
        if connection in mine:
            del mine[connection]
            self.taken -= 1
            if not mine:
                del self._by_origin[connection.origin]

    def all(self) -> list[C]:
        return [connection for some in self._by_origin.values() for connection in some]
