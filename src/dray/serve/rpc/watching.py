"""The stream of events: from where the client left off, then as things happen."""

from __future__ import annotations

from collections.abc import AsyncIterator

from dray.broker.verbs import Feed
from dray.serve.feed import read_cursor, write_cursor
from dray.serve.refusals import Refused, forbidden
from dray.serve.rpc import dray_pb2 as pb
from dray.serve.rpc import messages
from dray.serve.rpc.calling import Calling


async def watch_events(
    calling: Calling, request: pb.WatchEventsRequest
) -> AsyncIterator[pb.WatchEventsResponse]:
    caller = calling.caller
    for queue in request.queues:
        caller.need(queue=queue)
    if caller.tasks is not None:
        raise forbidden("events do not name tasks: a key for certain tasks may not follow them")
    since = _since(request)
    queues = frozenset(request.queues) or caller.queues
    follower, now = await calling.shared.hub.join()
    try:
        place = _Place(queues, now, since)
        yield place.message([], [])
        if since is not None:
            async for feed in _missed(calling, dict(place.cursor)):
                if (message := place.news(feed)) is not None:
                    yield message
        while (told := await follower.get()) is not None:
            if (message := place.news(told)) is not None:
                yield message
    finally:
        calling.shared.hub.leave(follower)


def _since(request: pb.WatchEventsRequest) -> dict[str, int] | None:
    """Where to begin; None: with what comes next."""
    if not request.cursor:
        return {} if request.from_oldest else None
    try:
        return read_cursor(request.cursor)
    except Refused:
        message = "only a cursor that an earlier message told is allowed"
        raise Refused(422, "invalid_cursor", message, "cursor") from None


async def _missed(calling: Calling, cursor: dict[str, int]) -> AsyncIterator[Feed]:
    """What happened since the client was last here, as far as it is kept."""
    while True:
        feed = await calling.app.events.aread(cursor)
        yield feed
        if not feed.entries:
            return
        cursor = dict(feed.cursor)


class _Place:
    """How far one client has come, in the queues that it sees."""

    def __init__(
        self, queues: frozenset[str] | None, now: dict[str, int], since: dict[str, int] | None
    ) -> None:
        self._queues = queues
        start = now if since is None else since
        # Of queues that it does not see nothing is read twice.
        self.cursor = {queue: number for queue, number in now.items() if not self._sees(queue)}
        self.cursor |= {queue: number for queue, number in start.items() if self._sees(queue)}

    def _sees(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def news(self, feed: Feed) -> pb.WatchEventsResponse | None:
        """What of it is new to this client, if anything."""
        gaps = [queue for queue in feed.gaps if self._sees(queue)]
        events: list[pb.Event] = []
        for entry in feed.entries:
            if self._sees(entry.queue) and entry.number > self.cursor.get(entry.queue, 0):
                self.cursor[entry.queue] = entry.number
                events += messages.events_out(entry)
        return self.message(events, gaps) if events or gaps else None

    def message(self, events: list[pb.Event], gaps: list[str]) -> pb.WatchEventsResponse:
        shown = {queue: number for queue, number in self.cursor.items() if self._sees(queue)}
        return pb.WatchEventsResponse(events=events, cursor=write_cursor(shown).decode(), gaps=gaps)
