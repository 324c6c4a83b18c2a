"""Tasks: names, options, direct calls, contexts, and arguments that arrive as what they were."""

from __future__ import annotations

import asyncio
import functools
import inspect
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, NamedTuple, cast
from uuid import UUID

import msgspec
import pydantic
import pytest
from by_hand import Hand, Say

from dray import App, Context, InvalidInput, Task
from dray.policy import Backoff

pytest_plugins = ["shop"]


@pytest.fixture
def app(memory_app: App) -> App:
    return memory_app


# names


def test_a_task_is_named_after_its_function_unless_told_otherwise(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    @app.task(name="email.send-2")
    def other(to: str) -> None: ...

    assert (send.name, other.name) == ("send", "email.send-2")
    assert list(app.tasks) == ["send", "email.send-2"]
    assert repr(send) == "<Task send of shop>"


def test_a_second_task_of_a_name_is_refused_and_told_to_take_another(app: App) -> None:
    def send() -> None: ...

    first = app.task(send)
    with pytest.raises(InvalidInput, match=r"name='send': .*test_task.*send is a task .*give another name="):
        app.task(send)
    assert app.tasks == {"send": first}
    assert app.task(name="again")(send).name == "again"


@pytest.mark.parametrize("name", ["", "with space", "ü", "a/b", "x" * 129, 7])
def test_a_name_that_cannot_be_one_is_refused(app: App, name: str) -> None:
    with pytest.raises(InvalidInput, match=r"^name=.*1-128 characters of A-Z a-z 0-9 _ \. -"):
        app.task(name=name)(lambda: None)
    assert app.tasks == {}


def test_a_lambda_needs_a_name(app: App) -> None:
    with pytest.raises(InvalidInput, match="give name="):
        app.task(lambda: None)
    assert app.task(name="nothing")(lambda: None).name == "nothing"


def test_what_is_no_function_is_refused(app: App) -> None:
    with pytest.raises(
        InvalidInput, match=r"task='email.send': a function is allowed; give options by keyword"
    ):
        app.task("email.send")  # type: ignore[call-overload]


def test_generators_are_refused_because_they_have_no_one_result(app: App) -> None:
    def pages() -> Any:
        yield 1

    async def apages() -> Any:
        yield 1

    for function in (pages, apages):
        with pytest.raises(InvalidInput, match="generator"):
            app.task(function)
    assert app.tasks == {}


# a task stays a plain callable


def test_a_task_can_be_called_directly_sync_and_async(app: App) -> None:
    @app.task
    def add(a: int, b: int = 2) -> int:
        """Adds."""
        return a + b

    @app.task(queue="slow")
    async def aadd(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6
    assert asyncio.run(cast("Any", aadd(1))) == 3
    assert not add.is_async
    assert aadd.is_async
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Adds.", __name__)
    assert list(inspect.signature(add).parameters) == ["a", "b"]
    with pytest.raises(TypeError):
        add()  # type: ignore[call-arg]


def test_partials_and_callable_objects_can_be_tasks(app: App) -> None:
    class Sender:
        def __init__(self) -> None:
            self.sent: list[str] = []

        async def __call__(self, to: str) -> int:
            self.sent.append(to)
            return len(self.sent)

    def power(base: int, exponent: int) -> int:
        return int(base**exponent)

    square = app.task(name="square")(functools.partial(power, exponent=2))
    sender: Any = app.task(Sender())
    assert square(3) == 9
    assert (sender.name, sender.is_async) == ("Sender", True)
    assert asyncio.run(sender("a")) == 1


# contexts


def context_tasks(app: App) -> dict[str, Task[..., Any]]:
    @app.task
    def first(ctx: Context, a: int, b: int = 2) -> Any:
        return ctx, a, b

    @app.task
    def middle(a: int, ctx: Context, b: int = 2) -> Any:
        return ctx, a, b

    @app.task
    def last(a: int, b: int, ctx: Context) -> Any:
        return ctx, a, b

    @app.task
    def keyword(a: int, b: int = 2, *, ctx: Context) -> Any:
        return ctx, a, b

    @app.task
    def optional(a: int, b: int = 2, ctx: Context | None = None) -> Any:
        return ctx, a, b

    @app.task
    def annotated(a: int, ctx: Annotated[Context, "the run"], b: int = 2) -> Any:
        return ctx, a, b

    @app.task
    async def coroutine(ctx: Context, a: int, b: int = 2) -> Any:
        return ctx, a, b

    return dict(app.tasks)


CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [((1, 2), {}), ((1,), {"b": 2}), ((), {"a": 1, "b": 2})]


@pytest.mark.parametrize("name", ["first", "middle", "last", "keyword", "optional", "annotated", "coroutine"])
def test_a_context_is_filled_in_wherever_the_signature_has_it(app: App, name: str) -> None:
    task = context_tasks(app)[name]
    assert task.context_parameters == ("ctx",)
    with Hand(app) as hand:
        for args, kwargs in CALLS:
            task.enqueue(*args, **kwargs)
            context, a, b = hand.call(hand.one())
            assert isinstance(context, Context)
            assert (a, b) == (1, 2)


@pytest.mark.parametrize("name", ["first", "middle", "last", "keyword", "annotated", "coroutine"])
def test_a_direct_call_gets_a_context_of_no_job(app: App, name: str) -> None:
    task: Any = context_tasks(app)[name]
    for args, kwargs in CALLS:
        result = task(*args, **kwargs)
        context, a, b = asyncio.run(result) if task.is_async else result
        assert (a, b, context.attempt, context.cancelled, context.task) == (1, 2, 1, False, name)
        context.check()
        context.progress(1, 2, "half")
        context.heartbeat()


def test_a_context_given_by_hand_is_taken_and_a_default_is_left_alone(app: App) -> None:
    tasks: dict[str, Any] = context_tasks(app)
    mine = tasks["first"](1)[0]
    assert tasks["first"](mine, 1)[0] is mine
    assert tasks["middle"](1, mine)[0] is mine
    assert tasks["keyword"](1, ctx=mine)[0] is mine
    assert tasks["optional"](1)[0] is None
    assert tasks["optional"](1, 2, None)[0] is None
    assert tasks["optional"](1, ctx=mine)[0] is mine


def test_callers_do_not_see_the_context_parameter(app: App) -> None:
    task = context_tasks(app)["middle"]
    assert list(task.hints.signature.parameters) == ["a", "b"]
    with pytest.raises(TypeError, match="middle"):
        task.call(1, 2, 3)
    with pytest.raises(TypeError, match="ctx"):
        task.call(1, ctx=None)


def test_a_context_imported_for_the_type_checker_only_is_recognised_by_its_name(app: App) -> None:
    space: dict[str, Any] = {}
    source = "def resize(ctx: 'Context', a: 'int') -> 'Path': return ctx, a\n"
    source += "def shrink(a, ctx: 'dray.Context | None' = None): return ctx, a\n"
    exec(source, space)
    for name in ("resize", "shrink"):
        task = app.task(space[name])
        assert task.context_parameters == ("ctx",)
        task.enqueue(1)
        with Hand(app, name) as hand:
            assert isinstance(hand.call(hand.one())[0], Context)


def test_a_task_that_returns_a_context_has_no_context_parameter(app: App) -> None:
    @app.task
    def odd(a: int) -> Context:
        raise NotImplementedError

    assert odd.context_parameters == ()


# options

GOOD: list[tuple[str, Any, str, Any]] = [
    ("queue", "email", "queue", "email"),
    ("priority", "high", "priority", 1),
    ("priority", 0, "priority", 0),
    ("retries", 0, "retries", 0),
    ("backoff", "linear:10s", "backoff", "linear:10"),
    ("timeout", 30, "timeout", 30_000),
    ("timeout", "5m", "timeout", 300_000),
    ("timeout", timedelta(seconds=1.5), "timeout", 1500),
    ("ttl", "1h", "ttl", 3_600_000),
    ("ttl", 0, "ttl", None),
    ("deadline", "1d", "deadline", 86_400_000),
    ("deadline", None, "deadline", None),
    ("result_ttl", 0, "result_ttl", 0),
    ("once", "24h", "once", 86_400_000),
    ("once", 0, "once", None),
    ("once", None, "once", None),
    ("rate_limit", "100/m", "rate", "100/m"),
    ("rate_limit", None, "rate", None),
    ("max_running", 10, "max_running", 10),
    ("max_ready", 5, "max_ready", 5),
    ("max_crashes", 1, "max_crashes", 1),
    ("overflow", "drop-oldest", "overflow", "drop-oldest"),
    ("isolate", "thread", "isolate", None),
    ("isolate", "process", "isolate", "process"),
    ("speculate", True, "speculate", True),
    ("tags", ["a", "b"], "tags", ("a", "b")),
    ("description", "Sends.", "description", "Sends."),
]


@pytest.mark.parametrize(("option", "value", "field", "stored"), GOOD)
def test_each_option_reaches_the_job(app: App, option: str, value: Any, field: str, stored: Any) -> None:
    task = app.task(**{option: value})(named)
    assert getattr(app.job_builder.build(task.call()), field) == stored


def named() -> None: ...


WRONG: list[tuple[str, Any, str]] = [
    ("queue", "a b", "1-128 characters"),
    ("queue", 5, "1-128 characters"),
    ("priority", 10, "high, normal, low or an integer from 0 to 9"),
    ("priority", "urgent", "high, normal, low or an integer from 0 to 9"),
    ("priority", True, "high, normal, low or an integer from 0 to 9"),
    ("retries", -1, "a whole number from 0"),
    ("retries", "3", "a whole number from 0"),
    ("retries", True, "a whole number from 0"),
    ("backoff", "quadratic", "exponential, linear or fixed"),
    ("backoff", 5, "exponential, linear or fixed"),
    ("timeout", -1, "seconds, a text like 30s"),
    ("timeout", "soon", "seconds, a text like 30s"),
    ("timeout", float("nan"), "seconds, a text like 30s"),
    ("ttl", "x", "seconds, a text like 30s"),
    ("deadline", 0, "above 0"),
    ("deadline", True, "seconds, a text like 30s"),
    ("result_ttl", -5, "seconds, a text like 30s"),
    ("once", True, "seconds, a text like 30s"),
    ("rate_limit", "100", "a whole number per s, m, h or d"),
    ("rate_limit", 100, "a whole number per s, m, h or d"),
    ("rate_limit", "0/m", "a whole number per s, m, h or d"),
    ("max_running", 0, "a whole number from 1"),
    ("max_running", "10", "a whole number from 1"),
    ("max_ready", 0, "a whole number from 1"),
    ("max_crashes", 0, "a whole number from 1"),
    ("overflow", "drop", "raise, wait, drop-oldest"),
    ("isolate", "fork", "thread, process"),
    ("speculate", 1, "True or False"),
    ("durability", "high", "normal, full"),
    ("retry_on", (int,), "exception classes"),
    ("give_up_on", "ValueError", "exception classes"),
    ("tags", "one", "a list of texts"),
    ("tags", ["a\n"], "1-256 printable characters"),
    ("description", 5, "a text of at most 4096 characters"),
    ("codec", 5, "a text"),
]


@pytest.mark.parametrize(("option", "value", "allowed"), WRONG)
def test_each_wrong_value_is_refused_by_its_name_and_nothing_is_registered(
    app: App, option: str, value: Any, allowed: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        app.task(**{option: value})(named)
    assert refused.value.field == option
    assert allowed in str(refused.value)
    assert app.tasks == {}


def test_an_unknown_option_is_refused_with_those_there_are(app: App) -> None:
    with pytest.raises(InvalidInput, match=r"'retrys'.*rate_limit.*retries"):
        app.task(retrys=3)(named)  # type: ignore[call-overload]
    assert app.tasks == {}


def test_a_backoff_function_is_kept_and_not_stored(app: App) -> None:
    def slow(attempt: int, error: BaseException) -> float:
        return 60.0 * attempt

    task = app.task(backoff=slow)(named)
    assert task.backoff is slow
    assert app.job_builder.build(task.call()).backoff is None
    assert app.task(name="b", backoff="fixed:5s")(named).backoff == Backoff.parse("fixed:5s")


def test_errors_may_be_given_as_one_class_or_several(app: App) -> None:
    task = app.task(retry_on=OSError, give_up_on=[ValueError, KeyError])(named)  # type: ignore[call-overload]
    assert task.options.retry_on == (OSError,)
    assert task.options.give_up_on == (ValueError, KeyError)


# keys from arguments


def test_limit_keys_are_filled_from_the_call(app: App) -> None:
    @app.task(rate_limit="5/s", rate_key="c:{customer}", max_running=1, running_key="{order[id]}-{region}")
    def ship(customer: int, order: dict[str, int], region: str = "eu") -> None: ...

    job = app.job_builder.build(ship.call(7, {"id": 3}))
    assert (job.rate_key, job.running_key) == ("c:7", "3-eu")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rate_key": "{to}"}, "needs a rate_limit"),
        ({"running_key": "{to}"}, "needs max_running"),
        ({"rate_limit": "1/s", "rate_key": "{whom}"}, r"\{whom\} is no parameter of .*it has: to"),
        ({"rate_limit": "1/s", "rate_key": "{to"}, "cannot be read"),
        ({"rate_limit": "1/s", "rate_key": "{}"}, "is no parameter"),
    ],
)
def test_a_limit_key_that_cannot_work_is_refused_at_once(app: App, options: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):

        @app.task(**options)  # type: ignore[misc, unused-ignore]
        def send(to: str) -> None: ...

    assert app.tasks == {}


def test_a_call_that_cannot_fill_a_key_fails_at_enqueue_and_names_the_key(app: App) -> None:
    @app.task(rate_limit="1/s", rate_key="{order[id]}")
    def ship(order: dict[str, Any]) -> None: ...

    with pytest.raises(InvalidInput, match=r"rate_key='\{order\[id\]\}': it cannot be filled .*KeyError"):
        ship.enqueue({})
    with pytest.raises(InvalidInput, match=r"rate_key='': 1-256 printable"):
        ship.enqueue({"id": ""})


# the wrong call fails in the caller


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {}), ((1, 2, 3), {}), ((1,), {"c": 3}), ((1,), {"a": 1}), ((), {"b": 2})],
)
def test_arguments_that_do_not_fit_are_a_type_error_in_the_caller(
    app: App, say: Say, args: Any, kwargs: Any
) -> None:
    @app.task
    def add(a: int, b: int = 0) -> int:
        return a + b

    by_name: Any = app.enqueue
    calls: list[Any] = [add.enqueue, add.using(priority="high").enqueue]
    for call in calls:
        with pytest.raises(TypeError, match=r"add\(\)"):
            say(call, *args, **kwargs)
    with pytest.raises(TypeError, match=r"add\(\)"):
        say(by_name, "add", *args, **kwargs)
    with pytest.raises(TypeError, match=r"add\(\)"):
        app.submit(add.call(*args, **kwargs))  # in a flow the first argument may be left out
    assert app.jobs.find() == []


def test_an_argument_that_cannot_be_carried_fails_in_the_caller(app: App, say: Say) -> None:
    @app.task
    def show(thing: object) -> None: ...

    with pytest.raises(Exception, match="cannot carry a value of type"):
        say(show.enqueue, object())
    with pytest.raises(Exception, match=r"max_payload=1048576"):
        say(show.enqueue, "x" * 2_000_000)
    assert app.jobs.find() == []


# values keep their types


@dataclass
class Point:
    x: int
    y: Decimal


class Line(msgspec.Struct):
    start: Point
    tags: set[str] = set()


class Customer(pydantic.BaseModel):
    name: str
    born: date


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Pair(NamedTuple):
    left: int
    right: UUID


UID = UUID("12345678-1234-5678-1234-567812345678")
VALUES: list[tuple[Any, object]] = [
    (Point, Point(1, Decimal("2.50"))),
    (Line, Line(Point(1, Decimal(2)), {"a"})),
    (Customer, Customer(name="Ada", born=date(1815, 12, 10))),
    (list[Customer], [Customer(name="Ada", born=date(1815, 12, 10))]),
    (datetime, datetime(2024, 2, 29, 12, 30, 15, 999, tzinfo=UTC)),
    (timedelta, timedelta(days=1, microseconds=5)),
    (UUID, UID),
    (Colour, Colour.BLUE),
    (Decimal, Decimal("0.1")),
    (bytes, b"\x00\xff"),
    (Pair, Pair(1, UID)),
    (Point | None, None),
    (tuple[int, ...], (1, 2)),
]


@pytest.mark.parametrize(
    ("codec", "kind", "value"),
    [("msgpack", *one) for one in [*VALUES, (dict[UUID, Point], {UID: Point(0, Decimal(0))})]]
    + [("json", *one) for one in VALUES],
)
def test_arguments_and_results_arrive_as_the_types_that_are_annotated(
    app: App, say: Say, codec: str, kind: Any, value: Any
) -> None:
    seen: list[Any] = []

    def echo(thing: Any, *, again: Any) -> Any:
        seen.append((thing, again))
        return thing

    echo.__annotations__ = {"thing": kind, "again": kind, "return": kind}
    task = app.task(codec=codec)(echo)
    job = say(task.enqueue, value, again=value)
    with Hand(app) as hand:
        assert hand.work() == 1
    assert seen == [(value, value)]
    assert [type(one) for one in seen[0]] == [type(value)] * 2
    result = say(job.get, timeout=5)
    assert result == value
    assert type(result) is type(value)
    assert say(job.info).result == value


# options of one call win over the task, and both over the settings


def test_the_call_wins_over_the_task_and_the_task_over_the_settings() -> None:
    app = App("t", broker="memory://", retries=7, max_crashes=9)

    @app.task(queue="email", priority="high", retries=5, timeout=30, ttl="1h", once="1h", tags=["x"])
    def send() -> None: ...

    @app.task
    def plain() -> None: ...

    job = app.job_builder.build(plain.call())
    assert (job.queue, job.priority, job.retries, job.max_crashes, job.timeout) == ("default", 5, 7, 9, None)
    job = app.job_builder.build(send.call())
    assert (job.queue, job.priority, job.retries, job.timeout) == ("email", 1, 5, 30_000)
    chosen = send.using(queue="q", priority="low", retries=0, timeout=0, ttl=0, once=0, tags=["y", "x"])
    job = app.job_builder.build(chosen.call())
    assert (job.queue, job.priority, job.retries, job.ttl, job.once) == ("q", 9, 0, None, None)
    assert job.timeout is not None
    assert job.timeout > 10**12, "none to speak of"
    assert job.tags == ("x", "y")
    assert job.id.startswith("q:")
