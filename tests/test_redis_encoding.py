"""The stored form of a job: shorter than its envelope, and the same job when it comes back."""

from __future__ import annotations

import msgspec
import pytest

from dray.broker.redis.encoding import HEADER, USUAL, body, is_plain, read_body, read_head
from dray.codec.payload import pack
from dray.job import Job

STORED = [
    (
        Job(id="q:" + "0" * 32, task="mail.send", queue="q", payload=b"\x01\x02"),
        "5|mail.send|1",
        b"\x00\xc4\x02\x01\x02\x05\x001700000000000000 5|mail.send|1\x00\x1e",
    ),
    (
        Job(id="made up", task="t", queue="q", retries=0, group="g"),
        None,
        b"\xdc\x00!\x01\xc4\x00\x05\x00\xc0\xc0\xc0\xc0\xc0\xa6return\xa1g\xc0\xc0\xc0\xc0\xc0\xa5raise\x90"
        b"\xa6cancel\xc0\x90\xa0\x00\xc0\xc0\x03\xc0\xc0\xc2\x801700000000000000 5|t|1\ng\n\n\n\x00\x1b",
    ),
    (
        Job(id="made up", task="t", queue="q", deadline=60_000),
        None,
        b'\xdc\x00"\x01\xc4\x00\x05\x00\xc0\xc0\xc0\xc0\xc0\xa6return\xc0\xc0\xc0\xc0\xc0\xc0\xa5raise\x90'
        b"\xa6cancel\xc0\x90\xa0\x03\xc0\xc0\x03\xc0\xc0\xc2\x80\xcd\xea`"
        b'1700000000000000 5|t|1\n\n\n\n{"dl":60000}\x00&',
    ),
]
"""Bytes that this release writes and later ones must read: entries are only ever added."""


def test_the_usual_end_of_an_envelope_is_what_codec_writes() -> None:
    packed = pack(Job(id="i", task="t", queue="q"))
    assert packed.startswith(HEADER)
    assert packed.endswith(USUAL)


@pytest.mark.parametrize(("job", "plain", "stored"), STORED, ids=["plain", "with a group", "with a deadline"])
def test_golden_bytes(job: Job, plain: str | None, stored: bytes) -> None:
    assert body(job, 1_700_000_000_000_000, None, plain) == stored
    whole = read_body(stored)
    assert (whole.stamp, whole.created) == (1_700_000_000_000_000, 1_700_000_000_000)
    assert whole.job(job.queue, job.id, whole.class_) == job


@pytest.mark.parametrize(
    "job",
    [
        Job(id="i", task="t", queue="q", payload=b"x" * 70_000),
        Job(id="ключ %_ é" * 20, task="t" * 128, queue="q" * 128, priority=0, created=17, tags=("a", "b")),
        Job(id="i", task="t", version=1, headers={"a": "b"}, due=5, waits_for=("x", "y"), orphan="wait"),
        Job(id="i", task="t", version=1000, key="k", rate="5/m", rate_key="r", description="\n"),
    ],
)
def test_every_job_comes_back_as_it_was(job: Job) -> None:
    plain = f"{job.priority}|{job.task}|{job.version}" if is_plain(job) else None
    whole = read_body(body(job, 1, 7, plain))
    assert whole.job(job.queue, job.id, whole.class_) == job
    assert whole.created == (job.created or 7)


def test_an_edited_priority_wins_over_the_envelope() -> None:
    job = Job(id="i", task="t", queue="q")
    whole = read_body(body(job, 1, None, "5|t|1"))
    assert whole.job("q", "i", "0|t|1").priority == 0


def test_heads_in_both_forms() -> None:
    held = read_head(b"h1 17 1000 session of ann\n1700000000000000 5|t|1")
    assert (held.s, held.r, held.n, held.R) == ("h", 1, 17, [(1, "session of ann", 1000)])
    done = read_head(b"o1 17 1000 2000\n1700000000000000 5|t|1")
    assert (done.s, done.t, done.z, done.b) == ("o", 1, 2000, 1000)
    assert read_head(b"").s == "r"
    later = read_head(b's2500\n1700000000000000 5|t|1\n\n\n\n{"d":2500}')
    assert (later.s, later.r, later.d, later.R) == ("s", 0, 2500, [])


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Job)])
def test_a_job_that_says_anything_special_keeps_all_of_its_envelope(field: str) -> None:
    """Also those that scripts need not know of: only what nothing is said about may be left out."""
    other = {str: "raise", int: 7, bool: True, bytes: b"x", tuple: ("a",), dict: {"a": "b"}, type(None): 9}
    default = getattr(Job(id="i", task="t"), field)
    texts = {"key", "group", "rate_key", "running_key", "parent", "isolate", "id", "task", "queue"}
    named = {**dict.fromkeys(texts, "name"), "rate": "5/m", "backoff": "fixed(1s)", "orphan": "run"}
    special = named.get(field, other[type(default)])
    job = msgspec.structs.replace(Job(id="i", task="t"), **{field: special})
    whole = read_body(body(job, 1, None, None))
    assert whole.job(job.queue, job.id, f"{job.priority}|{job.task}|{job.version}") == job
