"""What a run comes to, by the rules of its task and job."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import sys
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any

import pytest
from workshop import NOW, Host, call_here, judge_of, live_of, run

from dray.app import App
from dray.codec import compression
from dray.context import Context, Reject, Retry, current
from dray.errors import JobStopped
from dray.job import Job, Outcome, OutcomeKind, Taken
from dray.worker.run.outcome import MESSAGE_MAX, TRACEBACK_MAX, describe
from dray.worker.run.perform import perform, perform_here
from dray.worker.run.run_state import Interrupted, RunState, StopReason, bounded

DEAD, RETRY, SUCCEEDED = OutcomeKind.DEAD, OutcomeKind.RETRY, OutcomeKind.SUCCEEDED


@pytest.fixture
def app() -> App:
    return App("t", broker="memory://")


def judged(app: App, live: RunState) -> Outcome:
    if live.task.is_async:
        return run(perform(judge_of(app), live, call_here))
    # In a context of its own, as in a thread of the pool: or the run would stay the current one of all tests.
    return copy_context().run(perform_here, judge_of(app), live)


def failing(app: App, error: BaseException, **options: Any) -> Callable[..., RunState]:
    """A task that raises, and runs of it."""

    def task() -> None:
        raise error

    app.task(name="failing", **options)(task)
    return lambda **fields: live_of(app, "failing", **fields)


# success


def test_the_result_comes_back_as_it_was(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> tuple[int, int]:
        return a + b, a

    outcome = judged(app, live_of(app, "add", 1, 2))
    assert outcome.kind is SUCCEEDED
    assert outcome.result is not None
    assert app.codecs.decode_value(outcome.result) == (3, 1)


def test_none_is_a_result_too(app: App) -> None:
    @app.task
    def nothing() -> None: ...

    outcome = judged(app, live_of(app, "nothing"))
    assert outcome.result is not None
    assert app.codecs.decode_value(outcome.result) is None


def test_results_that_are_off_are_not_even_encoded(app: App) -> None:
    @app.task
    def odd() -> object:
        return object()

    outcome = judged(app, live_of(app, "odd", result_ttl=0))
    assert (outcome.kind, outcome.result) == (SUCCEEDED, None)


@pytest.mark.parametrize(
    ("value", "word"), [(object(), "object"), ("x" * (2 << 20), "max_result"), (print, "builtin")]
)
def test_a_result_that_cannot_be_kept_is_dead_and_not_tried_again(app: App, value: object, word: str) -> None:
    @app.task(retries=5)
    def odd() -> object:
        return value

    outcome = judged(app, live_of(app, "odd"))
    assert outcome.kind is DEAD
    assert outcome.reason is not None
    assert outcome.reason.startswith("its result cannot be kept: ")
    assert word in outcome.reason


def test_a_protobuf_task_may_return_plain_values(app: App) -> None:
    @app.task(codec="protobuf")
    def plain() -> int:
        return 5

    # Not even a call without arguments is a message, so this one is written as a producer by hand would.
    job = Job(id="x", task="plain", payload=app.codecs.encode_call((), {}))
    made = RunState(Host(app), app.tasks["plain"], Taken(job, 1), ("x", 1), 1.0)
    outcome = judged(app, made)
    assert app.codecs.decode_value(outcome.result or b"") == 5


# arguments


def test_arguments_arrive_as_their_annotations_say(app: App) -> None:
    @dataclasses.dataclass
    class Point:
        x: int

    seen: list[object] = []

    def draw(point: Point) -> None:
        seen.append(point)

    draw.__annotations__["point"] = Point
    app.task(draw)
    assert judged(app, live_of(app, "draw", Point(3))).kind is SUCCEEDED
    assert seen == [Point(3)]


@pytest.mark.parametrize("payload", [b"", b"\x01nonsense", b"\x7f\x00"])
def test_a_payload_that_cannot_be_read_is_dead_at_once(app: App, payload: bytes) -> None:
    @app.task(retries=5)
    def never() -> None:
        raise AssertionError("it must not run")

    outcome = judged(app, live_of(app, "never", payload=payload))
    assert outcome.kind is DEAD
    assert (outcome.reason or "").startswith("undecodable: ")


@pytest.mark.parametrize("attempt", [1, 9])
def test_a_payload_that_other_workers_can_read_is_left_to_them(
    app: App, attempt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = app.codecs.encode_call(("a" * 100_000,), {})
    monkeypatch.setattr(compression, "_zstd", lambda: None)

    @app.task(retries=0, retry_on=(OSError,))
    def never(text: str) -> None:
        raise AssertionError("it must not run")

    outcome = judged(app, live_of(app, "never", "", payload=payload, attempt=attempt))
    assert outcome.kind is RETRY
    assert outcome.error is not None
    assert "dray[zstd]" in outcome.error.message


@pytest.mark.parametrize(
    ("args", "kwargs", "type", "words"),
    [
        ((), {}, "TypeError", "missing"),
        ((1, 2), {}, "TypeError", "too many"),
        ((1,), {"colour": "red"}, "TypeError", "colour"),
        (("many",), {}, "dray.errors.DecodeError", "argument 'n'"),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "async", "with context"])
def test_a_call_that_does_not_fit_is_tried_again_since_other_workers_may_know_better(
    app: App, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], type: str, words: str
) -> None:
    """Whatever `retry_on` says: that is about what the function raises."""

    def never(n: int) -> None:
        raise AssertionError("it must not run")

    async def never_async(n: int) -> None:
        raise AssertionError("it must not run")

    def never_in_context(n: int, ctx: Context) -> None:
        raise AssertionError("it must not run")

    functions: dict[str, Any] = {"plain": never, "async": never_async, "with context": never_in_context}
    app.task(name="never", retries=2, retry_on=(OSError,), give_up_on=(TypeError,))(functions[kind])
    payload = app.codecs.encode_call(args, kwargs)
    early = judged(app, live_of(app, "never", 1, payload=payload))
    assert early.kind is RETRY
    assert early.error is not None
    assert early.error.type == type
    last = judged(app, live_of(app, "never", 1, payload=payload, attempt=3))
    assert last.kind is DEAD
    assert words in (last.reason or "")
    assert (last.reason or "").startswith("undecodable: ")
    assert (last.reason or "").endswith("(3 attempts)")


def test_a_type_error_of_the_task_itself_is_an_ordinary_failure(app: App) -> None:
    @app.task(retries=0)
    def add(n: int) -> int:
        return n + "1"  # type: ignore[operator]

    outcome = judged(app, live_of(app, "add", 1))
    assert (outcome.reason or "").startswith("failed: TypeError")


def test_a_codec_error_of_the_task_itself_is_an_ordinary_failure(app: App) -> None:
    @app.task
    def encode() -> None:
        app.codecs.encode_value(object())

    assert judged(app, live_of(app, "encode")).kind is RETRY


def test_a_context_is_filled_in_and_is_current(app: App) -> None:
    seen: list[object] = []

    @app.task
    async def look(a: int, ctx: Context) -> None:
        seen.extend((a, ctx.attempt, ctx.state, current().run))
        ctx.progress(1, 4, "x" * 9000)
        ctx.heartbeat()

    host = Host(app, state="db")
    assert judged(app, live_of(app, "look", 8, attempt=2, host=host)).kind is SUCCEEDED
    assert seen == [8, 2, "db", 1]
    assert (host.progress[0].done, host.progress[0].total, host.beats) == (1.0, 4.0, 1)
    assert len(host.progress[0].note) <= 1000


def test_progress_that_is_no_number_fails_in_the_task_that_reports_it(app: App) -> None:
    @app.task
    def odd(ctx: Context) -> None:
        ctx.progress("much")  # type: ignore[arg-type]

    outcome = judged(app, live_of(app, "odd"))
    assert outcome.kind is RETRY
    assert outcome.error is not None
    assert "numbers are allowed" in outcome.error.message


# failure


def test_a_failure_is_tried_again_after_its_backoff(app: App) -> None:
    outcome = judged(app, failing(app, ValueError("no"), backoff="fixed:3s,jitter=0")())
    assert (outcome.kind, outcome.at) == (RETRY, NOW + 3000)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "no")


def test_the_jobs_own_backoff_counts_before_its_tasks(app: App) -> None:
    make = failing(app, ValueError("no"), backoff="fixed:3s,jitter=0")
    assert judged(app, make(backoff="fixed:7s,jitter=0")).at == NOW + 7000


def test_without_a_backoff_the_settings_decide() -> None:
    app = App("t", broker="memory://", backoff="linear:5s,jitter=0")
    assert judged(app, failing(app, ValueError("no"))(attempt=3)).at == NOW + 15_000


def test_retries_that_are_used_up_make_it_dead(app: App) -> None:
    make = failing(app, ValueError("no"), retries=3)
    assert judged(app, make(attempt=3)).kind is RETRY
    outcome = judged(app, make(attempt=4))
    assert (outcome.kind, outcome.reason) == (DEAD, "failed: ValueError: no (4 attempts)")
    once = judged(app, make(attempt=1, retries=0))
    assert once.reason == "failed: ValueError: no (1 attempt)"


def test_what_it_gives_up_on_is_dead_at_once(app: App) -> None:
    outcome = judged(app, failing(app, KeyError("x"), give_up_on=(LookupError,))())
    assert outcome.kind is DEAD
    assert "give_up_on" in (outcome.reason or "")


def test_what_is_not_to_be_retried_is_dead_at_once(app: App) -> None:
    assert judged(app, failing(app, KeyError("x"), retry_on=(OSError,))()).kind is DEAD


def test_what_is_to_be_retried_is(app: App) -> None:
    assert judged(app, failing(app, ConnectionError("x"), retry_on=(OSError,))()).kind is RETRY


def test_retry_says_when(app: App) -> None:
    outcome = judged(app, failing(app, Retry("later", delay="1m"), give_up_on=(Exception,))())
    assert (outcome.kind, outcome.at) == (RETRY, NOW + 60_000)
    assert outcome.error is not None
    assert outcome.error.type == "Retry"


def test_retry_without_a_delay_uses_the_backoff(app: App) -> None:
    assert judged(app, failing(app, Retry(), backoff="fixed:3s,jitter=0")()).at == NOW + 3000


def test_retry_with_no_retries_left_is_dead(app: App) -> None:
    assert judged(app, failing(app, Retry(delay=1))(attempt=4)).kind is DEAD


def test_reject_is_dead_with_its_reason(app: App) -> None:
    outcome = judged(app, failing(app, Reject("not ours"))())
    assert (outcome.kind, outcome.reason) == (DEAD, "rejected: not ours")


def test_reject_below_a_task_group_counts(app: App) -> None:
    group = BaseExceptionGroup("several", [ValueError("x"), ExceptionGroup("inner", [Reject("not ours")])])
    assert judged(app, failing(app, group)()).reason == "rejected: not ours"


def test_groups_are_matched_by_what_is_in_them(app: App) -> None:
    group = ExceptionGroup("several", [ValueError("x"), OSError("y")])
    assert judged(app, failing(app, group, give_up_on=(OSError,))()).kind is DEAD
    app.tasks.clear()
    assert judged(app, failing(app, group, retry_on=(OSError,))()).kind is DEAD
    app.tasks.clear()
    assert judged(app, failing(app, group, retry_on=(OSError, ValueError))()).kind is RETRY


def test_a_backoff_function_decides_and_one_that_fails_is_replaced(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    def backoff(attempt: int, error: BaseException) -> float:
        if attempt == 2:
            raise RuntimeError("broken")
        return 7.5

    make = failing(app, ValueError("no"), backoff=backoff)
    assert judged(app, make()).at == NOW + 7500
    with caplog.at_level(logging.ERROR, "dray.worker"):
        assert judged(app, make(attempt=2)).at == NOW + 4000
    assert "backoff" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Interrupted()])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_is_raised_is_the_jobs_failure(app: App, error: BaseException, is_async: bool) -> None:
    if is_async:

        @app.task
        async def leave() -> None:
            raise error
    else:

        @app.task(name="leave")
        def leave_plainly() -> None:
            raise error

    live = live_of(app, "leave")

    async def main() -> Outcome:
        live.handle = asyncio.current_task()
        return await perform(judge_of(app), live, call_here)

    outcome = run(main()) if is_async else judged(app, live)
    assert outcome.kind is RETRY
    assert outcome.error is not None
    assert outcome.error.type.endswith(type(error).__name__)


# being stopped


@pytest.mark.parametrize("error", [asyncio.CancelledError(), JobStopped("x", "stop"), Interrupted()])
def test_a_run_that_stops_when_asked_ends_as_the_asker_wants(app: App, error: BaseException) -> None:
    make = failing(app, error)

    def ended(why: StopReason | None) -> Outcome:
        live = make()
        live.stop_reason = why
        return judge_of(app).failure(live, error)

    assert ended(StopReason.CANCELLED).kind is OutcomeKind.CANCELLED
    assert ended(StopReason.LEAVING).kind is OutcomeKind.GIVE_BACK
    assert ended(StopReason.LOST).kind is OutcomeKind.GIVE_BACK
    assert ended(None).kind is RETRY
    late = ended(StopReason.TIMEOUT)
    assert late.kind is RETRY
    assert late.error is not None
    assert (late.error.type, late.error.message) == ("Timeout", "it ran longer than its timeout of 1.5 s")


def test_a_timeout_follows_the_rules_as_a_timeout_error(app: App) -> None:
    make = failing(app, ValueError("no"), retry_on=(TimeoutError,))
    live = make()
    live.stop_reason = StopReason.TIMEOUT
    assert judge_of(app).stopped(live).kind is RETRY
    app.tasks.clear()
    live = failing(app, ValueError("no"), give_up_on=(TimeoutError,))()
    live.stop_reason = StopReason.TIMEOUT
    assert judge_of(app).stopped(live).kind is DEAD


def test_an_error_while_the_worker_leaves_costs_no_retry(app: App) -> None:
    live = failing(app, ValueError("torn down"))(attempt=4)
    live.stop_reason = StopReason.LEAVING
    assert judge_of(app).failure(live, ValueError("torn down")).kind is OutcomeKind.GIVE_BACK


def test_a_plain_run_that_was_stopped_before_its_start_never_starts(app: App) -> None:
    @app.task
    def never() -> None:
        raise AssertionError("it must not run")

    live = live_of(app, "never")
    live.stop_reason = StopReason.CANCELLED
    assert judged(app, live).kind is OutcomeKind.CANCELLED


# middleware


def test_middleware_stands_around_the_run_the_first_one_outmost(app: App) -> None:
    seen: list[str] = []

    def note(name: str) -> None:
        @app.middleware
        async def around(ctx: Context, call_next: Callable[[], Awaitable[Any]]) -> Any:
            seen.append(f"{name} before {ctx.task}")
            value = await call_next()
            seen.append(f"{name} after")
            return value + 1

    note("a")
    note("b")

    @app.task
    def plain(x: int) -> int:
        seen.append("run")
        return x

    outcome = run(perform(judge_of(app), live_of(app, "plain", 5), call_here))
    assert seen == ["a before plain", "b before plain", "run", "b after", "a after"]
    assert app.codecs.decode_value(outcome.result or b"") == 7


# how errors are told


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I do not show")


class Exits(Exception):
    def __str__(self) -> str:
        sys.exit(1)


@pytest.mark.parametrize("error", [Mute(), Exits()])
def test_an_exception_that_cannot_be_shown_is_still_told(error: Exception) -> None:
    try:
        raise error
    except Exception as raised:
        told = describe(raised)
    assert told.type.endswith(type(error).__name__)
    assert "cannot be shown" in told.message


def test_types_are_qualified_unless_they_are_built_in() -> None:
    assert describe(KeyError("x")).type == "KeyError"
    assert describe(JobStopped("x", "y")).type == "dray.errors.JobStopped"


def test_texts_are_bounded_and_can_be_stored() -> None:
    told = describe(ValueError("x" * 100_000 + "\udc80"))
    assert len(told.message) <= MESSAGE_MAX
    assert len(told.traceback) <= TRACEBACK_MAX
    (told.message + told.traceback).encode()
    assert bounded("\ud800" * 50, 100).encode()


def test_the_traceback_begins_in_the_users_code(app: App) -> None:
    @app.task
    def outer() -> None:
        raise ValueError("here")

    outcome = judged(app, live_of(app, "outer"))
    assert outcome.error is not None
    lines = outcome.error.traceback.splitlines()
    assert "test_perform.py" in lines[1]
    assert lines[-1] == "ValueError: here"


def test_a_recursion_is_told_in_short(app: App) -> None:
    def deeper(n: int) -> None:
        deeper(n + 1)

    @app.task
    def deep() -> None:
        deeper(0)

    outcome = judged(app, live_of(app, "deep"))
    assert outcome.error is not None
    assert outcome.error.type == "RecursionError"
    assert "repeated" in outcome.error.traceback


def test_an_endless_chain_of_causes_is_cut() -> None:
    error: BaseException = ValueError("first")
    for n in range(500):
        following = ValueError(f"number {n}")
        following.__cause__ = error
        error = following
    assert "number 499" in describe(error).traceback
    loop = ValueError("round")
    loop.__context__ = ValueError("and round")
    loop.__context__.__context__ = loop
    assert "round" in describe(loop).traceback


def test_a_group_is_told_with_what_is_in_it() -> None:
    told = describe(ExceptionGroup("several", [ValueError("one"), OSError("two")]))
    assert "ValueError: one" in told.traceback
    assert "OSError: two" in told.traceback
