"""How much of everything: in full, quick for a look, tiny for the tests."""

from __future__ import annotations

from dataclasses import dataclass

SIZES = {1: 2000, 10: 5000, 100: 10_000, 1000: 20_000}
"""Jobs per sample by batch: enough that several checkpoints of the WAL fall into it."""


@dataclass(frozen=True)
class Plan:
    name: str
    rounds: int
    depths: tuple[int, ...]
    """Jobs pending; the first is what the others are compared with."""
    copied: int
    """Up to this depth every sample has a fresh copy of the file; deeper files just go on."""
    most: int
    """No sample handles more jobs than this."""
    upkeep: int
    """Jobs that fall due, and jobs whose leases lapse."""
    seconds: float
    """How long the processes run, each time."""
    processes: int
    wakes: int
    idle: float

    def laps(self, depth: int, batch: int, held: int = 0) -> tuple[int, int]:
        """How many jobs to measure at a time, and how often: whole batches, at most half of what is pending.

        A shallow store is brought back to its depth between the laps: measuring it in one short go would
        leave out the checkpoints that a deep store pays for. `held` are jobs that are taken already.
        """
        whole = min(self.most, SIZES[batch])
        lap = max(batch, min(whole, (depth - held) // 2) // batch * batch)
        return lap, max(1, whole // lap)


FULL = Plan(
    "full",
    rounds=5,
    depths=(1000, 100_000, 1_000_000),
    copied=100_000,
    most=10_000,
    upkeep=10_000,
    seconds=2.0,
    processes=4,
    wakes=300,
    idle=3.0,
)
QUICK = Plan(
    "quick",
    rounds=3,
    depths=(1000, 10_000),
    copied=10_000,
    most=1000,
    upkeep=1000,
    seconds=0.5,
    processes=4,
    wakes=50,
    idle=1.0,
)
TINY = Plan(
    "tiny",
    rounds=2,
    depths=(400, 600, 900),
    copied=600,
    most=200,
    upkeep=100,
    seconds=0.2,
    processes=2,
    wakes=3,
    idle=0.2,
)
