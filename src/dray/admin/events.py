"""`app.events`: the broker's feed of what happened to jobs and queues."""

from __future__ import annotations

from collections.abc import Mapping

from dray.broker.verbs import Feed
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async


class Events(AppApi):
    """`app.events`: changes of jobs and queues, in order per queue. Old entries are dropped."""

    async def _read(self, link: Link, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        """Entries after `cursor`, and the cursor to go on with.

        `{}` starts with the oldest entry kept, None with the next new one. `gaps` names queues whose entries
        were dropped before they were read: read these anew with `app.jobs.find`.
        """
        return await link.broker.events(cursor, limit=limit)

    read, aread = sync_and_async(_read)
