"""The leak check: every key is on the list of what may stay, has a TTL, or is gone."""

from __future__ import annotations

import re
from collections import Counter

from redis_server import Server

MAY_STAY = {
    "queue": re.compile(
        # bounded by the number of names, or cut to a length: counters, the feed, what an operator set
        r"n|feed|set"
        # exist while there are jobs, and only as many as there are of these
        r"|job|head|res|err|counts|index|class|lane|stale|r:.*|g:.*|l:.*|z:.*|rb:.*|gb:.*|blocked|bc:.*|due|waiting|ended|ttl|deadline|key|keyttl|rate"
        # exist while runs are held or sessions are open
        r"|running|h:.*|s|t|v:.*|heard:.*|asked|prog|offer|handed"
        # exist while a job has watchers or dependants, or a waiter sleeps
        r"|ends|w:.*|d:.*|mailed|out|sleep"
        # parts of a durable job or of one with an owner, which go with it; nodes of a flow
        r"|log:.*|box:.*|kids:.*|res:.*|flow:.*|waits:.*|susp:.*",
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
    for name in server.command("KEYS", "dray:{*:*}:n"):
        prefix = name.decode().removesuffix("n")
        heads = Counter(head.partition(b" ")[0].decode() for head in server.command("HVALS", prefix + "head"))
        jobs = server.command("HLEN", prefix + "job")
        if heads.total() > jobs:
            found.append(f"{prefix}head has {heads.total()} of {jobs} jobs")
        kept = server.command("HGETALL", prefix + "counts")
        counts = {state.decode(): int(n) for state, n in zip(kept[::2], kept[1::2], strict=True)}
        counts.pop("second", None)
        if counts != {state: heads[state] for state in ("retrying", "dead", "cancelled") if heads[state]}:
            found.append(f"{prefix}counts has {counts} of {dict(heads)}")
        found += _parts_of_nothing(server, prefix)
        if not heads["running"]:
            found += [
                f"{prefix}{rest} though nothing runs"
                for rest in ("running", "asked", "prog", "offer", "handed")
                if server.command("EXISTS", prefix + rest)
            ]
        if not jobs - heads.total() + heads["ready"]:
            found += [
                f"{prefix}{rest} though nothing is ready"
                for rest in ("index", "class", "lane", "stale", "blocked")
                if server.command("EXISTS", prefix + rest)
            ]
    return found


def _parts_of_nothing(server: Server, prefix: str) -> list[str]:
    """Parts of durable jobs that are gone, and counts of flows in a queue without jobs."""
    found = []
    for kind in ("log", "box", "kids", "res", "waits", "susp"):
        for name in server.command("KEYS", f"{prefix.replace('[', '?')}{kind}:*"):
            id = name.decode().removeprefix(f"{prefix}{kind}:")
            if not server.command("HEXISTS", prefix + "job", id):
                found.append(name.decode())
    if not server.command("EXISTS", prefix + "job"):
        found += [name.decode() for name in server.command("KEYS", f"{prefix}flow:*")]
    return found
