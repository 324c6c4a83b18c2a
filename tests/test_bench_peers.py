"""The bench of the peers measures what it says: on dray and on a stand-in, without installing anybody."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.peers import envs, lineup, pages, servers
from bench.peers.__main__ import PAGES, version, write
from bench.peers.alone import Alone
from bench.peers.books import Books, Unfinished, wait_until
from bench.peers.crew import Broken
from bench.peers.figures import Figured
from bench.peers.goals import goals
from bench.peers.inside import Driver, Producer
from bench.peers.lineup import Subject, stub
from bench.peers.plan import FULL, QUICK, TINY
from bench.peers.plots import Bar, bars
from bench.peers.run import install, rounds
from bench.peers.session import Place, measure
from bench.peers.summary import summary_table, words
from bench.peers.tables import Results, blocks, data, markdown, plots
from redis_server import running

PROGRAM = Path(__file__).parent / "peer_stub.py"
QUICKEST = replace(TINY, load=0.0)
FACTS: dict[str, object] = {
    "date": "2026-01-02T03:04:05", "cpu": "a cpu", "cores": 2, "system": "Linux", "python": "3",
    "sqlite": "3", "server": "a server", "durability": "none", "plan": "tiny", "rounds": 1, "load": 0.1,
    "quiet": True, "minutes": 1,
}  # fmt: skip


def embedded(tmp_path: Path) -> tuple[Subject, Path]:
    """dray on a file, in the environment that the tests run in."""
    home = tmp_path / "env"
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "python"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    program.chmod(0o755)
    return lineup.EMBEDDED, home


def faulty(fault: str) -> Subject:
    subject = stub("stub", PROGRAM)
    return replace(subject, groups=(replace(subject.groups[0], environ={"BENCH_STUB": fault}),))


def place(tmp_path: Path, **folders: Path) -> Place:
    return Place("", {"": Path(), **folders}, tmp_path)


def test_both_subjects_deliver_every_measure(tmp_path: Path) -> None:
    ours, home = embedded(tmp_path)
    figured = Figured()
    rounds(TINY, [ours, stub("stub", PROGRAM)], place(tmp_path, dray=home), figured, lambda text: None)
    assert figured.failures == {}
    common = {"enqueue blocking", "enqueue bulk", "drain noop", "drain io", "idle", "load", "pss"}
    delays = {f"{name} p{n}" for name in ("start idle", "trip idle", "start loaded") for n in (50, 95, 99)}
    assert figured.figures["stub"].keys() == common | delays
    assert figured.figures[ours.name].keys() == common | delays | {
        "enqueue awaited",
        "enqueue concurrent",
        "drain plain",
    }
    assert all(len(found) == TINY.rounds for found in figured.figures["stub"].values())
    assert all(found[0] > 0 for name, found in figured.figures["stub"].items() if name != "idle")
    results = Results(FACTS, figured)
    write(results, tmp_path / "out", tmp_path / "img")
    assert json.loads((tmp_path / "out" / "peers.json").read_text())["figures"].keys() == set(
        figured.subjects
    )
    assert (tmp_path / "img" / "peers-drain.svg").exists()


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        ("twice", Unfinished, "ran more than once"),
        ("fail", Broken, "the stub was told to fail"),
    ],
)
def test_a_subject_that_does_not_do_its_work_is_no_result(
    tmp_path: Path, fault: str, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        measure(QUICKEST, faulty(fault), place(tmp_path))


def test_jobs_that_did_not_run_are_missed(tmp_path: Path) -> None:
    books = Books(tmp_path)
    (tmp_path / "marks-1-100").write_bytes(
        (5).to_bytes(8, "little") + (9).to_bytes(8, "little") + b"\1\0\1\0"
    )
    (tmp_path / "marks-1-200").write_bytes(
        (3).to_bytes(8, "little") + (7).to_bytes(8, "little") + b"\0\1\0\0"
    )
    assert books.done(1, 4) == 3
    assert books.seconds(1) == pytest.approx(6e-9)
    books.verify(1, 3)
    with pytest.raises(Unfinished, match="of 4 jobs 1 did not run"):
        books.verify(1, 4)
    with pytest.raises(Unfinished, match="3 of 4 jobs ran, then nothing"):
        wait_until(lambda: books.done(1, 4), 4, lambda: None, still=0.05)


def test_a_failed_subject_is_reported_and_the_others_go_on(tmp_path: Path) -> None:
    figured = Figured()
    broken = replace(faulty("fail"), name="broken")
    absent = replace(stub("absent", PROGRAM), env="nowhere")
    plan = replace(QUICKEST, rounds=3, kinds=("noop",), idle=0.0)
    rounds(plan, [broken, absent, stub("stub", PROGRAM)], place(tmp_path), figured, lambda text: None)
    assert figured.failures["absent"] == "not installed"
    assert "told to fail" in figured.failures["broken"]
    assert len(figured.figures["stub"]["drain noop"]) == 3
    text = markdown(Results(FACTS, figured))
    assert re.search(r"\| broken \| failed", text)
    assert "- broken: Broken: the worker ended with 1: the stub was told to fail" in text


def test_an_environment_that_cannot_be_made_fails_its_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envs, "PINS", tmp_path)
    monkeypatch.setattr(envs, "ENVS", tmp_path / "envs")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    (tmp_path / "dray.txt").write_text("nothing==1\n")
    figured = Figured()
    install([lineup.DRAY, lineup.DEFAULTS], figured, lambda text: None)
    assert "not installed" in figured.failures["dray"]


def test_a_producer_says_what_it_can() -> None:
    class Awaited(Producer):
        async def aput(self, task: str, n: int, payload: str) -> None: ...

    driver = Driver(Awaited(), lambda coroutine: None)
    assert driver.modes == ["awaited", "concurrent"]
    assert not driver.trips


@pytest.mark.parametrize("path", sorted(envs.PINS.iterdir()), ids=lambda path: path.name)
def test_pins_are_exact_and_name_no_host(path: Path) -> None:
    text = path.read_text("utf-8")
    assert "://" not in text
    assert not re.search(r"\.(org|com|io|net)\b|index.url", text)
    versions = envs.pinned(path.stem)
    assert versions
    assert all(re.fullmatch(r"\d[\w.+-]*", one) for one in versions.values())


def test_everybody_has_pins_a_file_and_settings() -> None:
    assert {one.env for one in lineup.ALL} | {"server"} == {path.stem for path in envs.PINS.iterdir()}
    for one in lineup.ALL:
        assert list(lineup.SUBJECTS.glob(f"{one.env}.*"))
        assert one.settings
        assert version(one)
        measured = {name for group in one.groups for name in group.measures}
        assert {"enqueue", "noop", "latency", "trip"} <= measured
    assert FULL.rounds == 5
    assert QUICK.rounds == 3


def test_goals_compare_with_the_fastest() -> None:
    figured = Figured(["dray", "bare loop", "celery solo", "celery prefork", "huey", "rq", "BullMQ"])
    for name, rate in zip(figured.subjects, (5000, 9000, 200, 100, 900, 50, 1800), strict=True):
        figured.add(name, {"drain noop": rate})
    by_text = {goal.text: goal for goal in goals(figured)}
    assert by_text["async no-ops: ≥ 20 × Celery's best"].verdict == "met"
    assert "200 of celery solo" in by_text["async no-ops: ≥ 20 × Celery's best"].why
    assert "of huey" in by_text["async no-ops: ≥ 5 × the fastest other Python queue"].why
    assert by_text["async no-ops: ≥ 5 × the fastest other Python queue"].verdict == "met"
    assert by_text["async no-ops: ≥ 3.5 × BullMQ"].verdict == "missed"
    assert by_text["async no-ops: ≥ 60 % of the bare loop"].verdict == "missed"
    assert by_text["drain, 10 ms of I/O: ahead of every peer"].verdict == "not measured"


def test_goals_of_delays_memory_and_defaults() -> None:
    figured = Figured(["dray", "dray, no settings", "bare command", "rq"])
    for name, ms, memory in (("dray", 0.4, 240), ("bare command", 0.3, 300), ("rq", 0.6, 1500)):
        figured.add(name, {"start idle p50": ms, "memory": memory, "drain io": 100})
    figured.add("dray, no settings", {"drain io": 70, "start idle p50": 0.4})
    alone = Alone({"depth": {"1000": [100.0], "1000000": [76.0]}})
    by_text = {goal.text: goal for goal in goals(figured, alone)}
    assert by_text["enqueue to start, idle, p50: ≤ 1.5 × one bare command"].verdict == "met"
    assert by_text["enqueue to start, idle, p50: better than every peer"].verdict == "met"
    assert by_text["enqueue to start, idle, p99: ≤ 1.5 × one bare command"].verdict == "not measured"
    assert next(goal for text, goal in by_text.items() if text.startswith("memory")).verdict == "met"
    most, ahead = (goal for text, goal in by_text.items() if text.startswith("no settings"))
    assert (most.verdict, most.why) == ("missed", "the least is 70 % (drain, 10 ms of I/O)")
    assert (ahead.verdict, ahead.why) == ("missed", "drain, 10 ms of I/O: 70 against 100 of rq")
    assert next(goal for text, goal in by_text.items() if text.startswith("1 M pending")).verdict == "met"


def test_a_run_in_short_names_the_best_peer_and_the_floor() -> None:
    figured = Figured(["dray", "dray, no settings", "bare command", "celery solo", "huey", "Sidekiq"])
    rates, delays = (9000, 8900, 2000, 100, 900, 1800), (3, 3, 1, 9, 2, 4)
    for name, rate, ms in zip(figured.subjects, rates, delays, strict=True):
        figured.add(name, {"drain noop": rate, "start idle p50": ms, "start idle p99": 2 * ms})
    lines = [line for line in summary_table(figured).splitlines() if "–" not in line]
    assert lines[2:] == [
        "| drain, no-op (async where there is async) /s | 9,000 | 8,900 | Sidekiq 1,800 | 2,000 |",
        "| enqueue to start, ms p50 / p99 | 3.00 / 6.00 | 3.00 / 6.00 | huey 2.00 / 4.00 | 1.00 / 2.00 |",
    ]
    said = words(figured)
    assert "9,000 per second, 90.0 times Celery, 10.0 times the next Python queue, 5.0 times Sidekiq" in said
    assert "ahead in: enqueue to start, idle, p50: 3.00 against 2.00 of huey; enqueue to start" in said
    assert words(Figured(["dray"])) == "dray was not measured."


def test_a_full_run_writes_the_pages() -> None:
    page = "a\n<!-- bench: peers-run -->\nold\n<!-- end -->\nb\n<!-- bench: other -->\nkept\n<!-- end -->\n"
    filled = pages.fill(page, {"peers-run": "new\n"})
    assert "old" not in filled
    assert filled.startswith("a\n<!-- bench: peers-run -->\n\nnew\n\n<!-- end -->\nb\n")
    assert "kept" in filled
    assert pages.fill(filled, {"peers-run": "new\n"}) == filled
    made = blocks(Results(FACTS))
    shown = [name for path in PAGES for name in pages.names(path.read_text("utf-8"))]
    assert set(shown) == made.keys()


def test_bars_are_drawn_to_scale_with_their_labels() -> None:
    found = [Bar("dray", 200, "#123456", 150, 250), Bar("a & b", 100), Bar("gone", None, note="failed")]
    drawn = ElementTree.fromstring(
        bars("Title 'quoted' & more", "under", found, lambda figure: f"{figure:.0f}/s", "foot")
    )
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(rect.attrib["width"]) for rect in drawn.iter(f"{space}rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2)
    texts = [text.text for text in drawn.iter(f"{space}text")]
    assert {"dray", "a & b", "gone", "failed", "200/s", "100/s", "foot"} <= set(texts)
    assert drawn.attrib["aria-label"] == "Title 'quoted' & more"
    assert not [
        rect for rect in drawn.iter(f"{space}rect") if rect.attrib.get("fill") in ("#fff", "white", "#000")
    ]


def test_plots_and_data_hold_every_figure() -> None:
    figured = Figured(["dray", "rq"], failures={"rq": "gone"})
    figured.add("dray", {"drain noop": 10.0})
    results = Results(FACTS, figured)
    drawn = dict(plots(results))
    assert list(drawn) == ["peers-drain"]
    assert "failed" in drawn["peers-drain"]
    assert data(results)["failures"] == {"rq": "gone"}


def test_the_server_of_the_system_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(envs.NotInstalled, match="no redis-server"):
        servers.find("redis")


def test_the_longest_script_is_found_in_what_the_server_noted() -> None:
    class Noted(servers.Server):
        def raw(self, *words: str) -> str:
            command = "*3\r\n${0}\r\n{1}\r\n$3\r\nabc\r\n$1\r\n1\r\n$4\r\nhost\r\n$0\r\n\r\n"
            entry = "*6\r\n:{0}\r\n:1700000000\r\n:{1}\r\n"
            slow = entry.format(2, 3210) + command.format(7, "EVALSHA")
            other = entry.format(1, 99_000) + command.format(4, "INFO")
            return "*2\r\n" + slow + other + "+PONG\r\n"

    assert Noted(0).longest() == 3.21


def test_dray_alone_is_drawn_and_its_longest_script_told() -> None:
    results = Results(FACTS)
    for value, rate in (("1000", 50_000.0), ("1000000", 40_000.0)):
        results.alone.add("depth", value, rate)
        results.alone.longest[value] = [1.25, 2.5]
    for value, rate in (("on", 90.0), ("off", 100.0)):
        results.alone.add("events", value, rate)
    drawn = dict(plots(results))
    assert {"alone-depth", "alone-events"} <= drawn.keys()
    assert "2.5 ms at 1 M jobs pending" in markdown(results)
    assert "10 %" in str(next(goal for goal in results.goals() if goal.text.startswith("events")))
    assert data(results)["longest_script_ms"] == results.alone.longest


def test_without_its_feed_dray_works_and_writes_none(tmp_path: Path) -> None:
    program = (
        "from bench.peers.subjects.muted import app\n"
        "job = app.tasks['noop'].enqueue(1, '')\n"
        "held = app.external.fetch(['default'])\n"
        "print(app.external.ack(held[0].id, held[0].token), len(app.events.read({}).entries))\n"
    )
    with running("valkey", tmp_path) as server:
        environ = os.environ | {"BENCH_URL": f"redis://127.0.0.1:{server.port}", "BENCH_MARKS": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=envs.ROOT,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
    assert done.stdout.split() == ["succeeded", "0"]
