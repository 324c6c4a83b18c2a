"""The history over HTTP and on the command line: what a key sees, and what is said without a history."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from recorded import Recorded
from shell import Shell

from dray.serve import asgi


@pytest.fixture
def shop(history_url: str) -> Iterator[Recorded]:
    recorded = Recorded(history_url)
    recorded.app.enqueue("email.send", "nobody", "hunter2")
    recorded.app.enqueue("email.send", "ann@x.org", "hunter2")
    recorded.app.enqueue("add", 3, 4)
    recorded.run()
    recorded.record()
    yield recorded
    recorded.close()


def get(shop: Recorded, path: str, key: str | None = None, **params: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        transport = httpx.ASGITransport(app=asgi(shop.app, open=key is None))
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.get(path, params=params, headers=headers)

    return asyncio.run(main())


def test_a_search_answers_pages_of_jobs(shop: Recorded) -> None:
    first = get(shop, "/api/history", limit=2).json()
    rest = get(shop, "/api/history", limit=2, cursor=first["cursor"]).json()
    assert rest["cursor"] is None
    assert len(first["jobs"]) == 2
    assert len({job["id"] for job in first["jobs"] + rest["jobs"]}) == 3
    (dead,) = get(shop, "/api/history", q='state:dead error:"timeout"').json()["jobs"]
    assert (dead["task"], dead["args"], dead["traceback"]) == (
        "email.send",
        {"to": "nobody", "password": "[hidden]"},
        None,
    )


def test_a_wrong_search_is_refused_with_its_field(shop: Recorded) -> None:
    for q, field in (("state:ded", "state"), ("tsk:x", "tsk"), ("after:x", "after")):
        reply = get(shop, "/api/history", q=q)
        assert (reply.status_code, reply.json()["error"]["field"]) == (422, field)
    assert get(shop, "/api/history", cursor="x").json()["error"]["field"] == "cursor"
    assert get(shop, "/api/history/stats", window="x").json()["error"]["field"] == "window"


def test_one_job_has_its_attempts_and_events(shop: Recorded) -> None:
    (id,) = shop.ids("state:dead")
    found = get(shop, f"/api/jobs/{id}/history").json()
    assert [run["outcome"] for run in found["attempts"]] == ["failed", "failed"]
    assert found["events"][0]["kind"] == "put"
    assert get(shop, "/api/jobs/unknown/history").status_code == 404


def test_statistics_and_errors_say_that_they_come_from_the_history(shop: Recorded) -> None:
    stats = get(shop, "/api/history/stats", window="1h").json()
    assert stats["source"] == "history"
    assert {one["task"]: one["failed"] for one in stats["tasks"]} == {"add": 0, "email.send": 2}
    errors = get(shop, "/api/errors").json()
    assert [(one["task"], one["count"]) for one in errors["errors"]] == [("email.send", 2)]
    assert errors["source"] == "history"


def test_a_limited_key_sees_only_its_queues_and_tasks(shop: Recorded) -> None:
    by_queue = shop.app.keys.create("q", ["read"], queues=["default"]).secret
    by_task = shop.app.keys.create("t", ["read"], tasks=["add"]).secret
    (dead,) = shop.ids("state:dead")
    for key in (by_queue, by_task):
        jobs = get(shop, "/api/history", key).json()["jobs"]
        assert [job["task"] for job in jobs] == ["add"]
        assert get(shop, "/api/history", key, q="task:email.*").json()["jobs"] == []
        assert get(shop, f"/api/jobs/{dead}/history", key).status_code == 404
        assert get(shop, "/api/errors", key).json()["errors"] == []
        tasks = get(shop, "/api/history/stats", key).json()["tasks"]
        assert [one["task"] for one in tasks] == ["add"]


def test_a_key_without_the_role_is_refused(shop: Recorded) -> None:
    key = shop.app.keys.create("s", ["submit"]).secret
    for path in ("/api/history", "/api/history/stats", "/api/errors", "/api/jobs/x/history"):
        assert get(shop, path, key).status_code == 403


def test_a_key_that_hides_values_sees_and_searches_none(shop: Recorded) -> None:
    key = shop.app.keys.create("blind", ["read"], hides_values=True).secret
    dead = get(shop, "/api/history", q="state:dead").json()["jobs"][0]
    assert "ReadTimeout" in get(shop, f"/api/jobs/{dead['id']}/history").text
    for path in ("/api/history", f"/api/jobs/{dead['id']}/history", "/api/errors"):
        reply = get(shop, path, key)
        assert (reply.status_code, "ReadTimeout" in reply.text) == (200, False), path
    assert get(shop, "/api/history", key, q="error:ReadTimeout").status_code in (400, 422)


def test_without_a_history_the_reply_names_the_setting() -> None:
    shop = Recorded("none")
    shop.app.enqueue("email.send", "nobody")
    shop.run()
    for path in ("/api/history", "/api/jobs/x/history"):
        reply = get(shop, path)
        assert (reply.status_code, reply.json()["error"]["code"]) == (409, "history_off")
        assert "history_url" in reply.json()["error"]["message"]
    errors = get(shop, "/api/errors").json()
    assert (errors["source"], len(errors["errors"])) == ("broker", 1)
    assert "history_url is not set" in errors["note"]
    assert get(shop, "/api/history/stats").json()["source"] == "broker"
    shop.close()


def test_a_history_that_is_away_is_503_and_hides_where_it_is() -> None:
    shop = Recorded("postgresql://dray@127.0.0.1:1/secretdb")
    reply = get(shop, "/api/history")
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "history_away")
    assert "secretdb" not in reply.text
    shop.close()


# the command line


@pytest.fixture
def told(shell: Shell, shop: Recorded, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A project whose history has a dead job and succeeded ones."""
    monkeypatch.setenv("DRAY_HISTORY_URL", shop.app.settings.history_url or "")
    assert shell.run("enqueue", "add", "1").code == 0, "there is a broker"
    return shell


def test_the_command_searches(told: Shell) -> None:
    table = told.run("history", "search", "state:dead").out
    assert "email.send" in table
    assert "ConnectionError: ReadTimeout" in table
    assert "succeeded" not in table
    found = told.run("history", "search", "--json")
    assert [job["task"] for job in found.json].count("email.send") == 2
    page = told.run("history", "search", "--limit", "1")
    assert "--cursor" in page.err
    cursor = page.err.split("--cursor ")[1].split()[0]
    assert len(told.run("history", "search", "--cursor", cursor, "--json").json) == 2


def test_the_shell_may_take_quotes_away(told: Shell) -> None:
    assert len(told.run("history", "search", "state:dead", "error:no server for", "--json").json) == 1
    assert len(told.run("history", "search", 'state:dead error:"no server for"', "--json").json) == 1
    assert told.run("history", "search", "state:dead", "no server at", "--json").json == []


def test_the_command_shows_one_job(told: Shell) -> None:
    id = told.run("history", "search", "state:dead", "--json").json[0]["id"]
    shown = told.run("history", "show", id)
    assert "ConnectionError" in shown.out
    assert "died" in shown.out
    assert len(told.run("history", "show", id, "--json").json["attempts"]) == 2
    told.run("history", "show", "unknown", code=1)


def test_the_command_lists_errors_and_statistics(told: Shell) -> None:
    errors = told.run("history", "errors").out
    assert "email.send" in errors
    assert "█" in errors, "the hours of a day as bars"
    assert told.run("history", "errors", "--json").json[0]["count"] == 2
    assert "email.send" in told.run("history", "stats", "--window", "1h").out
    assert told.run("history", "stats", "--json").json["source"] == "history"


def test_a_wrong_search_ends_with_an_error_that_names_the_field(told: Shell) -> None:
    ended = told.run("history", "search", "state:ded", code=1)
    assert "state='ded'" in ended.err


def test_without_a_history_the_command_says_what_to_set(shell: Shell) -> None:
    shell.run("enqueue", "add", "1")
    ended = shell.run("history", "search", code=1)
    assert "history_url" in ended.err
    assert "history_url is not set" in shell.run("history", "errors").err
