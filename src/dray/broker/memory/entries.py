"""The entries of the store: a job, a session, a queue."""

from __future__ import annotations

from collections import deque
from typing import Final

from dray.broker.durable import Message
from dray.broker.memory.take import Line, Sorted
from dray.broker.verbs import Entry, Limits, Ref
from dray.job import Error, Job, PastRun, Run, State, Suspension, Undo

EVENTS_KEPT: Final = 10_000
"""Entries of the feed that a queue keeps."""


class Mailbox:
    """The messages of one name that were sent to a job."""

    def __init__(self) -> None:
        self.sent = 0
        """The number of the newest message."""
        self.ids: dict[str, None] = {}
        """The newest ids, also of messages that were dropped."""
        self.held: list[Message] = []


class JobEntry:
    """All that is known of one job."""

    def __init__(self, job: Job, number: int, created: int) -> None:
        self.job = job
        self.as_put = job
        """The job before any edit: distinguishes a repeated put from a new one."""
        self.number = number
        """The order of arrival: decides where everything else is equal."""
        self.state = State.NOT_FOUND
        self.created = created
        self.due: int | None = None
        self.expires: int | None = None
        self.deadline: int | None = None
        self.line = 0
        """Its number in line: drawn when it becomes ready, kept when it is handed back."""
        self.run = 0
        self.settled = 0
        self.failures = 0
        self.crashes = 0
        self.suspect = 0
        self.cancel: str | None = None
        self.forced = False
        self.runs: dict[int, Run] = {}
        self.past: list[PastRun] = []
        self.offered = False
        self.waiting: dict[str, None] = {}
        self.started: int | None = None
        self.finished: int | None = None
        self.reason: str | None = None
        self.result: bytes | None = None
        self.error: Error | None = None
        self.orphaned_by: str | None = None
        self.replayed = 0
        self.suspended: Suspension | None = None
        self.log: list[bytes] = []
        self.mailboxes: dict[str, Mailbox] = {}
        self.children: dict[str, None] = {}
        """Jobs that it calls, of which the end has not been asked for."""
        self.undoable = False
        """There is something to undo."""
        self.undo: Undo | None = None
        self.undone = False
        """It was undone before it ended: a replay begins with an empty log."""


class Session:
    """One executor process: a lease, and what it holds under it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.lease = 0
        self.expires = 0
        self.request = 0
        self.queues: tuple[str, ...] = ()
        self.reply: list[Ref] = []
        """The last take: its number, the queues it asked and what they gave."""
        self.asked: dict[str, int] = {}
        """By queue: the last request it answered, also in advance."""
        self.advance: dict[str, tuple[int, Ref]] = {}
        """By queue: the last request it answered in advance, and the run."""
        self.handed: dict[Ref, int] = {}
        """Runs that were handed over and are not confirmed, and when."""
        self.holds: dict[Ref, None] = {}
        self.void: dict[Ref, None] = {}
        """Runs that are not valid any more; every beat reports them until the session settles them."""
        self.heard: set[Ref] = set()
        """Reported by the last beat: no reason to wake the session again."""


class Queue:
    def __init__(self, name: str, line: Line) -> None:
        self.name = name
        self.due = Sorted()
        """Jobs that are scheduled or retrying, and waiting ones that a moment wakes in any case."""
        self.line = line
        self.ended = Sorted()
        self.offers: dict[str, None] = {}
        """Running jobs that another session may run as well."""
        self.feed: deque[Entry] = deque(maxlen=EVENTS_KEPT)
        self.entries = 0

    def has_settings(self) -> bool:
        line = self.line
        return bool(line.paused or line.paused_tasks or line.task_limits or line.limits != Limits())
