"""Every error dray raises, as one tree.

DrayError
├── InvalidInput (ValueError)      a value a caller gave; names the field and what is allowed
│   ├── UnknownDependency          `waits_for` names a job the broker cannot find
│   └── InvalidSettings            every setting that is wrong, with where it came from
├── CodecError
│   ├── EncodeError                a value that no codec can carry
│   ├── DecodeError                bytes that are not what they claim to be
│   ├── NewerVersion               bytes written by a newer dray; left for newer workers
│   ├── MissingLibrary             bytes compressed by a library that is not installed here
│   └── TooLarge                   over max_payload or max_result
├── BrokerError
│   ├── BrokerAway                 cannot be reached now; the same call may work later
│   │   ├── BrokerBusy             reached, but another process held it for too long
│   │   ├── BrokerFull             no space left to accept anything
│   │   └── BrokerGone             the store was removed or replaced while in use
│   ├── BrokerReadOnly             no permission to write
│   ├── ForeignStore               the file or server holds something that is not dray's
│   └── NewerLayout                the store was written by a newer dray
├── HistoryError                   the database of the history does not answer, or cannot be used
│   └── HistoryOff                 there is none: history_url is not set
├── SessionLost                    the session's lease ran out; renew it, then go on
├── JobError                       about one job
│   ├── JobFailed                  it is dead; carries the remote error
│   ├── JobCancelled
│   ├── JobTimeout                 not finished yet
│   ├── JobNotFound
│   ├── ResultGone                 it succeeded, but its result is not kept any more
│   │   └── NoResult               it succeeded, and results are off: none was ever kept
│   ├── JobStopped                 inside a task: the job was asked to stop
│   ├── LeaseLost                  outside a worker: the run is not yours any more
│   ├── JobFinished                an event was sent to a job that has ended
│   ├── MailboxFull                a job has not read so many events that it holds no more
│   ├── EventTimeout               inside a task: an event did not arrive in time
│   ├── StepFailed                 inside a task: a step failed in an earlier run, with an error unknown here
│   ├── StepUncertain              inside a task: a step may have run, and must not run twice
│   └── DuplicateJob               key or id is taken; names the job that has it
├── QueueFull                      a bounded queue refused the job
│   └── EnqueueLimited             a queue takes no more jobs at this rate
├── UnknownTask                    no task of that name is registered
├── ScheduleNotFound               no schedule has that name
├── ScheduleExists                 a schedule has that name already
├── LastAdminKey                   the last key of an administrator is revoked only by force
├── AppNotFound                    the app that a command names cannot be imported
├── WorkerSilent                   a worker did not answer what it was asked
├── WouldBlock                     a blocking call where it would stop the worker's event loop
└── TaskExit                       raised inside a task to say how the run ends (dray.context)
    ├── Retry                      try again, after `delay`
    └── Reject                     dead at once, with a reason

BrokerWarning (UserWarning)        works, but may lose data or be slow; says what to change
└── SettingsWarning                a DRAY_ variable that means nothing
UnknownTaskWarning (UserWarning)   a call by a name that is nearly, but not quite, that of a task
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dray.passwords import hide_password


class DrayError(Exception):
    """Root of everything dray raises."""

    def __reduce__(self) -> tuple[object, ...]:
        # By default unpickling passes only the message, which most of these constructors do not accept; that
        # would break a process pool.
        return _restore, (type(self), self.args, vars(self))


def _restore(kind: type[DrayError], args: tuple[object, ...], fields: dict[str, object]) -> DrayError:
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


class InvalidInput(DrayError, ValueError):
    """A value was refused before anything was done with it."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        try:
            shown = repr(hide_password(value) if isinstance(value, str) else value)
        except Exception:  # a value that cannot be shown must not hide the problem
            shown = f"<{type(value).__name__}>"
        if len(shown) > 80:
            shown = shown[:77] + "..."
        super().__init__(f"{field}={shown}: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


def near_names(name: str, known: Iterable[str], most: int = 2, cutoff: float = 0.6) -> list[str]:
    """Those of the known names that a mistyped one may mean, the nearest first."""
    from difflib import get_close_matches  # large, and seldom needed

    return get_close_matches(name, list(known), n=most, cutoff=cutoff)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint to the nearest of the known names; nothing where none is near."""
    near = near_names(name, sorted(known))
    return f"did you mean {' or '.join(map(repr, near))}? " if near else ""


class UnknownDependency(InvalidInput):
    """`waits_for` names a job that is neither stored nor in the same batch."""


class InvalidSettings(InvalidInput):
    """All wrong settings, each as (problem, origin)."""

    def __init__(self, problems: Sequence[tuple[InvalidInput, str]]) -> None:
        lines = [f"{problem} ({origin})" for problem, origin in problems]
        DrayError.__init__(self, lines[0] if len(lines) == 1 else "\n  ".join(["wrong settings:", *lines]))
        self.problems = tuple(problems)
        first = problems[0][0]
        self.field, self.value, self.allowed = first.field, first.value, first.allowed


class CodecError(DrayError):
    """Turning values into bytes, or back, failed."""


class EncodeError(CodecError):
    """A value that cannot be carried."""


class DecodeError(CodecError):
    """Bytes that cannot be read."""

    argument: str | None = None
    """The argument of a call that does not fit its annotation, where it is one."""


class NewerVersion(CodecError):
    """Bytes written by a newer version of dray."""


class MissingLibrary(CodecError):
    """Bytes that only a process with another library can read; the message says what to install."""


class TooLarge(CodecError):
    """More bytes than the limit allows."""


class BrokerError(DrayError):
    """The broker could not do what was asked."""


class BrokerAway(BrokerError):
    """The broker cannot be reached at the moment."""


class BrokerBusy(BrokerAway):
    """Another process held the store for longer than the timeout."""


class BrokerFull(BrokerAway):
    """The store has no space left; nothing of the call was kept."""


class BrokerGone(BrokerAway):
    """The store was removed or replaced while it was in use."""


class BrokerReadOnly(BrokerError):
    """The store may not be written."""


class ForeignStore(BrokerError):
    """The file or server of the URL does not belong to dray."""


class NewerLayout(BrokerError):
    """The store was written by a newer version of dray."""


class BrokerWarning(UserWarning):
    """The broker works, but its surroundings may cost data or speed."""


class SettingsWarning(BrokerWarning):
    """An unknown setting was given; the message suggests a known one."""


class UnknownTaskWarning(UserWarning):
    """A job was enqueued by a name that looks misspelt."""


class HistoryError(DrayError):
    """The database of the history does not answer, or cannot be used."""


class HistoryOff(HistoryError):
    """There is no history to search."""

    def __init__(self) -> None:
        super().__init__(
            "there is no history: set history_url to sqlite:///PATH or postgresql://… for workers and here"
        )


class SessionLost(DrayError):
    """The session is unknown to the broker or past its lease."""

    def __init__(self, session: str) -> None:
        super().__init__(f"session {session!r} is unknown or past its lease; renew it before taking jobs")
        self.session = session


class JobError(DrayError):
    """Something about one job."""

    def __init__(self, job_id: str, message: str) -> None:
        super().__init__(message)
        self.job_id = job_id


class JobFailed(JobError):
    """The job is dead. `type`, `message` and `traceback` (a text) describe the error where it ran.

    `reason` is why it was not tried again. Of a job that did not fail itself (poison, expired, dropped), the
    reason's first word is the type.
    """

    def __init__(
        self, job_id: str, type: str, message: str, traceback: str = "", reason: str | None = None
    ) -> None:
        super().__init__(job_id, f"job {job_id} failed: {type}: {message}")
        self.type, self.message, self.traceback, self.reason = type, message, traceback, reason


class JobCancelled(JobError):
    """The job was cancelled."""


class JobTimeout(JobError):
    """The job has not finished within the time given."""


class JobNotFound(JobError):
    """The broker does not know the id."""


class DuplicateJob(JobError):
    """Key or id belongs to a job that exists; `existing_id` names it."""

    def __init__(self, existing_id: str) -> None:
        super().__init__(existing_id, f"a job with this key or id exists already: {existing_id}")
        self.existing_id = existing_id
        self.accepted: Sequence[object] = ()
        """Handles of the jobs that were accepted in the same call (`enqueue_many`)."""


class ResultGone(JobError):
    """The job succeeded, but its result is past its `result_ttl`."""


class NoResult(ResultGone):
    """The job succeeded, but results are off (`result_ttl=0`) on it, its task or where it ran."""


class JobStopped(JobError):
    """Raised inside a task by `ctx.check()`; the run ends as cancelled (or, past its timeout, as failed)."""


class LeaseLost(JobError):
    """The job (`app.external`) is not held any more: its lease ran out, or the run was settled."""

    def __init__(self, job_id: str) -> None:
        super().__init__(
            job_id,
            f"job {job_id} is not held by this token any more: its lease ran out, or it was settled before; "
            "drop what this run came to",
        )


class JobFinished(JobError):
    """The job has ended: it reads no more events."""

    def __init__(self, job_id: str, state: str) -> None:
        super().__init__(job_id, f"job {job_id} is {state}: it reads no events any more")


class MailboxFull(JobError):
    """The job holds as many unread events of this name as a mailbox can."""

    def __init__(self, job_id: str, event: str, most: int) -> None:
        super().__init__(
            job_id, f"job {job_id} has {most:,} events {event!r} that it has not read: it holds no more"
        )
        self.event = event


class EventTimeout(JobError):
    """No such event arrived in time. The job remembers that: after a restart the wait raises it again."""

    def __init__(self, job_id: str, event: str) -> None:
        super().__init__(job_id, f"event {event!r} did not arrive in time for job {job_id}")
        self.event = event


class StepFailed(JobError):
    """A step has failed for good. `type`, `message` and `traceback` (a text) describe its error.

    Raised instead of an error that another process could not rebuild: its class is not found by its name, or
    has fields that cannot be stored.
    """

    def __init__(self, job_id: str, step: str, type: str, message: str, traceback: str = "") -> None:
        super().__init__(job_id, f"step {step!r} of job {job_id} failed: {type}: {message}")
        self.step, self.type, self.message, self.traceback = step, type, message, traceback


class StepUncertain(JobError):
    """A step with `at_most_once` began in an earlier run, and its end is not known."""

    def __init__(self, job_id: str, step: str) -> None:
        super().__init__(
            job_id,
            f"step {step!r} of job {job_id} began, and its worker died: it may have run, and is not run "
            "again (at_most_once); `job.retry()` runs it once more",
        )
        self.step = step


class QueueFull(DrayError):
    """The queue holds as many ready jobs as `max_ready` allows."""

    def __init__(self, queue: str, max_ready: int | None, text: str | None = None) -> None:
        super().__init__(text or f"queue {queue!r} is full: max_ready={max_ready}")
        self.queue, self.max_ready = queue, max_ready
        self.accepted: Sequence[object] = ()
        """Handles of the jobs that were accepted in the same call (`enqueue_many`)."""


class EnqueueLimited(QueueFull):
    """The queue accepts no more jobs at this rate (`enqueue_rate`); `retry_after` is in seconds."""

    def __init__(self, queue: str, retry_after: float) -> None:
        super().__init__(
            queue, None, f"queue {queue!r} accepts no more jobs at this rate: try again in {retry_after:g} s"
        )
        self.retry_after = retry_after


class UnknownTask(DrayError):
    """The app has no task of that name."""

    def __init__(self, name: str, near: Sequence[str], known: Sequence[str]) -> None:
        shown = ", ".join(known[:20]) + (", …" if len(known) > 20 else "")
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are: {shown or 'none'}"
        super().__init__(f"no task is named {name!r}; {hint}")
        self.name, self.near = name, tuple(near)


class ScheduleNotFound(DrayError):
    """There is no schedule of that name."""

    def __init__(self, name: str, near: Sequence[str] = ()) -> None:
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        super().__init__(f"no schedule is named {name!r}{hint}")
        self.name, self.near = name, tuple(near)


class ScheduleExists(DrayError):
    """There is a schedule of that name already."""

    def __init__(self, name: str) -> None:
        super().__init__(f"a schedule is named {name!r} already: change or delete it, or take another name")
        self.name = name


class LastAdminKey(DrayError):
    """The key is the last one with the role admin; `force` revokes it all the same."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"key {id} is the last admin key: without it nobody can administer this namespace over the"
            " network, apart from keys of the setting api_keys, and servers stay closed."
            " `dray keys create NAME --role admin` makes another;"
            " force=True (--force on the command line) revokes it all the same"
        )
        self.id = id


class AppNotFound(DrayError):
    """`module:attribute` does not lead to an App; says why and where."""


class WorkerSilent(DrayError):
    """A worker did not answer what it was asked."""


class WouldBlock(DrayError):
    """A blocking call on the event loop that all jobs of an executor share."""

    def __init__(self, call: str, twin: str) -> None:
        super().__init__(f"{call} would block the worker's event loop and every job on it: use {twin}")
        self.call, self.twin = call, twin


class TaskExit(DrayError):
    """Base of `Retry` and `Reject` (see `dray.context`), which a task raises to say how its run ends."""
