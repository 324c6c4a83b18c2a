"""What every verb works with: the way to the server, the keys, the clock."""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from dray.broker.redis.keys import Keys
from dray.broker.redis.options import Options
from dray.broker.redis.router import Arg, Call, Router, command, script
from dray.broker.redis.wire import Reply
from dray.errors import BrokerError, ForeignStore, NewerLayout
from dray.policy import Retention

LAYOUT: Final = 1
"""The version of the key map. A change that older code cannot live with makes it higher."""
ASK_TIME_EVERY: Final = 60_000_000
"""Microseconds."""
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)


class Core:
    """One broker object's view of its namespace."""

    def __init__(
        self,
        options: Options,
        namespace: str,
        retention: Retention,
        clock: Callable[[], int] | None,
        blocking: bool,
    ) -> None:
        self.options, self.keys, self.retention, self.blocking = options, Keys(namespace), retention, blocking
        self.router = Router(options, blocking)
        self.name = secrets.token_hex(8)
        self.requests: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Per session the last request made here, and the queues it went to."""
        self.taken_from: dict[str, str] = {}
        """The queue of ids that do not name it, while their runs are held."""
        self.looked_at: dict[str, int] = {}
        """Per queue, how many of its waiting jobs the last sweeps looked at."""
        self.doubts: dict[tuple[str, str, str, str], int] = {}
        """What crosses slots and looked wrong in a sweep, and since when."""
        self.unread: set[str] = set()
        """Intents that cannot be read, and of which the log tells already."""
        self._clock = clock
        dead = -1 if retention.dead_ttl is None else retention.dead_ttl
        self._retention = f"{retention.done_ttl},{dead},{retention.result_ttl}"
        self._enlisted: set[str] = set()
        self.watched: dict[tuple[str, str], float] = {}
        """When it was written down last that a watcher waits for jobs of a queue."""
        self.backlog: list[str] = []
        """Queues whose outboxes had more word than one call delivers: the next call goes on with them."""
        self._stamp = 0
        self._ahead = 0
        """Microseconds by which the server's clock is ahead of our steady one."""
        self._ask_at = 0

    def remember(self, id: str, queue: str) -> None:
        if len(self.taken_from) > 10_000:  # runs that were lost and never settled
            self.taken_from.clear()
        self.taken_from[id] = queue

    # time

    def at(self, now: int | None) -> str:
        """The argument that tells a script the time; nothing means the server's clock."""
        if now is not None:
            return str(now)
        return "" if self._clock is None else str(self._clock())

    def time(self, now: int | None) -> int:
        """The time in numbers: as told, or the server's as far as it is known here."""
        if now is not None:
            return now
        return (_steady() + self._ahead) // 1000 if self._clock is None else self._clock()

    def told_time(self, now: int | None) -> int | None:
        """The time as told; None if it is the server's, which stamps follow."""
        return self._clock() if now is None and self._clock is not None else now

    def stamps(self, count: int) -> int:
        """The first of `count` arrival stamps: microseconds, never the same twice."""
        first = max(_steady() + self._ahead, self._stamp + 1)
        self._stamp = first + count - 1
        return first

    async def _ask_time(self) -> None:
        self._ask_at = _steady() + ASK_TIME_EVERY
        key = self.keys.own
        seconds, micros = await self.router.call(command(key, "TIME"))
        # Counted from the reply, not from halfway: late is harmless, early is not.
        self._ahead = int(seconds) * 1_000_000 + int(micros) - _steady()

    # calls

    def on_queue(self, name: str, queue: str, now: int | None, *args: Arg) -> Call:
        """A script of a queue."""
        return script(name, self.keys.queue(queue), self.at(now), self._retention, *args)

    def on_own(self, name: str, now: int | None, *args: Arg) -> Call:
        """A script of the namespace's own slot."""
        return script(name, self.keys.own, self.at(now), *args)

    async def call(self, call: Call) -> Reply:
        reply = await self.router.call(call)
        if _steady() > self._ask_at:
            await self._ask_again()
        return reply

    async def calls(self, calls: Sequence[Call]) -> list[Reply]:
        replies = await self.router.calls(calls) if calls else []
        if _steady() > self._ask_at:
            await self._ask_again()
        return replies

    async def _ask_again(self) -> None:
        """What is known of the server's clock is corrected now and then: two clocks never run alike.

        After a call, as calls that are made together must stay together; and what was done must not fail.
        """
        with contextlib.suppress(BrokerError):
            await self._ask_time()

    # the list of queues

    async def queues(self) -> list[str]:
        own = self.keys.own + "queues"
        return sorted(name.decode() for name in await self.call(command(own, "SMEMBERS", own)))

    def knows(self, queue: str) -> bool:
        return queue in self._enlisted

    async def enlist(self, queues: Sequence[str]) -> None:
        """Write queues down before anything is put there, so that no sweeper overlooks them."""
        if not queues:
            return
        own, layout = self.keys.own + "queues", self.keys.own + "layout"
        await self.calls([command(layout, "SET", layout, LAYOUT, "NX"), command(own, "SADD", own, *queues)])
        counters = [self.keys.queue(name) + "n" for name in queues]
        await self.calls([command(key, "HSET", key, "known", 1) for key in counters])
        self._enlisted.update(queues)

    # opening

    async def open(self) -> None:
        """Connect; see whose store it is, and what its clock says."""
        wire = await self.router.open()
        await self._ask_time()
        key = self.keys.own + "layout"
        layout = await self.call(command(key, "GET", key))
        if layout is None:
            return
        if not layout.isdigit():
            raise ForeignStore(f"{wire.address}: {key} is not dray's: choose another namespace or database")
        if int(layout) > LAYOUT:
            raise NewerLayout(
                f"{wire.address}: namespace {self.keys.namespace} was written by a newer dray (layout "
                f"{int(layout)}, this one knows {LAYOUT}): upgrade this one"
            )


def _steady() -> int:
    """Microseconds of a clock that nobody sets; on Linux one that goes on while the machine sleeps."""
    return (time.monotonic_ns() if _BOOTTIME is None else time.clock_gettime_ns(_BOOTTIME)) // 1000
