"""Facts about a server for `dray doctor` and metrics: version, persistence, memory, clock."""

from __future__ import annotations

import re
import time
from typing import Final

import hiredis
import msgspec

from dray.broker.redis.blocking_connection import BlockingConnection
from dray.broker.redis.connection import Reply, pack
from dray.broker.redis.options import Address, Options, read_url
from dray.broker.redis.router import Router
from dray.broker.redis.sentinel import Sentinels
from dray.broker.servers import ServerUse


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about one node; None where it does not say, or this user may not ask."""

    address: str
    kind: str
    version: str
    role: str | None = None
    appendonly: bool | None = None
    snapshots: bool | None = None
    policy: str | None = None
    """The eviction policy."""
    maxmemory: int | None = None
    used: int | None = None
    trouble: str = ""
    """Failed writes to its disk."""
    skew: float = 0.0
    """Seconds by which its clock is ahead of ours."""


async def read_facts(url: str) -> list[ServerFacts]:
    """The facts of all nodes that the URL names. Never suspends."""
    options = read_url(url)
    facts = []
    for address in options.addresses or await _named_by_sentinels(options):
        connection = await BlockingConnection.connect(address, options)
        try:
            sent = time.time()
            asked = pack("HELLO") + pack("INFO") + pack("CONFIG", "GET", "save") + pack("TIME")
            hello, info, save, clock = await connection.exchange(asked, 4)
            facts.append(_facts(str(address), hello, info, save, clock, (sent + time.time()) / 2))
        finally:
            connection.close()
    return facts


async def _named_by_sentinels(options: Options) -> list[Address]:
    return await Sentinels(options, blocking=True).find_primaries()


async def read_use(router: Router) -> list[ServerUse]:
    """The use of all primaries, except for those that this user may not ask."""
    answers = await router.ask_primaries(pack("INFO"))
    return [
        _use(str(address), _read(info))
        for address, info in answers.items()
        if not isinstance(info, hiredis.ReplyError)
    ]


def _use(address: str, info: dict[str, str]) -> ServerUse:
    cpu = [float(info[name]) for name in ("used_cpu_sys", "used_cpu_user") if name in info]
    return ServerUse(
        address=address,
        cpu_seconds=sum(cpu) if cpu else None,
        used_memory=_number(info.get("used_memory")),
        max_memory=_number(info.get("maxmemory")) or None,
        clients=_number(info.get("connected_clients")),
    )


async def read_namespaces(url: str, seconds: float = 2.0) -> list[str]:
    """The namespaces of a server or cluster, as far as a scan of its keys finds them in time."""
    router, found = Router(read_url(url), blocking=True), set[str]()
    deadline = time.monotonic() + seconds
    try:
        for address in await router.primaries():
            found |= await _namespaces_at(router, address, deadline)
    finally:
        router.close()
    return sorted(found)


async def _namespaces_at(router: Router, address: Address, deadline: float) -> set[str]:
    found, cursor = set[str](), b"0"
    while time.monotonic() < deadline:
        ask = pack("SCAN", cursor, "MATCH", "dray:{*}:layout", "COUNT", "1000")
        [reply] = await router.ask(address, ask)
        if isinstance(reply, hiredis.ReplyError):
            break  # this user may not
        cursor, keys = reply
        found |= {match[1] for key in keys if (match := _LAYOUT.fullmatch(key.decode()))}
        if cursor == b"0":
            break
    return found


_LAYOUT: Final = re.compile(r"dray:\{([A-Za-z0-9_.-]+)\}:layout")


def _facts(address: str, hello: Reply, info: Reply, save: Reply, clock: Reply, now: float) -> ServerFacts:
    facts = {} if isinstance(info, hiredis.ReplyError) else _read(info)
    greeting = dict(zip(hello[::2], hello[1::2], strict=True))
    trouble = [
        f"{name} is {facts[name]}"
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if facts.get(name, "ok") != "ok"
    ]
    return ServerFacts(
        address=address,
        kind=greeting[b"server"].decode().capitalize(),
        version=greeting[b"version"].decode(),
        role=facts.get("role"),
        appendonly=facts["aof_enabled"] == "1" if "aof_enabled" in facts else None,
        snapshots=bool(save[1]) if isinstance(save, list) and len(save) == 2 else None,
        policy=facts.get("maxmemory_policy"),
        maxmemory=_number(facts.get("maxmemory")),
        used=_number(facts.get("used_memory")),
        trouble=", ".join(trouble),
        skew=int(clock[0]) + int(clock[1]) / 1e6 - now if isinstance(clock, list) else 0.0,
    )


def _read(info: Reply) -> dict[str, str]:
    text = info.decode() if isinstance(info, bytes) else str(info)
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
