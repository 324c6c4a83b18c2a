"""The interest of a waiter: what wakes it, the take that it would make next, and the reply of `wait`."""

from __future__ import annotations

from typing import Final

import msgspec

from dray.job import ENVELOPE_VERSION, Record, Taken

HAND_OVER_MAX: Final = 64 * 1024
"""Bytes of a payload that a wake-up carries."""
CONFIRM_WITHIN: Final = 2_000
"""Milliseconds after which `sweep` withdraws a run that was handed over and is not confirmed."""


class Filter(msgspec.Struct, frozen=True):
    """The jobs a worker can run. None means any."""

    tasks: frozenset[str] | None = None
    priorities: frozenset[int] | None = None
    version: int = ENVELOPE_VERSION


class NextTake(msgspec.Struct, frozen=True):
    """The take that a sleeping session would make next: the broker may answer it in advance.

    The step that makes a job ready (`put`, the end of a dependency, its due time) gives the run to a
    sleeper, notes it as the answer of that queue to `request`, and sends the job with the wake-up. Only if

    - the job is the only ready one of its queue, also after all that its dependency releases; nothing is due
      there, and no second run is on offer;
    - the queue has no pause or limits, the job declares none, and its payload has `HAND_OVER_MAX` at most;
    - the filter matches, the session lives and has taken from this queue before, and `request` is higher
      than its last request there.

    A queue gives a sleeper one job at most: it strikes the sleeper off in the same step. Several queues may
    answer one request, so the session repeats the take at all its `queues` before it uses a higher number: a
    take with this request returns what was handed over. That, or `settle`, confirms the run.
    """

    request: int
    queues: tuple[str, ...]
    """Those of the interest that may answer. The session must have a free slot for each."""


class Interest(msgspec.Struct, frozen=True, kw_only=True):
    """The news a waiter wakes for: work, a notification for its session, or the end of watched jobs."""

    queues: tuple[str, ...] = ()
    filter: Filter = Filter()
    session: str | None = None
    watcher: str | None = None
    next_take: NextTake | None = None


class Wake(msgspec.Struct, frozen=True):
    """Why `wait` returned; all empty after a timeout."""

    work: bool = False
    told: bool = False
    """The session has unread notifications; call `renew`."""
    finished: tuple[str, ...] = ()
    records: dict[str, Record] = {}
    """Records of some of the finished jobs, where the notification carried them. Read the others."""
    queues: tuple[str, ...] = ()
    """With `work`: the queues of interest that have some."""
    taken: tuple[Taken, ...] = ()
    """Runs that were handed over (`Interest.next_take`), the first of them at the time `handed_at`."""
    handed_at: int = 0
