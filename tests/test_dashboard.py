"""The dashboard's server side: its files and policy, the session of a browser, and what its pages ask for."""

from __future__ import annotations

import asyncio
import gzip
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from served import Served, serving, wait_until
from starlette.applications import Starlette
from starlette.routing import Mount

from dray import App
from dray.serve import asgi, dashboard
from dray.serve.session import SECONDS

ROOT = Path(__file__).parents[1]
BUNDLE = ROOT / "src" / "dray" / "serve" / "ui"
PATHS = (
    "/",
    "/jobs",
    "/jobs/default:1",
    "/errors",
    "/flows",
    "/flows/1",
    "/queues",
    "/workers",
    "/schedules",
)
KEY = "an-admin-key-of-these-tests"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("sqlite", tmp_path_factory.mktemp("dashboard"), api_keys=f"admin:{KEY}") as served:
        yield served


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client(KEY) as client:
        yield client


def add(http: httpx.Client, *args: int, **more: Any) -> str:
    return str(http.post("/api/jobs", json={"task": "add", "args": [1, *args], **more}).json()["id"])


@contextmanager
def caller(served: Served, *roles: str, **limits: Any) -> Iterator[httpx.Client]:
    """A client with a new key, once the server knows it."""
    with served.client(served.key(*roles, **limits)) as client:
        wait_until(lambda: client.get("/api/session").status_code != 401, "the key is not known")
        yield client


def ask(web: Any, path: str) -> httpx.Response:
    """One request to an ASGI app in this process."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(web)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    return asyncio.run(send())


# files


@pytest.mark.parametrize("path", [*PATHS, "/guarantees", "/keys"])
def test_every_page_is_served_to_everybody_with_a_strict_policy(served: Served, path: str) -> None:
    reply = httpx.get(served.url + path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script>|<style>| style=| on\w+=|https?://", reply.text)
    for name in re.findall(r'(?:src|href)="([^"]+)"', reply.text):
        found = httpx.get(served.url + name)
        assert found.status_code == 200
        assert found.headers["x-content-type-options"] == "nosniff"


def test_assets_are_kept_by_browsers_and_nothing_else_is_served(served: Served) -> None:
    asset = next((BUNDLE / "assets").glob("*.js")).name
    assert httpx.get(f"{served.url}/assets/{asset}").headers["cache-control"] == dashboard.FOREVER
    for path in (
        "/assets/none.js",
        "/assets/..%2Findex.html",
        "/assets/%2Fetc%2Fpasswd",
        "/assets/..%2f..%2f__init__.py",
        "/index.html",
        "/jobs/",
        "/queues/x",
        "/elsewhere",
    ):
        assert httpx.get(served.url + path).status_code == 404, path
    assert httpx.post(f"{served.url}/jobs").status_code == 404


def test_the_bundle_is_small() -> None:
    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in BUNDLE.rglob("*") if path.is_file()}
    page = (BUNDLE / "index.html").read_text("utf-8")
    first = {name for name in sizes if name in page or name.startswith(("chart", "index"))}
    assert sum(sizes.values()) <= 120_000
    assert sum(sizes[name] for name in first) <= 60_000


def test_it_works_below_a_path_of_another_application() -> None:
    web = Starlette(routes=[Mount("/a b/dray", asgi(App("shop", broker="memory://"), open=True))])
    page = ask(web, "/a%20b/dray/jobs").text
    assert 'content="/a%20b/dray/"' in page
    for name in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert name.startswith("/a%20b/dray/")
        assert ask(web, name).status_code == 200


def test_without_a_bundle_the_page_says_how_to_build_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dashboard, "FOLDER", tmp_path / "nothing")
    web = asgi(App("shop", broker="memory://"), open=True)
    reply = ask(web, "/jobs")
    assert (reply.status_code, "make ui" in reply.text) == (200, True)
    assert ask(web, "/assets/index.js").status_code == 404
    assert ask(web, "/api/openapi.json").status_code == 200


class Application:
    """What hatchling gives a hook to speak with."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.display_warning = say


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ui_build", ROOT / "ui" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_without_node_a_wheel_is_built_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    build = builder()
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    monkeypatch.setattr(build, "BUNDLE", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["build.py", "--if-possible"])
    assert build.main() == 0
    assert "there is no Node" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["build.py"])
    assert build.main() == 1

    said: list[str] = []
    hook = build.DashboardHook(str(ROOT), {}, None, None, str(tmp_path), "wheel", Application(said.append))
    hook.initialize("standard", {})
    assert [line for line in said if "left out" in line]


# session


def test_a_key_is_kept_in_a_cookie_that_neither_scripts_nor_other_sites_can_use(served: Served) -> None:
    with served.client() as browser:
        assert browser.get("/api/session").status_code == 401
        entered = browser.post("/api/session", headers={"Authorization": f"Bearer {KEY}"})
        cookie = entered.headers["set-cookie"]
        assert KEY not in cookie
        assert {"HttpOnly", "SameSite=Strict", "Path=/", f"Max-Age={SECONDS}"} <= set(cookie.split("; "))
        assert browser.get("/api/session").json()["roles"] == ["read", "submit", "work", "admin"]
        assert browser.post("/api/queues/default/pause", json={}).status_code == 200
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert browser.post("/api/queues/default/resume", json={}, headers=headers).status_code == 403
        assert browser.post("/api/queues/default/resume", json={}).status_code == 200
        assert "Max-Age=0" in browser.delete("/api/session").headers["set-cookie"]
        assert browser.get("/api/session").status_code == 401


@pytest.mark.parametrize("value", ["", "!!!", "bm90LWEta2V5LW9mLXRoaXMtc2VydmVy", "/////w=="])
def test_a_strange_cookie_is_as_good_as_none(served: Served, value: str) -> None:
    headers = {"Cookie": f"other=1; dray_key={value}"}
    assert httpx.get(f"{served.url}/api/session", headers=headers).status_code == 401


def test_a_cookie_of_another_server_does_not_close_an_open_one(tmp_path: Path) -> None:
    with serving("sqlite", tmp_path) as open_one:
        headers = {"Cookie": "dray_key=bm90LWEta2V5LW9mLXRoaXMtc2VydmVy"}
        reply = httpx.get(f"{open_one.url}/api/session", headers=headers)
        assert (reply.status_code, reply.json()["open"]) == (200, True)


# changes to many jobs


def test_many_jobs_are_changed_by_id_and_by_filter_after_a_dry_run(http: httpx.Client) -> None:
    ids = [add(http, n, queue="bulk", delay=600) for n in range(4)]
    asked = {"action": "cancel", "queue": "bulk", "dry_run": True}
    tried = http.post("/api/jobs/bulk", json=asked).json()
    assert (tried["changed"], sorted(tried["ids"]), tried["dry_run"]) == (4, sorted(ids), True)
    assert http.get(f"/api/jobs/{ids[0]}").json()["status"] == "scheduled"
    done = http.post("/api/jobs/bulk", json={"action": "cancel", "ids": ids[:1], "reason": "enough"}).json()
    assert done["changed"] == 1
    assert http.get(f"/api/jobs/{ids[0]}").json()["reason"] == "enough"
    moved = {"action": "reschedule", "queue": "bulk", "state": "scheduled", "delay": "2h"}
    assert http.post("/api/jobs/bulk", json=moved).json()["changed"] == 3
    assert http.post("/api/jobs/bulk", json={"action": "retry", "ids": ids}).json()["changed"] == 4
    gone = {"action": "delete", "queue": "bulk", "state": "ready"}
    assert http.post("/api/jobs/bulk", json=gone).json()["changed"] == 4


@pytest.mark.parametrize(
    "asked",
    [
        {"action": "cancel"},
        {"action": "cancel", "ids": ["a"], "queue": "x"},
        {"action": "reschedule", "queue": "x"},
        {"action": "delete", "queue": "x", "delay": 5},
        {"action": "explode", "queue": "x"},
        {"action": "cancel", "since": "yesterday"},
    ],
)
def test_an_unclear_change_is_refused(http: httpx.Client, asked: dict[str, Any]) -> None:
    assert http.post("/api/jobs/bulk", json=asked).status_code in (400, 422)


def test_a_limited_key_changes_only_what_it_reaches(served: Served, http: httpx.Client) -> None:
    mine, other = add(http, queue="mine", delay=600), add(http, queue="other", delay=600)
    with caller(served, "admin", queues=["mine"]) as limited:
        asked = {"action": "cancel", "state": "scheduled", "dry_run": True}
        assert limited.post("/api/jobs/bulk", json=asked).json()["ids"] == [mine]
        reply = limited.post("/api/jobs/bulk", json={"action": "cancel", "ids": [other]}).json()
        assert (reply["changed"], reply["refused"]) == (0, {other: "there is no such job"})
        assert limited.post("/api/jobs/bulk", json=asked | {"queue": "other"}).status_code == 403
    with caller(served, "read", "submit") as reader:
        assert reader.post("/api/jobs/bulk", json=asked).status_code == 403


# run again


def test_a_job_runs_again_as_a_new_one_with_its_own_or_other_arguments(
    served: Served, http: httpx.Client
) -> None:
    first = add(http, 2, tags=["x"], priority=3, key="only-one", retries=7)
    served.finish(first, result=3)
    made = http.post(f"/api/jobs/{first}/rerun")
    assert made.status_code == 201
    again = http.get(f"/api/jobs/{made.json()['id']}").json()
    assert (again["args"], again["tags"], again["priority"], again["retries"]) == ([1, 2], ["x"], 3, 7)
    assert (again["rerun_of"], again["key"], again["status"]) == (first, None, "ready")
    edited = http.post(f"/api/jobs/{first}/rerun", json={"kwargs": {"b": 9}, "args": [4]}).json()
    shown = http.get(f"/api/jobs/{edited['id']}").json()
    assert (shown["args"], shown["kwargs"]) == ([4], {"b": 9})
    assert http.post(f"/api/jobs/{first}/rerun", json={"args": [1, 2, 3], "kwargs": {}}).status_code == 422
    assert http.post("/api/jobs/default:none/rerun").status_code == 404
    with caller(served, "read") as reader:
        assert reader.post(f"/api/jobs/{first}/rerun").status_code == 403


# keys that do not see values


def test_a_key_may_be_kept_from_seeing_arguments_results_and_errors(
    served: Served, http: httpx.Client
) -> None:
    secret = "the-secret-argument"
    done = str(http.post("/api/jobs", json={"task": "send", "args": [secret]}).json()["id"])
    served.finish(done, result=secret)
    every = {"name": "often", "task": "send", "args": [secret], "every": "1h"}
    assert http.post("/api/schedules", json=every).status_code == 201
    with caller(served, "read", hides_values=True) as blind:
        for path in (
            f"/api/jobs/{done}",
            "/api/jobs",
            f"/api/jobs/{done}/why",
            "/api/schedules",
            "/api/dead",
        ):
            reply = blind.get(path)
            assert (reply.status_code, secret in reply.text) == (200, False), path
        assert blind.get(f"/api/jobs/{done}/result").status_code == 403
        assert blind.get("/api/session").json()["hides_values"] is True
    http.delete("/api/schedules/often")


# keys, audit, guarantees, tasks, schedules


def test_keys_are_made_listed_and_revoked_and_the_audit_log_names_who(
    served: Served, http: httpx.Client
) -> None:
    made = http.post("/api/keys", json={"name": "ci", "roles": ["submit"], "queues": ["mine"]})
    assert made.status_code == 201
    key, secret = made.json()["key"], made.json()["secret"]
    assert [one["roles"] for one in http.get("/api/keys").json()["keys"] if one["id"] == key["id"]] == [
        ["submit"]
    ]
    assert secret not in http.get("/api/keys").text
    assert http.delete(f"/api/keys/{key['id']}").json()["revoked"] is True
    assert http.delete(f"/api/keys/{key['id']}").status_code == 404
    actions = [entry["action"] for entry in http.get("/api/audit").json()["entries"]]
    assert {"POST /api/keys", "DELETE /api/keys/{id}"} <= set(actions)
    for roles, limits in ((("read", "submit"), {}), (("admin",), {"queues": ["mine"]})):
        with caller(served, *roles, **limits) as other:
            assert other.get("/api/keys").status_code == 403
            assert other.get("/api/audit").status_code == 403
            assert other.post("/api/keys", json={"name": "x", "roles": ["admin"]}).status_code == 403


def test_the_last_admin_key_is_revoked_only_by_force(tmp_path: Path) -> None:
    with serving("sqlite", tmp_path) as served, served.client(served.key("admin")) as http:
        wait_until(lambda: http.get("/api/keys").status_code == 200, "the key is not known")
        (key,) = http.get("/api/keys").json()["keys"]
        assert http.delete(f"/api/keys/{key['id']}").status_code == 409
        assert http.delete(f"/api/keys/{key['id']}?force=true").status_code == 200


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_guarantees_say_what_is_in_force(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as served, served.client() as http:
        found = http.get("/api/guarantees").json()
        assert found["survives_restart"] is (kind == "sqlite" or found["servers"][0]["appendonly"])
        assert found["repairs"] == {"counts": {}, "finished": {}, "last_at": None}
        assert (found["losses"], bool(found["servers"])) == (0, kind == "valkey")


def test_tasks_are_listed_with_those_that_never_ran(http: httpx.Client) -> None:
    add(http)
    found = {one["task"]: one for one in http.get("/api/tasks").json()["tasks"]}
    assert {"add", "send", "pack"} <= set(found)
    assert found["add"]["accepted"] >= 1
    assert (found["pack"]["runs"], found["pack"]["known"]) == (0, True)


def test_a_schedule_is_changed(http: httpx.Client) -> None:
    http.post("/api/schedules", json={"name": "hourly", "task": "add", "args": [1], "every": "1h"})
    changed = http.put("/api/schedules/hourly", json={"cron": "0 4 * * *", "args": [2]}).json()
    assert (changed["kind"], changed["rule"], changed["args"]) == ("cron", "0 4 * * *", [2])
    assert http.put("/api/schedules/hourly", json={"args": [1, 2, 3]}).status_code == 422
    assert http.put("/api/schedules/none", json={"every": "1h"}).status_code == 404
