"""Events over HTTP: server-sent events, from where the client left off.

One reader of the broker's feed serves all who follow it. Each message is what one step did to one queue; its
id is the cursor after it, so that a client which comes back with `Last-Event-ID` misses nothing, or hears of
a gap.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Final

import msgspec

from dray.app import App
from dray.broker.verbs import Entry, Feed
from dray.errors import BrokerError
from dray.info import moment
from dray.serve.models import EventsQuery, Name, Out
from dray.serve.refusals import Refused, forbidden
from dray.serve.routes import Ask, Reply, Route

LOOK_EVERY: Final = 0.2
"""Seconds between two looks at the feed, while anybody follows it."""
AWAY_PAUSE: Final = 1.0
PING_EVERY: Final = 15.0
BEHIND_MAX: Final = 256
"""Readings of the feed that wait for a slow client; one that is further behind gets a gap."""
QUEUES_MAX: Final = 100_000
"""Queues that a client's cursor may name."""
_COME_BACK: Final = b"retry: 2000\n\n"

log = logging.getLogger("dray.serve")


class EventOut(Out):
    kind: str
    id: str
    """Empty: it happened to the queue."""
    run: int


class EntryOut(Out):
    """What one step did to one queue: the data of a `change` message."""

    queue: str
    number: int
    at: str
    events: list[EventOut]


class GapOut(Out):
    """The data of a `gap` message: queues to read anew, as some of what happened there is not kept."""

    queues: list[str]


class Hub:
    """Reads the feed once for all who follow it."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._followers: set[asyncio.Queue[Feed | None]] = set()
        self._reader: asyncio.Task[None] | None = None
        self._closed = False

    async def join(self) -> tuple[asyncio.Queue[Feed | None], dict[str, int]]:
        """A queue of what happens from now on, and the cursor of now."""
        follower: asyncio.Queue[Feed | None] = asyncio.Queue(BEHIND_MAX)
        if self._closed:
            follower.put_nowait(None)
        self._followers.add(follower)  # before the cursor is read: what happens meanwhile is not missed
        try:
            now = await self._app.events.aread()
        except BaseException:
            self.leave(follower)
            raise
        if self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read(dict(now.cursor)))
        return follower, dict(now.cursor)

    def leave(self, follower: asyncio.Queue[Feed | None]) -> None:
        self._followers.discard(follower)
        if not self._followers and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        for follower in self._followers:
            _give(follower, None)

    async def _read(self, cursor: dict[str, int]) -> None:
        while True:
            try:
                feed = await self._app.events.aread(cursor)
            except BrokerError as error:
                log.warning("events: %s", error)
                await asyncio.sleep(AWAY_PAUSE)
                continue
            cursor = dict(feed.cursor)
            if feed.entries or feed.gaps:
                for follower in self._followers:
                    _give(follower, feed)
            else:
                await asyncio.sleep(LOOK_EVERY)


def _give(follower: asyncio.Queue[Feed | None], feed: Feed | None) -> None:
    """A follower that is too slow loses what it has not read yet, and is told so."""
    if follower.full():
        lost: set[str] = set()
        while not follower.empty():
            old = follower.get_nowait()
            if old is not None:
                lost |= {*old.gaps, *(entry.queue for entry in old.entries)}
        follower.put_nowait(Feed([], {}, tuple(sorted(lost))))
    follower.put_nowait(feed)


async def events(ask: Ask) -> Reply:
    """What happens, as it happens."""
    query: EventsQuery = ask.query
    caller = ask.caller
    caller.need(queue=query.queue)
    if caller.tasks is not None:
        raise forbidden("events do not name tasks: a key for certain tasks may not follow them")
    last = ask.headers.get("last-event-id")
    since = None if not last else read_cursor(last)
    queues = frozenset((query.queue,)) if query.queue else caller.queues
    follower, now = await ask.hub.join()
    return Reply(stream=_stream(ask, follower, _Place(queues, now, since), since is not None))


class _Place:
    """How far one client has come, in the queues that it may see."""

    def __init__(
        self, queues: frozenset[str] | None, now: Mapping[str, int], since: Mapping[str, int] | None
    ) -> None:
        self._queues = queues
        self.cursor = {queue: number for queue, number in now.items() if not self.sees(queue)}
        """Of queues that it does not see nothing is read twice."""
        self.cursor |= {
            queue: number for queue, number in (now if since is None else since).items() if self.sees(queue)
        }

    def sees(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def messages(self, feed: Feed) -> list[bytes]:
        gaps = [queue for queue in feed.gaps if self.sees(queue)]
        found = [self._message("gap", GapOut(queues=gaps))] if gaps else []
        for entry in feed.entries:
            if self.sees(entry.queue) and entry.number > self.cursor.get(entry.queue, 0):
                self.cursor[entry.queue] = entry.number
                found.append(self._message("change", _entry_out(entry)))
        return found

    def hello(self) -> bytes:
        """So that a client which is cut off before anything happened knows where it was."""
        return self._message("open", {})

    def _message(self, event: str, data: object) -> bytes:
        shown = {queue: number for queue, number in self.cursor.items() if self.sees(queue)}
        lines = (b"event: " + event.encode(), b"id: " + write_cursor(shown), b"data: " + _encode(data))
        return b"\n".join(lines) + b"\n\n"


_encode = msgspec.json.Encoder().encode


def _entry_out(entry: Entry) -> EntryOut:
    return EntryOut(
        queue=entry.queue,
        number=entry.number,
        at=moment(entry.at).isoformat(),
        events=[EventOut(kind=event.kind, id=event.id, run=event.run) for event in entry.events],
    )


async def _stream(
    ask: Ask, follower: asyncio.Queue[Feed | None], place: _Place, resumed: bool
) -> AsyncIterator[bytes]:
    try:
        yield _COME_BACK + place.hello()
        if resumed:
            async for message in _missed(ask, place):
                yield message
        while True:
            feed = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_EVERY):
                    feed = await follower.get()
                    if feed is None:
                        return
            if feed is None:
                yield b": still here\n\n"
            for message in () if feed is None else place.messages(feed):
                yield message
    except BrokerError as error:  # the client comes back, and goes on where it was
        log.warning("events: %s", error)
    finally:
        ask.hub.leave(follower)


async def _missed(ask: Ask, place: _Place) -> AsyncIterator[bytes]:
    """What happened since the client was last here, as far as it is kept."""
    cursor = dict(place.cursor)
    while True:
        feed = await ask.app.events.aread(cursor)
        for message in place.messages(feed):
            yield message
        if not feed.entries:
            return
        cursor = dict(feed.cursor)


def write_cursor(cursor: Mapping[str, int]) -> bytes:
    return base64.urlsafe_b64encode(_encode(cursor)).rstrip(b"=")


def read_cursor(text: str) -> dict[str, int]:
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = msgspec.json.decode(data, type=dict[Name, Annotated[int, msgspec.Meta(ge=0, lt=2**53)]])
        if len(cursor) <= QUEUES_MAX:
            return cursor
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        pass
    message = "only the id of an earlier event is allowed"
    raise Refused(422, "invalid_last_event_id", message, "Last-Event-ID")


ROUTES: Final = (
    Route(
        method="GET",
        path="/api/events",
        handler=events,
        role="read",
        summary="Follow what happens (server-sent events: open, change, gap)",
        query=EventsQuery,
        replies={200: EntryOut},
        waits=True,
        streams=True,
        headers=("Last-Event-ID",),
    ),
)
