"""One request of an admitted caller: what handlers of HTTP and methods of gRPC have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from dray.app import App
from dray.info import JobInfo, without_values
from dray.job import check_word
from dray.serve.auth import Caller, until
from dray.serve.errors import not_found
from dray.serve.event_feed import EventBroadcaster

T = TypeVar("T")


class Request:
    """One request of an admitted caller."""

    def __init__(self, app: App, events: EventBroadcaster, caller: Caller) -> None:
        self.app, self.events, self.caller = app, events, caller
        self.stopping: asyncio.Event | None = None
        """Set when the server stops or the client is gone; requests that may wait have it."""

    async def find_job(self, id: str) -> JobInfo:
        """A job by its id; one outside the caller's limits does not exist for it."""
        info = await self.app.job(check_word("id", id)).ainfo()
        if not self.caller.reaches(info.queue, info.task):
            raise not_found(id)
        return self.visible(info)

    def visible(self, info: JobInfo) -> JobInfo:
        """What the caller may see of a job."""
        return without_values(info) if self.caller.hides_values else info

    async def unless_stopping(self, work: Awaitable[T]) -> T | None:
        """Await something, but only while the server runs and the client is there; else None."""
        if self.stopping is None:
            return await work
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            done = await until(stop, work)
            return None if done is None else done.result()
        finally:
            stop.cancel()
