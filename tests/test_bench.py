"""The benchmark measures what it says: same work on both sides, ratios from what was measured."""

from __future__ import annotations

import io
import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from bench.machine import is_quiet
from bench.measure import Measurement, Row, Sample, Spread, compare, interleave, percentile
from bench.progress import Progress
from bench.report import change, count, short, table, write_json
from bench.sqlite.cases import Case, cycle_case, groups_of, put_case
from bench.sqlite.plan import FULL, TINY
from bench.sqlite.processes import DRAY as DRAY_CROWD
from bench.sqlite.processes import Told, evenness
from bench.sqlite.run import Mismatch, run
from bench.sqlite.script import perform, play_bare, play_dray, record
from bench.sqlite.stage import BARE, DRAY, Continued, Fresh, script_of
from bench.sqlite.store import Supply, copy, differences, fill
from bench.sqlite.tables import (
    Results,
    data,
    depth_table,
    goal_lines,
    limit_table,
    markdown,
    verb_table,
    waking_line,
)
from bench.sqlite.waking import summarise

SMALL = replace(TINY, rounds=1, depths=(200, 300), copied=200, most=20, upkeep=20, seconds=0.02, wakes=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("bench")
    found = run(SMALL, folder, lambda total: Progress(total, io.StringIO()))
    assert list(folder.iterdir()) == []
    return found


def test_a_tiny_run_measures_every_case_at_every_depth(results: Results) -> None:
    asked = {(case.name, *case.parameters.items()) for group in groups_of(SMALL) for case in group}
    assert {(row.name, *row.parameters.items()) for row in results.rows} == asked
    for row in results.rows:
        assert row.samples.keys() == {DRAY, BARE}
        assert row.samples[DRAY][0].count == row.samples[BARE][0].count > 0
    assert {row.parameters["pending"] for row in results.rows if row.name == "put"} == {200, 300}


def test_a_tiny_run_has_processes_and_waking(results: Results) -> None:
    assert {(one.subject, one.processes) for one in results.crowds} >= {(DRAY_CROWD, 1), (DRAY_CROWD, 2)}
    assert all(one.rate.median > 0 and one.longest >= one.p50 for one in results.crowds)
    assert results.waking is not None
    assert results.waking.wakes == 2


def test_a_tiny_run_can_be_shown_and_kept(results: Results, tmp_path: Path) -> None:
    text = markdown(results)
    for words in ("dray / bare", "What limits cost", "Processes on one file", "An idle worker"):
        assert words in text
    write_json(tmp_path / "out" / "sqlite.json", data(results))
    kept = json.loads((tmp_path / "out" / "sqlite.json").read_text("utf-8"))
    assert kept["facts"]["pragmas"]["journal_mode"] == "wal"
    assert len(kept["verbs"]) == len(results.rows)
    assert (tmp_path / "out" / ".gitignore").read_text("utf-8") == "*\n"


@pytest.mark.parametrize("case", [put_case(SMALL, 300, 10), cycle_case(SMALL, 300, 10)], ids=lambda c: c.name)
def test_the_bare_loop_does_what_dray_does(tmp_path: Path, case: Case) -> None:
    base, supply = tmp_path / "base.db", Supply()
    fill(base, supply, 300)
    if case.prepare is not None:
        perform(base, supply, case.prepare)
    recorded, dray, bare = (copy(base, tmp_path / f"{name}.db") for name in ("recorded", "dray", "bare"))
    script = script_of(case, recorded, supply)
    assert play_dray(dray, script).count == play_bare(bare, script).count == case.count * case.laps
    assert differences(dray, bare) == differences(dray, recorded) == []
    assert "jobs" in differences(dray, base)


def test_the_script_holds_every_statement_of_the_transaction(tmp_path: Path) -> None:
    supply = Supply()
    fill(tmp_path / "base.db", supply, 1)
    job = supply.job()

    def put(play: object, supply: Supply) -> int:
        assert callable(play)
        play("put", [job])
        return 1

    script = record(tmp_path / "base.db", supply, [(False, lambda play, supply: 5), (True, put)])
    idle, timed = script.stretches
    texts = [statement.sql for statement in timed.statements]
    assert (texts.count("BEGIN IMMEDIATE"), texts.count("COMMIT")) == (1, 1)
    assert any(text.startswith("INSERT INTO jobs") for text in texts)
    assert (idle.statements, script.timed, script.count) == ([], [timed], 1)


def test_a_difference_between_the_files_is_found(tmp_path: Path) -> None:
    one, other = tmp_path / "one.db", tmp_path / "other.db"
    fill(one, Supply(), 5)
    copy(one, other)
    assert differences(one, other) == []
    database = sqlite3.connect(other)
    database.execute("DELETE FROM bodies WHERE job = 5")
    database.execute("UPDATE jobs SET pos = pos + 1 WHERE seq = 3")
    database.commit()
    database.close()
    assert differences(one, other) == ["bodies", "jobs"]


def test_a_run_whose_files_differ_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("bench.sqlite.stage.differences", lambda one, other: ["jobs"])
    with pytest.raises(Mismatch, match="put × 1, 200 pending the two files differ in jobs"):
        run(SMALL, tmp_path, lambda total: Progress(total, io.StringIO()))


def test_a_continued_stage_keeps_its_files_alike_over_rounds_and_cases(tmp_path: Path) -> None:
    store, supply = tmp_path / "store.db", Supply()
    fill(store, supply, 500)
    stage = Continued(store, supply, tmp_path / "stage")
    for case in (put_case(SMALL, 500, 10), cycle_case(SMALL, 500, 10)):
        (row,) = interleave(stage.measurements(case), 2)
        assert [sample.count for sample in row.samples[DRAY]] == [case.count * case.laps] * 2
    assert stage.close() == []


def test_a_shallow_store_keeps_its_depth_between_laps(tmp_path: Path) -> None:
    store, supply = tmp_path / "store.db", Supply()
    fill(store, supply, 100)
    plan = replace(SMALL, depths=(100,), most=150)
    for name, case in {"puts": put_case(plan, 100, 10), "takes": cycle_case(plan, 100, 10)}.items():
        assert (case.count, case.laps) == (50, 3)
        stage = Fresh(case, store, supply, tmp_path / name)
        (row,) = interleave(stage.measurements(), 1)
        assert row.samples[DRAY][0].count == 150
        assert ready(tmp_path / name / "dray.db") == (150 if name == "puts" else 50)
        assert stage.close() == []


def ready(path: Path) -> int:
    database = sqlite3.connect(path)
    (number,) = database.execute("SELECT count(*) FROM jobs WHERE state = 2").fetchone()
    database.close()
    return int(number)


def test_rounds_are_interleaved_and_rows_keep_them_apart() -> None:
    order: list[str] = []

    def measurement(subject: str) -> Measurement:
        def sample(round: int) -> Sample:
            order.append(f"{subject}{round}")
            return Sample(1.0, round + 1)

        return Measurement("put", {"batch": 1}, subject, sample)

    (row,) = interleave([measurement("bare"), measurement("dray")], 3)
    assert order == ["bare0", "dray0", "dray1", "bare1", "bare2", "dray2"]
    assert [sample.count for sample in row.samples["dray"]] == [1, 2, 3]


def fake(pending: int, dray: list[float], bare: list[float], **parameters: str | int) -> Row:
    """A row in which 1000 jobs took so many seconds in each round."""
    samples = {
        subject: [Sample(seconds, 1000, seconds / 2) for seconds in times]
        for subject, times in ((DRAY, dray), (BARE, bare))
    }
    return Row("put", {"batch": 10, "pending": pending, **parameters}, samples)


def test_the_ratio_is_that_of_the_rounds_measured_together() -> None:
    row = fake(1000, [2.0, 4.0, 10.0], [1.0, 3.0, 2.0])
    assert row.ratio(DRAY, BARE) == Spread(0.5, 0.2, 0.75)
    assert row.rate(DRAY) == Spread(250.0, 100.0, 500.0)
    assert row.cpu(DRAY).median == pytest.approx(2000.0)
    assert "| put | 10 | 1 k | 500 | 250 | 50 % (20–75) | 2000.0 | 1000.0 |" in verb_table([row])


def test_depth_is_compared_with_the_shallowest_store() -> None:
    rows = [fake(1000, [1.0], [1.0]), fake(1_000_000, [2.0], [1.5])]
    assert "| put | 10 | 100 % (100–100) | 50 % (50–50) |" in depth_table(rows)
    first, second = goal_lines(rows)
    assert "met, the least is 75 % (put × 10, 1 M)" in first
    assert "missed, the least is 50 % (put × 10)" in second
    assert depth_table(rows[:1]) == ""


def test_the_cost_of_a_limit_is_in_time_per_job() -> None:
    rows = [
        fake(1000, [1.0], [1.0], limit="none"),
        fake(1000, [1.25], [1.0], limit="rate"),
    ]
    assert "| rate | 10 | 1 k | 1,000 | 800 | +25 % | 80 % (80–80) |" in limit_table(rows)


def test_rates_of_different_rounds_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="longer"):
        compare([Sample(1.0, 1)], [Sample(1.0, 1)] * 2)


def test_a_starved_process_shows() -> None:
    workers = [Told(jobs, 1.0, 0.001, 0.002, 0.003) for jobs in (100, 50, 20, 100)]
    assert evenness(workers) == 0.2


def test_waking_is_told_in_fitting_units() -> None:
    line = waking_line(summarise([0.0002, 0.0004, 0.0003, 1.5], 0.003, 3.0))
    assert "300 µs (p50), 1.50 s (p99), 1.50 s (longest of 4)" in line
    assert "0.10 % of a core (over 3 s)" in line


def test_figures_are_short() -> None:
    assert (count(1_234_567), count(987.6)) == ("1,230,000", "988")
    assert (short(100_000), short(1_000_000), short(1500)) == ("100 k", "1 M", "1,500")
    assert (change(0.071), change(-0.2)) == ("+7 %", "−20 %")
    assert [percentile([3, 1, 2, 4], percent) for percent in (50, 99, 100)] == [2, 4, 4]
    assert table(("a", "b"), [("x", 1)]) == "| a | b |\n| --- | --: |\n| x | 1 |\n"
    assert table(("a",), []) == ""


def test_a_busy_machine_is_told() -> None:
    assert is_quiet(0.5, 2)
    assert not is_quiet(1.5, 2)


def test_the_full_plan_covers_what_is_asked() -> None:
    cases = [case for group in groups_of(FULL) for case in group]
    shown = {(case.name, case.parameters["batch"], case.depth) for case in cases}
    for depth in (1000, 100_000, 1_000_000):
        assert {("put", batch, depth) for batch in (1, 10, 100, 1000)} <= shown
        assert {("take + settle", batch, depth) for batch in (1, 10, 100)} <= shown
    assert any(case.parameters.get("groups") == 100_000 for case in cases)
    assert all(case.count % int(case.parameters["batch"]) == 0 for case in cases if case.restore)
    assert all(case.count <= case.depth // 2 for case in cases if case.name.startswith(("take", "settle")))


def test_progress_is_plain_lines_where_nobody_watches() -> None:
    stream = io.StringIO()
    progress = Progress(2, stream)
    progress.step("put")
    progress.tell("round 1 of 5")
    progress.end()
    lines = stream.getvalue().splitlines()
    assert [line.split("s  ", 1)[1] for line in lines] == ["1/2  put", "1/2  done"]
    assert "\x1b" not in stream.getvalue()
