"""Checks of `dray doctor` for Redis and Valkey: version, eviction, persistence, clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dray.broker.redis.server import ServerFacts, read_facts
from dray.broker.verbs import run_blocking
from dray.cli.doctor_checks import Finding
from dray.settings import Settings, format_size

SKEW: Final = 1.0
"""Seconds."""
FULL: Final = 0.9
LUA_FIXED: Final = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""By series, the first version without CVE-2024-31449, -46981, CVE-2025-46817, -46818, -46819 and -49844."""


def check_servers(settings: Settings) -> Iterator[Finding]:
    for facts in run_blocking(read_facts(settings.broker_url)):
        role = f", {facts.role}" if facts.role not in (None, "master") else ""
        yield Finding("server", "ok", f"{facts.address}: {facts.kind} {facts.version}{role}")
        yield from _lua(facts)
        yield from _eviction(facts)
        yield from _persistence(facts)
        yield from _clock(facts)


def _lua(facts: ServerFacts) -> Iterator[Finding]:
    """Known faults of the Lua engine, open to every user who may load scripts."""
    if not has_lua_faults(facts.kind, facts.version):
        return
    text = (
        f"{facts.kind} {facts.version} has known faults in its Lua engine (CVE-2025-49844 and others): a "
        "user who may run scripts could run code on the server"
    )
    fixed = ", ".join(f"{a}.{b}.{c}" for (a, b), c in LUA_FIXED[facts.kind].items())
    todo = f"upgrade it to {fixed} or newer, unless your distribution has mended this version"
    yield Finding("server", "warn", text, todo)


def has_lua_faults(kind: str, version: str) -> bool:
    """This version is older than the fixed one of its series."""
    try:
        major, minor, patch = (int(part) for part in version.split(".")[:3])
    except ValueError:
        return False  # not a version of Redis or Valkey
    fixed = LUA_FIXED.get(kind)
    if fixed is None or (major, minor) > max(fixed):
        return False
    return (major, minor) not in fixed or patch < fixed[major, minor]


def _eviction(facts: ServerFacts) -> Iterator[Finding]:
    if facts.policy is None:
        todo = "allow this user INFO, or look yourself: maxmemory-policy must be noeviction"
        yield Finding("memory", "warn", "whether it throws keys away is not known", todo)
        return
    if facts.policy != "noeviction":
        limit = format_size(facts.maxmemory) if facts.maxmemory else "its memory"
        yield Finding(
            "memory",
            "fail" if facts.maxmemory else "warn",
            f"maxmemory-policy is {facts.policy}: with {limit} full the server throws jobs away",
            "CONFIG SET maxmemory-policy noeviction, and in the server's configuration",
        )
        return
    if facts.maxmemory and facts.used is not None and facts.used > FULL * facts.maxmemory:
        text = f"{format_size(facts.used)} of {format_size(facts.maxmemory)} are used: soon it refuses jobs"
        yield Finding("memory", "warn", text, "raise maxmemory, or purge what is not needed")
        return
    yield Finding("memory", "ok", "noeviction: what does not fit is refused, never thrown away")


def _persistence(facts: ServerFacts) -> Iterator[Finding]:
    if facts.trouble:
        yield Finding("disk", "fail", f"the server cannot write: {facts.trouble}", "see its log and its disk")
    if facts.appendonly:
        yield Finding("disk", "ok", "appendonly yes: accepted jobs survive a restart of the server")
    elif facts.appendonly is None:
        todo = "allow this user INFO, or look yourself: appendonly should be yes"
        yield Finding("disk", "warn", "whether it keeps jobs on disk is not known", todo)
    else:
        kept = "only snapshots are written" if facts.snapshots else "nothing is written to disk"
        kept = "appendonly is off" if facts.snapshots is None else kept
        todo = "CONFIG SET appendonly yes, and in the server's configuration"
        yield Finding("disk", "warn", f"{kept}: a restart of the server loses accepted jobs", todo)


def _clock(facts: ServerFacts) -> Iterator[Finding]:
    if abs(facts.skew) > SKEW:
        way = "ahead of" if facts.skew > 0 else "behind"
        text = f"the server's clock is {abs(facts.skew):.1f} s {way} this machine's"
        yield Finding(
            "clock", "warn", text, "keep the clocks of all machines by NTP; dray goes by the server's"
        )
