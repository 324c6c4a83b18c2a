"""Who may do what: every route and method with every role and none, limits of keys, other sites, audit."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served import GRPC, Served, serving, wait_until

from dray.admin.api_keys import ROLES
from dray.job import OutcomeKind
from dray.serve.errors import Refused
from dray.serve.http import ROUTES
from dray.serve.routes import Route, RouteTable

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")
RARE = ("HEAD", "OPTIONS", "TRACE")
"""Nothing is served under these; one who may do everything tries them."""
CONFIGURED = "configured-secret-of-the-settings"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("sqlite", tmp_path_factory.mktemp("security"), api_keys=f"read:{CONFIGURED}") as served:
        yield served


@pytest.fixture(scope="module")
def keys(served: Served) -> dict[str, str]:
    made: dict[str, str] = {role: served.key(role) for role in ROLES}
    with served.client(made["admin"]) as http:
        wait_until(lambda: http.get("/api/stats").status_code == 200, "the new keys are not known")
    return made


@pytest.fixture(scope="module")
def admin(served: Served, keys: dict[str, str]) -> Iterator[httpx.Client]:
    with served.client(keys["admin"]) as client:
        yield client


def path_of(route: Route) -> str:
    """Paths that lead to nothing: what a role may do is decided before."""
    return route.path.replace("{id}", "no-such-job").replace("{queue}", "nowhere").replace("{name}", "none")


def served_at(method: str, path: str) -> Route | None:
    """The route of the table that a request leads to."""
    try:
        return RouteTable(ROUTES).find(method, path.split("/")[1:])[0]
    except Refused:
        return None


def status(http: httpx.Client, method: str, path: str) -> int:
    body: dict[str, Any] = {"json": {"nonsense": 1}} if method in ("POST", "PUT") else {}
    if path == "/api/events" and method == "GET":
        with http.stream(method, path) as reply:
            return reply.status_code
    return http.request(method, path, **body).status_code


@pytest.mark.parametrize("role", [*ROLES, None, "wrong", "empty"])
def test_every_route_and_method_is_for_its_role_alone(
    served: Served, keys: dict[str, str], role: str | None
) -> None:
    secret = keys.get(role or "")
    headers: dict[str, str] = {}
    if role == "wrong":
        secret = keys["admin"][:-1] + ("A" if keys["admin"][-1] != "A" else "B")
    if role == "empty":
        headers = {"Authorization": "Bearer"}
    wrong = []
    with served.client(secret, headers) as http:
        for path in sorted({path_of(route) for route in ROUTES}):
            for method in METHODS + (RARE if role == "admin" else ()):
                route = served_at(method, path)
                got = status(http, method, path)
                if route is None:
                    fits = got == 405
                elif route.role is None:
                    fits = got == 200
                elif secret is None or role == "wrong":
                    fits = got == 401
                elif role not in (route.role, "admin"):
                    fits = got == 403
                else:
                    fits = got in (200, 404, 409, 422)  # 409: it has no history
                if not fits:
                    wrong.append((method, path, role, got))
    assert wrong == []


def test_nothing_happened_that_was_refused(served: Served, keys: dict[str, str], admin: httpx.Client) -> None:
    made = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "kept"}).json()["id"]
    for role in ("read", "submit", "work", None):
        with served.client(keys.get(role or "")) as http:
            for method, path, body in (
                ("DELETE", f"/api/jobs/{made}", None),
                ("POST", "/api/queues/kept/purge", {}),
                ("POST", "/api/queues/kept/pause", {}),
                ("PUT", "/api/queues/kept/limits", {"max_ready": 1}),
                ("POST", "/api/dead/purge", {"all": True}),
            ):
                sent: dict[str, Any] = {} if body is None else {"json": body}
                assert http.request(method, path, **sent).status_code in (401, 403)
    queue = next(one for one in admin.get("/api/queues").json()["queues"] if one["name"] == "kept")
    assert (queue["counts"]["ready"], queue["paused"], queue["limits"]["max_ready"]) == (1, None, None)


def test_a_key_of_the_settings_and_the_other_header_work(served: Served) -> None:
    with served.client(CONFIGURED) as http:
        assert http.get("/api/jobs").status_code == 200
        assert http.post("/api/jobs", json={"task": "add", "args": [1]}).status_code == 403
    with served.client(headers={"X-API-Key": CONFIGURED}) as http:
        assert http.get("/api/jobs").status_code == 200
    reply = httpx.get(f"{served.url}/api/jobs", headers={"Authorization": f"Basic {CONFIGURED}"})
    assert (reply.status_code, reply.headers["www-authenticate"]) == (401, 'Bearer realm="dray"')


def test_a_key_for_one_queue_sees_and_does_nothing_elsewhere(served: Served, admin: httpx.Client) -> None:
    mine = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "mine"}).json()["id"]
    theirs = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "theirs"}).json()["id"]
    named = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "theirs", "id": "x"}).json()[
        "id"
    ]
    dead = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "theirs-too"}).json()["id"]
    served.finish(dead, OutcomeKind.DEAD)
    admin.post(
        "/api/schedules", json={"name": "t", "task": "add", "args": [1], "every": "1h", "queue": "theirs"}
    )
    with served.client(served.key("admin", queues=["mine", "also-mine"])) as http:
        wait_until(lambda: http.get("/api/stats").status_code == 200, "the key is not known")
        assert [job["id"] for job in http.get("/api/jobs").json()["jobs"]] == [mine]
        assert http.get("/api/jobs", params={"queue": "theirs"}).status_code == 403
        for id in (theirs, named, dead):
            for method, path in (
                ("GET", f"/api/jobs/{id}"),
                ("GET", f"/api/jobs/{id}/result"),
                ("GET", f"/api/jobs/{id}/why"),
                ("DELETE", f"/api/jobs/{id}/cancel"),
                ("POST", f"/api/jobs/{id}/retry"),
                ("DELETE", f"/api/jobs/{id}"),
            ):
                assert http.request(method, path).status_code == 404
        assert [queue["name"] for queue in http.get("/api/queues").json()["queues"]] == ["mine"]
        assert http.get("/api/stats").json()["counts"]["ready"] == 1
        assert http.get("/api/dead").json()["jobs"] == []
        assert http.post("/api/dead/purge", json={"all": True}).json()["changed"] == 0
        assert http.post("/api/dead/purge", json={"ids": [dead]}).json()["ids"] == []
        assert http.post("/api/dead/replay", json={"queue": "theirs-too"}).status_code == 403
        assert http.post("/api/queues/theirs/pause").status_code == 403
        assert http.get("/api/events", params={"queue": "theirs"}).status_code == 403
        assert http.get("/api/schedules").json()["schedules"] == []
        assert http.delete("/api/schedules/t").status_code == 404
        jobs = [{"task": "add", "args": [1], "queue": name} for name in ("mine", "theirs")]
        jobs += [{"task": "add", "args": [1], "queue": "mine", "id": "x"}, {"task": "add", "args": [1]}]
        results = http.post("/api/jobs/batch", json={"jobs": jobs}).json()["results"]
        told = [result.get("error", {}).get("code") for result in results]
        assert told == [None, "forbidden", "taken", "forbidden"]
        raising = {"task": "add", "args": [1], "queue": "mine", "id": "x", "on_duplicate": "raise"}
        taken = http.post("/api/jobs", json=raising)
        assert (taken.status_code, taken.json()["error"]["code"]) == (409, "taken")
        replace = {"task": "add", "args": [1], "queue": "mine", "id": "x", "on_duplicate": "replace"}
        assert http.post("/api/jobs", json=replace).status_code == 403
    assert admin.get("/api/jobs/x").json()["queue"] == "theirs"
    assert admin.get(f"/api/jobs/{dead}").json()["status"] == "dead"


def test_a_key_for_one_task_sees_and_does_nothing_else(served: Served, admin: httpx.Client) -> None:
    other = admin.post("/api/jobs", json={"task": "add", "args": [1], "queue": "shared", "key": "k"}).json()[
        "id"
    ]
    admin.post("/api/queues/shared/pause", json={"task": "add"})
    with served.client(served.key("admin", tasks=["send"])) as http:
        wait_until(lambda: http.get("/api/stats").status_code == 200, "the key is not known")
        mine = http.post("/api/jobs", json={"task": "send", "args": ["a"], "queue": "shared"}).json()["id"]
        assert [job["id"] for job in http.get("/api/jobs").json()["jobs"]] == [mine]
        assert http.get(f"/api/jobs/{other}").status_code == 404
        assert http.post("/api/jobs", json={"task": "add", "args": [1]}).status_code == 403
        taken = http.post("/api/jobs", json={"task": "send", "args": ["a"], "queue": "shared", "key": "k"})
        assert (taken.status_code, taken.json()["error"]["code"]) == (409, "taken")
        body = {"task": "send", "args": ["a"], "queue": "shared", "key": "k", "on_duplicate": "raise"}
        for raised in (
            http.post("/api/jobs", json=body),
            http.post("/api/jobs/batch", json={"jobs": [body]}),
        ):
            assert '"taken"' in raised.text
            assert other not in raised.text, "it names a job that this key may not see"
        assert http.get("/api/events").status_code == 403
        assert http.post("/api/queues/shared/purge").status_code == 403
        shared = next(one for one in http.get("/api/queues").json()["queues"] if one["name"] == "shared")
        assert shared["paused_tasks"] == {}
        assert http.post("/api/queues/shared/purge", json={"task": "send"}).json()["ids"] == [mine]
    assert admin.get(f"/api/jobs/{other}").json()["status"] == "ready"


def test_a_revoked_and_an_expired_key_open_nothing(served: Served, admin: httpx.Client) -> None:
    with served.app() as app:
        made, short = app.keys.create("gone", ["read"]), app.keys.create("short", ["read"], expires="1ms")
        with served.client(made.secret) as http, served.client(short.secret) as late:
            wait_until(lambda: http.get("/api/jobs").status_code == 200, "the key is not known")
            assert late.get("/api/jobs").status_code == 401
            assert app.keys.revoke(made.key.id)
            wait_until(lambda: http.get("/api/jobs").status_code == 401, "the key still works")


def test_what_administrators_do_is_written_down(served: Served, admin: httpx.Client) -> None:
    admin.post("/api/queues/audited/pause", json={"reason": "why"}, headers={"X-Request-ID": "audit-1"})
    with served.app() as app:
        entry = next(entry for entry in app.keys.audit() if entry.request == "audit-1")
    assert entry.action == "POST /api/queues/{queue}/pause"
    assert entry.who.startswith("admin (")
    assert "audited" in entry.target
    assert "why" in entry.target


def test_arguments_of_a_schedule_are_written_down_in_whole_and_dry_runs_apart(
    served: Served, admin: httpx.Client
) -> None:
    text = "x" * 5000 + "the end"
    body = {"name": "audited", "task": "send", "args": [text], "every": "1h"}

    async def kinds(link: Any) -> list[int]:
        return [len(await link.broker.docs(kind)) for kind in ("audit", "audit-looks")]

    with served.app() as app:
        before = app.client.block(kinds)
        admin.post("/api/schedules", json=body, headers={"X-Request-ID": "audit-2"})
        admin.post("/api/queues/audited/purge", json={"dry_run": True}, headers={"X-Request-ID": "audit-3"})
        entries = {entry.request: entry for entry in app.keys.audit()}
        assert text in entries["audit-2"].target
        assert "audit-3" in entries
        assert app.client.block(kinds) == [before[0] + 1, before[1] + 1]
    admin.delete("/api/schedules/audited")


# browsers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(admin: httpx.Client, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/api/jobs"), ("DELETE", "/api/jobs/x"), ("PUT", "/api/queues/x/limits")):
        reply = admin.request(method, path, headers=headers)
        assert (reply.status_code, reply.json()["error"]["code"]) == (403, "cross_site")


def test_requests_of_the_same_site_and_of_programs_are_served(served: Served, admin: httpx.Client) -> None:
    body = {"task": "add", "args": [1]}
    same = {"Origin": served.url, "Sec-Fetch-Site": "same-origin"}
    assert admin.post("/api/jobs", json=body, headers=same).status_code == 201
    form = {"Content-Type": "text/plain"}
    reply = admin.post("/api/jobs", content=b'{"task": "add", "args": [1]}', headers=form)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "invalid_content_type")


def test_a_name_that_is_not_its_own_is_refused_on_loopback(admin: httpx.Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        reply = admin.get("/api/jobs", headers={"Host": host})
        assert reply.status_code == 400
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:80"):
        assert admin.get("/api/jobs", headers={"Host": host}).status_code == 200


def test_pages_of_allowed_origins_may_use_it_and_callers_have_their_rate(tmp_path: Path) -> None:
    origin = "https://app.example"
    with (
        serving(
            "sqlite", tmp_path, cors_origins=origin, key_rate="1/h+5", accept_unknown_tasks="yes"
        ) as served,
        served.client() as http,
    ):
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        reply = http.options("/api/jobs", headers=asked)
        assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (204, origin)
        assert http.options("/api/jobs", headers=asked | {"Origin": "https://other"}).status_code == 405
        sent = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        for number in range(5):
            task = "add" if number else "known-to-workers-only"
            reply = http.post("/api/jobs", json={"task": task, "args": [1]}, headers=sent)
            assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (201, origin)
        reply = http.get("/api/jobs")
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "too_many_requests")
        assert int(reply.headers["retry-after"]) > 60
        assert http.get("/healthz").status_code == 200


# start


def run(served: Served, *options: str, **settings: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "dray", "server", *GRPC, *options],
        cwd=served.folder,
        env=served.environ | settings,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_server_that_others_can_reach_does_not_start_without_keys(tmp_path: Path) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    code, said = run(served, "--http", "0.0.0.0:0")
    assert code == 1
    assert "there are no keys" in said
    code, said = run(served, "--http", "0.0.0.0:0", DRAY_API_KEYS="short")
    assert code == 1
    assert "at least 16 characters" in said
    assert "short" not in said
    code, said = run(served, "--tls-cert", "x.pem")
    assert code == 2
    code, said = run(served, "--http", "127.0.0.1:0", "--tls-cert", "x.pem", "--tls-key", "y.pem")
    assert code == 1
    assert "x.pem" in said


def test_with_a_key_or_the_override_it_starts_anywhere(tmp_path: Path) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}")
    secret = served.key("read")
    served.start("0.0.0.0:0")
    try:
        url = served.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/api/jobs").status_code == 401
        assert httpx.get(f"{url}/api/jobs", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
    finally:
        assert served.stop() == 0
    fresh = Served(tmp_path / "fresh", f"sqlite:///{tmp_path / 'fresh.db'}", "--insecure")
    fresh.start("0.0.0.0:0")
    try:
        assert httpx.get(f"{fresh.url.replace('0.0.0.0', '127.0.0.1')}/api/jobs").status_code == 200
    finally:
        assert fresh.stop(signal.SIGINT) == 0
    with served.app() as app:
        app.keys.revoke(app.keys.list()[0].id)
    served.options = ("--insecure",)
    served.start("0.0.0.0:0")
    try:
        assert httpx.get(f"{served.url.replace('0.0.0.0', '127.0.0.1')}/api/jobs").status_code == 401
    finally:
        assert served.stop() == 0


def test_it_speaks_tls(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(key)),
            *("-out", str(cert), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
        env=os.environ,
    )
    served = Served(
        tmp_path, f"sqlite:///{tmp_path / 'jobs.db'}", "--tls-cert", str(cert), "--tls-key", str(key)
    )
    served.start()
    try:
        assert served.url.startswith("https://")
        url = served.url.replace("127.0.0.1", "localhost")
        trusted = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(verify=trusted) as http:
            assert http.get(f"{url}/readyz").json() == {"status": "ok"}
    finally:
        assert served.stop() == 0
