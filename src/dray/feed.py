"""What happened: the broker's feed (`app.events`), for whoever shows or records it."""

from __future__ import annotations

from collections.abc import Mapping

from dray.broker.verbs import Feed
from dray.client import Link
from dray.operate import Desk
from dray.twins import awaits, blocks


class Events(Desk):
    """`app.events`: what happened to jobs and queues, in order per queue. It is kept for a while only."""

    async def _read(self, link: Link, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        """Entries after `cursor`, and the cursor to go on with.

        `{}` starts with the oldest that is kept, None with the next one to come. `gaps` names queues of which
        entries were dropped before they were read: look at these anew with `app.jobs.find`.
        """
        return await link.broker.events(cursor, limit=limit)

    read, aread = blocks(_read), awaits(_read)
