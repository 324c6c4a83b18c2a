"""Encodes jobs for the store and decodes them (see lua/job.lua)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from dray.broker.checks import decode_error, decode_progress, error_kept, reader, shown_result, unreadable
from dray.broker.verbs import Limits
from dray.codec.payload import pack, unpack
from dray.errors import CodecError, DecodeError
from dray.job import Error, Job, PastRun, Progress, Record, Run, State
from dray.policy import Rate, Retention

LETTERS: Final = {
    "w": State.WAITING,
    "s": State.SCHEDULED,
    "r": State.READY,
    "h": State.RUNNING,
    "t": State.RETRYING,
    "o": State.SUCCEEDED,
    "d": State.DEAD,
    "c": State.CANCELLED,
    "": State.NOT_FOUND,
}
LETTER: Final = {state: letter for letter, state in LETTERS.items()}
BY_BYTE: Final = {letter.encode(): state for letter, state in LETTERS.items()}

encode: Final = msgspec.msgpack.Encoder().encode
to_json: Final = msgspec.json.Encoder().encode
_decode_limits: Final[Callable[[bytes], dict[str, Any]]] = reader(dict[str, Any], {})


class Head(msgspec.Struct, kw_only=True):
    """The fields of a job that change; a simple ready job has no stored head."""

    s: str = "r"
    a: str
    p: str | None = None
    n: int = 0
    r: int = 0
    t: int = 0
    f: int = 0
    x: int = 0
    u: int = 0
    b: int | None = None
    d: int | None = None
    e: int | None = None
    dl: int | None = None
    z: int | None = None
    c: str | None = None
    y: str | None = None
    R: list[tuple[int, str, int]] = []
    w: list[str] = []
    of: int = 0
    P: list[PastRun] = []


_decode_head: Final = msgspec.msgpack.Decoder(Head).decode


def class_of(job: Job) -> str:
    return f"{job.priority}|{job.task}|{job.version}"


def is_plain(job: Job) -> bool:
    """True if scripts need to know nothing of the job but its class."""
    return not has_limits(job) and is_simple(job)


def has_limits(job: Job) -> bool:
    """True if a simple job is not plain: it has a rate, max_running or a due time."""
    return job.rate is not None or job.max_running is not None or job.due is not None


def is_simple(job: Job) -> bool:
    """True for a plain job, and for one that only has limits of its task as a whole or a due time."""
    return (
        job.key is None
        and job.ttl is None
        and job.deadline is None
        and job.group is None
        and job.rate_key is None
        and job.running_key is None
        and job.max_ready is None
        and not job.waits_for
        and job.once is None
        and job.max_crashes == 3
        and not job.speculate
        and job.result_ttl is None
        and job.on_duplicate != "replace"
    )


def body(job: Job, stamp: int, created: int | None, plain_class: str | None) -> bytes:
    """The stored form of a job. `created` is given if it differs from the stamp."""
    when = job.created or created or ""
    if plain_class is not None:
        attributes = f"{stamp:016}{when} {plain_class}".encode()
    else:
        attributes = f"{stamp:016}{when} {_lane(job)}\n".encode() + _options(job)
    return b"%b%b%b" % (_shortened(job), attributes, len(attributes).to_bytes(2, "big"))


HEADER: Final = bytes((0xDC, 0, 33))
"""The MessagePack header of an envelope with 33 fields, all but the deadline. Version, id, task and queue
follow; the last three are never stored."""
USUAL: Final = bytes.fromhex(
    "c0c0c0c0c0a672657475726ec0c0c0c0c0c0a5726169736590a663616e63656cc090a003c0c003c0c0c280"
)
"""The end of such an envelope, from the due time on, with only defaults: stored as one zero byte in front."""


def _is_usual(job: Job) -> bool:
    """True if all fields after `created` have their defaults, so that the envelope ends in `USUAL`."""
    return (
        is_plain(job)
        and job.retries == 3
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


def _shortened(job: Job) -> bytes:
    """The envelope, without the names, which are stored elsewhere, and without a usual end."""
    if job.version == 1 and _is_usual(job):
        return b"\0" + encode((job.payload, job.priority, job.created))[1:]
    packed, start = pack(job), len(HEADER) + len(encode(job.version))
    names = len(encode((job.id, job.task, job.queue))) - 1
    if job.version == 1 and packed.startswith(HEADER) and packed.endswith(USUAL):
        return b"\0" + packed[start + names : -len(USUAL)]
    return packed[:start] + packed[start + names :]


def _restored(stored: bytes, names: bytes, version: int) -> bytes:
    if stored[:1] == b"\0":
        return b"%b\1%b%b%b" % (HEADER, names, stored[1:], USUAL)
    start = len(HEADER) + len(encode(version))
    return b"%b%b%b" % (stored[:start], names, stored[start:])


def _lane(job: Job) -> str:
    return "\n".join((class_of(job), job.group or "", job.rate_key or "", job.running_key or ""))


def limits_of(job: Job) -> str:
    """The class of a simple job that is not plain, the limits of its task and its due time."""
    return f"{class_of(job)}\n{_options(job).decode()}"


def _options(job: Job) -> bytes:
    options = {
        "k": job.key,
        "kt": job.key_ttl,
        "n": job.once,
        "t": job.ttl,
        "dl": job.deadline,
        "r": rate_numbers(job.rate),
        "m": job.max_running,
        "x": None if job.max_crashes == 3 else job.max_crashes,
        "s": 1 if job.speculate else None,
        "or_": None if job.orphan == "cancel" else job.orphan,
        "d": job.due,
        "rt": job.result_ttl,
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
    stamp: int
    created: int
    class_: str

    def job(self, queue: str, id: str, class_: str) -> Job:
        """The job; its priority comes from the class, as it may have been edited."""
        priority, task, version = class_.split("|")
        job = unpack(_restored(self.packed, encode((id, task, queue))[1:], int(version)), int(version))
        return job if job.priority == int(priority) else msgspec.structs.replace(job, priority=int(priority))


def read_body(stored: bytes) -> Body:
    length = int.from_bytes(stored[-2:], "big")
    attributes = stored[-length - 2 : -2].decode()
    stamp = int(attributes[:16])
    created, _, lane = attributes[16:].partition(" ")
    return Body(
        stored[: -length - 2], stamp, int(created) if created else stamp // 1000, lane.partition("\n")[0]
    )


@lru_cache(maxsize=4096)
def _class_parts(class_: bytes) -> tuple[str, int]:
    _, task, version = class_.decode().partition("\n")[0].split("|")
    return task, int(version)


def read_plain(queue: str, id: str, stored: bytes) -> Job:
    """A simple job whose priority was not edited."""
    end = len(stored) - 2
    start = end - int.from_bytes(stored[end:], "big")
    task, version = _class_parts(stored[stored.index(b" ", start + 16) + 1 : end])
    return unpack(_restored(stored[:start], encode((id, task, queue))[1:], version), version)


def read_head(stored: bytes) -> Head:
    """Read a head of any form (see lua/job.lua)."""
    if not stored:
        return Head(a="")
    if stored[:1] not in b"hos":
        return _decode_head(stored)
    facts, _, attributes = stored.decode().partition("\n")
    if facts[0] == "s":
        return Head(s="s", a=attributes, d=int(facts[1:]))
    run, line, started, last = facts[1:].split(" ", 3)
    head = Head(s=facts[0], r=int(run), n=int(line), b=int(started), a=attributes)
    if head.s == "h":
        head.R = [(head.r, last, int(started))]
    else:
        head.t, head.z = head.r, int(last)
    return head


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
    stored_head, stored, result, error, progress = row
    whole, head = read_body(stored), read_head(stored_head)
    state = LETTERS[head.s]
    if state is State.NOT_FOUND:
        raise DecodeError("it has no state")
    job = _job(whole, queue, id, head.p or whole.class_)
    reports = dict(zip(progress[::2], progress[1::2], strict=True))
    record = Record(
        job=job,
        state=state,
        created=whole.created,
        due=head.d,
        expires=head.e,
        deadline=head.dl,
        run=head.r,
        settled=head.t,
        failures=head.f,
        crashes=head.x,
        suspect=head.u,
        cancel=head.c,
        runs=tuple(Run(n, session, since, _progress(reports.get(n))) for n, session, since in head.R),
        past=tuple(head.P),
        waiting=tuple(sorted(head.w)),
        started=head.b,
        finished=head.z,
        reason=head.y,
        result=shown_result(job.result_ttl, result, head.z, now, retention),
        error=_error(error) if error_kept(state, head.z, now, retention) else None,
    )
    return StoredJob(record, whole.stamp)


def read_ended(id: str, message: bytes, retention: Retention) -> Record:
    """Read the message that a watcher gets of an ended job (see lua/settle_plain.lua)."""
    facts, _, rest = message.partition(b"\n")
    queue, now, head, body = facts.decode().split(" ")
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


def read_limits(packed: bytes) -> Limits:
    """Unreadable limits limit nothing."""
    stored = _decode_limits(packed)
    try:
        return msgspec.convert({name: stored.get(letter) for name, letter in _LIMITS.items()}, Limits)
    except msgspec.ValidationError:
        return Limits()


_LIMITS: Final = {
    "rate": "t",
    "enqueue_rate": "et",
    "max_running": "m",
    "max_ready": "x",
    "overflow": "o",
    "group_running": "g",
}
