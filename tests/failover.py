"""The set-up of tests of a cluster's fail-over: a node that serves all keys, and ways to lose it.

Redis copies to replicas without waiting for them, so a primary that dies may take the last moments along. So
that no test rests on luck, the victim first holds back every write (`CLIENT PAUSE`), its replica catches up,
and only then does it go: whatever it acknowledged is there, and calls that it held back were not accepted.
"""

from __future__ import annotations

import time

from redis_server import THIRDS, Cluster, Server, wait_until

from dray.broker.redis.keys import KeyNames, slot

BOUND = 2.0
"""Seconds after the promotion within which everything goes on."""
NOISE = 4.0
"""Seconds more on a machine that does other work too. Before, nothing went on at all."""


def namespace_at_first() -> str:
    """One whose documents, sessions and queue `default` are all on the first node.

    That node is also the first of the URL, where every client listens.
    """
    first, last = THIRDS[0]
    for n in range(1000):
        keys = KeyNames(f"shop{n}")
        if first <= slot(keys.own) <= last and first <= slot(keys.queue("default")) <= last:
            return keys.namespace
    raise AssertionError("no name fits")


def fail_over(cluster: Cluster, how: str) -> tuple[Server, Server, float]:
    """Let the first node go; returns it, the one that took its place, and when that was seen."""
    victim = cluster.servers[0]
    heir = cluster.replica_of(victim)
    if how == "manual":
        heir.command("CLUSTER", "FAILOVER")  # which itself waits until nothing is missing
        return victim, heir, cluster.wait_for_promotion(heir)
    victim.command("CLIENT", "PAUSE", "600000", "WRITE")
    wait_until(lambda: _offset(heir) == _offset(victim), "the replica does not catch up")
    if how == "crash":
        victim.stop()
    else:
        victim.freeze()
    return victim, heir, cluster.wait_for_promotion(heir)


def _offset(server: Server) -> int:
    lines = server.command("INFO", "replication").split(b"\r\n")
    name = b"slave_repl_offset:" if b"role:slave" in lines else b"master_repl_offset:"
    return int(next(line for line in lines if line.startswith(name)).partition(b":")[2])


def in_time(moment: float, since: float, what: str) -> None:
    late = moment - since
    print(f"{what} went on after {late:.2f} s")
    assert late < BOUND + NOISE, f"{what} went on after {late:.1f} s"


class Moments:
    """When something worked."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.all: list[float] = []

    def note(self) -> None:
        self.all.append(time.monotonic())

    def check(self, promoted: float) -> None:
        wait_until(lambda: any(one > promoted for one in self.all), f"{self.what} does not go on", 60)
        in_time(next(one for one in self.all if one > promoted), promoted, self.what)
