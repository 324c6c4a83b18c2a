"""Sketches of durations: small, mergeable, and near the truth."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from dray.stats.sketch import BUCKETS, KEPT, LOWEST, Sketch, bounds_of, bucket_of

BUCKET = 2**0.5


def exact(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@pytest.mark.parametrize("seconds", [1e-9, LOWEST / 2, LOWEST, 0.0003, 0.001, 0.7, 1.0, 1.5, 60.0, 86_400.0])
def test_every_length_is_in_the_bucket_that_covers_it(seconds: float) -> None:
    begin, end = bounds_of(bucket_of(seconds))
    assert seconds < end
    assert begin <= seconds or bucket_of(seconds) == 0


def test_what_is_longer_than_all_buckets_is_in_the_last() -> None:
    assert bucket_of(1e9) == BUCKETS - 1
    assert bounds_of(BUCKETS - 1)[1] > 2 * 86_400


@pytest.mark.parametrize("percent", [50, 95, 99])
@pytest.mark.parametrize("kind", ["even", "exponential", "log-normal", "two humps"])
def test_percentiles_are_near_the_truth(kind: str, percent: float) -> None:
    dice = random.Random(f"{kind}{percent}")
    kinds: dict[str, Callable[[], float]] = {
        "even": lambda: dice.uniform(0.01, 0.5),
        "exponential": lambda: dice.expovariate(4),
        "log-normal": lambda: dice.lognormvariate(-4, 1.2),
        "two humps": lambda: dice.gauss(5, 0.2) if dice.random() < 0.1 else dice.uniform(0.09, 0.11),
    }
    values = [max(1e-6, kinds[kind]()) for _ in range(4000)]
    sketch = Sketch()
    sketch.add(values)
    truth = exact(values, percent)
    assert truth / BUCKET < sketch.percentile(percent) < truth * BUCKET
    if kind != "two humps":  # smooth, as most are
        assert sketch.percentile(percent) == pytest.approx(truth, rel=0.12)
    assert sketch.percentile(100) == pytest.approx(max(values), rel=0.01)


def test_nothing_counted_is_zero_and_one_value_is_itself() -> None:
    sketch = Sketch()
    assert (sketch.percentile(99), sketch.average, sketch.weight) == (0.0, 0.0, 0.0)
    sketch.add([0.2])
    assert sketch.average == pytest.approx(0.2)
    assert sketch.percentile(99) == pytest.approx(0.2, rel=0.01)


def test_two_side_by_side_tell_the_same_as_one_that_saw_all() -> None:
    dice = random.Random(1)
    values = [dice.expovariate(2) for _ in range(2000)]
    whole, left, right = Sketch(), Sketch(), Sketch()
    whole.add(values)
    left.add(values[:700])
    right.add(values[700:])
    both = left.beside(right)
    assert both.counts == whole.counts
    assert both.longest == whole.longest
    assert both.average == pytest.approx(sum(values) / len(values))
    assert left.weight == 700


def test_the_average_follows_a_change_within_some_dozens_of_values() -> None:
    sketch = Sketch()
    sketch.add([0.1] * 5000)
    for _ in range(60):
        newer = Sketch()
        newer.add([1.0])
        sketch.merge(newer)
    assert sketch.average == pytest.approx(1.0, rel=0.1)
    assert sketch.percentile(50) == pytest.approx(0.1, rel=0.5)


def test_old_values_fade_so_that_it_never_stands_for_more_than_its_bound() -> None:
    sketch = Sketch()
    sketch.add([30.0] * 50)
    for _ in range(40):
        newer = Sketch()
        newer.add([0.1] * 2000)
        sketch.merge(newer)
        assert sketch.weight <= KEPT
    assert sketch.percentile(99.9) == pytest.approx(0.1, rel=0.5)
    assert sketch.longest < 1
    assert len(sketch.counts) == 1
