"""Whom a server answers without a key: everybody on this machine until there is a key, then nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from redis_server import need, running
from rpc_client import Client, Failed, Stage, play, until
from served import Served, events, serving, wait_until

from dray import App
from dray.admin.api_keys import ApiKey
from dray.serve import asgi
from dray.serve.auth import Authenticator, Peer
from dray.serve.errors import Refused
from dray.serve.http import HttpService

PROXIED = {
    "X-Forwarded-For": "203.0.113.9",
    "X-Forwarded-Proto": "https",
    "X-Forwarded-Host": "jobs.example",
    "Forwarded": "for=203.0.113.9",
    "Via": "1.1 vegur",
    "X-Real-IP": "203.0.113.9",
    "True-Client-IP": "203.0.113.9",
    "CF-Connecting-IP": "203.0.113.9",
    "X-Envoy-External-Address": "203.0.113.9",
}


def shop(broker: str, **settings: Any) -> App:
    return App("shop", broker=broker, accept_unknown_tasks=True, **settings)


def purge(served: Served, key: str | None = None) -> int:
    with served.client(key) as http:
        return http.post("/api/queues/default/purge").status_code


def store(app: App, name: str, value: bytes) -> None:
    """A document among the keys, as another version of dray might have left it."""

    async def write(link: Any) -> None:
        await link.broker.doc("key", name, value)

    app.client.block(write)


@pytest.mark.parametrize("kind", ["sqlite", "valkey"])
def test_revoking_the_only_key_opens_nothing_and_a_new_key_is_the_way_back(kind: str, tmp_path: Path) -> None:
    with serving(kind, tmp_path) as served, served.app() as app:
        assert purge(served) == 200, "there never was a key"
        only = app.keys.create("only", ["admin"])
        wait_until(lambda: purge(served) == 401, "it stays open beside a key")
        assert app.keys.revoke(only.key.id, force=True)
        wait_until(lambda: purge(served, only.secret) == 401, "the revoked key still works")
        assert purge(served) == 401
        served.stop()
        served.start()
        assert purge(served) == 401, "a new server opens what was closed"
        wait_until(lambda: any("there were keys" in line for line in served.said), "it does not say why")
        wait_until(lambda: purge(served, served.key("admin")) == 200, "the way back is closed")


@pytest.mark.parametrize(
    "value",
    [
        b"no key at all",
        msgspec.msgpack.encode({"id": "x", "name": "x", "digest": b"x", "roles": ["superuser"]}),
    ],
)
def test_a_key_that_cannot_be_read_closes_the_server_and_can_be_revoked(value: bytes) -> None:
    app = shop("memory://")
    store(app, "strange", value)
    assert status(app, "keyless") == 401
    (listed,) = app.keys.list()
    assert (listed.id, listed.name, listed.roles) == ("strange", "unreadable", frozenset())
    assert app.keys.revoke("strange")
    assert app.keys.list() == []
    assert status(app, "keyless") == 401


def test_keys_of_a_version_that_left_no_mark_close_the_namespace_for_good() -> None:
    app = shop("memory://")
    digest = b"d" * 32
    kept = ApiKey(id="old", name="old", digest=digest, roles=frozenset({"read"}))
    store(app, "old", msgspec.msgpack.encode(kept))
    assert app.keys.list() == [kept]
    app.keys.revoke("old")
    app.keys.ever = False  # as a process that was started afterwards
    assert status(app, "keyless") == 401


def test_keys_of_the_settings_close_the_namespace_for_servers_without_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    with_keys, without = shop(url, api_keys="admin:a-secret-of-the-settings"), shop(url)
    assert status(without, "keyless") == 200
    assert status(with_keys, "keyless") == 401
    assert status(without, "keyless") == 401


def status(app: App, access: Any, headers: dict[str, str] | None = None, path: str = "/api/jobs") -> int:
    """What one request of a fresh server is answered with."""

    async def ask() -> int:
        transport = httpx.ASGITransport(HttpService(app, access=access))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.get(path, headers=headers)).status_code

    return asyncio.run(ask())


def test_what_came_through_a_proxy_is_refused_while_there_are_no_keys() -> None:
    app = shop("memory://")
    for name, value in PROXIED.items():
        assert status(app, "keyless", {name: value}) == 401, name
        assert status(app, "keyless", {name: value}, "/healthz") == 200, name
        assert status(app, "open", {name: value}) == 200, name
    assert status(app, "keyless", {"X-Request-ID": "x", "User-Agent": "proxy", "Viable": "1"}) == 200
    secret = app.keys.create("k", ["read"]).secret
    for name, value in PROXIED.items():
        assert status(app, "keyless", {name: value, "Authorization": f"Bearer {secret}"}) == 200, name


def test_a_proxy_that_adds_nothing_is_known_by_its_version_of_http(tmp_path: Path) -> None:
    async def ask(url: httpx.URL, version: str) -> bytes:
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(f"GET /api/jobs HTTP/{version}\r\nHost: {url.host}:{url.port}\r\n".encode())
        writer.write(b"Connection: close\r\n\r\n")
        line = await reader.readline()
        writer.close()
        return line

    with serving("sqlite", tmp_path) as served:
        url = httpx.URL(served.url)
        assert b"200" in asyncio.run(ask(url, "1.1"))
        assert b"401" in asyncio.run(ask(url, "1.0"))


def test_a_server_that_saw_keys_stays_closed_when_the_broker_loses_its_data(tmp_path: Path) -> None:
    need("valkey")
    with running("valkey", tmp_path / "valkey") as valkey:
        served = Served(tmp_path / "shop", f"redis://127.0.0.1:{valkey.port}/0")
        secret = served.key("admin")
        served.start()
        try:
            assert purge(served, secret) == 200
            valkey.command("FLUSHALL")
            wait_until(lambda: purge(served, secret) == 401, "a lost key still works")
            assert purge(served) == 401
            served.stop()
            served.start()
            assert purge(served) == 401, "it did not put the mark back"
        finally:
            served.stop()


def test_an_open_mount_is_open_whatever_keys_there_are_and_whatever_is_sent() -> None:
    app = shop("memory://", api_keys="admin:a-secret-of-the-settings")
    app.keys.create("k", ["read"])

    async def ask(service: HttpService, headers: dict[str, str]) -> int:
        transport = httpx.ASGITransport(service)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return (await http.post("/api/queues/default/purge", headers=headers)).status_code

    for headers in (
        {},
        {"Authorization": "Bearer of-your-own-login"},
        {"Authorization": "Basic eDp5"},
        PROXIED,
    ):
        assert asyncio.run(ask(asgi(app, open=True), headers)) == 200
        assert asyncio.run(ask(asgi(app), headers)) == 401


# streams and waits


def test_streams_of_a_revoked_key_end(tmp_path: Path) -> None:
    with serving("sqlite", tmp_path) as served, served.app() as app:
        made = app.keys.create("watcher", ["read"])
        with served.client(made.secret) as http:
            wait_until(lambda: http.get("/api/jobs").status_code == 200, "the key is not known")
            with http.stream("GET", "/api/events") as stream:
                following = events(stream.iter_lines())
                assert next(following)[0] == "open"
                app.keys.revoke(made.key.id)
                assert list(following) == [], "the stream goes on"
            assert http.get("/api/events").status_code == 401


def test_whoever_waits_with_a_key_that_is_revoked_is_refused_and_their_work_is_cancelled() -> None:
    app = shop("memory://")

    async def scene() -> None:
        made = await app.keys.acreate("waiter", ["work"])
        auth, peer = Authenticator(app, "keyless"), Peer({"x-api-key": made.secret})
        await auth.identify(peer)
        ended = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.ensure_future(auth.while_valid(peer, work()))
        await app.keys.arevoke(made.key.id)
        with pytest.raises(Refused, match="revoked"):
            await waiting
        assert ended.is_set()

    asyncio.run(scene())


def test_a_stream_that_never_pauses_ends_with_its_key_too() -> None:
    app = shop("memory://")

    async def scene() -> None:
        made = await app.keys.acreate("follower", ["read"])
        auth, peer = Authenticator(app, "keyless"), Peer({"x-api-key": made.secret})
        await auth.identify(peer)

        async def numbers() -> AsyncGenerator[int, None]:
            while True:
                yield 1

        await app.keys.arevoke(made.key.id)
        with pytest.raises(Refused, match="revoked"):
            async for _ in auth.stream_while_valid(peer, numbers()):
                pass

    asyncio.run(asyncio.wait_for(scene(), 60))


# gRPC


async def grpc_status(call: Awaitable[Any]) -> str:
    try:
        await call
    except Failed as failed:
        return failed.status
    return "OK"


def test_grpc_is_closed_by_the_same_rules(tmp_path: Path) -> None:
    app = shop(f"sqlite:///{tmp_path / 'jobs.db'}")

    async def scene(stage: Stage) -> None:
        assert await grpc_status(stage.client("ListQueues")) == "OK"
        for name, value in PROXIED.items():
            proxied = Client(stage.channel, metadata=((name.lower(), value),))
            assert await grpc_status(proxied("ListQueues")) == "UNAUTHENTICATED", name
        made = await app.keys.acreate("only", ["admin"])

        async def closed() -> bool:
            return await grpc_status(stage.client("ListQueues")) == "UNAUTHENTICATED"

        async def known() -> bool:
            return await grpc_status(stage.with_key(made.secret)("ListQueues")) == "OK"

        await until(closed, "it stays open beside a key")
        await until(known, "the key is not known")
        watching = stage.with_key(made.secret).start("WatchEvents")
        await watching.read()
        await app.keys.arevoke(made.key.id, force=True)
        assert (await watching.code()).name == "UNAUTHENTICATED"
        assert await closed()

    play(app, scene)
    play(shop(f"sqlite:///{tmp_path / 'jobs.db'}"), _still_closed)


async def _still_closed(stage: Stage) -> None:
    assert await grpc_status(stage.client("ListQueues")) == "UNAUTHENTICATED"
