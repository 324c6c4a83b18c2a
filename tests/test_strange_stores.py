"""Values that no dray wrote, straight in the store: every list shows them, and all else beside them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import msgspec
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from redis_server import Server, running
from rpc_client import Stage, play

from dray import App, connect
from dray.broker import Broker
from dray.broker.redis.encoding import _shortened
from dray.broker.verbs import Beat, Filter, run_blocking
from dray.cli import main
from dray.codec.payload import Codecs, pack
from dray.info import moment, plain
from dray.job import Error, Job, Outcome, OutcomeKind
from dray.observe import metrics
from dray.serve import asgi

HOUR = 3_600_000
QUEUE = "strange"
STATES = ("ready", "scheduled", "running", "succeeded", "dead")
SOME = 29
"""Of so many strange jobs one is looked at by itself."""
HUGE = 10**5000
VALUES: list[object] = [
    *(-1, 0, 1, 2**31, 2**53, 253_402_300_800_000, 2**63 - 1, -(2**63), 1.5, float("inf"), None),
    *("", "text", "\x00\x1b[2J\n\u202e", "9" * 5000, b"", b"\xff\xfe", b"\xc1"),
]
FIELDS = {
    field.name: [value for value in VALUES if type(value) in (int, str, bytes, type(None))]
    for field in msgspec.structs.fields(Job)
    if field.name not in ("id", "version")
}
PAYLOADS: list[bytes] = [
    *(b"", b"\x01", b"\x01\xff", b"\x7f123", b"\x81broken", b"\x04pickled"),
    Codecs().encode_call((HUGE, -HUGE, [HUGE], {HUGE: HUGE}), {"n": HUGE}),
    Codecs().encode_call((float("nan"), float("inf"), -float("inf"), 1e308, Decimal("1e999999")), {}),
    Codecs().encode_call((date.min, date.max, timedelta.max, timedelta.min), {}),
    Codecs().encode_call(
        (
            datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
            datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
        ),
        {},
    ),
    Codecs().encode_call(({1, 2}, b"\xff\x00", (1,)), {"": "", "\n": "\u2028"}),
    b'\x02{"args": ' + b"[" * 500 + b"]" * 500 + b', "kwargs": {}}',
    b'\x02{"args": [' + b"9" * 300 + b", 1e300]}",
]
RESULTS = [Codecs().encode_value(HUGE), b"\x02" + b"[" * 900 + b"]" * 900, b"", b"\x01\xc1", b"\x09"]


@pytest.fixture(autouse=True)
def _no_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here things are looked at as they are; what sweeps repair is tested elsewhere."""
    monkeypatch.setattr("dray.serve.rpc.sweeper.ServerSweeper.start", lambda _: None)


async def fill(broker: Broker, state: str, jobs: list[Job]) -> None:
    """Bring jobs into a state, through the front door."""
    if state == "waiting":
        jobs = [msgspec.structs.replace(job, waits_for=("never:" + "0" * 32,)) for job in jobs]
    if state == "scheduled":
        jobs = [msgspec.structs.replace(job, due=broker.clock() + HOUR) for job in jobs]
    await broker.put(jobs)
    if state in ("ready", "scheduled", "waiting"):
        return
    session = f"of-{state}"
    await broker.renew([Beat(session, HOUR)])
    taken = await broker.take(session, 1, [QUEUE], Filter(), len(jobs))
    assert len(taken) == len(jobs)
    kinds = {"succeeded": "succeeded", "dead": "dead", "retrying": "retry"}
    if state in kinds:
        outcomes = [
            Outcome(
                id=one.job.id,
                run=one.run,
                kind=OutcomeKind(kinds[state]),
                at=broker.clock() + HOUR,
                error=None if state == "succeeded" else Error("E", "no"),
                result=Codecs().encode_value(1) if state == "succeeded" else None,
            )
            for one in taken
        ]
        await broker.settle(session, outcomes)


def look_everywhere(url: str, strange: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """All of them, and the plain job, are listed through every door; and each is shown."""
    app = App("dray", broker=url, accept_unknown_tasks=True)
    try:
        found = {info.id for info in app.jobs.find(limit=None)}
        assert found >= strange | {"plain"}
        paged, cursor = set(), None
        while True:
            page = app.jobs.find(limit=150, cursor=cursor)
            paged |= {info.id for info in page}
            cursor = page.cursor
            if cursor is None:
                break
        assert paged == found
        assert [info.name for info in app.queues.list()] == [QUEUE]
        app.dead.list(limit=None)
        assert "dray_queue_jobs" in metrics(app)
        for id in sorted(strange)[::SOME]:
            app.job(id).info()
            app.job(id).why()
        asyncio.run(_look_over_http(app, strange))
        play(app, _look_over_grpc(strange))
    finally:
        app.close()
    _look_with_commands(url, strange, capsys)


async def _look_over_http(app: App, strange: set[str]) -> None:
    transport = httpx.ASGITransport(asgi(app, open=True))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for path in ("/api/queues", "/api/stats", "/api/dead?limit=1000", "/metrics"):
            reply = await http.get(path)
            assert reply.status_code == 200, (path, reply.text[:500])
        seen, params = set(), {"limit": "400"}
        while params.get("cursor", "") is not None:
            reply = await http.get("/api/jobs", params=params)
            assert reply.status_code == 200, reply.text[:500]
            seen |= {job["id"] for job in reply.json()["jobs"]}
            params["cursor"] = reply.json()["cursor"]
        assert seen >= strange | {"plain"}
        for id in sorted(strange)[::SOME]:
            for part in ("", "/why", "/result"):
                reply = await http.get(f"/api/jobs/{id}{part}")
                # 503: waiting for it looks at more of it, and says that the store is damaged
                unreadable = part == "/result" and reply.status_code in (404, 422, 503)
                assert reply.status_code in (200, 202) or unreadable, (id, part, reply.text[:500])
    await (await app.client.loop_link()).broker.close()


def _look_over_grpc(strange: set[str]) -> Callable[[Stage], Any]:
    async def scene(stage: Stage) -> None:
        (queue,) = (await stage.client("ListQueues")).queues
        assert queue.name == QUEUE
        for id in sorted(strange)[::SOME]:
            assert (await stage.client("Get", id=id)).id == id

    return scene


def _look_with_commands(url: str, strange: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    where = ("--broker", url, "--namespace", "dray")
    assert main(["jobs", "ls", "--limit", "100000", "--json", *where]) == 0
    assert {job["id"] for job in json.loads(capsys.readouterr().out)} >= strange | {"plain"}
    for command in (
        ["jobs", "ls", "--limit", "100000"],
        ["dead", "ls"],
        ["queues", "ls"],
        ["queues", "ls", "--json"],
    ):
        assert main([*command, *where]) == 0, capsys.readouterr().err
    for id in sorted(strange)[::100]:
        assert main(["jobs", "show", id, *where]) == 0, (id, capsys.readouterr().err)


@contextmanager
def opened(url: str) -> Iterator[Broker]:
    broker = run_blocking(connect(url, "dray", blocking=True))
    try:
        yield broker
    finally:
        run_blocking(broker.close())


# sqlite


def test_a_strange_value_in_any_column_of_the_embedded_broker_breaks_no_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with opened(url) as broker:
        run_blocking(broker.renew([Beat("s", HOUR)]))
    db = sqlite3.connect(tmp_path / "jobs.db")
    columns = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
    columns = [name for name in columns if name not in ("seq", "ns", "id", "queue", "state")]
    changes = [
        (f"UPDATE jobs SET {name} = ?1 WHERE seq = ?2", value) for name in columns for value in VALUES[::3]
    ]
    changes += [(f"UPDATE jobs SET {name} = CAST(?1 AS TEXT) WHERE seq = ?2", b"\xff") for name in columns]
    changes += [("UPDATE bodies SET envelope = ?1 WHERE job = ?2", value) for value in VALUES]
    for name in ("result", "error", "reason", "expires"):
        changes += [
            (
                f"INSERT INTO ends (job, ns, {name}) VALUES (?2, 1, ?1)"
                f" ON CONFLICT DO UPDATE SET {name} = ?1",
                value,
            )
            for value in [*VALUES, *RESULTS]
        ]
    for name in ("run", "since", "progress"):
        changes += [(f"UPDATE runs SET {name} = ?1 WHERE job = ?2", value) for value in VALUES[::3]]
    strange = set()
    with opened(url) as broker:
        for state in STATES[::-1]:
            ids = [f"{state}-{number}" for number in range(len(changes))]
            run_blocking(fill(broker, state, [Job(id=id, task="t", queue=QUEUE) for id in ids]))
            strange |= set(ids)
        run_blocking(broker.put([Job(id="plain", task="t", queue=QUEUE)]))
    for state in STATES:
        for number, (statement, value) in enumerate(changes):
            (seq,) = db.execute("SELECT seq FROM jobs WHERE id = ?", (f"{state}-{number}",)).fetchone()
            try:
                db.execute(statement, (value, seq))
            except sqlite3.IntegrityError:
                continue  # the layout itself does not let it in
    db.execute("INSERT INTO events (queue, number, at, body) VALUES (1, 99999, 'x', x'c1')")
    db.commit()
    db.close()
    look_everywhere(url, strange, capsys)


# jobs that are well formed, and strange inside


def strange_jobs() -> list[Job]:
    """Each field of a job, with values that no app would let in."""
    base = Job(id="x", task="t", queue=QUEUE)
    payloads = [msgspec.structs.replace(base, payload=payload) for payload in PAYLOADS]
    fields = [
        msgspec.structs.replace(base, **{name: value}) for name, values in FIELDS.items() for value in values
    ]
    jobs = [*payloads, *fields]
    return [msgspec.structs.replace(job, id=f"inside-{number}") for number, job in enumerate(jobs)]


def test_jobs_that_are_strange_inside_break_no_list_of_the_embedded_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    jobs = strange_jobs()
    with opened(url) as broker:
        run_blocking(fill(broker, "succeeded", [Job(id=job.id, task="t", queue=QUEUE) for job in jobs]))
        run_blocking(broker.put([Job(id="plain", task="t", queue=QUEUE)]))
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        for number, job in enumerate(jobs):
            (seq,) = db.execute("SELECT seq FROM jobs WHERE id = ?", (job.id,)).fetchone()
            db.execute("UPDATE bodies SET envelope = ? WHERE job = ?", (pack(job), seq))
            db.execute("UPDATE jobs SET result = ? WHERE seq = ?", (RESULTS[number % len(RESULTS)], seq))
    db.close()
    look_everywhere(url, {job.id for job in jobs}, capsys)


# redis


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running("valkey", tmp_path_factory.mktemp("strange") / "server") as server:
        yield server


LASTS = {"scheduled": " due=1", "running": " session=ann", "succeeded": " finished=1", "dead": " finished=1"}
HEADER = "p0000000000000001 5|t|1"


def heads(state: str) -> list[bytes]:
    """Heads with a strange value in each of their facts and fields, and bytes that are no head."""
    facts = {"run": "1", "line": "1", "failures": "1", "started": "1"}
    texts = ("", "x", "-1", "1.5", "9" * 5000, "null")
    found = [
        f"{state} {' '.join(f'{name}={value}' for name, value in (facts | {odd: text}).items())}"
        f"{LASTS.get(state, '')}\n{HEADER}".encode()
        for odd in facts
        for text in texts
    ]
    start = f"{state} run=1 line=1 failures=1 started=1{LASTS.get(state, '')}\n{HEADER}\n".encode()
    odd = [value for value in VALUES if not isinstance(value, bytes)][::2]
    odd += [[1], [[1]], [["x", 1, "y"]], {"a": 1}]
    values = [msgspec.json.encode(value) for value in odd if value != HUGE] + [b"", b"{", b"9" * 5000]
    fields = ["class", "settled", "crashes", "suspect", "expires", "deadline", "cancel", "reason", "runs"]
    fields += ["waits", "offered", "past"]
    found += [b"%b%b=%b" % (start, field.encode(), value) for field in fields for value in values]
    whole = start.rstrip(b"\n")
    cut = [whole[:length] for length in range(1, len(whole), 7)]
    return [
        *found,
        *cut,
        whole.replace(b" started", b"\xff"),
        b"\x00",
        b"\xc1",
        b"\xff" * 9,
        b"unknown" + whole,
    ]


def bodies(stored: bytes) -> list[bytes]:
    """Bodies that are cut, or whose headers are strange."""
    header, _, packed = stored.partition(b"\n")
    odd = [b"", b"x", b"\xff\xff", stored[:3], stored[3:], header, b"\n" + packed, b"1 \n", b"1 p\n"]
    stamps = [b"1", b"x" * 16, b"7" * 16 + b"+" + b"9" * 5000, b"1600000000000000+x"]
    kinds = (b"", b"5|t", b"x|t|1", b"5|t|x", b"-5|t|1", b"5|t|99", b"5|\xff|1", b"5|t|1 {", b"5|t|1 []")
    odd += [b"1 p" + stamp + b" 5|t|1\n" + packed for stamp in stamps]
    return odd + [
        b"1 p%d %b\n%b" % (1_600_000_000_000_000 + number, kind, packed) for number, kind in enumerate(kinds)
    ]


def inside(jobs: list[Job]) -> Iterator[bytes]:
    for number, job in enumerate(jobs):
        yield b"1 p%d 5|t|1\n%b" % (1_700_000_000_000_000 + number, _shortened(job, False))


def test_a_strange_value_in_any_key_of_redis_breaks_no_list(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.command("FLUSHALL")
    url, prefix = f"redis://127.0.0.1:{server.port}", f"dray:{{dray:{QUEUE}}}:"
    with opened(url) as broker:
        run_blocking(broker.put([Job(id="plain", task="t", queue=QUEUE, priority=9)]))
        stored = server.command("HGET", prefix + "job", "plain")
        strange: set[str] = set()
        for state in STATES[::-1]:
            changes = [("head", head) for head in heads(state)]
            changes += [("job", body) for body in (*bodies(stored), *inside(strange_jobs()))]
            changes += [("res", value) for value in RESULTS]
            changes += [("err", value) for value in (b"", b"\xc1", b"\x93\x01\x02\x03", b"\x91\xa1E")]
            ids = [f"{state}-{number}" for number in range(len(changes))]
            run_blocking(fill(broker, state, [Job(id=id, task="t", queue=QUEUE, priority=1) for id in ids]))
            strange |= set(ids)
            for id, (key, value) in zip(ids, changes, strict=True):
                server.command("HSET", prefix + key, id, value)
    server.command("HSET", prefix + "counts", "?", "many", "dead", "x")
    server.command("ZADD", prefix + "due", "+inf", f"{7:016}ready-1", "-inf", f"{8:016}ready-2")
    server.command(
        "HSET", prefix + "set", "pause", b"\xc1", "limits", b"\xff", "limits:t", b'{"rate_text":5}'
    )
    look_everywhere(url, strange, capsys)


# what is shown


@pytest.mark.parametrize(
    "value",
    [
        HUGE,
        [HUGE, {HUGE: -HUGE}],
        {"deep": [[["x"]]]},
        Fraction(HUGE, 3),
        Decimal("-1e999999"),
        float("nan"),
        "half \ud800 of a pair",
        b"\xff",
        datetime.max.replace(tzinfo=timezone(-timedelta(hours=23))),
        datetime.max.replace(tzinfo=ZoneInfo("Asia/Tokyo")),
        timedelta.max,
        frozenset({1, "a", None, 2.5}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_whatever_a_job_holds_can_be_shown_as_json(value: object) -> None:
    shown = plain(value)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == json.loads(json.dumps(shown, allow_nan=False))


def test_what_cannot_be_shown_says_so_and_its_neighbours_are_shown() -> None:
    class Odd:
        def __str__(self) -> str:
            raise ValueError("no")

    assert plain([1, HUGE, Odd(), "a"]) == [1, "(cannot be shown: int)", "(cannot be shown: Odd)", "a"]
    circle: list[object] = []
    circle.append(circle)
    assert "(cannot be shown: list)" in json.dumps(plain(circle))
    assert plain(10**4000) == 10**4000


def test_a_time_beyond_the_calendar_is_shown_as_its_end() -> None:
    assert moment(2**60).year == 9999
    assert moment(-(2**60)).year == 1
    assert moment(253_402_300_799_999) == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    assert moment(1_700_000_000_123) == datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC)


# what is let in


@pytest.mark.parametrize(
    "at", ["9999-12-31T23:59:59-00:01", "9999-12-31T23:59:59.9999Z", "9999-12-31T23:59:59-23:59"]
)
def test_a_time_that_is_beyond_the_calendar_once_converted_is_refused(at: str, tmp_path: Path) -> None:
    app = App("dray", broker=f"sqlite:///{tmp_path / 'jobs.db'}", accept_unknown_tasks=True)

    async def submit() -> list[httpx.Response]:
        transport = httpx.ASGITransport(asgi(app, open=True))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            job = {"task": "t", "id": "late", "at": at}
            found = [await http.post("/api/jobs", json=job)]
            found.append(await http.post("/api/jobs/batch", json={"jobs": [job]}))
            found += [
                await http.get(path) for path in ("/api/jobs", "/api/queues", "/api/stats", "/api/jobs/late")
            ]
        await (await app.client.loop_link()).broker.close()
        return found

    one, batch, *lists = asyncio.run(submit())
    assert (one.status_code, one.json()["error"]["field"]) == (422, "at")
    assert batch.json()["results"][0]["error"]["field"] == "at"
    assert [reply.status_code for reply in lists] == [200, 200, 200, 404]
    app.close()


def test_the_last_moment_of_the_calendar_is_accepted_and_the_next_refused_over_grpc(tmp_path: Path) -> None:
    last = 253_402_300_799
    app = App("dray", broker=f"sqlite:///{tmp_path / 'jobs.db'}", accept_unknown_tasks=True)

    async def scene(stage: Stage) -> None:
        for nanos in (999_600_000, 999_999_999):
            failed = await stage.client.fails("Enqueue", task="t", at=Timestamp(seconds=last, nanos=nanos))
            assert (failed.status, failed.field) == ("INVALID_ARGUMENT", "at")
        await stage.client("Enqueue", task="t", id="late", at=Timestamp(seconds=last, nanos=999_000_000))
        assert (await stage.client("Get", id="late")).due_at.seconds == last
        assert (await stage.client("ListQueues")).queues[0].next_due.seconds == last

    play(app, scene)
    assert app.jobs.find()[0].due_at == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    app.close()
