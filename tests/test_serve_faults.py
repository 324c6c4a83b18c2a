"""The service in trouble: killed under load, without its broker, overloaded, stopped, fed with nonsense."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import string
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from redis_server import need, running
from served import Served, events, serving, wait_until, without_httptools
from starlette.applications import Starlette
from starlette.routing import Mount

from dray import App
from dray.serve import asgi


@pytest.fixture(scope="module", params=["httptools", "h11"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("faults")
    environ = {} if request.param == "httptools" else without_httptools(folder / "h11")
    with serving("sqlite", folder, environ=environ, max_waiting="3") as served:
        yield served


def test_no_accepted_job_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    accepted: list[str] = []

    def load(number: int) -> None:
        with served.client() as http:
            try:
                while True:
                    jobs = [{"task": "add", "args": [number]}] * 5
                    results = http.post("/api/jobs/batch", json={"jobs": jobs}).json()["results"]
                    accepted.extend(result["id"] for result in results)
                    accepted.append(http.post("/api/jobs", json=jobs[0]).json()["id"])
            except httpx.TransportError:
                return

    for goal in (60, 120):
        served.start()
        clients = [threading.Thread(target=load, args=(number,)) for number in range(3)]
        for client in clients:
            client.start()
        wait_until(lambda goal=goal: len(accepted) >= goal, "nothing is accepted")  # type: ignore[misc]
        served.stop(signal.SIGKILL)
        for client in clients:
            client.join(60)
    with served.app() as app:
        stored = {info.id for info in app.jobs.find(limit=None)}
    assert len(accepted) == len(set(accepted)) >= 120
    assert set(accepted) <= stored


def test_a_broker_that_is_away_is_503_and_all_is_well_when_it_is_back(tmp_path: Path) -> None:
    need("valkey")
    with running("valkey", tmp_path / "redis") as server:
        served = Served(tmp_path, f"redis://127.0.0.1:{server.port}/0?timeout=1s&connect_timeout=1s")
        served.start()
        try:
            with served.client() as http:
                assert http.post("/api/jobs", json={"task": "add", "args": [1]}).status_code == 201
                server.signal(signal.SIGSTOP)  # reachable, and does not answer
                for method, path, body in (
                    ("POST", "/api/jobs", {"task": "add", "args": [1]}),
                    ("GET", "/api/jobs", None),
                    ("GET", "/readyz", None),
                ):
                    sent: dict[str, Any] = {} if body is None else {"json": body}
                    reply = http.request(method, path, **sent)
                    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "broker_away")
                    assert int(reply.headers["retry-after"]) >= 1
                    assert str(server.port) not in reply.text
                server.signal(signal.SIGCONT)
                server.stop()
                assert http.get("/api/stats").status_code == 503
                assert http.get("/healthz").status_code == 200
                server.start()
                wait_until(lambda: http.get("/readyz").status_code == 200, "it does not recover")
                assert http.post("/api/jobs", json={"task": "add", "args": [1]}).status_code == 201
        finally:
            assert served.stop() == 0


def test_too_many_who_wait_are_sent_away_and_room_is_freed_when_they_leave(served: Served) -> None:
    with served.client() as http:
        id = http.post("/api/jobs", json={"task": "add", "args": [1]}).json()["id"]
        clients = [served.client() for _ in range(3)]
        streams = [client.stream("GET", "/api/events") for client in clients]
        for stream in streams:
            assert stream.__enter__().status_code == 200
        reply = http.get(f"/api/jobs/{id}/result?wait=30")
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
        assert reply.headers["retry-after"] == "1"
        assert http.get("/api/jobs").status_code == 200
        for stream, client in zip(streams, clients, strict=True):
            stream.__exit__(None, None, None)
            client.close()
        wait_until(lambda: http.get(f"/api/jobs/{id}/result").status_code == 202, "the room stays taken")


def test_a_stop_ends_streams_and_waits_and_finishes_the_rest(tmp_path: Path) -> None:
    with serving("sqlite", tmp_path, max_waiting="2") as served, served.client() as http:
        id = http.post("/api/jobs", json={"task": "add", "args": [1]}).json()["id"]
        heard: list[int] = []

        def wait() -> None:
            with served.client() as other:
                heard.append(other.get(f"/api/jobs/{id}/result?wait=250").status_code)

        waiter = threading.Thread(target=wait)
        waiter.start()
        with served.client() as follower, follower.stream("GET", "/api/events") as reply:
            feed = events(reply.iter_lines())
            assert next(feed)[0] == "open"
            full = f"/api/jobs/{id}/result"  # a third who would wait is refused: the two are there
            wait_until(lambda: http.get(full).status_code == 503, "nobody waits")
            assert served.stop() == 0
            assert [kind for kind, _, _ in feed if kind != "change"] == []
        waiter.join(60)
        assert heard == [202]
        assert served.said[-1] == "dray server: stopped\n"


def test_it_can_be_mounted_below_a_path_of_another_application(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")

    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    secret = app.keys.create("mounted", ["admin"]).secret
    web = Starlette(routes=[Mount("/tools/dray", asgi(app)), Mount("/open", asgi(app, open=True))])

    async def use() -> None:
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://any.example") as http:
            assert (await http.get("/tools/dray/api/jobs")).status_code == 401
            http.headers["Authorization"] = f"Bearer {secret}"
            body = {"task": "add", "args": [1], "id": "a/b"}
            assert (await http.post("/tools/dray/api/jobs", json=body)).status_code == 201
            assert (await http.get("/tools/dray/api/jobs/a%2Fb")).json()["id"] == "a/b"
            assert (await http.get("/tools/dray/healthz")).status_code == 200
            assert (await http.get("/tools/dray/api/jobs/a%2Fb/result?wait=0.01")).status_code == 202
            assert (await http.get("/open/api/jobs", headers={"Authorization": ""})).status_code == 200

    asyncio.run(use())
    app.close()


# nonsense


def test_a_request_with_two_lengths_is_refused_and_nothing_after_it_is_read(served: Served) -> None:
    hidden = b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    hidden += b'Content-Length: 24\r\n\r\n{"task":"add","id":"h1"}'
    sent = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n%b\r\n\r\n0\r\n\r\n"
    both = (
        b"Content-Length: 5\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
    )
    url = httpx.URL(served.url)
    for lengths in both:
        with socket.create_connection((url.host, url.port or 80), 30) as connection:
            connection.sendall(sent % lengths + hidden)
            heard = b""
            while chunk := connection.recv(65536):
                heard += chunk
        assert heard.startswith(b"HTTP/1.1 400")
        assert b"invalid_framing" in heard
        assert heard.count(b"HTTP/1.1 ") == 1, heard
    with served.client() as http:
        assert http.get("/api/jobs/h1").status_code == 404


def _text(dice: random.Random) -> str:
    kinds = [string.printable, "\x00\x01\x7f", "äöü€\u202e😀", "../%2e/;?#&=", "A" * 10]
    return "".join(
        dice.choice(dice.choice(kinds)) for _ in range(dice.choice([0, 1, 5, 127, 129, 300, 3000]))
    )


def _value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(9 if depth < 4 else 6)
    if kind < 2:
        return _text(dice)
    if kind < 6:
        return dice.choice([None, True, 0, -1, 2**63, 10**40, 1e308, -0.5, "high", [], {}])
    if kind == 6:
        return [_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {_text(dice)[:20]: _value(dice, depth + 1) for _ in range(dice.randrange(4))}


NAMES = [
    "task",
    "args",
    "kwargs",
    "queue",
    "priority",
    "delay",
    "at",
    "key",
    "id",
    "retries",
    "timeout",
    "tags",
]


def test_nonsense_in_names_and_bodies_is_answered_with_a_clear_4xx(served: Served) -> None:
    dice = random.Random(7)
    with served.client() as http:
        kept = {
            http.post("/api/jobs", json={"task": "add", "args": [n], "queue": "kept"}).json()["id"]
            for n in range(5)
        }
        for turn in range(250):
            name = "/" + quote(_text(dice)[:300], safe="/?") if turn % 2 else ""
            job = {"task": "add", "args": [1]} | {dice.choice(NAMES): _value(dice) for _ in range(2)}
            path, body = dice.choice(
                [
                    ("/api/jobs", job),
                    ("/api/jobs", _value(dice)),
                    ("/api/jobs/batch", {"jobs": [job, _value(dice)]}),
                    (f"/api/jobs{name}/retry", None),
                    (f"/api/queues{name}/pause", {"reason": _text(dice)}),
                    (f"/api/queues{name}/nothing", _value(dice)),
                    ("/api/dead/replay", _value(dice)),
                    ("/api/schedules", _value(dice)),
                    (name or "/", None),
                ]
            )
            reply = http.post(path, json=body)
            assert reply.status_code < 500, (path, body, reply.text)
            if reply.status_code >= 400:
                assert set(reply.json()["error"]) == {"code", "message", "field"}, reply.text
        found = {job["id"] for job in http.get("/api/jobs", params={"queue": "kept"}).json()["jobs"]}
        assert found == kept
        assert http.get("/readyz").status_code == 200


BAD_BODIES = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"task": "add", "args": [NaN]}',
    b'{"task": "\xed\xa0\x80"}',
    b'{"task": "\\ud800", "args": [1]}',
    b'{"task": "add", "args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"task": "add", "task": 7}',
    b"null",
    b"7" * 5000,
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
def test_a_body_that_is_no_json_is_refused(served: Served, body: bytes) -> None:
    with served.client() as http:
        reply = http.post("/api/jobs", content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code in (400, 422), reply.text
        assert reply.json()["error"]["code"].startswith("invalid_")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET /api/jobs/%ff%fe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/jobs?q=%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /api/jobs HTTP/1.1\r\n\r\n",
        b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /api/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /api/jobs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff\xfe\r\n\r\n",
        b"GET /api/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: \xe4\xff\r\n\r\n",
        b"GET http://evil.example/api/jobs HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_requests_that_no_client_would_send_are_refused(served: Served, request_bytes: bytes) -> None:
    url = httpx.URL(served.url)
    with socket.create_connection((url.host, url.port or 0), timeout=60) as raw:
        raw.sendall(request_bytes)
        first = raw.makefile("rb").readline()
    assert first.split()[1:2] and first.split()[1].startswith(b"4"), first  # noqa: PT018
    assert httpx.get(f"{served.url}/readyz").status_code == 200
