"""The bench of the service measures what it says; an overloaded server sheds, stays small, loses nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from bench.progress import Progress
from bench.service.__main__ import run
from bench.service.cases import DIRECT, FLOOR
from bench.service.overload import Ordeal, missing
from bench.service.plan import TINY
from bench.service.tables import Results, data, markdown
from redis_server import need

from dray import App

GROWTH = 2
"""Times its memory at rest that a server may use: far more than the few requests need that fit its room."""
SHED = {"201", "429", "503", "OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    need("valkey")
    return run(TINY, tmp_path_factory.mktemp("bench"), Progress(2, io.StringIO()))


def test_every_case_is_measured_on_both_brokers_and_on_the_floor(results: Results) -> None:
    assert [(row.name, row.parameters["connections"]) for row in results.requests.rows] == [
        ("HTTP: submit", 1),
        ("HTTP: submit", 4),
        ("HTTP: batch of 10", 8),
        ("HTTP: get a job", 4),
        ("HTTP: submit, wait for the result", 8),
        ("gRPC: Enqueue", 1),
        ("gRPC: Enqueue", 4),
        ("gRPC: EnqueueBatch of 10", 8),
        ("gRPC: FetchAndHold and Ack", 8),
        ("gRPC: Work", 1),
        ("gRPC: Work", 8),
        ("gRPC: Work, from Node", 1),
    ]
    for row in results.requests.rows:
        wanted = {FLOOR, "SQLite", "Valkey"}
        if row.name == "HTTP: submit":
            wanted |= {f"SQLite {DIRECT}", f"Valkey {DIRECT}"}
        assert row.samples.keys() == wanted
    assert all(results.requests.times.values())


def _kind(results: Results, start: str) -> list[Ordeal]:
    found = [one for one in results.ordeals if one.name.startswith(start)]
    assert {one.broker for one in found} >= {"Valkey"}
    return found


def test_nothing_that_was_accepted_is_lost_whatever_happens(results: Results) -> None:
    assert [one for one in results.ordeals if one.lost] == []
    for start in ("4 ×", "the broker", "readers", "SIGKILL"):
        assert all(one.accepted for one in _kind(results, start)), start


def test_what_is_too_much_is_refused_with_a_time_to_come_back(results: Results) -> None:
    for start in ("4 × the connections, HTTP", "the broker", "readers", "SIGKILL, HTTP"):
        for one in _kind(results, start):
            assert one.refused, one
            assert one.without_hint == 0, one
            assert one.statuses.keys() <= {"201", "429", "503", "OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"}, (
                one
            )
    for one in _kind(results, "bodies without end"):
        assert one.statuses.keys() <= {"413", "503", "cut"}, one
        assert "413" in one.statuses


def test_the_server_stays_small(results: Results) -> None:
    for one in results.ordeals:
        assert one.peak < one.before * GROWTH, one


def test_the_report_has_every_table(results: Results) -> None:
    text = markdown(results)
    for head in ("dray / floor", "HTTP / aenqueue", "next accepted after"):
        assert head in text
    assert text.count("SIGKILL") == 4
    assert data(results)["facts"] == results.facts


def test_a_job_that_is_not_there_is_noticed(tmp_path: Path) -> None:
    app = App("bench", broker=f"sqlite:///{tmp_path}/jobs.db")
    kept = app.enqueue("noop", 1)
    assert missing(app, [kept.id, "lost"]) == ["lost"]
