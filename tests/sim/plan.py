"""The plan of one seed: the number of actors, the faults, the features. All drawn, all overridable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Final

EPOCH: Final = 1_000_000_000
"""The broker's clock (milliseconds) when a run begins."""

FEATURES: Final = (
    "keys",
    "once",
    "replace",
    "ids",
    "delays",
    "ttl",
    "groups",
    "limits",
    "rates",
    "bounds",
    "flows",
    "speculate",
    "crashers",
    "asking",
    "edits",
    "scopes",
    "prune",
    "stragglers",
    "poison",
)
"""Each seed switches some of these on: a bug that needs few things is not hidden by many others."""


@dataclass(frozen=True)
class Plan:
    """Chances are per call, rates per second of virtual time, lengths in seconds."""

    seed: int
    jobs: int = 40
    producers: int = 2
    workers: int = 3
    sweepers: int = 1
    operators: int = 1
    watchers: int = 3
    leaders: int = 2
    tickers: int = 2
    readers: int = 1
    horizon: float = 60.0
    lease: float = 8.0
    lost: float = 0.0
    """The request never arrives."""
    unheard: float = 0.0
    """The reply never arrives."""
    twice: float = 0.0
    """Delivered twice in a row."""
    late: float = 0.0
    """Delivered once more, much later."""
    stale: float = 0.0
    """The caller gives up before the request arrives."""
    slow: float = 0.02
    """The longest usual delay, each way."""
    skip: float = 0.0
    """A verb of several steps ends after a step."""
    crash: float = 0.0
    freeze: float = 0.0
    cut: float = 0.0
    features: tuple[str, ...] = FEATURES

    def has(self, feature: str) -> bool:
        return feature in self.features

    def dice(self, name: str) -> random.Random:
        """A stream of its own for everyone, so that one more call here changes nothing there."""
        return random.Random(f"{self.seed}:{name}")


def draw(seed: int) -> Plan:
    dice = random.Random(f"plan:{seed}")

    def maybe(chance: float, most: float) -> float:
        return round(dice.uniform(most / 5, most), 3) if dice.random() < chance else 0.0

    return Plan(
        seed=seed,
        jobs=dice.randint(10, 45),
        producers=dice.randint(1, 3),
        workers=dice.randint(1, 4),
        sweepers=dice.choice([1, 1, 1, 2]),
        operators=dice.choice([0, 1, 1, 2]),
        watchers=dice.randint(0, 4),
        leaders=dice.choice([0, 2, 3]),
        tickers=dice.choice([0, 2]),
        readers=dice.choice([0, 1]),
        horizon=float(dice.randint(30, 90)),
        lease=dice.choice([3.0, 4.0, 8.0]),
        lost=maybe(0.6, 0.1),
        unheard=maybe(0.7, 0.15),
        twice=maybe(0.5, 0.15),
        late=maybe(0.5, 0.08),
        stale=maybe(0.4, 0.05),
        slow=dice.choice([0.005, 0.05, 0.4]),
        skip=maybe(0.5, 0.6),
        crash=maybe(0.7, 0.1),
        freeze=maybe(0.5, 0.08),
        cut=maybe(0.5, 0.08),
        features=tuple(name for name in FEATURES if dice.random() < 0.6),
    )


_LEAST = {"producers": 1, "workers": 1, "sweepers": 1, "jobs": 1}
_COUNTS = (
    "jobs",
    "producers",
    "workers",
    "operators",
    "watchers",
    "leaders",
    "tickers",
    "readers",
    "sweepers",
)
_FAULTS = ("lost", "unheard", "twice", "late", "stale", "skip", "crash", "freeze", "cut")


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that are one thing less, the boldest first."""
    for fault in _FAULTS:
        if getattr(plan, fault):
            yield _with(plan, **{fault: 0.0})
    for count in _COUNTS:
        now, least = getattr(plan, count), _LEAST.get(count, 0)
        for fewer in dict.fromkeys((least, now // 2, now - 1)):
            if least <= fewer < now:
                yield _with(plan, **{count: fewer})
    for feature in plan.features:
        yield replace(plan, features=tuple(f for f in plan.features if f != feature))


def to_text(plan: Plan) -> str:
    """The differences of a plan from what its seed draws, for the command line."""
    drawn = draw(plan.seed)
    words = []
    for field in fields(Plan):
        value = getattr(plan, field.name)
        if value != getattr(drawn, field.name):
            words.append(f"{field.name}={'+'.join(value) if isinstance(value, tuple) else value}")
    return ",".join(words)


def from_text(seed: int, text: str) -> Plan:
    """The plan of a seed with `name=value,…` changed; features are joined by `+`."""
    plan = draw(seed)
    for word in filter(None, text.split(",")):
        name, _, value = word.partition("=")
        before = getattr(plan, name, None)
        if isinstance(before, tuple):
            plan = _with(plan, **{name: tuple(filter(None, value.split("+")))})
        elif isinstance(before, int | float) and name != "seed":
            plan = _with(plan, **{name: type(before)(value)})
        else:
            raise ValueError(f"{name} is not part of a plan; these are: {', '.join(_names())}")
    return plan


def _names() -> list[str]:
    return [field.name for field in fields(Plan) if field.name != "seed"]


def _with(plan: Plan, **changes: object) -> Plan:
    return replace(plan, **changes)  # type: ignore[arg-type]  # names and types come from the plan itself
