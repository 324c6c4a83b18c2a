"""The changes that `edit` makes by hand, and the selection of the jobs or queues that it changes."""

from __future__ import annotations

import msgspec

from dray.job import Overflow, State


class Ids(msgspec.Struct, frozen=True):
    """Select jobs by id."""

    ids: tuple[str, ...]


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Select jobs by what they are (`since`: created then or later). `state` and `queue` are looked up."""

    state: State | None = None
    queue: str | None = None
    task: str | None = None
    priorities: frozenset[int] | None = None
    tag: str | None = None
    group: str | None = None
    key: str | None = None
    parent: str | None = None
    since: int | None = None


class Scope(msgspec.Struct, frozen=True):
    """Select a queue, or one task in a queue."""

    queue: str
    task: str | None = None


class Cancel(msgspec.Struct, frozen=True):
    """A job that runs is asked to stop; any other never starts. It is not retried."""

    reason: str = "cancelled"
    force: bool = False  # stop it at once, also if it was asked to stop before


class Retry(msgspec.Struct, frozen=True):
    """Run a finished job again, or a delayed one now, with all its retries."""


class Delete(msgspec.Struct, frozen=True):
    """Forget a job. A running one is refused: cancel it first."""


class Reschedule(msgspec.Struct, frozen=True):
    """Set the due time of a job that is scheduled, retrying or ready."""

    due: int


class Reprioritise(msgspec.Struct, frozen=True):
    """Set the priority of a job that has not started."""

    priority: int


class Speculate(msgspec.Struct, frozen=True):
    """Offer a running job (`speculate=True`) to another session: the first completion counts."""

    run: int | None = None
    """The newest run of the job: an offer that arrives when there is a newer one is refused."""


class Pause(msgspec.Struct, frozen=True):
    """Hand out nothing of this scope; running jobs finish."""

    by: str = ""
    reason: str = ""
    at: int = 0
    """Filled in by the broker."""


class Resume(msgspec.Struct, frozen=True):
    """Undo `Pause`."""


class SetLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits set by an operator; they override what jobs declare. None removes one.

    `enqueue_rate`, `max_ready`, `overflow` and `group_running` exist for a whole queue only.
    """

    rate: str | msgspec.UnsetType | None = msgspec.UNSET
    enqueue_rate: str | msgspec.UnsetType | None = msgspec.UNSET
    max_running: int | msgspec.UnsetType | None = msgspec.UNSET
    max_ready: int | msgspec.UnsetType | None = msgspec.UNSET
    overflow: Overflow | msgspec.UnsetType | None = msgspec.UNSET
    group_running: int | msgspec.UnsetType | None = msgspec.UNSET


class Continue(msgspec.Struct, frozen=True):
    """Wake a job that is parked because its code has changed."""


JobAction = Cancel | Retry | Delete | Reschedule | Reprioritise | Speculate | Continue
ScopeAction = Pause | Resume | SetLimits


class Edited(msgspec.Struct, frozen=True):
    """The changes of one step of `edit`. Continue with `cursor` until it is None."""

    changed: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    """Ids that were named but could not be changed, and why."""
    cursor: str | None = None
