"""How much of everything: in full, quick for a look, tiny for the tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    name: str
    rounds: int
    seconds: float
    """How long a drain should take: each subject gets as many jobs as it is known to run in that time."""
    least: int
    """Jobs per drain, at least."""
    singles: int
    """Enqueued per sample: one by one and concurrently."""
    bulk: int
    """Enqueued per sample in bulk."""
    probes: int
    trips: int
    gap: float
    """Seconds between probes, on average."""
    idle: float
    """Seconds over which an idle worker is watched; 0 leaves it out."""
    load: float
    """Seconds of half load; 0 leaves it out."""
    warm: float
    """Seconds of work, of the kind that is measured next, for subjects that adapt to it."""
    kinds: tuple[str, ...]
    """What is drained: noop, plain, io."""
    special: bool
    """Whether measures that take a worker of their own (other settings are best for them) are made."""
    depths: tuple[int, ...]
    """For dray alone: jobs pending."""
    payloads: tuple[int, ...]
    executors: tuple[int, ...]
    alone_rounds: int
    without: tuple[str, ...] = ()
    """Subjects that a short look can do without; the report says so."""

    def jobs(self, pace: float) -> int:
        return max(self.least, int(pace * self.seconds))


FULL = Plan(
    "full",
    rounds=5,
    seconds=1.0,
    least=600,
    singles=600,
    bulk=10_000,
    probes=150,
    trips=80,
    gap=0.01,
    idle=1.0,
    load=1.2,
    warm=5.0,
    kinds=("noop", "plain", "io"),
    special=True,
    depths=(1000, 100_000, 1_000_000),
    payloads=(100, 1000, 10_000, 100_000),
    executors=(1, 2, 4),
    alone_rounds=2,
)
QUICK = Plan(
    "quick",
    rounds=3,
    seconds=0.2,
    least=200,
    singles=200,
    bulk=1000,
    probes=25,
    trips=10,
    gap=0.008,
    idle=0.0,
    load=0.0,
    warm=0.3,
    kinds=("noop", "plain", "io"),
    special=False,
    depths=(),
    payloads=(),
    executors=(),
    alone_rounds=1,
    without=("dray, no settings", "celery prefork"),
)
TINY = Plan(
    "tiny",
    rounds=1,
    seconds=0.01,
    least=30,
    singles=10,
    bulk=20,
    probes=3,
    trips=2,
    gap=0.005,
    idle=0.1,
    load=0.2,
    warm=0.01,
    kinds=("noop", "plain", "io"),
    special=True,
    depths=(50, 100),
    payloads=(100, 1000),
    executors=(1,),
    alone_rounds=1,
)
