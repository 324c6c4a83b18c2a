"""How long the way of an enqueue is: Python calls, files and frames, which no busy machine changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
import redis_server

import dray
from dray import App

CALLS_MAX = 50
"""Python calls of one warm `task.enqueue(1)` on Redis."""
FILES_MAX = 12
"""Files of dray that they are in."""
FRAMES_MAX = 9
"""Frames of dray on the stack while the socket is read or written."""
BULK_MAX = 16
"""Python calls per job of one warm `enqueue_many` of a thousand."""
OWN = str(Path(dray.__file__).parent)


class Recorder:
    """Records the calls of this thread."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.frames = 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            self.calls.append(frame.f_code.co_filename)
        elif event == "c_call" and getattr(arg, "__name__", "") in ("sendall", "recv_into"):
            self.frames = max(self.frames, own_frames(frame))

    def __enter__(self) -> Recorder:
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    @property
    def files(self) -> set[str]:
        return {name for name in self.calls if name.startswith(OWN)}


def own_frames(frame: FrameType | None) -> int:
    count = 0
    while frame is not None:
        count += frame.f_code.co_filename.startswith(OWN)
        frame = frame.f_back
    return count


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    redis_server.need("valkey")
    with redis_server.running("valkey", tmp_path_factory.mktemp("valkey")) as server:
        app = App("shop", broker=f"redis://127.0.0.1:{server.port}/0")

        @app.task
        def add(a: int, b: int = 0) -> int:
            return a + b

        for _ in range(20):
            add.enqueue(1)
        yield app
        app.close()


def test_an_enqueue_goes_a_short_way(app: App) -> None:
    task = app.tasks["add"]
    with Recorder() as one:
        task.enqueue(1)
    assert len(one.calls) - 1 <= CALLS_MAX, one.calls  # the recorder's own end is a call
    assert len(one.files) <= FILES_MAX, sorted(one.files)
    assert 0 < one.frames <= FRAMES_MAX


def test_a_batch_costs_few_calls_per_job(app: App) -> None:
    calls = [app.tasks["add"].call(number) for number in range(1000)]
    with Recorder() as batch:
        app.enqueue_many(calls)
    assert len(batch.calls) / len(calls) <= BULK_MAX
