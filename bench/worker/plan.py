"""How much of everything: in full, quick for a look, tiny for the tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    name: str
    rounds: int
    jobs: int
    """Drained per sample."""
    singles: int
    """Enqueued one by one per sample."""
    imports: int
    idle: float
    """Seconds over which an idle worker is watched."""


FULL = Plan("full", rounds=5, jobs=20_000, singles=2000, imports=15, idle=20.0)
QUICK = Plan("quick", rounds=3, jobs=5000, singles=500, imports=5, idle=5.0)
TINY = Plan("tiny", rounds=1, jobs=200, singles=20, imports=1, idle=0.5)
