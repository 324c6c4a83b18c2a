"""Events over HTTP, as server-sent events: each message says what one step did to one queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from dray.broker.verbs import Entry, Feed
from dray.errors import BrokerError
from dray.info import moment
from dray.serve.errors import Refused
from dray.serve.event_feed import Subscription, queues_to_follow, read_cursor
from dray.serve.http_request import HttpRequest
from dray.serve.models import EventsQuery, Out
from dray.serve.routes import Reply, Route

PING_EVERY: Final = 15.0
_RECONNECT: Final = b"retry: 2000\n\n"
_encode = msgspec.json.Encoder().encode
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


async def events(request: HttpRequest) -> Reply:
    """What happens, as it happens."""
    query: EventsQuery = request.query
    queues = queues_to_follow(request.caller, [query.queue] if query.queue else [])
    since = None
    if last := request.headers.get("last-event-id"):
        since = read_cursor(last)
        if since is None:
            message = "only the id of an earlier event is allowed"
            raise Refused(422, "invalid_last_event_id", message, "Last-Event-ID")
    return Reply(stream=_stream(await Subscription.open(request.events, queues, since)))


async def _stream(subscription: Subscription) -> AsyncGenerator[bytes, None]:
    try:
        # The first message has an id, so that a client which is cut off before the next knows where it was.
        yield _RECONNECT + _message(subscription, "open", {})
        while True:
            try:
                async with asyncio.timeout(PING_EVERY):
                    feed = await subscription.next()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if feed is None:
                return
            for message in _messages(subscription, feed):
                yield message
    except BrokerError as error:  # the client comes back, and goes on where it was
        log.warning("events: %s", error)
    finally:
        subscription.close()


def _messages(subscription: Subscription, feed: Feed) -> list[bytes]:
    gaps = subscription.gaps(feed)
    found = [_message(subscription, "gap", GapOut(queues=gaps))] if gaps else []
    found += [_message(subscription, "change", _entry_out(entry)) for entry in subscription.new_entries(feed)]
    return found


def _message(subscription: Subscription, event: str, data: object) -> bytes:
    return b"event: %b\nid: %b\ndata: %b\n\n" % (event.encode(), subscription.cursor, _encode(data))


def _entry_out(entry: Entry) -> EntryOut:
    return EntryOut(
        queue=entry.queue,
        number=entry.number,
        at=moment(entry.at).isoformat(),
        events=[EventOut(kind=event.kind, id=event.id, run=event.run) for event in entry.events],
    )


ROUTES: Final = (
    Route(
        "GET",
        "/api/events",
        events,
        "read",
        "Follow what happens (server-sent events: open, change, gap)",
        {200: EntryOut},
        query=EventsQuery,
        waits=True,
        streams=True,
        headers=("Last-Event-ID",),
    ),
)
