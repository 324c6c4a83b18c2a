"""The bench of growth runs, and compares each case with its first."""

from __future__ import annotations

from pathlib import Path

from bench.growth.__main__ import DOCS, markdown, plots, run
from bench.growth.cases import TINY
from bench.peers import pages


def test_each_case_is_compared_with_its_first(tmp_path: Path) -> None:
    figures = run(TINY, "sqlite", tmp_path / "store")
    assert [(one.case, one.number) for one in figures] == [
        *(("drain, queues", number) for number in TINY.queues),
        *(("drain, tasks", number) for number in TINY.tasks),
        *(("drain, groups", number) for number in TINY.groups),
        *(("drain, pending", number) for number in TINY.pending),
        *(("round trip, queues", number) for number in TINY.queues),
        *(("round trip, waiters", number) for number in TINY.waiters),
        *(("round trip, schedules", number) for number in TINY.schedules),
    ]
    assert [one.ratio for one in figures[::2]] == [1.0] * 7
    assert all(one.value > 0 for one in figures)
    assert len(markdown({"sqlite": figures}).splitlines()) == 2 + len(figures)
    drawn = dict(plots({"sqlite": figures}))
    assert len(drawn) == 7
    assert "growth-sqlite-round-trip-waiters" in drawn


def test_the_page_of_growth_has_a_place_for_a_full_run() -> None:
    assert pages.names((DOCS / "scale.md").read_text("utf-8")) == ["growth"]
