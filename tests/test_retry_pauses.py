"""The pauses between tries."""

from __future__ import annotations

import random

import pytest

from dray.retry_pauses import RetryPauses


def test_pauses_double_up_to_the_longest() -> None:
    pauses = RetryPauses(0.1, 1.0, jitter=0)
    assert [pauses.next() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_the_factor_may_be_another() -> None:
    pauses = RetryPauses(1.0, 5.0, factor=1.5, jitter=0)
    assert [pauses.next() for _ in range(3)] == pytest.approx([1.0, 1.5, 2.25])


def test_a_success_begins_again_with_the_first_pause() -> None:
    pauses = RetryPauses(0.1, 1.0, jitter=0)
    pauses.next(), pauses.next()
    assert pauses.tries == 2
    pauses.reset()
    assert pauses.tries == 0
    assert pauses.next() == pytest.approx(0.1)


@pytest.mark.parametrize(("chance", "length"), [(0.0, 1.0), (0.5, 0.75), (1.0, 0.5)])
def test_jitter_only_shortens(chance: float, length: float) -> None:
    assert RetryPauses(1.0, 9.0, random=lambda: chance).next() == pytest.approx(length)


def test_jittered_pauses_grow_all_the_same_and_keep_to_the_longest() -> None:
    for seed in range(50):
        pauses = RetryPauses(0.1, 1.0, random=random.Random(seed).random)
        lengths = [pauses.next() for _ in range(2000)]
        assert all(0.5 * low <= one <= low for one, low in zip(lengths, [0.1, 0.2, 0.4, 0.8], strict=False))
        assert all(0.5 <= one <= 1.0 for one in lengths[4:])
