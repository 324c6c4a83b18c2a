"""The leak check: every key is on the list of what may stay, has a TTL, or is gone."""

from __future__ import annotations

import re

from redis_server import Server

MAY_STAY = {
    "queue": re.compile(
        # bounded by the number of names, or cut to a length: counters, the feed, what an operator set
        r"n|feed|set"
        # exist while there are jobs, and only as many as there are of these
        r"|job|head|res|err|counts|index|class|lane|r:.*|g:.*|l:.*|rb:.*|gb:.*|blocked|bc:.*|due|waiting|ended|ttl|deadline|key|keyttl|rate"
        # exist while runs are held or sessions are open
        r"|running|h:.*|s|t|v:.*|heard:.*|asked|prog|offer"
        # exist while a job has watchers or dependants, or a waiter sleeps
        r"|ends|w:.*|d:.*|mailed|out|sleep",
        re.DOTALL,
    ),
    "own": re.compile(
        r"layout|queues|leaving|fed|versions|opened|session|sq:.*|ending|eq:.*|clock|doc:.*|docttl|intent",
        re.DOTALL,
    ),
    "directory": re.compile(r"id"),
}
"""Every key without a TTL that there may be, by whose it is. The heads of the scripts say what each is."""


def kind_of(key: str) -> tuple[str, str]:
    tag, _, rest = key.removeprefix("dray:{").partition("}:")
    if ":" not in tag:
        return "own", rest
    return ("directory" if "/" in tag else "queue"), rest


def leaks(server: Server) -> list[str]:
    """Keys that nothing accounts for."""
    found = []
    for name in server.command("KEYS", "*"):
        key = name.decode()
        kind, rest = kind_of(key)
        stays = key.startswith("dray:{") and MAY_STAY[kind].fullmatch(rest)
        if not stays and server.command("PTTL", key) < 0:
            found.append(key)
    return [*found, *_for_nothing(server)]


def _for_nothing(server: Server) -> list[str]:
    """Keys that should be gone with their jobs."""
    found = []
    for name in server.command("KEYS", "dray:{*:*}:counts"):
        prefix = name.decode().removesuffix("counts")
        counts = server.command("HGETALL", name.decode())
        numbers = {state.decode(): int(n) for state, n in zip(counts[::2], counts[1::2], strict=True)}
        jobs = server.command("HLEN", prefix + "job")
        if jobs != sum(numbers.values()):
            found.append(f"{prefix}job has {jobs} of {sum(numbers.values())} jobs")
        heads = server.command("HLEN", prefix + "head")
        if heads > jobs:
            found.append(f"{prefix}head has {heads} of {jobs} jobs")
        if not numbers.get("h"):
            found += [
                f"{prefix}{rest} though nothing runs"
                for rest in ("running", "asked", "prog", "offer")
                if server.command("EXISTS", prefix + rest)
            ]
        if not numbers.get("r"):
            found += [
                f"{prefix}{rest} though nothing is ready"
                for rest in ("index", "class", "lane", "blocked")
                if server.command("EXISTS", prefix + rest)
            ]
    return found
