"""Checks of arguments, and how every broker reads and shows stored values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from dray.broker.verbs import (
    PAGE_MAX,
    PUT_STEP,
    Beat,
    Cancel,
    DocWrite,
    Filter,
    Ids,
    Interest,
    JobAction,
    Pause,
    Query,
    Reprioritise,
    Reschedule,
    Scope,
    ScopeAction,
    SetLimits,
    Speculate,
)
from dray.codec.values import describe
from dray.errors import InvalidInput, UnknownDependency
from dray.job import (
    Error,
    Job,
    Outcome,
    OutcomeKind,
    Overflow,
    Progress,
    Record,
    State,
    check_name,
    check_progress_data,
    check_word,
    queue_of,
)
from dray.policy import Rate, Retention, check_batch

T = TypeVar("T")
TIME_MAX: Final = 1 << 52
WANT_MAX: Final = 10_000
DOC_MAX: Final = 1 << 20
FEED_KEPT: Final = 10 * 60_000
"""Milliseconds after its newest entry for which the feed of a queue without jobs is kept."""
FREE_STEP: Final = 1000
"""Up to this many runs of a lapsed session are freed in one step, whatever the limit of the sweep."""
REASON_MAX: Final = 4096


def check_puts(jobs: Sequence[Job], when: DocWrite | None, durability: str | None) -> None:
    check_batch(jobs)
    if durability not in (None, "normal", "full"):
        raise InvalidInput("durability", durability, "normal or full is allowed")
    if when is None:
        return
    check_doc(when.kind, when.name, when.value, when.expect_version, when.ttl)
    if len(jobs) > PUT_STEP or len({job.queue for job in jobs}) > 1:
        raise InvalidInput(
            "when", when.name, f"it goes with at most {PUT_STEP} jobs, all of one queue, in one step"
        )


def check_dependency(job: Job, dependency: str, known: bool) -> None:
    """An id that names its queue may be put later; one that a client made up must be there."""
    if not known and queue_of(dependency) is None:
        raise UnknownDependency(
            "waits_for", dependency, f"job {job.id} can wait only for jobs that exist or are put with it"
        )


def check_take(
    session: str, request: int, queues: Sequence[str], filter: Filter, want: int, share: int | None
) -> None:
    check_word("session", session)
    _check_int("request", request, 1, TIME_MAX)
    _check_int("want", want, 0, WANT_MAX)
    if share is not None:
        _check_int("share", share, 1, WANT_MAX)
    _check_queues(queues)
    _check_filter(filter)


def _check_queues(queues: Sequence[str]) -> None:
    if isinstance(queues, str):
        raise InvalidInput("queues", queues, "a list of names is allowed")
    for queue in queues:
        check_name("queue", queue)


def _check_filter(filter: Filter) -> None:
    _check_int("version", filter.version, 1, TIME_MAX)
    if filter.tasks is not None and not isinstance(filter.tasks, frozenset):
        raise InvalidInput("tasks", filter.tasks, "a frozenset of names, or None for any, is allowed")
    for priority in filter.priorities or ():
        _check_int("priority", priority, 0, 9)


def check_wait(interest: Interest, timeout: float) -> None:
    _check_queues(interest.queues)
    _check_filter(interest.filter)
    if not 0 <= timeout <= TIME_MAX:
        raise InvalidInput("timeout", timeout, "a number of seconds from 0 is allowed")


def check_beats(beats: Sequence[Beat]) -> None:
    for beat in beats:
        check_word("session", beat.session)
        _check_int("lease", beat.lease, 1, TIME_MAX)
        for report in beat.progress:
            progress = report.progress
            numbers = (progress.done, 0 if progress.total is None else progress.total)
            if not all(isinstance(number, int | float) for number in numbers):
                raise InvalidInput("progress", progress, "numbers are allowed for done and total")
            _check_text("progress", progress.note)
            if progress.data:
                check_progress_data(progress.data)


def check_settle(session: str, outcomes: Sequence[Outcome]) -> None:
    check_word("session", session)
    for outcome in outcomes:
        if type(outcome.id) is not str:
            check_word("id", outcome.id)
        _check_int("run", outcome.run, 1, TIME_MAX)
        if type(outcome.kind) is not OutcomeKind:
            raise InvalidInput("kind", outcome.kind, f"one of {', '.join(OutcomeKind)} is allowed")
        if outcome.at is not None:
            _check_int("at", outcome.at, 0, TIME_MAX)
        if outcome.result is not None and not isinstance(outcome.result, bytes):
            raise InvalidInput("result", outcome.result, "bytes are allowed")
        if outcome.error is not None and not isinstance(outcome.error, Error):
            raise InvalidInput("error", outcome.error, "an Error is allowed")
        if outcome.reason is not None:
            _check_text("reason", outcome.reason)
        if outcome.together != 1:
            _check_int("together", outcome.together, 1, TIME_MAX)


def check_get(ids: Sequence[str], watch: str | None) -> None:
    _check_ids(ids)
    if watch is not None:
        check_word("watch", watch)


def _check_ids(ids: Sequence[str]) -> None:
    if isinstance(ids, str) or not all(isinstance(id, str) for id in ids):
        raise InvalidInput("ids", ids, "a list of ids is allowed")


def check_query(query: Query) -> None:
    if query.state is not None and not isinstance(query.state, State):
        raise InvalidInput("state", query.state, f"one of {', '.join(State)} is allowed")
    for field in ("queue", "task"):
        if getattr(query, field) is not None:
            check_name(field, getattr(query, field))
    for field in ("tag", "group", "key", "parent"):
        if getattr(query, field) is not None:
            check_word(field, getattr(query, field))
    for priority in query.priorities or ():
        _check_int("priority", priority, 0, 9)
    if query.since is not None:
        _check_int("since", query.since, 0, TIME_MAX)


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str) or len(text) > REASON_MAX:
        raise InvalidInput(field, text, f"text of at most {REASON_MAX} characters is allowed")


def read_number(field: str, cursor: str | None) -> int:
    """A cursor that is a plain number: that of the last job looked at."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 17):
        raise InvalidInput(field, cursor, "only a cursor that an earlier page returned is allowed")
    return int(cursor)


def check_limit(limit: int) -> None:
    _check_int("limit", limit, 1, TIME_MAX)


def check_page(limit: int) -> None:
    _check_int("limit", limit, 1, PAGE_MAX)


def check_doc(
    kind: str, name: str, value: bytes | UnsetType | None, expect_version: int | None, ttl: int | None
) -> None:
    check_name("kind", kind)
    check_word("name", name)
    if isinstance(value, bytes) and len(value) > DOC_MAX:
        raise InvalidInput("value", f"{len(value)} bytes", f"at most {DOC_MAX} bytes are allowed")
    if not isinstance(value, bytes | None | UnsetType):
        raise InvalidInput("value", value, "bytes, or None to delete, are allowed")
    if expect_version is not None:
        _check_int("expect_version", expect_version, 0, TIME_MAX)
    if ttl is not None:
        _check_int("ttl", ttl, 1, TIME_MAX)


def check_edit(selection: Ids | Query | Scope, action: JobAction | ScopeAction, limit: int) -> None:
    check_page(limit)
    if not isinstance(action, JobAction | ScopeAction):
        raise InvalidInput("action", action, "one of the actions of dray.broker.verbs is allowed")
    takes = "a Scope" if isinstance(action, ScopeAction) else "Ids or a Query"
    if isinstance(action, ScopeAction) != isinstance(selection, Scope):
        raise InvalidInput("selection", selection, f"{type(action).__name__} takes {takes}")
    match action:
        case Reschedule(due=due):
            _check_int("due", due, 0, TIME_MAX)
        case Reprioritise(priority=priority):
            _check_int("priority", priority, 0, 9)
        case Speculate(run=run) if run is not None:
            _check_int("run", run, 1, TIME_MAX)
        case Cancel(reason=reason) | Pause(reason=reason):
            _check_text("reason", reason)
            if isinstance(action, Cancel) and not isinstance(action.force, bool):
                raise InvalidInput("force", action.force, "true or false is allowed")
        case SetLimits():
            _check_limits(cast(Scope, selection), action)
        case _:
            pass
    match selection:
        case Scope(queue=queue, task=task):
            check_name("queue", queue)
            if task is not None:
                check_name("task", task)
        case Ids(ids=ids):
            _check_ids(ids)
        case Query():
            check_query(selection)


def _check_limits(scope: Scope, action: SetLimits) -> None:
    for field in ("rate", "enqueue_rate"):
        value = getattr(action, field)
        if value is not None and value is not UNSET:
            _check_rate(field, value)
    for field in ("max_running", "max_ready", "group_running"):
        value = getattr(action, field)
        if value is not None and value is not UNSET:
            _check_int(field, value, 1, TIME_MAX)
    if action.overflow not in (UNSET, None, *get_args(Overflow)):
        raise InvalidInput("overflow", action.overflow, f"{', '.join(get_args(Overflow))} are allowed")
    if scope.task is not None:
        for field in ("enqueue_rate", "max_ready", "overflow", "group_running"):
            if getattr(action, field) is not UNSET:
                raise InvalidInput(field, getattr(action, field), "it can be set for a whole queue only")


def _check_rate(field: str, value: object) -> None:
    try:
        Rate.parse(value)  # type: ignore[arg-type]  # it refuses what is no text
    except InvalidInput as wrong:
        raise InvalidInput(field, value, wrong.allowed) from None


def _check_int(field: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(field, value, f"an integer from {least} to {most} is allowed")


def shown_result(
    ttl: int | None, result: bytes | None, finished: int | None, now: int, keep: Retention
) -> bytes | None:
    """The result, while it is kept; `ttl` is what the job itself says."""
    ttl = keep.result_ttl if ttl is None else ttl
    return result if finished is None or now < finished + ttl else None


def error_kept(state: State, finished: int | None, now: int, keep: Retention) -> bool:
    """A dead job keeps its error for good; the last error of one that ended otherwise is kept for a while."""
    return state is State.DEAD or finished is None or now < finished + keep.error_ttl


def reader(type: Any, instead: T) -> Callable[[bytes], T]:
    """A decoder of small stored values that returns `instead` for damaged ones.

    None of these is worth stopping a worker for, nor a list.
    """
    decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(type).decode

    def read(packed: bytes) -> T:
        try:
            return decode(packed)
        except (msgspec.DecodeError, TypeError):  # TypeError: the column holds no bytes at all
            return instead

    return read


decode_error: Final = reader(Error, Error("DecodeError", "the stored error cannot be read"))
decode_progress: Final = reader(Progress, Progress(0.0, note="the stored progress cannot be read"))
# What was paused stays so until it is resumed.
decode_pause: Final = reader(Pause, Pause(reason="the stored pause cannot be read"))


def unreadable(id: object, queue: object, state: State, error: Exception) -> Record:
    """The record shown for a stored job that cannot be read, so that a list does not fail for one job."""
    job = Job(id=str(id), task="unreadable", queue=str(queue))
    return Record(job=job, state=state, created=0, reason=f"the stored job cannot be read: {describe(error)}")


def query_matches(query: Query, record: Record) -> bool:
    job = record.job
    return (
        (query.state is None or record.state is query.state)
        and (query.queue is None or job.queue == query.queue)
        and (query.task is None or job.task == query.task)
        and (query.priorities is None or job.priority in query.priorities)
        and (query.tag is None or query.tag in job.tags)
        and (query.group is None or job.group == query.group)
        and (query.key is None or job.key == query.key)
        and (query.parent is None or job.parent == query.parent)
        and (query.since is None or record.created >= query.since)
    )


def check_cursor(cursor: Mapping[str, int]) -> None:
    for queue, number in cursor.items():
        check_name("cursor", queue)
        _check_int("cursor", number, 0, TIME_MAX)
