"""The bench of API and worker measures what it says, on real workers."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from bench.measure import Row, Sample
from bench.progress import Progress
from bench.worker.__main__ import run
from bench.worker.drains import BARE, DRAY, drained, fill
from bench.worker.enqueues import PUT
from bench.worker.footing import Idle
from bench.worker.plan import TINY
from bench.worker.tables import Results, data, goal_lines, markdown


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(TINY, tmp_path_factory.mktemp("bench"), Progress(5, io.StringIO()))


def test_every_part_is_measured_on_both_sides(results: Results) -> None:
    assert [row.parameters["tasks"] for row in results.drains] == ["async", "async", "sync", "sync"]
    for row in results.drains:
        assert row.samples.keys() == {BARE, DRAY}
        assert {sample.count for samples in row.samples.values() for sample in samples} == {TINY.jobs}
    for row in results.enqueues:
        assert row.samples.keys() == {BARE, PUT, DRAY}
        assert len({sample.count for samples in row.samples.values() for sample in samples}) == 1
    assert [stage.name for stage in results.stages] == ["async", "sync"]
    assert all(stage.parts.keys() == {"take", "decode", "run", "settle"} for stage in results.stages)
    assert results.starts["import dray"] > 0
    assert results.idle is not None
    assert results.idle.processes == 4
    assert results.idle.memory > 0
    assert results.idle.started > 0


def test_the_report_has_every_table_and_every_goal(results: Results) -> None:
    text = markdown(results)
    for head in (
        "dray / bare",
        "verb `put`",
        "| take |".replace("| take |", "take"),
        "import dray",
        "An idle worker",
    ):
        assert head in text
    assert len(list(goal_lines(results))) == 7
    assert data(results)["facts"] == results.facts


def test_a_goal_that_is_missed_is_called_missed() -> None:
    slow = Row("drain", {"tasks": "async"}, {BARE: [Sample(1, 100)], DRAY: [Sample(1, 10)]})
    slower = Row("drain", {"tasks": "sync"}, {BARE: [Sample(1, 100)], DRAY: [Sample(1, 2)]})
    results = Results({}, drains=[slow, slower], idle=Idle(3, 0.02, 50, 0.6))
    assert [": missed, " in line for line in goal_lines(results)] == [True, True, True, True, True]


def test_a_store_that_was_not_drained_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "full.db"
    fill(path, "noop", 3)
    with pytest.raises(RuntimeError, match="0 of 3 jobs were drained"):
        drained(path, 3)
