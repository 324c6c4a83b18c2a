"""The session of a stream at the broker: takes have numbers, outcomes are kept until they are confirmed."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

from dray.broker.verbs import Beat, Broker, Filter, Heard, ProgressReport, Ref
from dray.documents.lease_token import EXTERNAL
from dray.errors import SessionLost
from dray.job import Outcome, Progress, Settled, Taken

SETTLE_STEP: Final = 1000
"""Outcomes that are sent to the broker at a time."""


class ExternalSession:
    """One session. Its name is new, and lasts as long as the stream."""

    def __init__(self, broker: Broker, lease: int) -> None:
        self.broker, self.lease = broker, lease
        self.name = f"{EXTERNAL}{secrets.token_hex(16)}"
        self.outcomes: dict[Ref, Outcome] = {}
        """Outcomes that the broker has not confirmed."""
        self.unanswered = 0
        """Jobs asked for in a take that has no answer yet."""
        self._epoch = self._request = 0

    async def open(self) -> None:
        (heard,) = await self.broker.renew([Beat(self.name, self.lease)])
        self._epoch = heard.epoch

    async def renew(self, progress: Mapping[Ref, Progress]) -> Heard:
        """Renew the lease and report progress. Raises `SessionLost` if it had lapsed in between."""
        reports = tuple(ProgressReport(id, run, report) for (id, run), report in progress.items())
        (heard,) = await self.broker.renew([Beat(self.name, self.lease, reports)])
        if heard.epoch != self._epoch:
            raise SessionLost(self.name)
        return heard

    async def take(self, queues: Sequence[str], filter: Filter, want: int) -> list[Taken]:
        """Take jobs; a take without an answer is repeated as it was."""
        if not self.unanswered:
            self._request += 1
            self.unanswered = want
        taken = await self.broker.take(self.name, self._request, queues, filter, self.unanswered)
        self.unanswered = 0
        return taken

    async def settle(self) -> list[tuple[Outcome, Settled]]:
        """Send the outcomes that are there now; without an answer they stay, to be sent again."""
        outcomes = list(islice(self.outcomes.values(), SETTLE_STEP))
        replies = await self.broker.settle(self.name, outcomes)
        for outcome in outcomes:
            del self.outcomes[outcome.id, outcome.run]
        return list(zip(outcomes, replies, strict=True))
