"""How much of everything: in full, quick for a look, tiny for the tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    name: str
    rounds: int
    requests: int
    """Per sample; fewer with a single connection."""
    connections: tuple[int, ...]
    batch: int
    room: int
    """Requests that an overloaded server works on at a time."""
    seconds: float
    """For how long it is overloaded."""
    pause: float
    """Seconds for which the broker stands still."""
    readers: int
    """Clients that follow events and do not read."""


FULL = Plan("full", 5, 4000, (1, 8, 64), batch=100, room=16, seconds=5.0, pause=1.0, readers=100)
QUICK = Plan("quick", 3, 1000, (1, 8, 64), batch=100, room=16, seconds=2.0, pause=1.0, readers=50)
TINY = Plan("tiny", 1, 16, (1, 4), batch=10, room=4, seconds=0.3, pause=0.3, readers=5)
