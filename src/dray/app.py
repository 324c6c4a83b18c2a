"""An app: tasks under one name, on one broker. It is the first object that users make."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from inspect import isasyncgenfunction, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from dray.admin.parts import AppPart
from dray.broker import Broker
from dray.broker.verbs import Accepted
from dray.client.client import Client, opener
from dray.client.enqueue_middleware import EnqueueMiddleware, send_many_through, send_through
from dray.client.job_builder import JobBuilder
from dray.client.link import Link, forbid_on_worker_loop, while_waiting
from dray.client.sync_async import sync_and_async
from dray.codec.payload import Codecs
from dray.context import Context
from dray.discovery import import_below
from dray.errors import (
    DrayError,
    DuplicateJob,
    EnqueueLimited,
    InvalidInput,
    QueueFull,
    UnknownTaskWarning,
    near_names,
)
from dray.flows.api import FlowMaker
from dray.handle import JobHandle
from dray.job import Job, check_name
from dray.options import Durability, TaskSettings, Using, read_options
from dray.schedules.decorators import ScheduleDecorators
from dray.settings import Loaded, Settings, load
from dray.stats.arrivals import read_arrivals
from dray.stats.task_stats import Stats, read_stats, with_arrivals
from dray.task import BUILT_IN, Call, CallsByName, CoroutineTask, PlainTask, Task, check_complete, is_async

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from dray.client.tracing import Tracing
    from dray.schedules.api import Schedules
    from dray.testing.harness import Harness

P = ParamSpec("P")
R = TypeVar("R")
RunMiddleware = Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]
Lifespan = Callable[..., AbstractAsyncContextManager[Any]]
_FULL_PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5)
"""Seconds between tries to enter a full queue whose overflow rule is to wait."""
_LONGEST_PAUSE = 1.0
"""Seconds between tries at a slow enqueue rate at most: the rate may have been raised."""
_REFUSED = frozenset({"full", "limited"})
_MAY_WAIT: ContextVar[bool] = ContextVar("dray_may_wait", default=True)
"""False during a `submit` that must not wait for room, and in everything that its middleware enqueues."""


class _Unrelated:
    """For type checkers: no parameter is annotated with it, so only a parameter of type Any accepts it."""


class App(FlowMaker, ScheduleDecorators):
    """Tasks, a broker, and everything that can be done with both.

        app = App("shop")                                        # the embedded broker, nothing to install
        app = App("shop", broker="redis://localhost:6379/0")

    Any setting may be given by keyword (`App("shop", retries=5)`); see docs/settings.md for where else.
    """

    schedules: AppPart[Schedules] = AppPart("dray.schedules.api:Schedules")

    def __init__(
        self, name: str, *, broker: str | None = None, codecs: Codecs | None = None, **settings: object
    ) -> None:
        self.name = check_name("name", name)
        if broker is not None:
            settings["broker_url"] = broker
        self.loaded: Loaded = load(settings, app_name=name)
        self.settings: Settings = self.loaded.settings
        self.codecs = codecs or Codecs(allow_pickle=self.settings.allow_pickle)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.run_middleware: tuple[RunMiddleware, ...] = ()
        self.enqueue_middleware_chain: tuple[EnqueueMiddleware, ...] = ()
        self.job_builder = JobBuilder(self)
        self.client = Client(self._opener(), self.settings.broker_url)
        self.clock: Callable[[], int] = lambda: self.client.clock()
        self.declarations = {}
        self._lifespan: Lifespan | None = None
        self.tracing: Tracing | None = None
        if self.settings.otel:
            self.trace()

    def __repr__(self) -> str:
        return f"<App {self.name}: {len(self.tasks)} tasks>"

    # tasks

    # The first overload that fits counts. A first parameter of type Any would pass for a Context, which
    # callers do not give: `_Unrelated` finds such tasks, and their calls go unchecked. Async comes before
    # plain, because an async function is also a plain one that returns a coroutine.
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Unrelated, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[..., R]: ...
    @overload
    def task(self, function: Callable[Concatenate[_Unrelated, P], R], /) -> PlainTask[..., R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    @overload
    def task(self, /, *, name: str | None = None, **settings: Unpack[TaskSettings]) -> _Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        **settings: Unpack[TaskSettings],
    ) -> Any:
        """Make a function a task: `@app.task`, or `@app.task(queue="email", retries=5, …)`."""
        if function is None:
            return _Decorator(self, name, settings)
        if not callable(function):
            raise InvalidInput("task", function, "a function is allowed; give options by keyword")
        return self._register(function, name, settings)

    def _register(
        self, function: Callable[..., Any], name: str | None, settings: TaskSettings
    ) -> Task[..., Any]:
        own = getattr(function, "__name__", type(function).__name__)
        if name is None and own == "<lambda>":
            raise InvalidInput("name", own, "a lambda has no name of its own: give name=")
        chosen = check_name("name", own if name is None else name)
        if chosen in self.tasks:
            other = self.tasks[chosen].function
            where = f"{other.__module__}.{getattr(other, '__qualname__', chosen)}"
            raise InvalidInput("name", chosen, f"{where} is a task of this name already: give another name=")
        if chosen.startswith(BUILT_IN):
            raise InvalidInput("name", chosen, f"names that begin with {BUILT_IN} are dray's own")
        kind: type[Task[..., Any]] = CoroutineTask if is_async(function) else PlainTask
        task = self.tasks[chosen] = kind(self, chosen, function, settings)
        return task

    def autodiscover(self, *packages: str, module: str = "tasks") -> list[str]:
        """Import every module named `tasks` in these packages and below: `app.autodiscover("proj")`.

        Packages without one are fine; an error inside one is raised. Returns the names of the modules.
        """
        if not packages:
            raise InvalidInput("packages", packages, 'name at least one: app.autodiscover("proj")')
        return [name for package in packages for name in import_below(package, module)]

    def lifespan(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """An async context manager around the life of each executor process; it yields `ctx.state`.

        @app.lifespan
        async def resources(app):
            async with connect() as db:
                yield db
        """
        if self._lifespan is not None:
            raise InvalidInput(
                "lifespan", function, "an app has one lifespan; enter several things inside it"
            )
        self._lifespan = asynccontextmanager(function) if isasyncgenfunction(function) else function
        return function

    def open_lifespan(self) -> AbstractAsyncContextManager[Any]:
        """The user's lifespan, entered by each executor; yields None if there is none."""
        if self._lifespan is None:
            return nullcontext()
        takes_app = len(signature(self._lifespan).parameters) > 0
        return self._lifespan(self) if takes_app else self._lifespan()

    def middleware(self, function: RunMiddleware) -> RunMiddleware:
        """Around each run: `async def mw(ctx, call_next): return await call_next()`. The first is outmost."""
        self.run_middleware += (function,)
        return function

    def enqueue_middleware(self, function: EnqueueMiddleware) -> EnqueueMiddleware:
        """Around each enqueue: `async def mw(outgoing, call_next)`, which may change what goes out."""
        self.enqueue_middleware_chain += (function,)
        return function

    def trace(self, provider: TracerProvider | None = None) -> None:
        """Trace with OpenTelemetry: a span for each enqueue and each attempt (`dray[otel]`).

        The setting `otel` does the same. Without a provider, the one that the SDK set for the whole process.
        """
        try:
            kind: type[Tracing] = import_module("dray.client.tracing").Tracing
        except ImportError as error:
            raise DrayError("tracing needs OpenTelemetry: pip install 'dray[otel]'") from error
        self.tracing = kind(provider)

    # enqueue

    def using(self, **options: Unpack[Using]) -> CallsByName:
        """Options for a call by name: `app.using(delay=60).enqueue("email.send", "a@x.org")`."""
        return CallsByName(self, read_options(options))

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        """A call by name, as a value."""
        return self.open_call(name, args, kwargs, {})

    def open_call(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> Call[Any]:
        """A call by name whose first argument may be left out."""
        task = self.tasks.get(name)
        if task is not None:
            return task.make_call(args, kwargs, options)
        call = self.call_by_name(name, args, kwargs, options)
        call.app = self
        return call

    def enqueue(self, name: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        """Enqueue by name. A task this process does not know is left to workers that do."""
        return self.submit(self.call_by_name(name, args, kwargs, {}))

    async def aenqueue(self, name: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await self.asubmit(self.call_by_name(name, args, kwargs, {}))

    def call_by_name(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]
    ) -> Call[Any]:
        """A call by name, complete."""
        if isinstance(name, Task):
            name = name.name
        task = self.tasks.get(check_name("task", name))
        if task is not None:
            task.hints.check_call(args, kwargs)
        elif near := near_names(name, self.tasks, 1):
            warnings.warn(
                f"no task of this app is named {name!r} (did you mean {near[0]}?): its jobs wait for "
                "a worker that knows it",
                UnknownTaskWarning,
                stacklevel=3,
            )
        return Call(name, args, kwargs, options)

    async def _submit(self, link: Link, call: Call[R], *, wait_for_room: bool = True) -> JobHandle[R]:
        """Enqueue one call. `wait_for_room=False`: neither it nor its middleware waits for a full queue."""
        if not isinstance(call, Call):
            raise _no_call(call)
        if wait_for_room:
            return await self.send(link, call)
        before = _MAY_WAIT.set(False)
        try:
            return await self.send(link, call)
        finally:
            _MAY_WAIT.reset(before)

    def send(self, link: Link, call: Call[R]) -> Coroutine[Any, Any, JobHandle[R]]:
        """Enqueue one call, through all middleware."""
        if call.missing:
            check_complete(call)
        if self.enqueue_middleware_chain:
            return send_through(self, link, call)
        if self.tracing is not None:
            return self.put_one(link, call)
        return self._put_one(link, call, None)

    async def _enqueue_many(self, link: Link, calls: Iterable[Call[R]]) -> list[JobHandle[R]]:
        """Enqueue many calls at once; up to 1,000 are one atomic step. Handles come in the calls' order.

        If some are refused (`DuplicateJob`, `QueueFull`) the others are enqueued all the same; the error's
        `accepted` has their handles.
        """
        if isinstance(calls, Call):
            raise InvalidInput("calls", calls, "a list of calls is allowed")
        calls = list(calls)
        for call in calls:
            if not isinstance(call, Call):
                raise _no_call(call)
            check_complete(call)
        if self.enqueue_middleware_chain:
            return await send_many_through(self, link, calls)
        return self.handles_or_raise(await self.put_each(link, calls))

    submit, asubmit = sync_and_async(_submit)
    enqueue_many, aenqueue_many = sync_and_async(_enqueue_many)

    async def put_one(self, link: Link, call: Call[R], headers: dict[str, str] | None = None) -> JobHandle[R]:
        """Put a call, past all middleware."""
        if self.tracing is None:
            return await self._put_one(link, call, headers)
        with self.tracing.sending([call], self.job_builder.queue_of(call)) as trace:
            return await self._put_one(link, call, trace | (headers or call.options.get("headers", {})))

    async def _put_one(self, link: Link, call: Call[R], headers: dict[str, str] | None) -> JobHandle[R]:
        job, durability = self.job_builder.outgoing(call, headers)
        if link.batches is None:
            (accepted,) = await link.put_checked((job,), durability=durability)
        else:
            accepted = await link.batches.put(job, durability)
        if accepted.verdict in _REFUSED:
            accepted = await self._wait_for_room(link, job, durability, accepted)
        result = self.handle_or_error(job, accepted)
        if isinstance(result, Exception):
            raise result
        return result

    async def put_each(
        self, link: Link, calls: Sequence[Call[R]], headers: Sequence[dict[str, str]] | None = None
    ) -> list[JobHandle[R] | Exception]:
        """Put calls together, past all middleware; for each its handle, or the error of its refusal."""
        if self.tracing is None or not calls:
            return await self._put_each(link, calls, headers)
        with self.tracing.sending(calls, self.job_builder.queue_of(calls[0])) as trace:
            own = [call.options.get("headers", {}) for call in calls] if headers is None else headers
            return await self._put_each(link, calls, [trace | more for more in own])

    async def _put_each(
        self, link: Link, calls: Sequence[Call[R]], headers: Sequence[dict[str, str]] | None
    ) -> list[JobHandle[R] | Exception]:
        sent: Sequence[dict[str, str] | None] = headers or [None] * len(calls)
        built = list(map(self.job_builder.outgoing, calls, sent))
        jobs = [job for job, _ in built]
        durability: Durability | None = "full" if "full" in {kept for _, kept in built} else None
        # Jobs that wait for each other must not do so in a circle: `put` checks that.
        put = link.broker.put if [job for job in jobs if job.waits_for] else link.put_checked
        replies = await put(jobs, durability=durability) if jobs else []
        results: list[JobHandle[R] | Exception] = []
        created = Counter[tuple[str, str]]()
        for job, accepted in zip(jobs, replies, strict=True):
            if accepted.verdict in _REFUSED:
                accepted = await self._wait_for_room(link, job, durability, accepted)
            if accepted.verdict == "created":
                created[job.task, job.queue] += 1
                results.append(JobHandle(self, job.id, job.task, job.queue, accepted=accepted.state))
            else:
                results.append(self.handle_or_error(job, accepted))
        for (task, queue), count in created.items():
            self.client.arrivals.add(task, queue, count=count)
        return results

    def handles_or_raise(self, results: Sequence[JobHandle[R] | Exception]) -> list[JobHandle[R]]:
        """The handles of a batch. The first error is raised, with the handles as its `accepted`."""
        refused = next((one for one in results if isinstance(one, Exception)), None)
        handles = [one for one in results if not isinstance(one, Exception)]
        if refused is None:
            return handles
        if isinstance(refused, DuplicateJob | QueueFull):
            refused.accepted = handles
        raise refused

    async def _wait_for_room(
        self, link: Link, job: Job, durability: Durability | None, refused: Accepted
    ) -> Accepted:
        """Wait for room in a full queue, if the operator's overflow rule, or else the job's, is to wait."""
        if not _MAY_WAIT.get():
            return refused
        queues = await link.broker.queues()
        rule = next((queue.limits.overflow for queue in queues if queue.name == job.queue), None)
        if (rule or job.overflow) != "wait":
            return refused
        if link.blocking:
            forbid_on_worker_loop("waiting for room in a full queue", "await ….aenqueue()")
        with while_waiting():
            return await self._put_until_accepted(link, job, durability, refused)

    async def _put_until_accepted(
        self, link: Link, job: Job, durability: Durability | None, refused: Accepted
    ) -> Accepted:
        tries = 0
        while True:
            after = refused.retry_after
            pause = _FULL_PAUSES[min(tries, len(_FULL_PAUSES) - 1)] if after is None else after / 1000
            await link.sleep(min(pause, _LONGEST_PAUSE))
            tries += 1
            (refused,) = await link.broker.put([job], durability=durability)
            if refused.verdict not in _REFUSED:
                return refused

    def handle_or_error(self, job: Job, accepted: Accepted) -> JobHandle[Any] | Exception:
        """The handle of a job that was put, which is counted, or the error of its refusal."""
        if accepted.verdict == "created":
            self.client.arrivals.add(job.task, job.queue)
            return JobHandle(self, job.id, job.task, job.queue, accepted=accepted.state)
        if accepted.verdict == "full":
            return QueueFull(job.queue, accepted.max_ready or 0)
        if accepted.verdict == "limited":
            return EnqueueLimited(job.queue, (accepted.retry_after or 0) / 1000)
        if job.on_duplicate == "raise":
            return DuplicateJob(accepted.id)
        return JobHandle(self, accepted.id, job.task, job.queue, duplicate=True, accepted=accepted.state)

    # everything else

    async def _stats(self, link: Link) -> Stats:
        """Per task: accepted jobs, runs, failures, durations, waits; in total and per worker."""
        await self.client.arrivals.write(link.broker)
        return with_arrivals(await read_stats(link.broker), await read_arrivals(link.broker))

    stats, astats = sync_and_async(_stats)

    def job(self, id: str) -> JobHandle[Any]:
        """The handle of a job by its id. The broker is not asked whether the job exists."""
        return self.handle(id)

    def handle(self, id: str, task: str | None = None, queue: str | None = None) -> JobHandle[Any]:
        return JobHandle(self, id, task, queue)

    def now(self) -> int:
        """The broker's time, in milliseconds since the epoch; tests may have set it."""
        return self.clock()

    async def connect(self, *, blocking: bool = False) -> Broker:
        """A new broker object, for using its verbs directly."""
        return await self.client.open(blocking)

    def use(self, loaded: Loaded) -> None:
        """Switch to other settings, such as those of a command line."""
        self.close()
        self.loaded, self.settings = loaded, loaded.settings
        self.client = Client(self._opener(), self.settings.broker_url)
        if self.settings.otel and self.tracing is None:
            self.trace()

    def close(self) -> None:
        """Close all connections. The next call opens new ones."""
        self.client.close()
        if "history" in vars(self):
            self.history.close()

    def testing(self, *, isolate: bool = False, limit: int = 10_000, raise_errors: bool = False) -> Harness:
        """Run jobs in this process, on a clock that you move: see docs/testing.md."""
        kind: type[Harness] = import_module("dray.testing.harness").Harness
        return kind(self, isolate=isolate, limit=limit, raise_errors=raise_errors)

    def _opener(self) -> Callable[[bool], Coroutine[Any, Any, Broker]]:
        settings = self.settings
        inner = opener(settings.broker_url, settings.namespace, settings.retention, access=settings.access)
        if self.loaded.origins.get("broker_url") != "default":
            return inner

        async def embedded(blocking: bool) -> Broker:
            self.loaded.check_place()
            _make_folder(self.loaded.folder / ".dray")
            return await inner(blocking)

        return embedded


class _Decorator:
    """`@app.task(...)` with options, waiting for its function."""

    def __init__(self, app: App, name: str | None, settings: TaskSettings) -> None:
        self._app, self._name, self._settings = app, name, settings

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[_Unrelated, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[..., R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Unrelated, P], R], /) -> PlainTask[..., R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> CoroutineTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> PlainTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> PlainTask[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app._register(function, self._name, self._settings)


def _no_call(given: object) -> InvalidInput:
    return InvalidInput("call", given, "a call as made by task.call(...) is allowed")


def _make_folder(folder: Path) -> None:
    """Make the embedded broker's folder, and keep it out of version control."""
    if not folder.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
