"""Profiles of executors: sampled inside, also while the event loop is blocked; as text and as a graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest
from test_worker_processes import Site

from dray import InvalidInput, WorkerSilent
from dray.broker import connect
from dray.broker.verbs import run_blocking
from dray.documents.profile import Profile, next_request, read_profile, request_profile, write_profile
from dray.worker.executor.sampler import take_profile

SVG = "{http://www.w3.org/2000/svg}"


def profile(**given: object) -> Profile:
    fields: dict[str, object] = {
        "worker": "host-1",
        "executor": 2,
        "pid": 7,
        "seconds": 10.0,
        "samples": 100,
        "frames": ["MainThread", "main (a.py:1)", "parse <&> (a.py:5)", "read (b.py:9)"],
        "stacks": [([0, 1, 2], 60), ([0, 1, 3], 30), ([0, 1], 10)],
    } | given
    return Profile(**fields)  # type: ignore[arg-type]


def test_the_text_tells_what_was_seen_most_by_itself_and_in_all() -> None:
    head, _, *lines = profile().text().splitlines()
    assert head == "executor 2 (pid 7) of host-1: 10 s, 100 samples"
    assert [line.split(maxsplit=2) for line in lines] == [
        ["60.0%", "60.0%", "parse <&> (a.py:5)"],
        ["30.0%", "30.0%", "read (b.py:9)"],
        ["10.0%", "100.0%", "main (a.py:1)"],
    ]
    assert profile(stacks=[]).text().endswith("it did nothing")
    assert "seen 5 times" in profile(left_out=5).text()
    assert profile().collapsed().splitlines()[1] == "MainThread;main (a.py:1);read (b.py:9) 30"


@pytest.mark.parametrize("empty", [False, True])
def test_the_flame_graph_is_svg_whatever_functions_are_called(empty: bool) -> None:
    graph = ElementTree.fromstring((profile(stacks=[]) if empty else profile()).svg())
    assert graph.tag == f"{SVG}svg"
    titles = [title.text for title in graph.iter(f"{SVG}title")]
    assert ("parse <&> (a.py:5): 60.0%" in titles) is not empty
    widths = [float(rect.get("width", 0)) for rect in graph.iter(f"{SVG}rect")]
    assert max(widths, default=1200) == 1200


@contextmanager
def running(target: Callable[[threading.Event], None], name: str) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=target, args=(stop,), name=name)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def busy_with_sums(stop: threading.Event) -> None:
    while not stop.is_set():
        sum(range(1000))


def test_threads_are_sampled_where_they_are_and_those_of_the_worker_itself_are_left_out() -> None:
    with running(busy_with_sums, "at work"), running(busy_with_sums, "dray guard"):
        seen = take_profile("w", 1, 0.3)
    mine = [stack for stack, _ in seen.stacks if seen.frames[stack[0]] == "at work"]
    assert mine
    assert all(any("busy_with_sums" in seen.frames[frame] for frame in stack) for stack in mine)
    assert "dray guard" not in seen.frames
    assert seen.samples > 3


def test_a_profile_that_is_too_large_loses_its_rarest_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = run_blocking(connect("memory://", "t", blocking=True))
    whole = profile(stacks=[([0, 1, n % 4], 1 + n) for n in range(1000)])
    run_blocking(write_profile(broker, "a", whole))
    assert run_blocking(read_profile(broker, "a")) == whole
    monkeypatch.setattr("dray.documents.profile.SIZE_MAX", 1500)
    run_blocking(write_profile(broker, "a", whole))
    cut = run_blocking(read_profile(broker, "a"))
    assert cut is not None
    assert 0 < len(cut.stacks) < 1000
    assert min(count for _, count in cut.stacks) > 1
    assert sum(count for _, count in [*cut.stacks, ([], cut.left_out)]) == sum(n for _, n in whole.stacks)
    assert run_blocking(read_profile(broker, "nobody")) is None


def test_a_request_is_told_once() -> None:
    broker = run_blocking(connect("memory://", "t", blocking=True))
    asked = run_blocking(request_profile(broker, "w", 3, 1.5))
    assert run_blocking(next_request(broker, "w")) == asked
    assert run_blocking(next_request(broker, "w")) is None
    run_blocking(broker.doc("profile-ask", "w", b"\xc1 of another version"))
    assert run_blocking(next_request(broker, "w")) is None


def test_an_executor_whose_event_loop_is_blocked_tells_what_blocks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path)
    try:
        site.start(processes=1, stall_limit=600_000)
        [info] = site.at_work(executors=1)
        site.enqueue("block", "asleep", timeout=600)
        site.begun("asleep")
        taken = site.app.workers.profile(info.id, seconds=1)
        assert (taken.worker, taken.executor, taken.pid) == (info.id, 1, info.executors[0].pid)
        assert "oversleep (" in taken.text()
        for given, says in (
            ({"worker": "nobody"}, "the id of a worker is allowed"),
            ({"executor": 9}, "the number of an executor is allowed: 1"),
            ({"seconds": 0}, "above 0, up to 300"),
        ):
            with pytest.raises(InvalidInput, match=says):
                site.app.workers.profile(**({"worker": info.id} | given))
        site.workers[0].kill()
        site.workers[0].wait(60)
        monkeypatch.setattr("dray.admin.workers.PROFILE_PATIENCE", 0.5)
        with pytest.raises(WorkerSilent, match="did not send its profile"):
            site.app.workers.profile(info.id, seconds=0.1)
    finally:
        site.close()
