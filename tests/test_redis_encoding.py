"""The stored form of a job: shorter than its envelope, and the same job when it comes back."""

from __future__ import annotations

import msgspec
import pytest

from dray.broker.redis.encoding import HEADER, body, read_body, read_head, read_plain, shape_of
from dray.broker.redis.ids import public_id, stored_id
from dray.codec.payload import pack
from dray.job import Job, PastRun, RunEnd, State

STORED = [
    (
        Job(id="q:" + "0" * 32, task="mail.send", queue="q", payload=b"\x01\x02"),
        b"p1700000000000000 5|mail.send|1\n\x00\x01\x02",
    ),
    (
        Job(id="q:" + "0" * 32, task="mail.send", queue="q", payload=b"\x01\x02", created=1_700_000_000_000),
        b"p1700000000000000+1700000000000 5|mail.send|1\n\x01\x01\x02",
    ),
    (
        Job(id="made up", task="t", queue="q", rate="5/s+7", due=17),
        b's1700000000000000 5|t|1 {"rate":[200000,7],"due":17}\n'
        b"\xdc\x00!\x01\xc4\x00\x05\x00\x11\xc0\xc0\xc0\xc0\xa6return\xc0\xa55/s+7\xc0\xc0\xc0\xc0\xa5raise\x90"
        b"\xa6cancel\xc0\x90\xa0\x03\xc0\xc0\x03\xc0\xc0\xc2\x80",
    ),
    (
        Job(id="made up", task="t", queue="q", retries=0, group="g"),
        b'k1700000000000000 5|t|1 {"group":"g"}\n'
        b"\xdc\x00!\x01\xc4\x00\x05\x00\xc0\xc0\xc0\xc0\xc0\xa6return\xa1g\xc0\xc0\xc0\xc0\xc0\xa5raise\x90"
        b"\xa6cancel\xc0\x90\xa0\x00\xc0\xc0\x03\xc0\xc0\xc2\x80",
    ),
    (
        Job(id="made up", task="t", queue="q", deadline=60_000),
        b'f1700000000000000 5|t|1 {"deadline":60000}\n'
        b'\xdc\x00"\x01\xc4\x00\x05\x00\xc0\xc0\xc0\xc0\xc0\xa6return\xc0\xc0\xc0\xc0\xc0\xc0\xa5raise\x90'
        b"\xa6cancel\xc0\x90\xa0\x03\xc0\xc0\x03\xc0\xc0\xc2\x80\xcd\xea`",
    ),
]
"""Bytes that this release writes and later ones must read: entries are only ever added."""
NAMES = ["plain", "with a creation time", "simple", "with a group", "with a deadline"]


def test_the_envelope_begins_as_codec_writes_it() -> None:
    assert pack(Job(id="i", task="t", queue="q")).startswith(HEADER)


@pytest.mark.parametrize(("job", "stored"), STORED, ids=NAMES)
def test_golden_bytes(job: Job, stored: bytes) -> None:
    assert body(job, shape_of(job), 1_700_000_000_000_000, None) == stored
    whole = read_body(b"7 " + stored)
    assert (whole.line, whole.stamp, whole.created) == (7, 1_700_000_000_000_000, 1_700_000_000_000)
    assert whole.job(job.queue, job.id, whole.class_) == job
    assert read_plain(job.queue, job.id, b"7 " + stored) == job


@pytest.mark.parametrize(
    "job",
    [
        Job(id="i", task="t", queue="q", payload=b"x" * 70_000),
        Job(id="i", task="t", queue="q", payload=b"\n7 p1 0|x|1\n\n"),
        Job(id="ключ %_ é" * 20, task="t" * 128, queue="q" * 128, priority=0, created=17, tags=("a", "b")),
        Job(id="i", task="t", version=1, headers={"a": "b"}, due=5, waits_for=("x", "y"), orphan="wait"),
        Job(id="i", task="t", version=1000, key="k", rate="5/m", rate_key="r", description="\n"),
    ],
)
def test_every_job_comes_back_as_it_was(job: Job) -> None:
    whole = read_body(b"7 " + body(job, shape_of(job), 1, 7))
    assert whole.job(job.queue, job.id, whole.class_) == job
    assert whole.created == (job.created or 7)


def test_an_edited_priority_wins_over_the_envelope() -> None:
    for job in (Job(id="i", task="t", queue="q"), Job(id="i", task="t", queue="q", retries=9)):
        whole = read_body(b"7 " + body(job, "p", 1, None))
        assert whole.job("q", "i", "0|t|1").priority == 0


def test_ids_come_back_as_they_were_and_no_two_are_stored_alike() -> None:
    generated = "q:00112233445566778899aabbccddeeff"
    ids = [
        generated,
        "other:" + generated[2:],
        "made up",
        ":ABEiM0RVZneImaq7zN3u/w",
        "::",
        ":",
        "q:" + "A" * 32,
    ]
    stored = [stored_id(id, "q") for id in ids]
    assert stored[0] == b":ABEiM0RVZneImaq7zN3u/w"
    assert len(set(stored)) == len(ids)
    assert [public_id(one, "q") for one in stored] == ids
    assert public_id(b":a\xff", "q") == ":a\ufffd"


def test_heads_are_read() -> None:
    header = b"\np1700000000000000 5|t|1"
    held = read_head(b"running run=1 line=17 failures=0 started=1000 session=session of ann" + header)
    assert (held.state, held.run, held.line, held.settled) == (State.RUNNING, 1, 17, 0)
    assert held.runs == [(1, "session of ann", 1000)]
    done = read_head(b"succeeded run=1 line=17 failures=0 started=1000 finished=2000" + header)
    assert (done.state, done.settled, done.finished, done.started) == (State.SUCCEEDED, 1, 2000, 1000)
    assert read_head(b"").state is State.READY
    later = read_head(b"scheduled run=0 line=0 failures=0 started=0 due=2500" + header)
    assert (later.state, later.run, later.due, later.started, later.runs) == (
        State.SCHEDULED,
        0,
        2500,
        None,
        [],
    )


def test_further_fields_of_a_head_are_read_and_unknown_ones_are_skipped() -> None:
    head = read_head(
        b"retrying run=2 line=17 failures=1 started=1000 due=5000\np1700000000000000 5|t|1\n"
        b'class="0|t|1"\nsettled=1\ncrashes=2\nwaits=["a","b"]\nof_a_newer_dray={"a":1}\n'
        b'past=[1,"ann",500,600,"failed","E: no\\nluck"]\npast=[2,"bob",1000,1100,"lost",""]'
    )
    assert (head.class_, head.settled, head.crashes, head.waits) == ("0|t|1", 1, 2, ["a", "b"])
    assert head.past == [
        PastRun(1, "ann", 500, 600, RunEnd.FAILED, "E: no\nluck"),
        PastRun(2, "bob", 1000, 1100, RunEnd.LOST),
    ]


@pytest.mark.parametrize("field", [field.name for field in msgspec.structs.fields(Job)])
def test_a_job_that_says_anything_special_keeps_all_of_its_envelope(field: str) -> None:
    """Also those that scripts need not know of: only what nothing is said about may be left out."""
    other = {str: "raise", int: 7, bool: True, bytes: b"x", tuple: ("a",), dict: {"a": "b"}, type(None): 9}
    default = getattr(Job(id="i", task="t"), field)
    texts = {"key", "group", "rate_key", "running_key", "parent", "isolate", "id", "task", "queue", "owner"}
    named = {**dict.fromkeys(texts, "name"), "rate": "5/m", "backoff": "fixed(1s)", "orphan": "run"}
    special = named.get(field, other[type(default)])
    owner = "o" if field == "node" else None  # a node always has one
    job = msgspec.structs.replace(Job(id="i", task="t", owner=owner), **{field: special})
    whole = read_body(b"7 " + body(job, shape_of(job), 1, None))
    assert whole.job(job.queue, job.id, f"{job.priority}|{job.task}|{job.version}") == job
