"""Following the broker's feed: one reader serves all clients, each of which has its own subscription.

A client that comes back with the cursor of the last message it got misses nothing, or learns of a gap.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Final

import msgspec

from dray.app import App
from dray.broker.verbs import Entry, Feed
from dray.errors import BrokerError
from dray.options import Name
from dray.serve.auth import Caller
from dray.serve.errors import forbidden

LOOK_EVERY: Final = 0.2
"""Seconds between two reads of the feed, while a client follows it."""
RETRY_PAUSE: Final = 1.0
"""Seconds before the next read after the broker did not answer."""
BEHIND_MAX: Final = 256
"""Reads of the feed kept for a slow client; one that is further behind gets a gap."""
QUEUES_MAX: Final = 100_000
"""Queues that a client's cursor may name."""

log = logging.getLogger("dray.serve")
_decode_cursor = msgspec.json.Decoder(dict[Name, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]]).decode
Inbox = asyncio.Queue[Feed | None]
"""Reads of the feed for one client; None ends its stream."""


class EventBroadcaster:
    """Reads the feed once for all who follow it."""

    def __init__(self, app: App) -> None:
        self.app = app
        self._inboxes: set[Inbox] = set()
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    async def join(self) -> tuple[Inbox, dict[str, int]]:
        """An inbox for what happens from now on, and the cursor of now."""
        inbox: Inbox = asyncio.Queue(BEHIND_MAX)
        if self._closed:
            inbox.put_nowait(None)
        self._inboxes.add(inbox)  # before the cursor is read: what happens meanwhile is not missed
        try:
            now = await self.app.events.aread()
        except BaseException:
            self.leave(inbox)
            raise
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read(dict(now.cursor)))
        return inbox, dict(now.cursor)

    def leave(self, inbox: Inbox) -> None:
        self._inboxes.discard(inbox)
        if not self._inboxes and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for inbox in self._inboxes:
            _deliver(inbox, None)

    async def _read(self, cursor: dict[str, int]) -> None:
        while True:
            try:
                feed = await self.app.events.aread(cursor)
            except BrokerError as error:
                log.warning("events: %s", error)
                await asyncio.sleep(RETRY_PAUSE)
                continue
            cursor = dict(feed.cursor)
            if feed.entries or feed.gaps:
                for inbox in self._inboxes:
                    _deliver(inbox, feed)
            else:
                await asyncio.sleep(LOOK_EVERY)


def _deliver(inbox: Inbox, feed: Feed | None) -> None:
    """A client that is too slow loses what it has not read yet, and gets a gap for it."""
    if inbox.full():
        lost: set[str] = set()
        while not inbox.empty():
            old = inbox.get_nowait()
            if old is not None:
                lost |= {*old.gaps, *(entry.queue for entry in old.entries)}
        inbox.put_nowait(Feed([], {}, tuple(sorted(lost))))
    inbox.put_nowait(feed)


class Subscription:
    """One client's way through the feed: the queues it sees, and how far it has read."""

    def __init__(
        self, events: EventBroadcaster, inbox: Inbox, queues: frozenset[str] | None, cursor: dict[str, int]
    ) -> None:
        self._events, self._inbox = events, inbox
        self._queues, self._cursor = queues, cursor
        self._missed: dict[str, int] | None = None

    @classmethod
    async def open(
        cls, events: EventBroadcaster, queues: frozenset[str] | None, since: Mapping[str, int] | None
    ) -> Subscription:
        """Follow these queues (None: all) from a cursor on; without one, from now on. `close` ends it."""
        inbox, now = await events.join()
        self = cls(events, inbox, queues, now)
        if since is not None:
            # Queues that the client does not see stay where they are, so that nothing is read for them.
            hidden = {queue: number for queue, number in now.items() if not self._sees(queue)}
            self._cursor = hidden | {queue: number for queue, number in since.items() if self._sees(queue)}
            self._missed = dict(self._cursor)
        return self

    def close(self) -> None:
        self._events.leave(self._inbox)

    async def next(self) -> Feed | None:
        """The next read: first what was missed, as far as it is kept, then as it happens. None: the end."""
        if self._missed is None:
            return await self._inbox.get()
        feed = await self._events.app.events.aread(self._missed)
        self._missed = dict(feed.cursor) if feed.entries else None
        return feed

    def gaps(self, feed: Feed) -> list[str]:
        """Queues to read anew, as some of their events are not kept any more."""
        return [queue for queue in feed.gaps if self._sees(queue)]

    def new_entries(self, feed: Feed) -> Iterator[Entry]:
        """The entries that this client has not seen; its cursor moves on with each."""
        for entry in feed.entries:
            if self._sees(entry.queue) and entry.number > self._cursor.get(entry.queue, 0):
                self._cursor[entry.queue] = entry.number
                yield entry

    @property
    def cursor(self) -> bytes:
        """The text with which the client may come back."""
        return write_cursor({queue: number for queue, number in self._cursor.items() if self._sees(queue)})

    def _sees(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues


def queues_to_follow(caller: Caller, queues: Collection[str]) -> frozenset[str] | None:
    """Check the queues that a caller asks for; without any, it follows all that it may. None: all queues."""
    for queue in queues:
        caller.need(queue=queue)
    if caller.tasks is not None:
        raise forbidden("events do not name tasks: a key for certain tasks may not follow them")
    return frozenset(queues) or caller.queues


def write_cursor(cursor: Mapping[str, int]) -> bytes:
    return base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=")


def read_cursor(text: str) -> dict[str, int] | None:
    """The cursor that a text holds; None if it holds none."""
    try:
        cursor = _decode_cursor(
            base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        )
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return None
    return cursor if len(cursor) <= QUEUES_MAX else None
