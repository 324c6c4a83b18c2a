"""Schedules declared in code: `@app.cron(…)` and `@app.every(…)`, written above `@app.task`.

@app.cron("0 3 * * MON-FRI", tz="Europe/London")
@app.task
def report() -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, TypedDict, TypeVar, Unpack, cast

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dray.client.link import Link
from dray.client.sync_async import sync_and_async
from dray.duration import DAY, parse_duration
from dray.errors import InvalidInput
from dray.job import check_name
from dray.options import (
    SCHEDULE_OPTIONS,
    Duration,
    JsonDuration,
    Option,
    ScheduledJobOptions,
    check_names,
    one_of,
    read_options,
    whole,
)
from dray.schedules.cron import Cron, Every, Rule
from dray.schedules.schedule import CATCH_UP_MAX, CatchUp, Overlap, Schedule
from dray.schedules.store import Reconciled, reconcile
from dray.task import Call, Task

if TYPE_CHECKING:
    from dray.app import App
    from dray.client.client import Client

PAYLOAD_MAX: Final = 256 * 1024
T = TypeVar("T", bound=Task[..., Any])


class TickOptions(TypedDict, total=False):
    """Options of the schedule itself; `TICK_OPTIONS` describes them."""

    jitter: Duration
    catch_up: CatchUp
    catch_up_cap: int
    overlap: Overlap


class DeclareOptions(TickOptions, ScheduledJobOptions, total=False):
    """Everything that `@app.cron` and `@app.every` take beside the rule."""

    name: str
    """By default the task's name; of several on one task, the second gets `-2`, and so on."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def _read_jitter(name: str, value: Any) -> int:
    length = parse_duration(name, value)
    if length > DAY:
        raise InvalidInput(name, value, "a length of time up to 1 day is allowed")
    return length


TICK_OPTIONS: Final = {
    option.name: option
    for option in (
        Option(
            *("jitter", ("schedule",), _read_jitter),
            "Start each job up to this much later than its tick, to spread load; at most a day.",
            *(JsonDuration, "DURATION"),
        ),
        Option(
            *("catch_up", ("schedule",), one_of(CatchUp)),
            "Ticks that were missed while no scheduler ran: skip them, make one job, or all.",
            *(CatchUp, "WHICH"),
        ),
        Option(
            *("catch_up_cap", ("schedule",)),
            whole(1, CATCH_UP_MAX, f"a whole number from 1 to {CATCH_UP_MAX} is allowed"),
            "How many jobs catch_up=all makes at most, the newest; 100 by default.",
            *(Annotated[int, Meta(ge=1, le=1_000_000_000)], "NUMBER"),
        ),
        Option(
            *("overlap", ("schedule",), one_of(Overlap)),
            "A tick while the job before it is unfinished: allow it, skip it, or cancel_previous.",
            *(Overlap, "WHICH"),
        ),
    )
}
"""Options that fill fields of `Schedule`, not of its jobs."""


class Declaration(msgspec.Struct, frozen=True):
    """A schedule as code declares it; its jobs also depend on the settings of the worker."""

    name: str
    rule: Rule
    call: Call[Any]
    ticks: dict[str, Any]
    """Checked `TickOptions`."""


class ScheduleDecorators:
    """The part of an app that declares schedules in code."""

    declarations: dict[str, Declaration]
    client: Client

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[DeclareOptions]
    ) -> Callable[[T], T]:
        """Run a task at the times of a cron expression: five fields, or six with seconds first.

        @app.cron("*/5 * * * *")
        @app.cron("0 3 * * MON-FRI", tz="Europe/London", overlap="skip", name="nightly")
        @app.task
        def report() -> None: ...
        """
        return self._declaring(Cron.parse(expression, tz), options)

    def every(self, interval: Duration, **options: Unpack[DeclareOptions]) -> Callable[[T], T]:
        """Run a task at a fixed interval, `"30s"` or `"1h30m"`: at the multiples of it since 1970 in UTC."""
        return self._declaring(Every.parse(interval), options)

    def _declaring(self, rule: Rule, options: DeclareOptions) -> Callable[[T], T]:
        check_names("schedule", options, DeclareOptions.__annotations__)

        def declare(task: T) -> T:
            check_task(self, task)
            name = options.get("name") or _free_name(task.name, self.declarations)
            if check_name("name", name) in self.declarations:
                raise InvalidInput("name", name, "this app declares a schedule of this name already")
            args, kwargs = read_call(options)
            task.hints.check_call(args, kwargs)
            call = Call[Any](task.name, args, kwargs, read_job_options(options))
            declaration = Declaration(name, rule, call, read_tick_options(options))
            schedule_of(cast("App", self), declaration)  # a mistake fails here, not in a worker
            self.declarations[name] = declaration
            return task

        return declare

    def declared_schedules(self) -> list[Schedule]:
        """The declared schedules, as this app's settings make them."""
        app = cast("App", self)
        return [schedule_of(app, declaration) for declaration in self.declarations.values()]

    async def _reconcile_schedules(self, link: Link, *, started: int | None = None) -> Reconciled:
        """Write the schedules that the code declares to the broker; every worker does so when it starts.

        `started` is when the worker was started (milliseconds since the epoch): declarations of workers that
        started later are kept.
        """
        return await reconcile(link.broker, self.declared_schedules(), started=started)

    reconcile_schedules, areconcile_schedules = sync_and_async(_reconcile_schedules)


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


def read_job_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options that are for the jobs."""
    given: Any = {name: value for name, value in options.items() if name in SCHEDULE_OPTIONS}
    return read_options(given)


def read_tick_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options that are for the schedule; None means not given."""
    return {
        name: option.read(name, options[name])
        for name, option in TICK_OPTIONS.items()
        if options.get(name) is not None
    }


def schedule_of(app: App, declaration: Declaration) -> Schedule:
    """The schedule with the job that each of its ticks puts."""
    job = replace(app.job_builder.build(declaration.call), id="", parent=None)
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
        **declaration.ticks,
    )
