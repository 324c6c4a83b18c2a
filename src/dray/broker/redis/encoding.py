"""Encodes jobs for the store and decodes them (see lua/job_text.lua)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from dray.broker.actions import Pause
from dray.broker.checks import (
    decode_error,
    decode_pause,
    decode_progress,
    error_kept,
    shown_result,
    unreadable,
)
from dray.broker.redis.ids import public_id
from dray.broker.verbs import Limits
from dray.codec.payload import pack, unpack
from dray.errors import CodecError, DecodeError
from dray.job import Error, Job, Overflow, PastRun, Progress, Record, Run, State, Suspension, Undo
from dray.policy import Rate, Retention

BY_NAME: Final = {state.value.encode(): state for state in State} | {b"": State.NOT_FOUND}
"""States as scripts return them."""

encode: Final = msgspec.msgpack.Encoder().encode
to_json: Final = msgspec.json.Encoder().encode


class Head(msgspec.Struct, kw_only=True):
    """The fields of a job that change, as in lua/job_text.lua; a new ready job has no stored head."""

    state: State = State.READY
    class_: str | None = None
    run: int = 0
    line: int = 0
    settled: int = 0
    failures: int = 0
    crashes: int = 0
    suspect: int = 0
    started: int | None = None
    due: int | None = None
    expires: int | None = None
    deadline: int | None = None
    finished: int | None = None
    cancel: str | None = None
    reason: str | None = None
    runs: list[tuple[int, str, int]] = []
    waits: list[str] | str = []
    past: list[PastRun] = []
    memos: int = 0
    replayed: int = 0
    undo: Undo | None = None
    suspended: str | None = None
    orphaned: str | None = None


_FACTS: Final = re.compile(
    rb"([a-z]+) run=(\d+) line=(\d+) failures=(\d+) started=(\d+)"
    rb"(?: (due|session|finished)=([^\n]*))?\n[^\n]*"
)
_FIELDS: Final = {
    field.encode_name: msgspec.json.Decoder(field.type).decode
    for field in msgspec.structs.fields(Head)
    if field.name not in ("state", "class_", "past")
}
decode_suspension: Final = msgspec.json.Decoder(Suspension).decode
_decode_text: Final = msgspec.json.Decoder(str).decode
_decode_past: Final = msgspec.json.Decoder(PastRun).decode


def class_of(job: Job) -> str:
    return f"{job.priority}|{job.task}|{job.version}"


def shape_of(job: Job) -> str:
    """How much scripts must know of a job.

    `p` plain: its class; `s` simple: also limits of its task as a whole and a due time; `k` keyed: also
    group, rate key and running key; `f` full: any option.
    """
    if not (
        job.key is None
        and job.ttl is None
        and job.deadline is None
        and job.max_ready is None
        and not job.waits_for
        and job.once is None
        and job.max_crashes == 3
        and not job.speculate
        and job.result_ttl is None
        and job.on_duplicate != "replace"
        and job.owner is None
        and job.orphan != "follow"
    ):
        return "f"
    if job.group is not None or job.rate_key is not None or job.running_key is not None:
        return "k"
    return "p" if job.rate is None and job.max_running is None and job.due is None else "s"


def body(job: Job, shape: str, stamp: int, created: int | None) -> bytes:
    """The stored form of a job, less the number in line; `created` is given if it differs from the stamp."""
    when = job.created or created
    made = f"+{when}" if when else ""
    if shape == "p":
        return b"p%d%b %b\n%b" % (stamp, made.encode(), class_of(job).encode(), _shortened(job, True))
    options = _options(job)
    attributes = f"{shape}{stamp}{made} {class_of(job)}{' ' if options else ''}".encode()
    return b"%b%b\n%b" % (attributes, options, _shortened(job, False))


HEADER: Final = bytes((0xDC, 0, 33))
"""The MessagePack header of an envelope with 33 fields, all but the deadline; with that one it is as long.
Version, id, task and queue follow; the last three are never stored."""


def _is_usual(job: Job) -> bool:
    """True if all fields of a plain job after `created` have their defaults."""
    return (
        job.retries == 3
        and job.on_duplicate == "return"
        and job.overflow == "raise"
        and job.orphan == "cancel"
        and job.description == ""
        and job.key_ttl is None
        and job.timeout is None
        and job.backoff is None
        and job.parent is None
        and job.isolate is None
        and not (job.tags or job.headers)
    )


def _shortened(job: Job, plain: bool) -> bytes:
    """The envelope, without the names, which are stored elsewhere.

    Of a usual job only its payload, behind a byte that is 1 if it has a creation time.
    """
    if plain and job.version == 1 and _is_usual(job):
        return (b"\1" if job.created else b"\0") + job.payload
    packed, start = pack(job), len(HEADER) + len(encode(job.version))
    names = len(encode((job.id, job.task, job.queue))) - 1
    return packed[:start] + packed[start + names :]


def _restored(stored: bytes, stamp: str, id: str, task: str, queue: str, priority: int, version: int) -> Job:
    usual = stored[:1]
    if usual == b"\0" and version == 1:
        return Job(id=id, task=task, queue=queue, payload=stored[1:], priority=priority)
    if usual == b"\1" and version == 1:
        created = int(stamp.partition("+")[2])
        return Job(id=id, task=task, queue=queue, payload=stored[1:], priority=priority, created=created)
    start, names = len(HEADER) + len(encode(version)), encode((id, task, queue))[1:]
    job = unpack(b"%b%b%b" % (stored[:start], names, stored[start:]), version)
    return job if job.priority == priority else msgspec.structs.replace(job, priority=priority)


def _options(job: Job) -> bytes:
    options = {
        "key": job.key,
        "key_ttl": job.key_ttl,
        "once": job.once,
        "ttl": job.ttl,
        "deadline": job.deadline,
        "rate": rate_numbers(job.rate),
        "max_running": job.max_running,
        "max_crashes": None if job.max_crashes == 3 else job.max_crashes,
        "speculate": 1 if job.speculate else None,
        "orphan": None if job.orphan == "cancel" else job.orphan,
        "due": job.due,
        "result_ttl": job.result_ttl,
        "group": job.group,
        "rate_key": job.rate_key,
        "running_key": job.running_key,
        "owner": job.owner,
        "node": job.node or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    return to_json(given) if given else b""


def rate_numbers(rate: str | None) -> tuple[int, int] | None:
    if rate is None:
        return None
    parsed = Rate.parse(rate)
    return parsed.interval, parsed.burst


class Body(NamedTuple):
    """A stored body, split into its parts."""

    packed: bytes
    line: int
    arrival: str
    """The stamp, and the creation time if it differs."""
    stamp: int
    created: int
    class_: str

    def job(self, queue: str, id: str, class_: str) -> Job:
        """The job; its priority comes from the class, as it may have been edited."""
        priority, task, version = class_.split("|")
        return _restored(self.packed, self.arrival, id, task, queue, int(priority), int(version))


def read_body(stored: bytes) -> Body:
    header, _, packed = stored.partition(b"\n")
    line, arrival, class_ = header.decode().split(" ", 3)[:3]
    stamp, _, created = arrival[1:].partition("+")
    return Body(packed, int(line), arrival, int(stamp), int(created or int(stamp) // 1000), class_)


@lru_cache(maxsize=4096)
def _class_parts(class_: bytes) -> tuple[int, str, int]:
    priority, task, version = class_.decode().split("|")
    return int(priority), task, int(version)


def read_plain(queue: str, id: str, stored: bytes) -> Job:
    """A job whose priority was not edited."""
    header, _, packed = stored.partition(b"\n")
    _, arrival, class_, *_ = header.split(b" ", 3)
    priority, task, version = _class_parts(class_)
    return _restored(packed, arrival.decode(), id, task, queue, priority, version)


def read_head(stored: bytes) -> Head:
    """Read a head (see lua/job_text.lua)."""
    if not stored:
        return Head()
    match = _FACTS.match(stored)
    if match is None:
        raise DecodeError("its head cannot be read")
    state, run, line, failures, started, last, value = match.groups()
    head = Head(state=State(state.decode()), run=int(run), line=int(line), failures=int(failures))
    head.started = int(started) or None
    head.settled = head.run - 1 if head.state is State.RUNNING else head.run
    if last == b"session":
        head.runs = [(head.run, value.decode(), int(started))]
    elif last is not None:
        setattr(head, last.decode(), int(value))
    _read_fields(head, stored[match.end() + 1 :])
    return head


def _read_fields(head: Head, rest: bytes) -> None:
    for line in rest.split(b"\n") if rest else ():
        name, _, value = line.partition(b"=")
        if name == b"past":
            head.past = [*head.past, _decode_past(value)]
        elif name == b"class":
            head.class_ = _decode_text(value)
        elif (decode := _FIELDS.get(name.decode())) is not None:
            setattr(head, name.decode(), decode(value))


class StoredJob(msgspec.Struct, frozen=True):
    """A job as read from the store: its record, and its arrival stamp."""

    record: Record
    stamp: int
    readable: bool = True


def read_stored(queue: str, id: str, row: Sequence[Any], now: int, retention: Retention) -> StoredJob:
    """The job; one whose bytes are damaged is returned as unreadable."""
    try:
        return _stored_job(queue, id, row, now, retention)
    except Exception as error:
        # A distinct stamp, so that pages can go on after it.
        return StoredJob(unreadable(id, queue, State.DEAD, error), crc32(id.encode()), readable=False)


def _stored_job(queue: str, id: str, row: Sequence[Any], now: int, retention: Retention) -> StoredJob:
    stored_head, stored, result, error, progress, *apart = row
    whole, head = read_body(stored), read_head(stored_head)
    waits = apart[0] if apart else [id.encode() for id in head.waits]
    suspended = apart[1] if len(apart) > 1 and apart[1] is not None else head.suspended
    job = _job(whole, queue, id, head.class_ or whole.class_)
    reports = dict(zip(progress[::2], progress[1::2], strict=True))
    record = Record(
        job=job,
        state=head.state,
        created=whole.created,
        due=head.due,
        expires=head.expires,
        deadline=head.deadline,
        run=head.run,
        settled=head.settled,
        failures=head.failures,
        crashes=head.crashes,
        suspect=head.suspect,
        cancel=head.cancel,
        runs=tuple(Run(n, session, since, _progress(reports.get(n))) for n, session, since in head.runs),
        past=tuple(head.past),
        waiting=tuple(sorted(public_id(id, queue) for id in waits)),
        started=head.started,
        finished=head.finished,
        reason=head.reason,
        result=shown_result(job.result_ttl, result, head.finished, now, retention, job.owner),
        error=_error(error) if error_kept(head.state, head.finished, now, retention, job.owner) else None,
        memos=head.memos,
        replayed=head.replayed,
        suspended=None if suspended is None else decode_suspension(suspended),
        undo=head.undo,
        orphaned_by=None if head.orphaned is None else public_id(head.orphaned.encode(), queue),
    )
    return StoredJob(record, whole.stamp)


def read_ended(queue: str, id: str, message: bytes, retention: Retention) -> Record:
    """Read the message that a watcher gets of an ended job (see lua/settle_fast.lua)."""
    facts, _, rest = message.partition(b"\n")
    now, head, body = facts.decode().split(" ")
    end = int(head) + int(body)
    result = rest[end + 1 :] if len(rest) > end else None
    row = (rest[: int(head)], rest[int(head) : end], result, None, ())
    return read_stored(queue, id, row, int(now), retention).record


def _job(stored: Body, queue: str, id: str, class_: str) -> Job:
    """The job; one whose envelope cannot be decoded shows the known fields, and the bytes as its payload."""
    try:
        return stored.job(queue, id, class_)
    except CodecError:
        priority, task, version = class_.split("|")
        return Job(
            id=id,
            task=task,
            queue=queue,
            priority=int(priority),
            version=int(version),
            payload=stored.packed,
        )


def _progress(packed: bytes | None) -> Progress | None:
    return None if packed is None else decode_progress(packed)


def _error(packed: bytes | None) -> Error | None:
    return None if packed is None else decode_error(packed)


class _StoredLimits(msgspec.Struct):
    rate_text: str | None = None
    enqueue_rate_text: str | None = None
    max_running: int | None = None
    max_ready: int | None = None
    overflow: Overflow | None = None
    group_running: int | None = None


_decode_limits: Final = msgspec.json.Decoder(_StoredLimits).decode
_decode_pause: Final = msgspec.json.Decoder(Pause).decode


def read_limits(stored: bytes) -> Limits:
    """Unreadable limits limit nothing."""
    try:
        found = _decode_limits(stored)
        return Limits(
            rate=found.rate_text,
            enqueue_rate=found.enqueue_rate_text,
            max_running=found.max_running,
            max_ready=found.max_ready,
            overflow=found.overflow,
            group_running=found.group_running,
        )
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Limits()


def read_pause(stored: bytes) -> Pause:
    """An unreadable pause stays a pause."""
    try:
        return _decode_pause(stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decode_pause(b"")
