"""The context of a run: what a task sees and says."""

from __future__ import annotations

import contextvars
import logging
from typing import Any

import pytest

import dray
from dray import App, Context, DrayError, InvalidInput, JobStopped, Reject, Retry, TaskExit
from dray.context import CURRENT, _Detached, detached
from dray.job import PROGRESS_DATA_MAX, Job, Progress, Taken

pytest_plugins = ["shop"]


class Live(_Detached):
    def __init__(self, app: App) -> None:
        super().__init__(app, "send")
        job = Job(id="x", task="send", queue="email", tags=("a",), headers={"h": "1"})
        self.taken = Taken(job, 3, 2)
        self.state: Any = {"db": 1}
        self.reports: list[Progress] = []
        self.beats = 0

    def report(self, progress: Progress) -> None:
        self.reports.append(progress)

    def beat(self) -> None:
        self.beats += 1


@pytest.fixture
def live(memory_app: App) -> Live:
    return Live(memory_app)


def test_a_context_tells_what_runs(live: Live) -> None:
    ctx = Context(live)
    assert (ctx.job.id, ctx.job.task, ctx.job.queue) == ("x", "send", "email")
    assert (ctx.task, ctx.queue, ctx.attempt, ctx.run, ctx.tags) == ("send", "email", 2, 3, ("a",))
    assert (ctx.headers, ctx.state, ctx.app) == ({"h": "1"}, {"db": 1}, live.app)
    ctx.headers["h"] = "2"
    assert ctx.headers == {"h": "1"}
    assert ctx.job.status() == "not_found"


def test_progress_and_signs_of_life_reach_the_run(live: Live) -> None:
    ctx = Context(live)
    ctx.progress(1)
    ctx.progress(2, 4)
    ctx.progress(3, 4, "three")
    ctx.progress(3, total=4, note="three")
    ctx.heartbeat()
    assert live.reports == [Progress(1), Progress(2, 4), Progress(3, 4, "three"), Progress(3, 4, "three")]
    assert live.beats == 1


def test_check_raises_once_the_job_should_stop(live: Live) -> None:
    ctx = Context(live)
    ctx.check()
    assert not ctx.cancelled
    live.cancelled = True
    with pytest.raises(JobStopped) as stopped:
        ctx.check()
    assert stopped.value.job_id == "x"


def test_current_is_the_context_of_the_job_at_hand(live: Live) -> None:
    with pytest.raises(DrayError, match="no job is running here"):
        dray.current()

    def inside() -> None:
        CURRENT.set(live)
        assert dray.current().job.id == "x"

    contextvars.copy_context().run(inside)
    with pytest.raises(DrayError, match="no job is running here"):
        dray.current()


def test_the_log_carries_the_job(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "dray.task.send"):
        Context(live).log.info("sent %d", 3)
    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("dray.task.send", "sent 3")
    assert (vars(record)["job"], vars(record)["task"], vars(record)["attempt"]) == ("x", "send", 2)


def test_progress_takes_data_of_bounded_size(live: Live) -> None:
    ctx = Context(live)
    ctx.progress(3, 10, note="tiles", data={"failed": ("a", "b"), "bytes": 12, "none": None})
    assert live.reports == [Progress(3, 10, "tiles", {"failed": ["a", "b"], "bytes": 12, "none": None})]
    huge: list[Any] = []
    huge.append(huge)
    for data, says in (
        ({"x": "y" * PROGRESS_DATA_MAX}, f"at most {PROGRESS_DATA_MAX} bytes as JSON"),
        ({"x": object()}, "a dict of what JSON can hold is allowed"),
        ({"x": 1 << 70}, "a dict of what JSON can hold is allowed"),
        ({"x": huge}, "a dict of what JSON can hold is allowed"),
        (["a"], "a dict of what JSON can hold is allowed"),
        ("text", "a dict of what JSON can hold is allowed"),
    ):
        with pytest.raises(InvalidInput, match=says) as refused:
            ctx.progress(1, data=data)  # type: ignore[arg-type]  # what a task may get wrong
        assert refused.value.field == "data"
    assert len(live.reports) == 1


def test_a_task_that_has_seen_that_it_should_stop_is_known_to_have(live: Live) -> None:
    ctx = Context(live)
    assert not ctx.cancelled
    ctx.check()
    assert not live.heeded
    live.cancelled = True
    with pytest.raises(JobStopped):
        ctx.check()
    assert live.heeded


def test_a_context_of_no_job_does_nothing(memory_app: App) -> None:
    ctx = detached(memory_app, "send")
    ctx.progress(1, 2)
    ctx.heartbeat()
    ctx.check()
    assert (ctx.attempt, ctx.state, ctx.cancelled) == (1, None, False)


@pytest.mark.parametrize(("delay", "ms"), [(10, 10_000), ("5m", 300_000), (0, 0), (None, None)])
def test_retry_says_when(delay: Any, ms: int | None) -> None:
    error = Retry(delay=delay)
    assert isinstance(error, TaskExit)
    assert error.delay == ms
    assert str(Retry("rate limited", delay=1)) == "rate limited"
    assert str(error)


def test_a_delay_that_is_none_is_refused_where_it_is_raised() -> None:
    with pytest.raises(dray.InvalidInput, match=r"^delay="):
        Retry(delay="soon")


def test_reject_says_why() -> None:
    assert (Reject("bad address").reason, str(Reject("bad address"))) == ("bad address", "bad address")
    assert Reject().reason == "rejected"
