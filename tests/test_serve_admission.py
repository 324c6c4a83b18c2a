"""Bounds of the service, without a network: limits, rates, and what a caller reaches."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import httpx
import pytest

from dray import App
from dray.serve import asgi
from dray.serve.admission import CALLERS_MAX, ByteLimit, ConcurrencyLimit, RateLimiter
from dray.serve.auth import Caller
from dray.serve.browser_security import is_loopback
from dray.serve.errors import Refused


def test_a_full_server_refuses_and_is_free_again_also_after_a_request_failed(tmp_path: Path) -> None:
    limit = ConcurrencyLimit(1, "requests")
    leave = limit.enter()
    with pytest.raises(Refused) as caught:
        limit.enter()
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
    leave()
    assert limit._shares.taken == 0
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}", max_requests=1, max_waiting=1)
    service = asgi(app, open=True)

    async def fail_often() -> list[int]:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            paths = ["/api/jobs/none", "/api/jobs/none/result"] * 3
            return [(await http.get(path)).status_code for path in paths]

    assert asyncio.run(fail_often()) == [404] * 6
    app.close()


def test_each_caller_has_a_rate_of_its_own_and_few_are_remembered() -> None:
    limiter = RateLimiter("1/d+2")
    for caller in ("a", "a", "b"):
        limiter.count(caller)
    with pytest.raises(Refused) as caught:
        limiter.count("a")
    assert caught.value.status == 429
    assert int(caught.value.headers["Retry-After"]) > 80_000
    for number in range(CALLERS_MAX):
        limiter.count(str(number))
    assert len(limiter._used) == CALLERS_MAX
    limiter.count("a")


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
        service.log_unserved(f"r-{number}", OSError("away"))
    monkeypatch.setattr("dray.serve.http._LOG_EVERY", 0.0)  # as if a while had gone by
    service.log_unserved("last", OSError("away"))
    assert [record.getMessage() for record in caplog.records] == [
        "request r-0: away",
        "request last: away (and 49 more before it)",
    ]
    app.close()


@pytest.mark.parametrize("size", [2, 3, 4, 10, 256])
def test_one_key_leaves_room_for_the_others(size: int) -> None:
    with contextlib.ExitStack() as stack:
        limit = ConcurrencyLimit(size, "requests")
        with pytest.raises(Refused) as caught:
            _fill(stack, limit, "a", size)
        assert (caught.value.status, caught.value.code) == (429, "share_used_up")
        stack.callback(limit.enter("b"))
    with contextlib.ExitStack() as stack:
        for _ in range(size):
            stack.callback(limit.enter(None))  # without keys there is nobody to share with
        with pytest.raises(Refused):
            stack.callback(limit.enter(None))


def _fill(stack: contextlib.ExitStack, limit: ConcurrencyLimit, key: str, times: int) -> None:
    for _ in range(times):
        stack.callback(limit.enter(key))


def test_three_greedy_keys_leave_room_for_a_fourth() -> None:
    limit = ConcurrencyLimit(256, "requests")
    held = dict.fromkeys("abc", 0)
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            for key in held:
                with contextlib.suppress(Refused):
                    stack.callback(limit.enter(key))
                    held[key] += 1
        assert max(held.values()) - min(held.values()) <= 3
        assert 150 < sum(held.values()) < 250
        stack.callback(limit.enter("d"))
    assert limit._shares._by_key == {}


def test_one_key_cannot_keep_others_from_streams_waits_and_requests(tmp_path: Path) -> None:
    app = App("shop", broker=f"sqlite:///{tmp_path / 'jobs.db'}", max_waiting=8, accept_unknown_tasks=True)
    service = asgi(app)
    greedy, modest = (app.keys.create(name, ["read", "submit"]).secret for name in ("greedy", "modest"))

    async def storm() -> tuple[list[int], int]:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=60) as http:
            id = (await http.post("/api/jobs", json={"task": "t"}, headers=bearer(greedy))).json()["id"]
            path = f"/api/jobs/{id}/result"
            calls = [
                asyncio.ensure_future(http.get(path, params={"wait": 30}, headers=bearer(greedy)))
                for _ in range(20)
            ]
            refused = await asyncio.gather(*calls[6:])
            other = await http.get(path, params={"wait": 0.01}, headers=bearer(modest))
            service.close()
            kept = await asyncio.gather(*calls[:6])
            return [reply.status_code for reply in (*kept, *refused)], other.status_code

    statuses, other = asyncio.run(storm())
    assert statuses == [202] * 6 + [429] * 14
    assert other == 202
    app.close()


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_one_key_cannot_hold_all_bytes_of_large_requests() -> None:
    load = ByteLimit(100)
    remove_a = load.add(70, "a")
    with pytest.raises(Refused) as caught:
        load.add(10, "a")
    assert caught.value.status == 429
    remove_b = load.add(20, "b")
    remove_a()
    remove_b()
    assert load.held == 0


def test_large_requests_hold_so_many_bytes_at_a_time_and_give_them_back() -> None:
    load = ByteLimit(100)
    remove = load.add(60)
    with pytest.raises(Refused) as caught:
        load.add(41)
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (503, "1")
    remove()
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
            return statuses, after.status_code, service._body_bytes.held

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
    assert not caller.has_role("submit")
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
