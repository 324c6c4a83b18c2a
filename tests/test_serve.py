"""The HTTP API, as clients meet it: a real server, on both brokers."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest
from served import Served, events, serving, wait_until

from dray.job import OutcomeKind
from dray.serve.event_feed import write_cursor

NUMBERS = count()


@pytest.fixture(scope="module", params=["sqlite", "valkey"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(request.param, tmp_path_factory.mktemp(request.param), max_request_size="64KiB") as served:
        yield served


@pytest.fixture(scope="module")
def http(served: Served) -> Iterator[httpx.Client]:
    with served.client() as client:
        yield client


def post(http: httpx.Client, task: str = "add", *args: Any, **more: Any) -> str:
    reply = http.post("/api/jobs", json={"task": task, "args": list(args), **more})
    assert reply.status_code == 201, reply.text
    id: str = reply.json()["id"]
    return id


def alone(http: httpx.Client, task: str = "add", *args: Any) -> str:
    """A job in a queue of its own, so that it is the one that is taken."""
    return post(http, task, *args, queue=f"alone-{next(NUMBERS)}")


def error(reply: httpx.Response) -> tuple[int, str, str | None]:
    body = reply.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"code", "message", "field"}
    assert body["error"]["message"]
    return reply.status_code, body["error"]["code"], body["error"]["field"]


# submit


def test_a_job_is_accepted_and_shown(http: httpx.Client) -> None:
    reply = http.post(
        "/api/jobs",
        json={
            "task": "add",
            "args": [1],
            "kwargs": {"b": 2},
            "queue": "sums",
            "priority": "high",
            "tags": ["x"],
        },
    )
    assert (reply.status_code, reply.json()["status"], reply.json()["duplicate"]) == (201, "ready", False)
    job = http.get(f"/api/jobs/{reply.json()['id']}").json()
    shown = {"task": "add", "queue": "sums", "priority": 1, "status": "ready", "attempt": 0}
    assert shown | {"args": [1], "kwargs": {"b": 2}, "tags": ["x"]} == {
        name: job[name] for name in [*shown, "args", "kwargs", "tags"]
    }
    assert job["created_at"].startswith("20")


def test_a_delayed_job_is_scheduled(http: httpx.Client) -> None:
    for later in ({"delay": "1h"}, {"delay": 3600}, {"at": "2099-01-01T00:00:00Z"}):
        reply = http.post("/api/jobs", json={"task": "add", "args": [1], **later})
        assert reply.json()["status"] == "scheduled"


def test_arguments_get_the_types_of_the_task(http: httpx.Client, served: Served) -> None:
    id = post(http, "send", kwargs={"to": "a", "when": "2030-01-01T00:00:00Z", "body": "aGk="})
    with served.app() as app:
        info = app.job(id).info()
    assert info.kwargs is not None
    assert (info.kwargs["body"], info.kwargs["when"].year) == (b"hi", 2030)
    assert post(http, "pack", {"weight": 1.5, "to": "here"})


@pytest.mark.parametrize(
    ("job", "told"),
    [
        ({"task": "add", "args": ["x"]}, (422, "invalid_args", "a")),
        ({"task": "add"}, (422, "invalid_args", "args")),
        ({"task": "add", "args": [1], "kwargs": {"c": 1}}, (422, "invalid_args", "args")),
        ({"task": "pack", "args": [{"weight": "x", "to": "y"}]}, (422, "invalid_args", "parcel")),
        ({"task": "nope"}, (422, "unknown_task", "task")),
        ({"task": "add", "args": [1], "queue": "a b"}, (422, "invalid_queue", "queue")),
        ({"task": "add", "args": [1], "priority": 10}, (422, "invalid_priority", "priority")),
        ({"task": "add", "args": [1], "delay": "soon"}, (422, "invalid_delay", "delay")),
        ({"task": "add", "args": [1], "delay": 1, "at": "2099-01-01T00:00:00Z"}, (422, "invalid_at", "at")),
        ({"task": "add", "args": [1], "id": "a\nb"}, (422, "invalid_id", "id")),
        ({"task": "add", "args": [1], "prio": 1}, (422, "invalid_prio", "prio")),
        ({"args": [1]}, (422, "invalid_task", "task")),
        ([], (422, "invalid_request", None)),
    ],
)
def test_what_is_wrong_with_a_job_is_told_by_field(
    http: httpx.Client, job: Any, told: tuple[int, str, str | None]
) -> None:
    assert error(http.post("/api/jobs", json=job)) == told


def test_a_key_that_is_taken_gives_the_job_that_has_it(http: httpx.Client) -> None:
    id = post(http, "add", 1, key="once")
    again = http.post("/api/jobs", json={"task": "add", "args": [2], "key": "once"})
    assert (again.status_code, again.json()) == (200, {"id": id, "status": "ready", "duplicate": True})
    raised = http.post("/api/jobs", json={"task": "add", "args": [2], "key": "once", "on_duplicate": "raise"})
    assert error(raised) == (409, "duplicate_job", "key")


def test_a_repeated_request_makes_no_second_job(http: httpx.Client) -> None:
    send = {"json": {"task": "add", "args": [1]}, "headers": {"Idempotency-Key": "order 7"}}
    first, second = http.post("/api/jobs", **send), http.post("/api/jobs", **send)  # type: ignore[arg-type]
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    id = "my/own id?"
    assert post(http, "add", 1, id=id) == id
    assert http.post("/api/jobs", json={"task": "add", "args": [1], "id": id}).json()["duplicate"]
    assert http.get("/api/jobs/my%2Fown%20id%3F").json()["id"] == id
    assert error(http.get("/api/jobs/my/own%20id%3F")) == (404, "no_such_path", None)


@pytest.mark.parametrize("more", [{}, {"on_duplicate": "raise"}, {"on_duplicate": "replace"}])
def test_an_idempotency_key_is_for_one_request_only(http: httpx.Client, more: dict[str, Any]) -> None:
    headers = {"Idempotency-Key": f"order {more}"}
    body = {"task": "add", "kwargs": {"a": 1, "b": 2}}
    first = http.post("/api/jobs", json=body, headers=headers)
    again = http.post(
        "/api/jobs", json={"kwargs": {"b": 2, "a": 1}, "task": "add", "tags": []}, headers=headers
    )
    assert (first.status_code, again.status_code) == (201, 200)
    for other in ({"task": "add", "args": [2]}, body | {"priority": "high"}):
        refused = http.post("/api/jobs", json=other | more, headers=headers)
        assert error(refused) == (422, "idempotency_key_reused", "Idempotency-Key")
        for jobs in ([other | more], [body], [body, body]):
            refused = http.post("/api/jobs/batch", json={"jobs": jobs}, headers=headers)
            assert error(refused) == (422, "idempotency_key_reused", "Idempotency-Key")
    assert http.get(f"/api/jobs/{first.json()['id']}").json()["kwargs"] == {"a": 1, "b": 2}


def test_each_job_of_a_batch_has_a_result_of_its_own(http: httpx.Client) -> None:
    id = post(http, "add", 1, id="taken-1")
    jobs = [
        {"task": "add", "args": [1]},
        {"task": "add", "args": ["x"]},
        {"task": "add", "args": [1], "id": id},
        {"task": 7},
        {"task": "send", "args": ["a@x"]},
    ]
    reply = http.post("/api/jobs/batch", json={"jobs": jobs}, headers={"Idempotency-Key": "b"})
    assert reply.status_code == 200
    results = reply.json()["results"]
    assert [result.get("duplicate") for result in results] == [False, None, True, None, False]
    assert [result.get("error", {}).get("field") for result in results] == [None, "a", None, "task", None]
    again = http.post("/api/jobs/batch", json={"jobs": jobs}, headers={"Idempotency-Key": "b"}).json()[
        "results"
    ]
    assert [result.get("id") for result in again] == [result.get("id") for result in results]
    assert again[0]["duplicate"]
    assert error(http.post("/api/jobs/batch", json={"jobs": []}))[:2] == (422, "invalid_jobs")


# look


def test_pages_lead_through_all_jobs_once(http: httpx.Client) -> None:
    ids = {post(http, "add", n, queue="pages", tags=["even"] if n % 2 == 0 else []) for n in range(25)}
    found: list[str] = []
    cursor = None
    while True:
        query: dict[str, Any] = {"queue": "pages", "limit": 10} | ({"cursor": cursor} if cursor else {})
        page = http.get("/api/jobs", params=query).json()
        found += [job["id"] for job in page["jobs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    assert len(found) == 25
    assert set(found) == ids
    even = http.get("/api/jobs", params={"queue": "pages", "tag": "even", "state": "ready", "limit": 100})
    assert len(even.json()["jobs"]) == 13
    one = next(iter(ids))
    assert [job["id"] for job in http.get("/api/jobs", params={"q": one[:40].upper()}).json()["jobs"]] == [
        one
    ]
    assert http.get("/api/jobs", params={"queue": "pages", "task": "send"}).json()["jobs"] == []


def test_the_newest_job_is_listed_first_with_a_total(http: httpx.Client) -> None:
    ids = [post(http, "add", n, queue="newest") for n in range(5)]
    first = http.get("/api/jobs", params={"queue": "newest", "limit": 3}).json()
    assert [job["id"] for job in first["jobs"]] == ids[:1:-1]
    assert first["total"] == 5
    rest = http.get("/api/jobs", params={"queue": "newest", "limit": 3, "cursor": first["cursor"]}).json()
    assert [job["id"] for job in rest["jobs"]] == ids[1::-1]
    assert rest["total"] is None, "only the first page tells it"
    by_task = {"queue": "newest", "task": "add"}
    assert http.get("/api/jobs", params={**by_task, "limit": 2}).json()["total"] is None
    assert http.get("/api/jobs", params=by_task).json()["total"] == 5, "this is all"


def test_jobs_are_found_by_time_and_parent(http: httpx.Client) -> None:
    job = post(http, "add", 1, queue="times")
    for since in ("1h", "2020-01-01T00:00:00Z", "2020-01-01"):
        found = http.get("/api/jobs", params={"queue": "times", "since": since}).json()["jobs"]
        assert [one["id"] for one in found] == [job]
    assert http.get("/api/jobs", params={"queue": "times", "since": "2100-01-01"}).json()["jobs"] == []
    assert http.get("/api/jobs", params={"queue": "times", "parent": job}).json()["jobs"] == []
    assert error(http.get("/api/jobs?since=yesterday"))[:2] == (422, "invalid_since")


def test_a_queue_is_dedicated_over_http(http: httpx.Client) -> None:
    post(http, "add", 1, queue="gpu")
    assert http.put("/api/queues/gpu/limits", json={"dedicated": True}).json()["dedicated"] is True
    [queue] = [one for one in http.get("/api/queues").json()["queues"] if one["name"] == "gpu"]
    assert (queue["dedicated"], queue["workers"]) == (True, 0)
    assert http.put("/api/queues/gpu/limits", json={"dedicated": None}).json()["dedicated"] is False
    wrong = http.put("/api/queues/gpu/limits", json={"dedicated": True, "task": "add"})
    assert error(wrong)[1] == "invalid_dedicated"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("state=lost", "state"),
        ("limit=0", "limit"),
        ("limit=x", "limit"),
        ("cursor=x", "cursor"),
        ("cursor=7.x", "cursor"),
        ("cursor=0.zzz", "cursor"),
        ("queue=a%20b", "queue"),
        ("nope=1", "nope"),
        ("queue=a&queue=b", "queue"),
        ("priority=11", "priority"),
    ],
)
def test_what_is_wrong_with_a_query_is_told_by_field(http: httpx.Client, query: str, field: str) -> None:
    status, _, told = error(http.get(f"/api/jobs?{query}"))
    assert (status, told) == (422, field)


def test_an_empty_filter_filters_nothing(http: httpx.Client) -> None:
    http.post("/api/jobs", json={"task": "add", "args": [1], "id": "unfiltered"})
    found = http.get("/api/jobs?state=&queue=&task=&tag=&q=&cursor=&priority=&limit=")
    assert "unfiltered" in {job["id"] for job in found.json()["jobs"]}
    assert http.get("/api/jobs/unfiltered/result?wait=").status_code in (200, 202)


def test_an_unknown_job_is_not_found(http: httpx.Client) -> None:
    for method, path in (
        ("GET", "/api/jobs/nope"),
        ("GET", "/api/jobs/nope/result"),
        ("GET", "/api/jobs/nope/why"),
        ("POST", "/api/jobs/nope/retry"),
        ("DELETE", "/api/jobs/nope"),
        ("DELETE", "/api/jobs/nope/cancel"),
    ):
        assert error(http.request(method, path)) == (404, "job_not_found", None)


# results


def test_a_result_is_202_until_the_job_ends(http: httpx.Client, served: Served) -> None:
    id = alone(http, "add", 1)
    reply = http.get(f"/api/jobs/{id}/result")
    assert (reply.status_code, reply.json()) == (202, {"id": id, "status": "ready"})
    assert http.get(f"/api/jobs/{id}/result?wait=0.1").status_code == 202
    served.finish(id, result=42)
    reply = http.get(f"/api/jobs/{id}/result")
    assert (reply.status_code, reply.json()) == (200, {"id": id, "status": "succeeded", "result": 42})


def test_a_result_that_is_off_is_told_apart_from_none_and_from_one_that_is_gone(
    http: httpx.Client, served: Served
) -> None:
    def finished(value: Any, **more: Any) -> str:
        id = post(http, "add", 1, queue=f"alone-{next(NUMBERS)}", **more)
        served.finish(id, OutcomeKind.SUCCEEDED, **({} if value is ... else {"result": value}))
        return id

    def result(id: str) -> httpx.Response:
        return http.get(f"/api/jobs/{id}/result?wait=20")

    none = result(finished(None))
    assert (none.status_code, none.json()["status"]) == (200, "succeeded")
    off = result(finished(..., result_ttl=0))
    assert error(off) == (404, "no_result", None)
    assert "results are off (result_ttl=0" in off.json()["error"]["message"]
    short = finished(1, result_ttl="1ms")
    wait_until(lambda: result(short).status_code != 200, "it is kept")
    assert error(result(short)) == (404, "result_gone", None)


def test_whoever_waits_for_a_result_hears_of_it(http: httpx.Client, served: Served) -> None:
    id = alone(http, "pack", {"weight": 1, "to": "x"})
    heard: list[httpx.Response] = []

    def wait() -> None:
        with served.client() as other:
            heard.append(other.get(f"/api/jobs/{id}/result?wait=50"))

    waiter = threading.Thread(target=wait)
    waiter.start()
    served.finish(id, result={"weight": 1.0, "to": "x"})
    waiter.join(60)
    assert heard[0].json() == {"id": id, "status": "succeeded", "result": {"weight": 1.0, "to": "x"}}


def test_a_job_is_cancelled_with_a_reason_by_either_method(http: httpx.Client) -> None:
    said = {"json": {"reason": "the customer left"}}
    ways: list[tuple[str, dict[str, Any]]] = [("DELETE", said), ("POST", said)]
    ways += [(method, {"params": {"reason": "the customer left"}}) for method in ("DELETE", "POST")]
    for method, given in ways:
        path = f"/api/jobs/{post(http, 'add', 1, delay=3600)}"
        done = http.request(method, f"{path}/cancel", **given).json()
        assert (done["status"], done["changed"]) == ("cancelled", True)
        assert http.get(path).json()["reason"] == "the customer left"
    for method in ("DELETE", "POST"):
        path = f"/api/jobs/{post(http, 'add', 1, delay=3600)}"
        assert http.request(method, f"{path}/cancel").json()["changed"]
        assert http.get(path).json()["reason"] == "cancelled by open"
    wrong = http.request("DELETE", f"{path}/cancel", json={"reasons": "x"})
    assert error(wrong) == (422, "invalid_reasons", "reasons")
    assert error(http.post(f"{path}/cancel", json={"reason": "x" * 1001}))[0] == 422


def test_a_job_shows_its_headers_and_times_in_utc(http: httpx.Client) -> None:
    id = post(http, "add", 1, headers={"tenant": "7"})
    shown = http.get(f"/api/jobs/{id}").json()
    assert shown["headers"] == {"tenant": "7"}
    assert shown["created_at"].endswith("Z")
    at = "2099-01-01T12:00:00+02:00"
    assert http.get(f"/api/jobs/{post(http, 'add', 1, at=at)}").json()["due_at"] == "2099-01-01T10:00:00Z"


def test_a_dead_and_a_cancelled_job_have_an_error(http: httpx.Client, served: Served) -> None:
    id = alone(http, "add", 1)
    served.finish(id, OutcomeKind.DEAD)
    reply = http.get(f"/api/jobs/{id}/result").json()
    assert reply["status"] == "dead"
    assert reply["error"]["type"] == "ValueError"
    assert "boom" in reply["error"]["traceback"]
    [run] = http.get(f"/api/jobs/{id}").json()["run_history"]
    assert (run["number"], run["outcome"], run["error"]) == (1, "failed", "ValueError: boom")
    assert run["worker"]
    assert run["ended_at"] >= run["started_at"]
    id = alone(http, "add", 1)
    wrong = http.delete(f"/api/jobs/{id}/cancel?force=maybe")
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (422, "force")
    assert http.delete(f"/api/jobs/{id}/cancel?force=true").json() == {
        "id": id,
        "status": "cancelled",
        "changed": True,
    }
    assert http.delete(f"/api/jobs/{id}/cancel").json()["changed"] is False
    assert http.get(f"/api/jobs/{id}/result").json()["error"]["type"] == "JobCancelled"
    assert http.post(f"/api/jobs/{id}/retry").json() == {"id": id, "status": "ready", "changed": True}
    assert http.get(f"/api/jobs/{id}/why").json()["code"] == "no_workers"
    served.take(id)
    assert error(http.delete(f"/api/jobs/{id}"))[:2] == (409, "not_deleted")
    other = alone(http, "add", 1)
    assert http.delete(f"/api/jobs/{other}").json()["status"] == "not_found"
    assert http.get(f"/api/jobs/{other}").status_code == 404


def test_jobs_that_came_over_http_are_counted_as_such(http: httpx.Client) -> None:
    post(http, "add", 1, queue="counted")
    post(http, "add", 2, queue="counted")
    told = [one for one in http.get("/api/stats").json()["accepted"] if one["queue"] == "counted"]
    assert told == [{"task": "add", "queue": "counted", "source": "http", "jobs": 2}]


# operate


def test_queues_are_paused_limited_and_purged(http: httpx.Client) -> None:
    post(http, "add", 1, queue="busy")
    assert http.get("/api/stats").json()["counts"]["ready"] > 0
    paused = http.post("/api/queues/busy/pause", json={"reason": "lunch"}).json()
    assert (paused["paused"]["reason"], paused["counts"]["ready"]) == ("lunch", 1)
    assert http.post("/api/queues/busy/resume").json()["paused"] is None
    limits = http.put("/api/queues/busy/limits", json={"max_running": 3, "rate": "5/s"}).json()["limits"]
    assert (limits["max_running"], limits["rate"]) == (3, "5/s")
    assert http.put("/api/queues/busy/limits", json={"rate": None}).json()["limits"]["rate"] is None
    assert error(http.put("/api/queues/busy/limits", json={"rate": "fast"}))[0] == 422
    assert error(http.put("/api/queues/busy/limits", json={}))[0] == 422
    assert http.post("/api/queues/busy/purge", json={"dry_run": True}).json()["changed"] == 1
    assert http.post("/api/queues/busy/purge").json()["changed"] == 1
    listed = {queue["name"]: queue for queue in http.get("/api/queues").json()["queues"]}
    assert listed["busy"]["counts"]["ready"] == 0
    assert http.get("/api/workers").json() == {"workers": []}
    assert error(http.post("/api/queues/a%20b/pause")) == (422, "invalid_queue", "queue")


@pytest.mark.parametrize("overflow", ["raise", "wait"])
def test_a_full_queue_says_when_to_come_back(http: httpx.Client, overflow: str) -> None:
    http.put(f"/api/queues/tight-{overflow}/limits", json={"max_ready": 1, "overflow": overflow})
    post(http, "add", 1, queue=f"tight-{overflow}")
    reply = http.post("/api/jobs", json={"task": "add", "args": [1], "queue": f"tight-{overflow}"})
    assert error(reply)[:2] == (429, "queue_full")
    assert int(reply.headers["retry-after"]) >= 1


def test_dead_jobs_are_listed_replayed_and_purged(http: httpx.Client, served: Served) -> None:
    ids = [post(http, "send", "a", queue="graves") for _ in range(3)]
    for id in ids:
        served.finish(id, OutcomeKind.DEAD)
    found = http.get("/api/dead", params={"queue": "graves", "limit": 2}).json()
    assert len(found["jobs"]) == 2
    assert found["cursor"]
    assert error(http.post("/api/dead/purge", json={})) == (422, "invalid_selection", None)
    assert http.post("/api/dead/replay", json={"queue": "graves", "dry_run": True}).json()["changed"] == 3
    replayed = http.post("/api/dead/replay", json={"ids": [ids[0], "nope"]}).json()
    assert (replayed["ids"], set(replayed["refused"])) == ([ids[0]], {"nope"})
    assert http.post("/api/dead/purge", json={"queue": "graves", "older": "1h"}).json()["changed"] == 0
    assert http.post("/api/dead/purge", json={"queue": "graves"}).json()["changed"] == 2


def test_schedules_are_made_paused_triggered_and_deleted(http: httpx.Client) -> None:
    body = {"name": "nightly", "task": "add", "cron": "0 3 * * *", "tz": "Europe/London", "args": [1]}
    made = http.post("/api/schedules", json=body)
    assert (made.status_code, made.json()["kind"], made.json()["args"]) == (201, "cron", [1])
    assert error(http.post("/api/schedules", json=body)) == (409, "schedule_exists", "name")
    assert error(http.post("/api/schedules", json=body | {"name": "x", "cron": "no"}))[0] == 422
    assert error(http.post("/api/schedules", json=body | {"name": "x", "args": ["y"]})) == (
        422,
        "invalid_args",
        "a",
    )
    assert http.post("/api/schedules/nightly/pause", json={"reason": "x"}).json()["paused"]["reason"] == "x"
    triggered = http.post("/api/schedules/nightly/trigger")
    assert (triggered.status_code, triggered.json()["status"]) == (201, "ready")
    assert http.post("/api/schedules/nightly/resume").json()["paused"] is None
    assert [one["name"] for one in http.get("/api/schedules").json()["schedules"]] == ["nightly"]
    assert http.delete("/api/schedules/nightly").json() == {"name": "nightly", "deleted": True}
    assert error(http.delete("/api/schedules/nightly"))[:2] == (404, "schedule_not_found")


# events


def test_events_go_on_where_a_client_left_off(http: httpx.Client, served: Served) -> None:
    with served.client() as one, one.stream("GET", "/api/events", params={"queue": "feed"}) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        feed = events(reply.iter_lines())
        kind, start, _ = next(feed)
        assert kind == "open"
        first = post(http, "add", 1, queue="feed")
        post(http, "add", 1, queue="elsewhere")
        kind, last, data = next(feed)
        assert (kind, data["queue"]) == ("change", "feed")
        assert {"kind": "put", "id": first, "run": 0} in data["events"]
    second = post(http, "add", 2, queue="feed")
    for since, expected in ((last, [second]), (start, [first, second])):
        with served.client(headers={"Last-Event-ID": since}) as two:
            seen: list[str] = []
            with two.stream("GET", "/api/events", params={"queue": "feed"}) as reply:
                for kind, _, data in events(reply.iter_lines()):
                    if kind == "change":
                        seen += [event["id"] for event in data["events"] if event["kind"] == "put"]
                    if len(seen) >= len(expected):
                        break
            assert seen == expected
    for wrong in ("junk!", "e30x", write_cursor({"a": -1}).decode(), write_cursor({"a b": 1}).decode()):
        assert error(http.get("/api/events", headers={"Last-Event-ID": wrong}))[0] == 422


# all requests


def test_every_reply_has_an_id_and_is_safe_for_browsers(http: httpx.Client) -> None:
    reply = http.get("/healthz", headers={"X-Request-ID": "mine-1"})
    assert reply.json() == {"status": "ok"}
    assert reply.headers["x-request-id"] == "mine-1"
    assert http.get("/readyz").json() == {"status": "ok"}
    for path in ("/healthz", "/api/jobs", "/nowhere", "/api/jobs/nope"):
        headers = http.get(path, headers={"X-Request-ID": "no good"}).headers
        assert len(headers["x-request-id"]) == 32
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


def test_large_replies_are_compressed_and_large_requests_refused(http: httpx.Client) -> None:
    assert (
        http.get("/api/openapi.json", headers={"Accept-Encoding": "gzip"}).headers["content-encoding"]
        == "gzip"
    )
    reply = http.post("/api/jobs", json={"task": "send", "args": ["x" * 70_000]})
    assert error(reply)[:2] == (413, "request_too_large")
    chunks = http.post(
        "/api/jobs", content=iter([b"x" * 40_000] * 3), headers={"Content-Type": "application/json"}
    )
    assert error(chunks)[:2] == (413, "request_too_large")
    zipped = gzip.compress(b'{"task": "add", "args": [1]}')
    more = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert error(http.post("/api/jobs", content=zipped, headers=more))[:2] == (
        400,
        "invalid_content_encoding",
    )


def test_a_wrong_method_says_which_are_right(http: httpx.Client) -> None:
    reply = http.put("/api/jobs")
    assert error(reply)[:2] == (405, "method_not_allowed")
    assert reply.headers["allow"] == "POST, GET"
    assert error(http.get("/api/nothing"))[:2] == (404, "no_such_path")
