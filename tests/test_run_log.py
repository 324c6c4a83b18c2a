"""A worker's log of its runs: a line each, a traceback on the last failure, and a bound under load."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from workshop import NOW, at_work, ended, live_of, run

from dray.app import App
from dray.job import Error, Outcome, OutcomeKind
from dray.worker.executor.run_log import LINES_A_SECOND, RunLog
from dray.worker.logs import ConsoleFormatter, JsonFormatter
from dray.worker.run.run_state import RunState


class Bench:
    def __init__(self) -> None:
        self.time = 10.0
        self.app = App("t", broker="memory://")
        self.app.task(name="resize", queue="images", retries=3)(lambda: None)
        self.log = RunLog(lambda: self.time, lambda: NOW)

    def live(self, attempt: int = 1, **fields: Any) -> RunState:
        live = live_of(self.app, "resize", attempt=attempt, **fields)
        live.began = self.time - 0.25
        return live

    def outcome(self, live: RunState, kind: OutcomeKind, **facts: Any) -> Outcome:
        return Outcome(id=live.taken.job.id, run=1, kind=kind, **facts)


@pytest.fixture
def bench(caplog: pytest.LogCaptureFixture) -> Bench:
    caplog.set_level(logging.INFO, logger="dray.worker")
    return Bench()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_finished_job_is_one_line_with_task_id_duration_and_queue(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    live = bench.live()
    bench.log.succeeded(live)
    [record] = caplog.records
    id = live.taken.job.id
    assert record.getMessage() == f"resize {id} succeeded in 0.250 s (queue images)"
    line = ConsoleFormatter().format(record)
    assert line.endswith(record.getMessage()), "the job is named once"
    told = json.loads(JsonFormatter().format(record))
    assert {name: told[name] for name in ("task", "job", "queue", "duration", "outcome", "attempt")} == {
        "task": "resize",
        "job": id,
        "queue": "images",
        "duration": 0.25,
        "outcome": "succeeded",
        "attempt": 1,
    }


def test_a_failure_tells_its_attempt_and_the_next_try(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    live = bench.live(attempt=2)
    error = Error("ValueError", "no such file", "Traceback\n  boom")
    bench.log.ended(live, bench.outcome(live, OutcomeKind.RETRY, at=NOW + 4100, error=error))
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "failed after 0.250 s: ValueError: no such file (attempt 2 of 4, the next in 4.1 s)" in (
        record.getMessage()
    )
    assert "boom" not in ConsoleFormatter().format(record), "only the last failure is told in full"
    assert json.loads(JsonFormatter().format(record))["next_try"] == 4.1


def test_the_last_failure_comes_with_its_traceback_in_both_formats(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    live = bench.live(attempt=4)
    text = 'Traceback (most recent call last):\n  File "x.py", line 3\nValueError: \x1b[31mno\n12:00 forged'
    error = Error("ValueError", "no", text)
    reason = "failed: ValueError: no (4 attempts)"
    bench.log.ended(live, bench.outcome(live, OutcomeKind.DEAD, error=error, reason=reason))
    [record] = caplog.records
    assert record.levelname == "ERROR"
    assert f"is dead after 0.250 s: {reason}" in record.getMessage()
    first, *rest = ConsoleFormatter().format(record).splitlines()
    assert first.endswith("(queue images)")
    assert "    Traceback (most recent call last):" in rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest), "none passes for ours"
    assert "line 3" in json.loads(JsonFormatter().format(record))["traceback"]


def test_crashed_cancelled_and_handed_back_runs_are_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    live = bench.live()
    crash = bench.outcome(live, OutcomeKind.CRASHED, error=Error("Crashed", "its process was killed"))
    for outcome in (
        crash,
        bench.outcome(live, OutcomeKind.CANCELLED),
        bench.outcome(live, OutcomeKind.GIVE_BACK),
    ):
        bench.log.ended(live, outcome)
    crashed, cancelled, given_back = lines(caplog)
    assert "crashed after 0.250 s: Crashed: its process was killed (crash 1 of 3)" in crashed
    assert "was cancelled after 0.250 s" in cancelled
    assert "is handed back after 0.250 s" in given_back


def test_under_load_a_second_has_a_bounded_number_of_lines_and_a_summary(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    live = bench.live()
    for _ in range(4210 + LINES_A_SECOND):
        bench.log.succeeded(live)
    failed = bench.outcome(live, OutcomeKind.RETRY, at=NOW, error=Error("ValueError", "no"))
    for _ in range(LINES_A_SECOND + 3):
        bench.log.ended(live, failed)
    bench.time += 1
    bench.log.sum_up()
    assert len(caplog.records) == 2 * LINES_A_SECOND + 1, "failures keep lines of their own"
    last = caplog.records[-1]
    assert last.getMessage() == "4,213 more runs ended in the last second, 3 failed"
    assert last.levelname == "WARNING"
    caplog.clear()
    bench.log.succeeded(live)
    bench.time += 1
    bench.log.sum_up()
    assert len(caplog.records) == 1, "a new second has room again, and nothing to sum up"


def test_a_quiet_worker_logs_failures_only(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="dray.worker")
    log, live = RunLog(lambda: bench.time, lambda: NOW), bench.live()
    log.succeeded(live)
    log.sum_up()
    assert not caplog.records
    log.ended(live, bench.outcome(live, OutcomeKind.DEAD, reason="failed: x"))
    assert len(caplog.records) == 1


def test_an_executor_logs_each_of_its_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="dray.worker")
    app = App("t", broker=f"sqlite:///{tmp_path}/q.db", concurrency=2, retries=1, backoff="fixed:0.01s")

    @app.task
    async def greet() -> str:
        return "hello"

    @app.task
    def fail() -> None:
        raise ValueError("never")

    async def main() -> None:
        async with at_work(app) as executor:
            broker = executor._broker
            for name in ("greet", "fail"):
                (accepted,) = await broker.put([app.job_builder.build(app.tasks[name].call())])
                await ended(broker, accepted.id)

    run(main())
    told = [line for line in lines(caplog) if line.startswith(("greet ", "fail "))]
    assert [line.split()[2] for line in told] == ["succeeded", "failed", "is"]
    [dead] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert 'raise ValueError("never")' in (dead.exc_text or "")
