"""Schedules that code declares: `@app.cron(…)` and `@app.every(…)`, written above `@app.task`.

@app.cron("0 3 * * MON-FRI", tz="Europe/London")
@app.task
def report() -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, Unpack, cast, get_args

import msgspec
from msgspec.structs import replace

from dray.call import Call, CallOptions, Duration, Priority, read_options
from dray.client import Link
from dray.cron import Cron, Every, Rule
from dray.duration import DAY, parse_duration
from dray.errors import InvalidInput
from dray.job import check_name
from dray.reconciling import Reconciled, reconcile
from dray.schedule import CATCH_UP_MAX, CatchUp, Overlap, Schedule
from dray.task import Task
from dray.twins import awaits, blocks

if TYPE_CHECKING:
    from dray.app import App
    from dray.client import Client

PAYLOAD_MAX: Final = 256 * 1024
T = TypeVar("T", bound=Task[..., Any])


class JobOptions(TypedDict, total=False):
    """What can be said about the jobs of a schedule; what is not said is the task's own."""

    queue: str
    priority: Priority
    retries: int
    backoff: str
    timeout: Duration
    ttl: Duration
    result_ttl: Duration
    group: str
    tags: Sequence[str]
    description: str
    headers: dict[str, str]


class Ways(TypedDict, total=False):
    """How a schedule behaves."""

    jitter: Duration
    """Jobs start up to this much later than their tick, to spread load."""
    catch_up: CatchUp
    """What becomes of ticks that were missed while no scheduler ran."""
    catch_up_cap: int
    """How many jobs `catch_up="all"` makes at most, the newest."""
    overlap: Overlap
    """What becomes of a tick while the job before it is unfinished."""


class Declared(Ways, JobOptions, total=False):
    """Everything that `@app.cron` and `@app.every` take beside the rule."""

    name: str
    """By default the task's name; of several on one task, the second gets `-2`, and so on."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Declaration(msgspec.Struct, frozen=True):
    """A schedule as code declares it; what its jobs are like depends on the settings of whoever runs it."""

    name: str
    rule: Rule
    call: Call[Any]
    ways: dict[str, Any]


class Declaring:
    """What an app can do about schedules in its code."""

    declarations: dict[str, Declaration]
    client: Client

    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[Declared]) -> Callable[[T], T]:
        """Run a task at the times of a cron expression: five fields, or six with seconds first.

        @app.cron("*/5 * * * *")
        @app.cron("0 3 * * MON-FRI", tz="Europe/London", overlap="skip", name="nightly")
        @app.task
        def report() -> None: ...
        """
        return self._declaring(Cron.parse(expression, tz), options)

    def every(self, interval: Duration, **options: Unpack[Declared]) -> Callable[[T], T]:
        """Run a task at a fixed interval, `"30s"` or `"1h30m"`: at the multiples of it since 1970 in UTC."""
        return self._declaring(Every.parse(interval), options)

    def _declaring(self, rule: Rule, options: Declared) -> Callable[[T], T]:
        check_options(options, Declared)

        def declare(task: T) -> T:
            check_task(self, task)
            name = options.get("name") or _free_name(task.name, self.declarations)
            if check_name("name", name) in self.declarations:
                raise InvalidInput("name", name, "this app declares a schedule of this name already")
            args, kwargs = read_call(options)
            task.hints.check_call(args, kwargs)
            call = Call[Any](task.name, args, kwargs, read_job_options(options))
            declaration = Declaration(name, rule, call, read_ways(options))
            schedule_of(cast("App", self), declaration)  # what does not fit is to fail here, not in a worker
            self.declarations[name] = declaration
            return task

        return declare

    def declared_schedules(self) -> list[Schedule]:
        """What the code declares, as it would be stored by whoever has these settings."""
        app = cast("App", self)
        return [schedule_of(app, declaration) for declaration in self.declarations.values()]

    async def _reconcile_schedules(self, link: Link, *, started: int | None = None) -> Reconciled:
        """Write the schedules that the code declares to the broker; every worker does so when it starts.

        `started` is when the worker was started (milliseconds since the epoch): it does not undo what a
        worker that was started later has declared.
        """
        return await reconcile(link.broker, self.declared_schedules(), started=started)

    reconcile_schedules = blocks(_reconcile_schedules)
    areconcile_schedules = awaits(_reconcile_schedules)


def check_options(given: Mapping[str, Any], allowed: Any) -> None:
    """Refuse a name that is none of a typed dict's."""
    unknown = sorted(given.keys() - allowed.__annotations__.keys())
    if unknown:
        names = ", ".join(sorted(allowed.__annotations__))
        raise InvalidInput("schedule", unknown[0], f"one of {names} is allowed")


def check_task(app: object, task: object) -> None:
    if not isinstance(task, Task):
        raise InvalidInput("task", task, "a schedule is for a task: write it above @app.task, not below")
    if task.app is not app:
        raise InvalidInput("task", task, "it belongs to another app")


def _free_name(task: str, taken: Mapping[str, object]) -> str:
    name, number = task, 1
    while name in taken:
        number += 1
        name = f"{task}-{number}"
    return name


def read_call(options: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments."""
    args, kwargs = options.get("args", ()), options.get("kwargs", {})
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidInput("args", args, "a list of values is allowed")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise InvalidInput("kwargs", kwargs, "a dict from names to values is allowed")
    return tuple(args), dict(kwargs)


def read_job_options(options: Mapping[str, Any]) -> CallOptions:
    """Check what is said about jobs."""
    given: Any = {name: value for name, value in options.items() if name in JobOptions.__annotations__}
    return read_options(given)


def read_ways(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check how it is to behave; the fields of a schedule that are not left as they are."""
    return {
        name: _WAY_READERS[name](options[name])
        for name in Ways.__annotations__
        if options.get(name) is not None
    }


def _read_jitter(value: Duration) -> int:
    length = parse_duration("jitter", value)
    if length > DAY:
        raise InvalidInput("jitter", value, "a length of time up to 1 day is allowed")
    return length


def _read_cap(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= CATCH_UP_MAX:
        raise InvalidInput("catch_up_cap", value, f"a whole number from 1 to {CATCH_UP_MAX} is allowed")
    return value


def _read_one_of(field: str, kind: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in get_args(kind):
            raise InvalidInput(field, value, f"one of {', '.join(get_args(kind))} is allowed")
        return value

    return read


_WAY_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "jitter": _read_jitter,
    "catch_up": _read_one_of("catch_up", CatchUp),
    "catch_up_cap": _read_cap,
    "overlap": _read_one_of("overlap", Overlap),
}


def schedule_of(app: App, declaration: Declaration) -> Schedule:
    """The schedule with the job that each of its ticks is to put."""
    job = replace(app.envelopes.of(declaration.call), id="", parent=None)
    if len(job.payload) > PAYLOAD_MAX:
        raise InvalidInput(
            "args", f"{len(job.payload):,} bytes", f"a schedule may carry {PAYLOAD_MAX:,}: pass a reference"
        )
    return Schedule(
        name=declaration.name,
        task=declaration.call.task,
        rule=declaration.rule,
        job=job,
        origin="code",
        **declaration.ways,
    )
