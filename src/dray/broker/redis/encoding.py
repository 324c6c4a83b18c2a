"""The stored forms of a job: what `put` writes and what is read back (see lua/job.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from dray.broker.checks import error_kept, shown_result
from dray.broker.verbs import Limits, Pause
from dray.codec import pack, unpack
from dray.errors import CodecError
from dray.job import Error, Job, Progress, Record, Run, State
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
decode_error: Final = msgspec.msgpack.Decoder(Error).decode
decode_progress: Final = msgspec.msgpack.Decoder(Progress).decode
decode_pause: Final = msgspec.msgpack.Decoder(Pause).decode
_decode_any: Final = msgspec.msgpack.Decoder().decode


class Head(msgspec.Struct, kw_only=True):
    """What changes about a job; a plain ready job has none stored."""

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
    z: int | None = None
    c: str | None = None
    y: str | None = None
    R: list[tuple[int, str, int]] = []
    w: list[str] = []
    of: int = 0


_decode_head: Final = msgspec.msgpack.Decoder(Head).decode


def class_of(job: Job) -> str:
    return f"{job.priority}|{job.task}|{job.version}"


def is_plain(job: Job) -> bool:
    """Nothing about it that a script has to know, except its class."""
    return job.rate is None and job.max_running is None and job.due is None and is_simple(job)


def is_simple(job: Job) -> bool:
    """A plain job, but for limits of its task as a whole and a due time."""
    return (
        job.key is None
        and job.ttl is None
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
    """The stored form of a job that is put. `created` is told if the stamp does not say it."""
    when = job.created or created or ""
    if plain_class is not None:
        attributes = f"{stamp:016}{when} {plain_class}".encode()
    else:
        attributes = f"{stamp:016}{when} {_lane(job)}\n".encode() + _options(job)
    return b"%b%b%b" % (_shortened(job), attributes, len(attributes).to_bytes(2, "big"))


HEADER: Final = bytes((0xDC, 0, 33))
"""How an envelope of 33 fields starts. Version, id, task, queue follow; the last three are never stored."""
USUAL: Final = bytes.fromhex(
    "c0c0c0c0c0a672657475726ec0c0c0c0c0c0a5726169736590a663616e63656cc090a003c0c003c0c0c280"
)
"""How it ends, from the due time on, when nothing special is said: stored as one zero byte in front."""


def _is_usual(job: Job) -> bool:
    """Whether nothing is said after `created`: then its envelope ends in `USUAL`."""
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
    """The envelope, less what is stored elsewhere and what most jobs have in common."""
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
    """What a simple job that is not plain says: its class, the limits of its task and its due time."""
    return f"{class_of(job)}\n{_options(job).decode()}"


def _options(job: Job) -> bytes:
    options = {
        "k": job.key,
        "kt": job.key_ttl,
        "n": job.once,
        "t": job.ttl,
        "r": rate_numbers(job.rate),
        "m": job.max_running,
        "x": None if job.max_crashes == 3 else job.max_crashes,
        "s": 1 if job.speculate else None,
        "or_": None if job.orphan == "cancel" else job.orphan,
        "d": job.due,
        "rt": job.result_ttl,
    }
    told = {name: value for name, value in options.items() if value is not None}
    return to_json(told) if told else b""


def rate_numbers(rate: str | None) -> tuple[int, int] | None:
    if rate is None:
        return None
    parsed = Rate.parse(rate)
    return parsed.interval, parsed.burst


class Body(NamedTuple):
    """A stored body, taken apart."""

    packed: bytes
    stamp: int
    created: int
    class_: str

    def job(self, queue: str, id: str, class_: str) -> Job:
        """The job. Its class has the last word on the priority, which may have been edited."""
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
    """The map, or the text of a job before its first run, in it or after it (see lua/job.lua)."""
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


class Kept(msgspec.Struct, frozen=True):
    """A job as it was read: its record, and the stamp that orders arrivals."""

    record: Record
    stamp: int


def read_kept(queue: str, id: str, row: Sequence[Any], now: int, retention: Retention) -> Kept:
    stored_head, stored, result, error, progress = row
    whole, head = read_body(stored), read_head(stored_head)
    state = LETTERS[head.s]
    job = _job(whole, queue, id, head.p or whole.class_)
    told = dict(zip(progress[::2], progress[1::2], strict=True))
    record = Record(
        job=job,
        state=state,
        created=whole.created,
        due=head.d,
        expires=head.e,
        run=head.r,
        settled=head.t,
        failures=head.f,
        crashes=head.x,
        suspect=bool(head.u),
        cancel=head.c,
        runs=tuple(Run(n, session, since, _progress(told.get(n))) for n, session, since in head.R),
        waiting=tuple(sorted(head.w)),
        started=head.b,
        finished=head.z,
        reason=head.y,
        result=shown_result(job.result_ttl, result, head.z, now, retention),
        error=_error(error) if error_kept(state, head.z, now, retention) else None,
    )
    return Kept(record, whole.stamp)


def read_ended(id: str, told: bytes, retention: Retention) -> Record:
    """How a job ended, as a watcher is told it (see lua/settle_plain.lua)."""
    facts, _, rest = told.partition(b"\n")
    queue, now, head, body = facts.decode().split(" ")
    end = int(head) + int(body)
    result = rest[end + 1 :] if len(rest) > end else None
    row = (rest[: int(head)], rest[int(head) : end], result, None, ())
    return read_kept(queue, id, row, int(now), retention).record


def _job(stored: Body, queue: str, id: str, class_: str) -> Job:
    """The job as it stands; one whose bytes cannot be read shows what is known, and the bytes."""
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
    stored = _decode_any(packed)
    return Limits(
        rate=stored.get("t"),
        enqueue_rate=stored.get("et"),
        max_running=stored.get("m"),
        max_ready=stored.get("x"),
        overflow=stored.get("o"),
        group_running=stored.get("g"),
    )
