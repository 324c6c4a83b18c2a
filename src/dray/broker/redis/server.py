"""What a server says of itself: its version, what it keeps, what it throws away, and its clock."""

from __future__ import annotations

import time

import hiredis
import msgspec

from dray.broker.redis.options import read_url
from dray.broker.redis.wire import BlockingLink, Reply, pack


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One node; None where it does not say, or this user may not ask."""

    address: str
    kind: str
    version: str
    role: str | None = None
    appendonly: bool | None = None
    snapshots: bool | None = None
    """Whether it writes snapshots at times."""
    policy: str | None = None
    """What it does when its memory is full."""
    maxmemory: int | None = None
    used: int | None = None
    trouble: str = ""
    """What it says about writing to its disk."""
    skew: float = 0.0
    """Seconds by which its clock is ahead of ours."""


async def read_facts(url: str) -> list[ServerFacts]:
    """Of every node that the URL names. Runs to its end without suspending."""
    options = read_url(url)
    facts = []
    for address in options.addresses:
        link = await BlockingLink.connect(address, options)
        try:
            sent = time.time()
            asked = pack("INFO") + pack("CONFIG", "GET", "save") + pack("TIME")
            info, save, clock = await link.exchange(asked, 3)
            facts.append(_facts(str(address), info, save, clock, (sent + time.time()) / 2))
        finally:
            link.close()
    return facts


def _facts(address: str, info: Reply, save: Reply, clock: Reply, now: float) -> ServerFacts:
    told = {} if isinstance(info, hiredis.ReplyError) else _read(info)
    valkey = told.get("valkey_version")
    trouble = [
        f"{name} is {told[name]}"
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if told.get(name, "ok") != "ok"
    ]
    return ServerFacts(
        address=address,
        kind="Valkey" if valkey else "Redis",
        version=valkey or told.get("redis_version", "?"),
        role=told.get("role"),
        appendonly=told["aof_enabled"] == "1" if "aof_enabled" in told else None,
        snapshots=bool(save[1]) if isinstance(save, list) and len(save) == 2 else None,
        policy=told.get("maxmemory_policy"),
        maxmemory=_number(told.get("maxmemory")),
        used=_number(told.get("used_memory")),
        trouble=", ".join(trouble),
        skew=int(clock[0]) + int(clock[1]) / 1e6 - now if isinstance(clock, list) else 0.0,
    )


def _read(info: Reply) -> dict[str, str]:
    text = info.decode() if isinstance(info, bytes) else str(info)
    pairs = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return {name: value.strip() for name, value in pairs}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
