"""What a stream has for its worker: jobs, answers, orders to stop."""

from __future__ import annotations

from typing import Literal

import msgspec

from dray.admin.held_job import HeldJob
from dray.job import State


class Settlement(msgspec.Struct, frozen=True):
    """The answer to a reported outcome."""

    id: str
    run: int
    state: State | None = None
    """The state of the job now: `cancelled`, whatever was reported, if it was asked to stop."""
    error: Exception | None = None
    """Why it was not accepted. `LeaseLost`: another worker has, or had, the job."""


class StopOrder(msgspec.Struct, frozen=True):
    """A run to stop: its job was cancelled, or is not held by this stream any more."""

    id: str
    run: int
    reason: Literal["cancelled", "lost"]


class WorkNews(msgspec.Struct):
    """What a stream has for its worker."""

    jobs: list[HeldJob] = []
    settled: list[Settlement] = []
    stops: list[StopOrder] = []
    finishing: bool = False
    """No more jobs will come."""

    def __bool__(self) -> bool:
        return bool(self.jobs or self.settled or self.stops or self.finishing)
