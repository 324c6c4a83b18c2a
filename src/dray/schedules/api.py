"""`app.schedules`: schedules at run time. The broker keeps them; the leading worker makes their jobs."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack

import msgspec
from msgspec.structs import replace
from uuid_utils import uuid7

from dray.broker.verbs import Broker
from dray.client.link import Link
from dray.client.sync_async import AppApi, sync_and_async
from dray.errors import CodecError, InvalidInput, ScheduleExists, ScheduleNotFound, near_names
from dray.handle import JobHandle
from dray.info import moment
from dray.job import Job, State, check_name
from dray.options import Duration, ScheduledJobOptions, check_names
from dray.policy import check_description
from dray.schedules.cron import Cron, Every, Rule
from dray.schedules.decorators import (
    Declaration,
    TickOptions,
    check_task,
    read_call,
    read_job_options,
    read_tick_options,
    schedule_of,
)
from dray.schedules.schedule import (
    SCHEDULE_HEADER,
    TAG,
    TICK_HEADER,
    CatchUp,
    Origin,
    Overlap,
    Paused,
    Schedule,
)
from dray.schedules.store import announce, read_schedule, read_schedules, rewrite
from dray.task import Call, Task

if TYPE_CHECKING:
    from dray.app import App

TRIGGERED: Final = "now"
"""The tick header of a job that was triggered by hand."""


class PauseInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Who paused it, why and when."""

    by: str
    reason: str
    at: datetime


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it stood when it was read."""

    name: str
    task: str
    kind: Literal["cron", "every"]
    rule: str
    """The expression, or the interval."""
    tz: str | None
    """None for an interval, which has none."""
    description: str
    """The rule in plain words."""
    queue: str
    priority: int
    args: tuple[Any, ...] | None
    """None if they cannot be read here."""
    kwargs: dict[str, Any] | None
    jitter: float
    """Seconds."""
    catch_up: CatchUp
    catch_up_cap: int
    overlap: Overlap
    origin: Origin
    """`code`: declared in code; `user`: made at run time."""
    paused: PauseInfo | None
    next_run: datetime | None
    """None while it is paused, or if there is no further one."""
    last_run: datetime | None
    """The tick of its newest job, or when it was triggered."""
    run_count: int
    """How many jobs it has made, triggered ones included."""
    last_error: str | None
    """The ticks that got no job when it was last due; None if all did."""
    last_job: str | None
    """The id of its newest job."""
    last_status: State | None = None
    """The state of that job; None if it is not kept any more."""
    created_at: datetime
    updated_at: datetime

    def upcoming(self, count: int = 5) -> list[datetime]:
        """Its next ticks."""
        rule: Rule = Every.parse(self.rule) if self.tz is None else Cron(self.rule, self.tz)
        tick = None if self.next_run is None else round(self.next_run.timestamp() * 1000)
        found: list[datetime] = []
        while tick is not None and len(found) < count:
            found.append(moment(tick))
            tick = rule.next(tick)
        return found


class ScheduleOptions(TickOptions, ScheduledJobOptions, total=False):
    """What `create` and `change` take: a rule (`cron` with `tz`, or `every`), arguments, and options."""

    cron: str
    tz: str
    """The time zone of `cron`; UTC unless it is given."""
    every: Duration
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class Schedules(AppApi):
    """`app.schedules`: cron and interval rules that make jobs."""

    async def _list(self, link: Link) -> builtins.list[ScheduleInfo]:
        """Every schedule, by name."""
        return await self._shown(link, [schedule for schedule, _ in await read_schedules(link.broker)])

    async def _get(self, link: Link, name: str) -> ScheduleInfo:
        """One schedule; `ScheduleNotFound` if there is none of this name."""
        found, _ = await read_schedule(link.broker, check_name("name", name))
        if found is None:
            raise await _unknown(link.broker, name)
        (info,) = await self._shown(link, [found])
        return info

    async def _create(
        self, link: Link, name: str, task: str | Task[..., Any], **said: Unpack[ScheduleOptions]
    ) -> ScheduleInfo:
        """Make a schedule: `create("nightly", "report", cron="0 3 * * *", tz="Europe/London", args=[7])`.

        The task's options, as they are now, are the default. `ScheduleExists` if the name is taken.
        """
        check_names("schedule", said, ScheduleOptions.__annotations__)
        call = self._call(task, said)
        declaration = Declaration(check_name("name", name), _rule(said, None), call, read_tick_options(said))
        schedule = schedule_of(self._app, declaration)

        def make(before: Schedule | None) -> Schedule:
            if before is not None:
                raise ScheduleExists(name)
            now = link.broker.clock()
            return replace(
                schedule, origin="user", next_run=schedule.rule.next(now), created=now, updated=now
            )

        made = await rewrite(link.broker, name, make)
        await announce(link.broker)
        return describe(made or schedule, self._app, None)

    async def _change(self, link: Link, name: str, **said: Unpack[ScheduleOptions]) -> ScheduleInfo:
        """Change the given options, and keep the rest; a new rule counts from now on.

        One that is declared in code is changed there.
        """
        check_names("schedule", said, ScheduleOptions.__annotations__)
        if not said:
            raise InvalidInput(
                "schedule", None, f"give one of {', '.join(sorted(ScheduleOptions.__annotations__))}"
            )

        def change(before: Schedule) -> Schedule:
            if before.origin == "code":
                raise InvalidInput(
                    "schedule", name, "the app's code declares it: change it there, or pause it"
                )
            return self._changed(before, said, link.broker.clock())

        return await self._rewrite(link, name, change)

    async def _pause(self, link: Link, name: str, *, reason: str = "", by: str = "") -> ScheduleInfo:
        """Make no jobs until it is resumed; those that exist are left alone."""
        for field, text in (("by", by), ("reason", reason)):
            _check_text(field, text)
        return await self._rewrite(
            link, name, lambda before: replace(before, paused=Paused(by, reason, link.broker.clock()))
        )

    async def _resume(self, link: Link, name: str) -> ScheduleInfo:
        """Undo `pause`. Ticks that passed meanwhile get no jobs."""

        def change(before: Schedule) -> Schedule:
            if before.paused is None:
                return before
            return replace(before, paused=None, next_run=before.rule.next(link.broker.clock()))

        return await self._rewrite(link, name, change)

    async def _trigger(self, link: Link, name: str) -> JobHandle[Any]:
        """Enqueue one job of it now, also while it is paused. Its next tick stays where it is."""
        schedule, _ = await read_schedule(link.broker, check_name("name", name))
        if schedule is None:
            raise await _unknown(link.broker, name)
        job = _triggered(schedule)
        (accepted,) = await link.broker.put((job,))
        landed = self._app.handle_or_error(job, accepted)
        if isinstance(landed, Exception):
            raise landed
        now = link.broker.clock()

        def note(before: Schedule | None) -> Schedule | None:
            if before is None:  # deleted in this moment: its job stays
                return None
            return replace(before, last_run=now, last_job=job.id, run_count=before.run_count + 1)

        await rewrite(link.broker, name, note)
        return landed

    async def _delete(self, link: Link, name: str) -> None:
        """Delete a schedule; its jobs stay. One that code declares comes back when a worker starts."""
        found, _ = await read_schedule(link.broker, check_name("name", name))
        if found is None:
            raise await _unknown(link.broker, name)
        await rewrite(link.broker, name, lambda before: None)
        await announce(link.broker)

    list, alist = sync_and_async(_list)
    get, aget = sync_and_async(_get)
    create, acreate = sync_and_async(_create)
    change, achange = sync_and_async(_change)
    pause, apause = sync_and_async(_pause)
    resume, aresume = sync_and_async(_resume)
    trigger, atrigger = sync_and_async(_trigger)
    delete, adelete = sync_and_async(_delete)

    async def _rewrite(self, link: Link, name: str, change: Callable[[Schedule], Schedule]) -> ScheduleInfo:
        after = await rewrite(
            link.broker, check_name("name", name), lambda before: None if before is None else change(before)
        )
        if after is None:
            raise await _unknown(link.broker, name)
        await announce(link.broker)
        (info,) = await self._shown(link, [after])
        return info

    async def _shown(self, link: Link, found: Sequence[Schedule]) -> builtins.list[ScheduleInfo]:
        ids = [schedule.last_job for schedule in found if schedule.last_job is not None]
        records = await link.broker.get(ids) if ids else []
        states = {record.id: record.state for record in records if record is not None}
        return [describe(schedule, self._app, states.get(schedule.last_job or "")) for schedule in found]

    def _call(self, task: str | Task[..., Any], said: Mapping[str, Any]) -> Call[Any]:
        if isinstance(task, Task):
            check_task(self._app, task)
            task = task.name
        args, kwargs = read_call(said)
        return self._app.call_by_name(task, args, kwargs, read_job_options(said))

    def _changed(self, before: Schedule, said: ScheduleOptions, now: int) -> Schedule:
        job, options = before.job, read_job_options(said)
        if "args" in said or "kwargs" in said:
            job = self._with_arguments(job, said)
        rule = _rule(said, before.rule)
        next_run = before.next_run if rule == before.rule else rule.next(now)
        return replace(
            before,
            rule=rule,
            next_run=next_run,
            job=replace(job, **options),
            updated=now,
            **read_tick_options(said),
        )

    def _with_arguments(self, job: Job, said: ScheduleOptions) -> Job:
        """The job with new arguments, and the keys filled from them; arguments not given stay."""
        app = self._app
        args, kwargs = app.codecs.decode_call(job.payload, limit=app.settings.max_payload)
        call = self._call(job.task, {"args": args, "kwargs": kwargs, **said})
        made = app.job_builder.build(call)
        return replace(job, payload=made.payload, rate_key=made.rate_key, running_key=made.running_key)


def _rule(said: Mapping[str, Any], before: Rule | None) -> Rule:
    cron, every, tz = said.get("cron"), said.get("every"), said.get("tz")
    if cron is not None and every is not None:
        raise InvalidInput("every", every, "give either cron or every, not both")
    if every is not None:
        if tz is not None:
            raise InvalidInput("tz", tz, "an interval has no time zone; it goes with cron")
        return Every.parse(every)
    if cron is not None:
        old = before.tz if isinstance(before, Cron) else "UTC"
        return Cron.parse(cron, old if tz is None else tz)
    if before is None:
        raise InvalidInput("cron", None, 'give cron="0 3 * * *" or every="30s"')
    if tz is None:
        return before
    if isinstance(before, Every):
        raise InvalidInput("tz", tz, "an interval has no time zone; it goes with cron")
    return Cron.parse(before.expression, tz)


def _triggered(schedule: Schedule) -> Job:
    job = schedule.job
    return replace(
        job,
        id=f"{job.queue}:{uuid7().hex}",
        headers=job.headers | {SCHEDULE_HEADER: schedule.name, TICK_HEADER: TRIGGERED},
        tags=(*job.tags, TAG + schedule.name),
    )


async def _unknown(broker: Broker, name: str) -> ScheduleNotFound:
    known = [schedule.name for schedule, _ in await read_schedules(broker)]
    return ScheduleNotFound(name, near_names(name, known))


def describe(schedule: Schedule, app: App, last_status: State | None) -> ScheduleInfo:
    """A stored schedule, as users see it."""
    rule, job, paused = schedule.rule, schedule.job, schedule.paused
    args, kwargs = _arguments(job, app)
    return ScheduleInfo(
        name=schedule.name,
        task=schedule.task,
        kind="cron" if isinstance(rule, Cron) else "every",
        rule=str(rule),
        tz=rule.tz if isinstance(rule, Cron) else None,
        description=rule.describe(),
        queue=job.queue,
        priority=job.priority,
        args=args,
        kwargs=kwargs,
        jitter=schedule.jitter / 1000,
        catch_up=schedule.catch_up,
        catch_up_cap=schedule.catch_up_cap,
        overlap=schedule.overlap,
        origin=schedule.origin,
        paused=None
        if paused is None
        else PauseInfo(by=paused.by, reason=paused.reason, at=moment(paused.at)),
        next_run=None if paused is not None else _maybe(schedule.next_run),
        last_run=_maybe(schedule.last_run),
        run_count=schedule.run_count,
        last_error=schedule.last_error,
        last_job=schedule.last_job,
        last_status=last_status,
        created_at=moment(schedule.created),
        updated_at=moment(schedule.updated),
    )


def _check_text(field: str, text: str) -> None:
    try:
        check_description(text)
    except InvalidInput as error:
        raise InvalidInput(field, text, error.allowed) from None


def _maybe(ms: int | None) -> datetime | None:
    return None if ms is None else moment(ms)


def _arguments(job: Job, app: App) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    try:
        return app.codecs.decode_call(job.payload, limit=app.settings.max_payload)
    except CodecError:
        return None, None
