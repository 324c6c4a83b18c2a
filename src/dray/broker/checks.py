"""Checks of arguments, and how every broker reads and shows stored values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, UnsetType

from dray.broker.actions import (
    Cancel,
    Ids,
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
from dray.broker.durable import MEMO_BYTES_MAX, MEMOS_MAX, MESSAGE_MAX, MemoWrite
from dray.broker.verbs import PAGE_MAX, PUT_STEP, Beat, DocWrite, Filter, Interest, NextTake
from dray.codec.values import describe
from dray.errors import InvalidInput, TooLarge, UnknownDependency
from dray.job import (
    NAME,
    Error,
    Job,
    Outcome,
    OutcomeKind,
    Overflow,
    Progress,
    Record,
    State,
    Suspension,
    check_name,
    check_progress_data,
    check_word,
    queue_of,
)
from dray.policy import WAITS_MAX, Rate, Retention, check_batch

T = TypeVar("T")
TIME_MAX: Final = 1 << 52
WANT_MAX: Final = 10_000
DOC_MAX: Final = 1 << 20
NAMES_MAX: Final = 1000
"""Names of events that one call may give."""
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
    if type(request) is not int or not 1 <= request <= TIME_MAX:
        _check_int("request", request, 1, TIME_MAX)
    if type(want) is not int or not 0 <= want <= WANT_MAX:
        _check_int("want", want, 0, WANT_MAX)
    if share is not None:
        _check_int("share", share, 1, WANT_MAX)
    _check_queues(queues)
    _check_filter(filter)


def _check_queues(queues: Sequence[str]) -> None:
    if isinstance(queues, str):
        raise InvalidInput("queues", queues, "a list of names is allowed")
    for queue in queues:
        if type(queue) is not str or not NAME.fullmatch(queue):
            check_name("queue", queue)


def _check_filter(filter: Filter) -> None:
    if filter.version != 1 or type(filter.version) is not int:
        _check_int("version", filter.version, 1, TIME_MAX)
    if filter.tasks is not None and not isinstance(filter.tasks, frozenset):
        raise InvalidInput("tasks", filter.tasks, "a frozenset of names, or None for any, is allowed")
    for priority in filter.priorities or ():
        _check_int("priority", priority, 0, 9)


def check_wait(interest: Interest, timeout: float) -> None:
    _check_queues(interest.queues)
    _check_filter(interest.filter)
    if interest.next_take is not None:
        _check_next_take(interest, interest.next_take)
    if not 0 <= timeout <= TIME_MAX:
        raise InvalidInput("timeout", timeout, "a number of seconds from 0 is allowed")


def _check_next_take(interest: Interest, take: NextTake) -> None:
    check_word("session", interest.session or "")
    _check_int("request", take.request, 1, TIME_MAX)
    if not take.queues or not set(take.queues) <= set(interest.queues):
        raise InvalidInput("next_take", take.queues, "some of the queues of the interest are allowed")


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
        if type(outcome.run) is not int or not 1 <= outcome.run <= TIME_MAX:
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
        if outcome.suspend is not None or outcome.kind is OutcomeKind.SUSPENDED:
            _check_suspension(outcome)


def _check_suspension(outcome: Outcome) -> None:
    suspend = outcome.suspend
    if type(suspend) is not Suspension or outcome.kind is not OutcomeKind.SUSPENDED:
        raise InvalidInput("suspend", suspend, "a Suspension goes with the kind suspended, and no other")
    if suspend.until is not None:
        _check_int("until", suspend.until, 0, TIME_MAX)
    _check_numbers("events", suspend.events, NAMES_MAX)
    _check_some("jobs", suspend.jobs, WAITS_MAX)
    if outcome.id in suspend.jobs:
        raise InvalidInput("jobs", suspend.jobs, "a job cannot wait for itself")
    waits = suspend.until is not None or bool(suspend.events or suspend.jobs)
    if waits == suspend.parked:
        raise InvalidInput("suspend", suspend, "it waits for something, or is parked")


def _check_some(field: str, ids: object, most: int) -> None:
    if not isinstance(ids, tuple) or len(ids) > most or len(set(ids)) < len(ids):
        raise InvalidInput(field, ids, f"a tuple of at most {most} ids, each once, is allowed")
    for id in ids:
        check_word(field, id)


def _check_numbers(field: str, numbers: object, most: int) -> None:
    if not isinstance(numbers, dict) or len(numbers) > most:
        raise InvalidInput(field, numbers, f"a dict of at most {most} names to numbers is allowed")
    for name, number in numbers.items():
        check_word(field, name)
        _check_int(field, number, 0, TIME_MAX)


def check_memos(session: str, writes: Sequence[MemoWrite]) -> None:
    check_word("session", session)
    if len({write.id for write in writes}) < len(writes):
        raise InvalidInput("writes", [write.id for write in writes], "one write per job is allowed")
    for write in writes:
        check_word("id", write.id)
        _check_int("run", write.run, 1, TIME_MAX)
        _check_int("position", write.position, 0, MEMOS_MAX)
        entries: object = write.entries
        if not isinstance(entries, tuple) or not all(isinstance(entry, bytes) for entry in entries):
            raise InvalidInput("entries", entries, "a tuple of bytes is allowed")
        _check_some("children", write.children, WAITS_MAX)
        _check_numbers("consumed", write.consumed, NAMES_MAX)
        if write.undo is not None and type(write.undo) is not bool:
            raise InvalidInput("undo", write.undo, "true, false or None is allowed")


def check_log_size(id: str, count: int, size: int) -> None:
    """Refuse a log of more entries or bytes than one may have."""
    if count > MEMOS_MAX:
        raise TooLarge(f"the log of {id} would have {count} entries; {MEMOS_MAX} are allowed")
    if size > MEMO_BYTES_MAX:
        raise TooLarge(f"the log of {id} would have {size} bytes; {MEMO_BYTES_MAX} are allowed")


def check_recall(id: str, position: int, limit: int) -> None:
    check_word("id", id)
    _check_int("position", position, 0, TIME_MAX)
    check_page(limit)


def check_send(id: str, name: str, message: str, body: bytes) -> None:
    check_word("id", id)
    check_word("name", name)
    check_word("message", message)
    if not isinstance(body, bytes):
        raise InvalidInput("body", body, "bytes are allowed")
    if len(body) > MESSAGE_MAX:
        raise TooLarge(f"a message of {len(body)} bytes is more than {MESSAGE_MAX}")


def check_mailbox(id: str, name: str, after: int, limit: int) -> None:
    check_word("id", id)
    check_word("name", name)
    _check_int("after", after, 0, TIME_MAX)
    check_page(limit)


def check_tally(owner: str, queues: Sequence[str]) -> None:
    check_word("owner", owner)
    _check_queues(queues)


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
        raise InvalidInput("action", action, "one of dray.broker.actions is allowed")
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
    ttl: int | None,
    result: bytes | None,
    finished: int | None,
    now: int,
    keep: Retention,
    owner: str | None = None,
) -> bytes | None:
    """The result, while it is kept; `ttl` is what the job itself says. With an owner: as long as the job."""
    ttl = keep.result_ttl if ttl is None else ttl
    return result if owner is not None or finished is None or now < finished + ttl else None


def error_kept(
    state: State, finished: int | None, now: int, keep: Retention, owner: str | None = None
) -> bool:
    """A dead job keeps its error for good; the last error of one that ended otherwise is kept for a while."""
    return state is State.DEAD or owner is not None or finished is None or now < finished + keep.error_ttl


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
