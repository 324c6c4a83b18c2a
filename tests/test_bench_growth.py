"""The bench of growth runs, and compares each case with its first."""

from __future__ import annotations

from pathlib import Path

from bench.growth.__main__ import markdown, run
from bench.growth.cases import TINY


def test_each_case_is_compared_with_its_first(tmp_path: Path) -> None:
    figures = run(TINY, "sqlite", tmp_path / "store")
    assert [(one.case, one.number) for one in figures] == [
        *(("drain, queues", number) for number in TINY.queues),
        *(("drain, tasks", number) for number in TINY.tasks),
        *(("drain, groups", number) for number in TINY.groups),
        *(("round trip, queues", number) for number in TINY.queues),
    ]
    assert [one.ratio for one in figures[::2]] == [1.0] * 4
    assert all(one.value > 0 for one in figures)
    assert len(markdown({"sqlite": figures}).splitlines()) == 2 + len(figures)
