"""The stored forms of a job: what `put` writes and what is read back (see lua/job.lua)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from dray.broker.checks import error_kept, shown_result
from dray.broker.verbs import Limits, Pause
from dray.codec import pack, unpack
from dray.errors import CodecError, DecodeError
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
    return (
        job.due is None
        and job.key is None
        and job.ttl is None
        and job.group is None
        and job.rate is None
        and job.max_running is None
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


def body(job: Job, stamp: int, now: int, plain_class: str | None) -> bytes:
    """The stored form of a job that is put."""
    if plain_class is not None:
        attributes = f"{stamp} {job.created or now} {plain_class}\n\n\n\n".encode()
    else:
        attributes = _attributes(job, stamp, now)
    return b"%b%b%b" % (pack(job), attributes, len(attributes).to_bytes(2, "big"))


def _attributes(job: Job, stamp: int, now: int) -> bytes:
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
    lane = "\n".join((class_of(job), job.group or "", job.rate_key or "", job.running_key or ""))
    return f"{stamp} {job.created or now} {lane}\n".encode() + (to_json(told) if told else b"")


def rate_numbers(rate: str | None) -> tuple[int, int] | None:
    if rate is None:
        return None
    parsed = Rate.parse(rate)
    return parsed.interval, parsed.burst


def read_body(stored: bytes) -> tuple[memoryview, str]:
    """The envelope and the attributes."""
    length = int.from_bytes(stored[-2:], "big")
    return memoryview(stored)[: -length - 2], stored[-length - 2 : -2].decode()


def read_job(envelope: memoryview | bytes, id: str, class_: str) -> Job:
    """A stored job. Its class has the last word on the priority, which may have been edited."""
    priority, _, version = class_.split("|")
    job = unpack(envelope, int(version))  # type: ignore[arg-type]
    if job.id != id:
        raise DecodeError(f"the bytes are those of {job.id}")
    return job if job.priority == int(priority) else msgspec.structs.replace(job, priority=int(priority))


class Kept(msgspec.Struct, frozen=True):
    """A job as it was read: its record, and the stamp that orders arrivals."""

    record: Record
    stamp: int


def read_kept(queue: str, id: str, row: Sequence[Any], now: int, retention: Retention) -> Kept:
    stored_head, stored, result, error, progress = row
    envelope, attributes = read_body(stored)
    head = _decode_head(stored_head) if stored_head else Head(a=attributes)
    stamp, created, lane = attributes.split(" ", 2)
    state = LETTERS[head.s]
    class_ = head.p or lane.partition("\n")[0]
    job = _job(envelope, queue, id, class_)
    told = dict(zip(progress[::2], progress[1::2], strict=True))
    record = Record(
        job=job,
        state=state,
        created=int(created),
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
    return Kept(record, int(stamp))


def _job(envelope: memoryview, queue: str, id: str, class_: str) -> Job:
    """The job as it stands; one whose bytes cannot be read shows what is known, and the bytes."""
    try:
        return read_job(envelope, id, class_)
    except CodecError:
        priority, task, version = class_.split("|")
        known = {"priority": int(priority), "version": int(version), "payload": bytes(envelope)}
        return Job(id=id, task=task, queue=queue, **known)  # type: ignore[arg-type]


def _progress(packed: bytes | None) -> Progress | None:
    return None if packed is None else decode_progress(packed)


def _error(packed: bytes | None) -> Error | None:
    return None if packed is None else decode_error(packed)


def read_limits(packed: bytes) -> Limits:
    stored = _decode_any(packed)
    return Limits(
        rate=stored.get("t"),
        max_running=stored.get("m"),
        max_ready=stored.get("x"),
        overflow=stored.get("o"),
        group_running=stored.get("g"),
    )
