"""The seam: everything a backend must be able to do, as batch-shaped, atomic verbs.

`memory` is the reference; the other brokers are translations of it, and `dray.testing.conformance` holds
them all to the same behaviour. Rules that hold for every verb:

- Each call is one atomic step (large ones are several, and say so). A reply that got lost is never a
  problem: repeating the call has no second effect.
- `now` is the broker's own clock unless a test or the simulation passes it.
- What is refused (`InvalidInput`) is refused before anything is changed.
- Verbs are coroutines. On a broker opened with `blocking=True` they never suspend, so that the blocking
  facade can run them to their end without an event loop (`run_blocking`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from dray.broker.actions import Edited, Ids, JobAction, Pause, Query, Scope, ScopeAction
from dray.broker.blocking import run_blocking as run_blocking
from dray.broker.durable import MemoWrite, Message, Sent
from dray.broker.interest import Filter as Filter
from dray.broker.interest import Interest as Interest
from dray.broker.interest import NextTake as NextTake
from dray.broker.interest import Wake as Wake
from dray.job import Job, Outcome, Overflow, Progress, Record, Settled, State, Taken, Verdict
from dray.policy import Retention

PUT_STEP: Final = 1000
"""Jobs that one atomic step of `put` accepts; a longer list is put in several steps."""
PROMOTE_STEP: Final = 1000
"""Due jobs that one `take` makes ready per queue."""
EXPIRE_STEP: Final = 100
"""Expired jobs that one `take` buries before it returns what it has."""
FORWARD_STEP: Final = 1000
"""Outbox messages that one call forwards; `sweep` forwards the rest."""
PAGE_MAX: Final = 1000
"""The largest page of `find` and `edit`."""

Ref = tuple[str, int]
"""A run: job id and run number."""


class Accepted(msgspec.Struct, frozen=True):
    """The reply to one job given to `put`."""

    id: str
    """Its own id, or that of the job whose key or id it repeats."""
    state: State
    verdict: Literal["created", "duplicate", "full", "limited"] = "created"
    """`full` and `limited`: the job was not accepted."""
    replaced: str | None = None
    """The job whose place it took (`on_duplicate="replace"`)."""
    max_ready: int | None = None
    """The bound it met, when the verdict is `full`."""
    retry_after: int | None = None
    """In how many milliseconds the queue takes another job, when the verdict is `limited`."""


class ProgressReport(msgspec.Struct, frozen=True):
    """Progress of one run."""

    id: str
    run: int
    progress: Progress


class Beat(msgspec.Struct, frozen=True):
    """A sign of life of one session, good for `lease` milliseconds."""

    session: str
    lease: int
    progress: tuple[ProgressReport, ...] = ()


class Heard(msgspec.Struct, frozen=True):
    """The broker's answer to a beat."""

    opened: bool
    """The session was unknown: whatever it held before is lost."""
    epoch: int
    """Grows with each opening of a session in the namespace. A worker that sees it change has lost its
    session meanwhile: it drops its runs, and goes on under a new name."""
    lost: tuple[Ref, ...] = ()
    """Runs that cannot complete any more."""
    cancelled: tuple[Ref, ...] = ()
    """Runs that should stop."""
    forced: tuple[Ref, ...] = ()  # of these, the ones to stop at once


class Swept(msgspec.Struct, frozen=True):
    """The work done by one step of `sweep`."""

    forwarded: int = 0
    promoted: int = 0
    lapsed: int = 0
    """Sessions whose lease ran out."""
    freed: int = 0
    """Runs those sessions held."""
    expired: int = 0
    pruned: int = 0
    repairs: dict[str, int] = {}
    """Repaired damage, by kind (`dray.broker.repairs`)."""
    more: bool = False
    """Some kind of work reached the limit: call again."""
    freed_by: dict[str, int] = {}  # the same, by session that held them
    finished: dict[str, int] = {}  # steps that a client died in the midst of, by kind: routine, no damage
    withdrawn: int = 0
    """Runs that were handed over and not confirmed."""

    @property
    def repaired(self) -> int:
        return sum(self.repairs.values())


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits an operator has set on a scope."""

    rate: str | None = None
    enqueue_rate: str | None = None
    """The rate of accepted jobs: duplicates and refused ones do not count."""
    max_running: int | None = None
    max_ready: int | None = None
    overflow: Overflow | None = None
    group_running: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The use of the limits that apply to one job."""

    now: int
    """The broker's time of this answer."""
    running: dict[str, int] = {}
    """Runs held now in its `queue`, of its `task` there, of its `group` and of its running `key`."""
    tats: dict[str, int] = {}
    """Up to when (µs) the rates of its `queue`, `task` and rate `key` are used; see `dray.policy.Rate`."""


class QueueInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a queue."""

    name: str
    counts: dict[State, int]
    paused: Pause | None = None
    limits: Limits = Limits()
    paused_tasks: dict[str, Pause] = {}
    task_limits: dict[str, Limits] = {}
    next_due: int | None = None
    oldest_ready: int | None = None
    """The earliest creation time of its ready jobs."""
    ready: dict[int, tuple[int, int]] = {}
    """Ready jobs by priority: how many, and when the oldest was created; see docs/metrics.md."""
    dedicated: bool = False  # a document says it: `dray.documents.queue_state.read_queues` fills it in


class Page(msgspec.Struct, frozen=True):
    """A page of `find`: a bounded stretch. It may be short or empty while `cursor` is not None: go on."""

    records: list[Record]
    cursor: str | None = None


class Doc(msgspec.Struct, frozen=True):
    """A small versioned document."""

    kind: str
    name: str
    value: bytes
    version: int
    """Grows with every write and is never used twice, also after it was deleted or the store was emptied."""
    expires: int | None = None


class DocWrite(msgspec.Struct, frozen=True, kw_only=True):
    """Write a document if its version is the expected one (0: it must not exist; None: whatever it is).

    `value=None` deletes it.
    """

    kind: str
    name: str
    value: bytes | None
    expect_version: int | None = None
    ttl: int | None = None


class DocReply(msgspec.Struct, frozen=True):
    """`written`: the write was made. `doc`: the document as it is now."""

    written: bool
    doc: Doc | None


class Event(msgspec.Struct, frozen=True, array_like=True):
    """One thing that happened to a job (or, with an empty id, to its queue)."""

    kind: str
    id: str = ""
    run: int = 0


class Entry(msgspec.Struct, frozen=True):
    """The events of one step in one queue. Numbers count up from 1; only dropped entries leave holes."""

    queue: str
    number: int
    at: int
    events: tuple[Event, ...]


class Feed(msgspec.Struct, frozen=True):
    """New entries, in order per queue."""

    entries: list[Entry]
    cursor: dict[str, int]
    gaps: tuple[str, ...] = ()
    """Queues of which entries were dropped before this reader came: read them anew with `find`."""


class Broker(Protocol):
    """The verbs. One broker object belongs to one thread or event loop and to one process.

    One whose attribute `threadsafe` is true may be used by any number of threads.
    """

    namespace: str
    retention: Retention
    hands_over: bool
    """It may answer `Interest.next_take` in advance."""

    def clock(self) -> int:
        """The broker's time in milliseconds since the epoch, as known here without a call.

        Moments that several machines must agree on are counted by it. It may be late, by as long as a reply
        takes, but is not early.
        """

    async def put(
        self,
        jobs: Sequence[Job],
        *,
        when: DocWrite | None = None,
        durability: Literal["normal", "full"] | None = None,
        now: int | None = None,
    ) -> list[Accepted]:
        """Accept jobs; once this returns, they are not lost. One reply per job, in order.

        Up to `PUT_STEP` jobs are one atomic step. With `when`, the document is written in the same step,
        and nothing happens (an empty list) unless its version is the expected one; then all jobs must be
        of one queue and no more than one step.
        """

    async def take(
        self,
        session: str,
        request: int,
        queues: Sequence[str],
        filter: Filter,
        want: int,
        *,
        share: int | None = None,
        now: int | None = None,
    ) -> list[Taken]:
        """Hand out up to `want` jobs (`share` of each queue at most), queues in order of preference.

        Each gets a new run number. In a queue, jobs that fell due are made ready first; then strictly by
        priority; of the tasks of one priority that whose next job waited longest; groups take turns, first
        come, first served inside. Nothing paused, over a limit, or outside `filter` is handed out.

        `request` counts up. Repeating the last one returns the same runs, less those not held any more; an
        older one is `InvalidInput`. A session that is unknown or past its lease raises `SessionLost`. A queue
        that has answered the request in advance (`Interest.next_take`) gives what it handed over, no more.
        """

    async def settle(
        self, session: str, outcomes: Sequence[Outcome], *, now: int | None = None
    ) -> list[Settled]:
        """Record the outcomes of runs; one reply per outcome, in order.

        Accepted only from the session that holds the run. Releases keys and limits once, notifies watchers
        and dependants. A job that was asked to stop is recorded as cancelled, whatever its outcome.
        """

    async def renew(self, beats: Sequence[Beat], *, now: int | None = None) -> list[Heard]:
        """Open sessions or keep them alive, record progress, hear of lost and cancelled runs."""

    async def release(
        self, session: str, *, suspect: bool = True, blamed: Collection[Ref] = (), now: int | None = None
    ) -> int:
        """End a session: what it holds is free now. Returns how many runs that were.

        `blamed` names runs that crashed alone in a child: these count towards `max_crashes`. All others
        become suspect, unless the worker ended in good order (`suspect=False`): `Taken.suspect` says with
        how many jobs at most such a run may share a process, `GROUP_MAX` at first. Whenever that process
        dies (outcome `crashed`), the number becomes half of `together`, the jobs that were in it. If the job
        was alone, the crash counts.
        """

    async def sweep(self, limit: int = 1000, *, lapse: bool = True, now: int | None = None) -> Swept:
        """One bounded step of upkeep; each kind of work gets its own `limit`.

        Forwards the outbox, makes due jobs ready, frees what lapsed sessions held (unless `lapse` is
        False: a sweeper that was out of contact itself must not judge others), withdraws runs that were
        handed over and not confirmed for `CONFIRM_WITHIN` (likewise unless `lapse` is False: the run ends as
        given back, and its session hears that it is lost), buries expired jobs,
        prunes what is past its retention and feeds of empty queues (`FEED_KEPT`), repairs what is
        inconsistent, finishes what clients that died had begun.
        """

    async def edit(
        self,
        selection: Ids | Query | Scope,
        action: JobAction | ScopeAction,
        *,
        cursor: str | None = None,
        limit: int = PAGE_MAX,
        dry_run: bool = False,
        now: int | None = None,
    ) -> Edited:
        """Change jobs (by `Ids` or `Query`) or a queue (by `Scope`).

        A step changes no more than `limit` jobs; go on with the cursor it returns. A query goes through
        the jobs in the order in which they arrived.
        """

    async def get(
        self, ids: Sequence[str], *, watch: str | None = None, now: int | None = None
    ) -> list[Record | None]:
        """Read jobs; None for an unknown id.

        With `watch`, each that is unfinished is watched from the same step on: its end reaches
        `wait(Interest(watcher=watch))`.
        """

    async def find(
        self,
        query: Query,
        *,
        cursor: str | None = None,
        limit: int = 100,
        newest: bool = False,
        now: int | None = None,
    ) -> Page:
        """Read jobs by state and queue, or the `newest` first; of very many, the oldest are in no order."""

    async def queues(self, *, now: int | None = None) -> list[QueueInfo]:
        """Every queue that holds a job or a setting, by name."""

    async def queue_names(self) -> list[str]:
        """The names alone, some of empty queues perhaps: one cheap look, however many jobs there are."""

    async def usage(self, job: Job, *, now: int | None = None) -> Usage:
        """The use of the limits that apply to this job."""

    async def memo(
        self, session: str, writes: Sequence[MemoWrite], *, now: int | None = None
    ) -> list[Verdict]:
        """Append to the logs of durable jobs; one verdict per write, in order.

        Accepted only from the session that holds the run, at the position where the log ends; `already` if
        these entries are there. A log that would be too long is `TooLarge`. The log, the mailbox and the
        children of a job go with its record, and a replay after an undo begins with an empty log.
        """

    async def recall(self, id: str, position: int = 0, *, limit: int = 1000) -> list[bytes]:
        """Entries of a job's log from `position` on: a page of at most `limit` entries and about 4 MiB."""

    async def send(self, id: str, name: str, message: str, body: bytes, *, now: int | None = None) -> Sent:
        """Put a message into the mailbox of an unfinished job, and wake the job if it waits for that name.

        `message` is its id: the same one again has no effect, while it is among the newest `MESSAGE_IDS_MAX`
        of its name. A mailbox holds `MAILBOX_MAX` messages per name.
        """

    async def mailbox(self, id: str, name: str, after: int = 0, *, limit: int = 100) -> list[Message]:
        """Messages of one name, in order: those with a number above `after`."""

    async def tally(self, owner: str, queues: Sequence[str]) -> dict[State, int]:
        """The nodes of a flow in these queues, by state."""

    async def doc(
        self,
        kind: str,
        name: str,
        value: bytes | msgspec.UnsetType | None = msgspec.UNSET,
        *,
        expect_version: int | None = None,
        ttl: int | None = None,
        now: int | None = None,
    ) -> DocReply:
        """Read a document; or, given a value, compare-and-set it (see `DocWrite`)."""

    async def docs(self, kind: str, *, now: int | None = None) -> list[Doc]:
        """All documents of a kind, by name."""

    async def events(self, cursor: Mapping[str, int] | None = None, *, limit: int = 1000) -> Feed:
        """Entries after `cursor`; `{}` starts with the oldest kept, None with the next one to come."""

    async def wait(self, interest: Interest, timeout: float) -> Wake:
        """Sleep until there may be something of interest, or for `timeout` seconds. Never a busy poll.

        With `next_take`, a sleeper may be handed a job: see `NextTake`.
        """

    async def audit(self) -> list[str]:
        """One sentence per inconsistency; empty when there is none. For tests and `dray doctor`."""

    async def close(self) -> None:
        """Let go of connections. Sessions stay: release them first."""
