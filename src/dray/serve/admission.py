"""The checks before a request reaches its handler, the same for HTTP and gRPC.

Who asks (`auth.py`), how often (`RateLimiter`) and how much at a time (`ConcurrencyLimit`, `ByteLimit`).
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

from dray.admin.api_keys import Role
from dray.app import App
from dray.policy import Rate
from dray.serve.auth import EVERYBODY, Access, Authenticator, Caller, Peer
from dray.serve.deadline import Deadline
from dray.serve.errors import Refused, forbidden, try_later

CALLERS_MAX: Final = 10_000
"""Callers whose rate is remembered; the one that has been silent longest is forgotten first."""
SHARE: Final = 3
"""One key may hold at most this many times what stays free."""
T = TypeVar("T")


class FairShares:
    """A bounded amount, shared by keys so that there is always room for a key that holds nothing.

    A key may hold three times as much as stays free: three quarters if it is alone, three sevenths each if
    there are two.
    """

    def __init__(self, size: int) -> None:
        self.size, self.taken = size, 0
        self._by_key: dict[str, int] = {}

    def take(self, key: str | None, amount: int, full: str, unfair: str) -> None:
        """Take an amount, or refuse with one of the two messages. Without a key there are no shares."""
        left = self.size - self.taken - amount
        if left < 0:
            raise try_later(503, "overloaded", full, 1)
        if key is not None:
            held = self._by_key.get(key, 0)
            if held and held + amount > SHARE * left:
                raise try_later(429, "share_used_up", unfair, 1)
            self._by_key[key] = held + amount
        self.taken += amount

    def give(self, key: str | None, amount: int) -> None:
        self.taken -= amount
        if key is not None:
            self._by_key[key] -= amount
            if not self._by_key[key]:
                del self._by_key[key]


class ConcurrencyLimit:
    """A number of requests at a time; the next is refused."""

    def __init__(self, size: int, unit: str) -> None:
        self._shares = FairShares(size)
        self._full = f"too many {unit} at a time ({size})"
        self._unfair = f"this key has its share of all {unit} at a time ({size})"

    def enter(self, key: str | None = None) -> Callable[[], None]:
        """Take a slot. The function that is returned frees it."""
        self._shares.take(key, 1, self._full, self._unfair)
        return partial(self._shares.give, key, 1)


class ByteLimit:
    """A number of bytes of large requests at a time; more is refused."""

    def __init__(self, size: int) -> None:
        self._shares = FairShares(size)
        self._full = f"large requests hold {size} bytes already"
        self._unfair = f"large requests of this key hold its share of {size} bytes already"

    @property
    def held(self) -> int:
        return self._shares.taken

    def add(self, size: int, key: str | None = None) -> Callable[[], None]:
        """Hold bytes. The function that is returned frees them."""
        self._shares.take(key, size, self._full, self._unfair)
        return partial(self._shares.give, key, size)


class RateLimiter:
    """A number of requests per time and caller."""

    def __init__(self, rate: str) -> None:
        self._rate = Rate.parse(rate)
        self._used: OrderedDict[str, int] = OrderedDict()

    def count(self, caller: str) -> None:
        """Count a request; refuse it if it is one too many."""
        now = time.monotonic_ns() // 1_000_000
        used = self._used.pop(caller, 0)
        allowed = self._rate.available(used, now) > 0
        self._used[caller] = self._rate.spend(used, now) if allowed else used
        if len(self._used) > CALLERS_MAX:
            self._used.popitem(last=False)
        if not allowed:
            seconds = (self._rate.free_at(used, now) - now) / 1000
            raise try_later(429, "too_many_requests", f"more than {self._rate} requests", seconds)


class Admission:
    """Admits requests to one server, and cuts off the ones that last too long or lose their key."""

    def __init__(self, app: App, access: Access, unit: str) -> None:
        settings = app.settings
        self.timeout = (settings.connect_timeout + settings.read_timeout) / 1000
        """Seconds that the broker may take for one request."""
        self.auth = Authenticator(app, access, self.timeout)
        self._rate = None if settings.key_rate is None else RateLimiter(settings.key_rate)
        self._active = ConcurrencyLimit(settings.max_requests, unit)
        self._waiting = ConcurrencyLimit(settings.max_waiting, "clients that wait")

    def enter(self, share: str | None, *, waits: bool) -> Callable[[], None]:
        """Take a slot, before the key is looked up. The function that is returned frees it."""
        return (self._waiting if waits else self._active).enter(share)

    async def admit(self, peer: Peer, role: Role) -> Caller:
        """The caller, if its key is valid, it does not ask too often, and it has the role."""
        try:
            caller = await self.auth.identify(peer)
        except Refused:
            if self._rate is not None:
                self._rate.count(f"unknown {peer.address}")
            raise
        if self._rate is not None:
            self._rate.count(peer.address if caller is EVERYBODY else caller.id)
        if not caller.has_role(role):
            raise forbidden(f"this key has not the role {role}")
        return caller

    async def run(self, peer: Peer, work: Awaitable[T], *, waits: bool, timeout: float | None = None) -> T:
        """Await a handler: within a time, or, if it waits for events, for as long as its key is valid."""
        if waits:
            return await self.auth.while_valid(peer, work)
        with Deadline(timeout or self.timeout):
            return await work

    def stream(self, peer: Peer, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """A stream that is refused as soon as its key is not valid any more."""
        return self.auth.stream_while_valid(peer, stream)
