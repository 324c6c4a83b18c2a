"""State that all verbs of one broker object share: the router, the keys, the clock, the list of queues."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from dray.broker.redis.connection import Reply
from dray.broker.redis.keys import KeyNames
from dray.broker.redis.options import Options
from dray.broker.redis.router import Arg, Command, Router, command, script
from dray.broker.redis.scripts import SCRIPTS
from dray.errors import BrokerError, ForeignStore, NewerLayout
from dray.job import Taken
from dray.policy import Retention

LAYOUT: Final = 3
"""The version of the key map; raised by a change that older code cannot read."""
ASK_TIME_EVERY: Final = 60_000_000_000
"""Nanoseconds."""
_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)
_steady: Final = time.monotonic_ns if _BOOTTIME is None else partial(time.clock_gettime_ns, _BOOTTIME)
"""Nanoseconds of a monotonic clock; on Linux one that goes on while the machine sleeps."""
_KEYS_OF_QUEUE: Final = ("n", "feed", "set", "s", "t", "sleep", "rate", "mailed")
_KEYS_OF_NAMESPACE: Final = (
    *("queues", "leaving", "fed", "versions", "opened", "clock", "session", "ending", "docttl", "intent"),
    "layout",
)
"""The keys that exist without jobs."""


class Core:
    """One broker object's view of its namespace.

    Threads share a blocking one, so every read and change of these fields is a single step.
    """

    def __init__(
        self,
        options: Options,
        namespace: str,
        retention: Retention,
        clock: Callable[[], int] | None,
        blocking: bool,
    ) -> None:
        self.options, self.keys, self.retention, self.blocking = (
            options,
            KeyNames(namespace),
            retention,
            blocking,
        )
        self.router = Router(options, blocking)
        self.name = secrets.token_hex(8)
        self.requests: dict[str, tuple[int, tuple[str, ...]]] = {}
        """Per session the last request made here, and its queues."""
        self.handed: dict[str, tuple[int, dict[str, tuple[bytes, Taken]]]] = {}
        """Per session the request for which runs came with a wake-up, and these, by queue."""
        self.taken_from: dict[str, str] = {}
        """The queue of made-up ids, while their runs are held."""
        self.looked_at: dict[str, int] = {}
        """Cursors of `sweep`: waiting jobs of a queue that were checked, queues that were visited."""
        self.doubts: dict[tuple[str, str, str, str], int] = {}
        """Cross-slot damage that a sweep suspected, and since when."""
        self.unread: set[str] = set()
        """Unreadable intents that were logged."""
        self._clock = clock
        dead = -1 if retention.dead_ttl is None else retention.dead_ttl
        self._retention = f"{retention.done_ttl},{dead},{retention.result_ttl}"
        self._enlisted: set[str] = set()
        self.watched: dict[tuple[str, str], float] = {}
        """When a watcher was last registered with a queue."""
        self.backlog: list[str] = []
        """Queues whose outboxes had more messages than one call delivers; the next call goes on."""
        self._stamp = 0
        self._stamping = threading.Lock()
        self._ahead = 0
        """Microseconds by which the server's clock is ahead of our steady one."""
        self._ask_at = 0

    def remember(self, id: str, queue: str) -> None:
        if len(self.taken_from) > 10_000:  # runs that were never settled
            self.taken_from.clear()
        self.taken_from[id] = queue

    # time

    def at(self, now: int | None) -> str:
        """The time as an argument of a script; empty means the server's clock."""
        if now is not None:
            return str(now)
        return "" if self._clock is None else str(self._clock())

    def time(self, now: int | None) -> int:
        """The given time, or the server's as known here."""
        if now is not None:
            return now
        return (_steady() // 1000 + self._ahead) // 1000 if self._clock is None else self._clock()

    def given_time(self, now: int | None) -> int | None:
        """The time that the caller passed; None if the server's clock counts."""
        return self._clock() if now is None and self._clock is not None else now

    def stamps(self, count: int) -> int:
        """The first of `count` arrival stamps: microseconds, never the same twice."""
        with self._stamping:
            first = max(_steady() // 1000 + self._ahead, self._stamp + 1)
            self._stamp = first + count - 1
        return first

    async def _ask_time(self) -> None:
        self._ask_at = _steady() + ASK_TIME_EVERY
        key = self.keys.own
        seconds, micros = await self.router.call(command(key, "TIME"))
        # Counted from the reply, not from halfway, as an early clock does harm and a late one does not.
        self._ahead = int(seconds) * 1_000_000 + int(micros) - _steady() // 1000

    # calls

    def on_queue(self, name: str, queue: str, now: int | None, *args: Arg) -> Command:
        """A script of a queue."""
        prefix = self.keys.prefixes.get(queue) or self.keys.queue(queue)
        at = "" if now is None and self._clock is None else self.at(now)
        return Command(SCRIPTS[name], prefix, (at, self._retention, *args))

    def on_own(self, name: str, now: int | None, *args: Arg) -> Command:
        """A script of the namespace's own slot."""
        return script(name, self.keys.own, self.at(now), *args)

    async def call(self, call: Command) -> Reply:
        reply = await self.router.call(call)
        if _steady() > self._ask_at:
            await self._ask_again()
        return reply

    async def calls(self, calls: Sequence[Command]) -> list[Reply]:
        if not calls:
            return []
        if len(calls) == 1:
            replies = [await self.router.call(calls[0])]
        else:
            replies = await self.router.calls(calls)
        if _steady() > self._ask_at:
            await self._ask_again()
        return replies

    async def _ask_again(self) -> None:
        """Read the server's clock again, as two clocks drift apart.

        After a call, so that calls made together stay together; a failure must not fail that call.
        """
        with contextlib.suppress(BrokerError):
            await self._ask_time()

    # the list of queues

    async def queues(self) -> list[str]:
        keys = [self.keys.own + "queues", self.keys.own + "leaving"]
        listed, leaving = await self.calls([command(key, "SMEMBERS", key) for key in keys])
        return sorted({name.decode() for name in [*listed, *leaving]})

    def next_queues(self, purpose: str, queues: Sequence[str], count: int) -> Sequence[str]:
        """So many of the queues, others each time; all if they are not more."""
        if len(queues) <= count:
            return queues
        start = self.looked_at.get(purpose, secrets.randbelow(len(queues))) % len(queues)
        self.looked_at[purpose] = start + count
        return [*queues[start:], *queues[:start]][:count]

    def knows(self, queue: str) -> bool:
        return queue in self._enlisted

    async def enlist(self, queues: Sequence[str]) -> None:
        """List queues before a job is put there, so that no sweep overlooks them."""
        if not queues:
            return
        own, layout, fed = (self.keys.own + name for name in ("queues", "layout", "fed"))
        listed = command(own, "SADD", own, *queues)
        replies = await self.calls(
            [command(layout, "SET", layout, LAYOUT, "NX"), command(fed, "GET", fed), listed]
        )
        counters = [self.keys.queue(name) + "n" for name in queues]
        if replies[1] is not None:
            await self.calls([command(key, "HSETNX", key, "base", replies[1]) for key in counters])
        await self.calls([command(key, "HSET", key, "known", 1) for key in counters])
        await self.call(listed)  # again: it may have been forgotten before its counters were written
        self._enlisted.update(queues)

    # opening

    async def open(self) -> None:
        """Connect, check the layout, and read the server's clock."""
        address = await self.router.home()
        await self._ask_time()
        key = self.keys.own + "layout"
        layout = await self.call(command(key, "GET", key))
        if layout is None:
            return
        if not layout.isdigit():
            raise ForeignStore(f"{address}: {key} is not dray's: choose another namespace or database")
        if int(layout) < LAYOUT:
            name = self.keys.namespace
            raise ForeignStore(
                f"{address}: namespace {name} was written by an older dray (layout {int(layout)}, this one "
                f"writes {LAYOUT}): let that one finish its jobs, then delete the keys dray:{{{name}}}* and "
                f"dray:{{{name}:*, or choose another namespace"
            )
        if int(layout) > LAYOUT:
            raise NewerLayout(
                f"{address}: namespace {self.keys.namespace} was written by a newer dray (layout "
                f"{int(layout)}, this one knows {LAYOUT}): upgrade this one"
            )

    async def erase(self, kinds: Iterable[str]) -> None:
        """Delete an unused namespace without jobs, and its documents of these kinds."""
        for name in await self.queues():
            prefix = self.keys.queue(name)
            mailed = await self.call(command(prefix, "SMEMBERS", prefix + "mailed"))
            keys = [
                prefix + part for part in (*_KEYS_OF_QUEUE, *(f"m:{watcher.decode()}" for watcher in mailed))
            ]
            await self.call(command(prefix, "DEL", *keys))
        watchers = {f"w:{watcher}" for watcher, _ in self.watched}
        parts = (*_KEYS_OF_NAMESPACE, *(f"doc:{kind}" for kind in kinds), *watchers)
        await self.call(command(self.keys.own, "DEL", *(self.keys.own + part for part in parts)))
