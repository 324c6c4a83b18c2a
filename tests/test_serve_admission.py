"""Bounds of the service, without a network: rooms, rates, and what a caller reaches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from dray import App
from dray.serve import asgi
from dray.serve.callers import Caller
from dray.serve.limits import CALLERS_MAX, Load, Room, Turnstile
from dray.serve.refusals import Refused
from dray.serve.shields import is_loopback


def test_a_full_room_sends_away_and_is_free_again_also_after_an_error() -> None:
    room = Room(1, "requests")
    with room.enter():
        with pytest.raises(Refused) as caught, room.enter():
            pass
        assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
    with pytest.raises(ValueError, match="inside"), room.enter():
        raise ValueError("inside")
    assert room.taken == 0


def test_each_caller_has_a_rate_of_its_own_and_few_are_remembered() -> None:
    turnstile = Turnstile("1/d+2")
    for caller in ("a", "a", "b"):
        turnstile.pass_one(caller)
    with pytest.raises(Refused) as caught:
        turnstile.pass_one("a")
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) > 80_000
    for number in range(CALLERS_MAX):
        turnstile.pass_one(str(number))
    assert len(turnstile._used) == CALLERS_MAX
    turnstile.pass_one("a")


def test_requests_beyond_the_bound_are_shed(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}", max_requests=2, accept_unknown_tasks=True)
    service = asgi(app, open=True)

    async def storm() -> list[httpx.Response]:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            bodies = [{"task": "t", "id": f"j-{number}"} for number in range(20)]
            return await asyncio.gather(*(http.post("/api/jobs", json=body) for body in bodies))

    replies = asyncio.run(storm())
    accepted = {reply.json()["id"] for reply in replies if reply.status_code == 201}
    shed = [reply for reply in replies if reply.status_code == 503]
    assert len(accepted) + len(shed) == 20
    assert accepted
    assert shed
    assert {reply.json()["error"]["code"] for reply in shed} == {"overloaded"}
    assert {info.id for info in app.jobs.find(limit=None)} == accepted
    app.close()


def test_a_flood_of_refusals_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}")
    service = asgi(app, open=True)
    for number in range(50):
        service.tell(f"r-{number}", OSError("away"))
    monkeypatch.setattr("dray.serve.http._TELL_EVERY", 0.0)  # as if a while had gone by
    service.tell("last", OSError("away"))
    assert [record.getMessage() for record in caplog.records] == [
        "request r-0: away",
        "request last: away (and 49 more before it)",
    ]
    app.close()


def test_large_requests_hold_so_many_bytes_at_a_time_and_give_them_back() -> None:
    load = Load(100)
    load.add(60)
    with pytest.raises(Refused) as caught:
        load.add(41)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
    load.remove(60)
    load.add(100)


def test_more_large_requests_than_fit_the_load_are_shed_and_the_next_are_served(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    app = App("shop", broker=url, max_request_size=200_000, accept_unknown_tasks=True)
    service = asgi(app, open=True)
    headers = {"Content-Type": "application/json"}
    body = b'{"task": "t"}' + b" " * 180_000

    async def storm() -> tuple[list[int], int, int]:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            calls = (http.post("/api/jobs", content=body, headers=headers) for _ in range(100))
            statuses = [reply.status_code for reply in await asyncio.gather(*calls)]
            after = await http.post("/api/jobs", content=body, headers=headers)
            return statuses, after.status_code, service._load.held

    statuses, after, held = asyncio.run(storm())
    assert set(statuses) == {201, 503}
    assert len(list(app.jobs.find(limit=None))) == statuses.count(201) + 1
    assert (after, held) == (201, 0)
    app.close()


def test_scopes_of_a_caller_are_what_it_reaches_and_no_more() -> None:
    caller = Caller("k", "k", frozenset({"read"}), frozenset({"a", "b"}), frozenset({"t"}))
    assert caller.scopes() == [("a", "t"), ("b", "t")]
    assert caller.scopes("a") == [("a", "t")]
    for queue, task in (("c", None), (None, "u")):
        with pytest.raises(Refused):
            caller.scopes(queue, task)
    assert not caller.may("submit")
    assert Caller("k", "k", frozenset({"admin"})).scopes() == [(None, None)]


@pytest.mark.parametrize(
    ("host", "here"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("[::]", False),
        ("10.0.0.1", False),
        ("localhost.example", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, here: bool) -> None:
    assert is_loopback(host) is here
