"""A task: a function with a name and the rules its jobs follow. It stays a plain callable."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
)

import msgspec

from dray.call import (
    Call,
    CallOptions,
    Durability,
    Duration,
    Priority,
    Using,
    read_options,
    read_retries,
    read_tags,
    read_timeout,
)
from dray.context import Context, detached
from dray.duration import parse_duration
from dray.errors import InvalidInput
from dray.hints import Hints, annotations_of
from dray.job import Overflow, check_name, check_word, parse_priority
from dray.policy import Backoff, BackoffFunction, Rate, check_description

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle

P = ParamSpec("P")
R = TypeVar("R")

Isolation = Literal["thread", "process"]
Errors = type[BaseException] | tuple[type[BaseException], ...]
_MOST: Final = 1_000_000_000


class TaskSettings(TypedDict, total=False):
    """What `@app.task(...)` takes beside `name`."""

    queue: str
    priority: Priority
    retries: int
    backoff: str | BackoffFunction
    timeout: Duration | None
    ttl: Duration | None
    result_ttl: Duration | None
    once: Duration | None
    rate_limit: str | None
    rate_key: str | None
    max_running: int | None
    running_key: str | None
    max_ready: int | None
    overflow: Overflow
    max_crashes: int
    isolate: Isolation
    speculate: bool
    retry_on: Errors
    give_up_on: Errors
    tags: list[str] | tuple[str, ...]
    description: str
    durability: Durability
    codec: str


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`TaskSettings`, checked and in the units of a job. None: the settings decide, or there is no limit."""

    queue: str | None = None
    priority: int = 5
    retries: int | None = None
    backoff: str | None = None
    timeout: int | None = None
    ttl: int | None = None
    result_ttl: int | None = None
    once: int | None = None
    rate: str | None = None
    rate_key: str | None = None
    max_running: int | None = None
    running_key: str | None = None
    max_ready: int | None = None
    overflow: Overflow = "raise"
    max_crashes: int | None = None
    isolate: Isolation = "thread"
    speculate: bool = False
    retry_on: tuple[type[BaseException], ...] = ()
    give_up_on: tuple[type[BaseException], ...] = ()
    tags: tuple[str, ...] = ()
    description: str = ""
    durability: Durability | None = None
    codec: str | None = None


class Task(Generic[P, R]):
    """A registered function. Call it as ever, or `enqueue` the call to have a worker do it."""

    def __init__(
        self, app: App, name: str, function: Callable[..., Any], settings: TaskSettings | None = None
    ) -> None:
        self.app, self.name, self.function = app, check_name("name", name), function
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidInput(
                "task", function, "a generator has no one result: return a list, or report progress"
            )
        self.is_async = is_async(function)
        parameters = inspect.signature(function).parameters
        self.context_parameters = _context_parameters(function, parameters)
        """Names of the parameters that are filled in where the job runs."""
        positions = [
            parameter.name
            for parameter in parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        self._context_places = {
            name: positions.index(name) for name in self.context_parameters if name in positions
        }
        self._contexts_wanted = tuple(
            name for name in self.context_parameters if parameters[name].default is inspect.Parameter.empty
        )
        self.hints = Hints.of(function, skip=frozenset(self.context_parameters))
        settings = settings or {}
        self.options = read_task_options(name, settings)
        backoff = settings.get("backoff")
        self.backoff: Backoff | BackoffFunction | None = (
            backoff if callable(backoff) else None if backoff is None else Backoff.parse(backoff)
        )
        for field in ("rate_key", "running_key"):
            _check_template(field, getattr(self.options, field), self.hints)
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.app.name}>"

    # enqueue: one implementation in the app; these lines only carry the task's own signature

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Have a worker call it; returns as soon as the job is safe in the broker."""
        return self.app.submit(self.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await self.app.asubmit(self.call(*args, **kwargs))

    delay = enqueue

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """The call as a value, to be enqueued later or together with others."""
        self.hints.check_call(args, kwargs)
        return Call(self.name, args, kwargs)

    def using(self, **options: Unpack[Using]) -> Prepared[P, R]:
        """The task with options for one call: `send.using(delay=60, key="welcome:42").enqueue("a@x.org")`."""
        return Prepared(self, read_options(options))

    def keys(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[str | None, str | None]:
        """The rate key and running key of one call, filled from its arguments."""
        rate, running = self.options.rate_key, self.options.running_key
        if rate is None and running is None:
            return None, None
        bound = self.hints.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return _fill("rate_key", rate, bound.arguments), _fill("running_key", running, bound.arguments)

    def place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with the context put where the signature asks for it."""
        return self._place(args, kwargs, context, self.context_parameters)

    def _place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context, names: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placed = list(args)
        for name in names:
            index = self._context_places.get(name, _MOST)
            if index <= len(placed):
                placed.insert(index, context)
            else:  # keyword-only, or what stands before it was given by keyword
                kwargs = {**kwargs, name: context}
        return tuple(placed), kwargs

    def run_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A direct call, as of any function; a context that is missing is filled in, and is of no job."""
        given = any(isinstance(value, Context) for value in (*args, *kwargs.values()))
        if self._contexts_wanted and not given and self.hints.fits(args, kwargs):
            args, kwargs = self._place(args, kwargs, detached(self.app, self.name), self._contexts_wanted)
        return self.function(*args, **kwargs)


class PlainTask(Task[P, R]):
    """A task made of a plain function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self.run_here(args, kwargs)
        return result


class CoroutineTask(Task[P, R]):
    """A task made of an `async def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        result: Coroutine[Any, Any, R] = self.run_here(args, kwargs)
        return result


class Prepared(Generic[P, R]):
    """A task with options for one call."""

    __slots__ = ("options", "task")

    def __init__(self, task: Task[P, R], options: CallOptions) -> None:
        self.task, self.options = task, options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return self.task.app.submit(self.call(*args, **kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await self.task.app.asubmit(self.call(*args, **kwargs))

    delay = enqueue

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        self.task.hints.check_call(args, kwargs)
        return Call(self.task.name, args, kwargs, self.options)

    def using(self, **options: Unpack[Using]) -> Prepared[P, R]:
        return Prepared(self.task, read_options(options, self.options))


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: an `async def`, a partial of one, or an async `__call__`."""
    target: Any = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(
        getattr(type(target), "__call__", None)  # noqa: B004 (the method itself is wanted)
    )


def _context_parameters(
    function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter]
) -> tuple[str, ...]:
    resolved = annotations_of(function)
    return tuple(
        name
        for name, parameter in parameters.items()
        if _is_context(resolved.get(name, parameter.annotation))
    )


def _is_context(annotation: Any) -> bool:
    if isinstance(annotation, str):  # cannot be resolved: the name was imported for the type checker only
        return _CONTEXT_NAME.fullmatch(annotation.strip("'\" ")) is not None
    return annotation is Context or Context in get_args(annotation)


_CONTEXT_NAME: Final = re.compile(r"(dray\.)?Context( *\| *None)?")


def _fill(field: str, template: str | None, arguments: Mapping[str, Any]) -> str | None:
    """A key like `"customer:{customer_id}"` with the arguments of one call."""
    if template is None:
        return None
    try:
        return check_word(field, template.format_map(arguments))
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(field, template, f"it cannot be filled from this call: {error!r}") from error


def read_task_options(task: str, given: TaskSettings) -> TaskOptions:
    """Check what a decorator said; every wrong value is refused by its name."""
    unknown = sorted(given.keys() - TaskSettings.__annotations__.keys())
    if unknown:
        names = ", ".join(sorted(TaskSettings.__annotations__))
        raise InvalidInput("task", unknown[0], f"one of name, {names} is allowed")
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is not None:
            fields["rate" if name == "rate_limit" else name] = _OPTION_READERS[name](value)
    options = TaskOptions(**fields)
    if options.rate_key is not None and options.rate is None:
        raise InvalidInput("rate_key", options.rate_key, f"it needs a rate_limit on task {task!r} as well")
    if options.running_key is not None and options.max_running is None:
        raise InvalidInput(
            "running_key", options.running_key, f"it needs max_running on task {task!r} as well"
        )
    return options


def _read_errors(field: str) -> Callable[[Any], tuple[type[BaseException], ...]]:
    def read(value: Any) -> tuple[type[BaseException], ...]:
        kinds = value if isinstance(value, tuple | list | set | frozenset) else (value,)
        for kind in kinds:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidInput(field, kind, "exception classes are allowed")
        return tuple(kinds)

    return read


def _read_whole(field: str, least: int = 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
            raise InvalidInput(field, value, f"a whole number from {least} is allowed")
        return value

    return read


def _read_one_of(field: str, kind: Any) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        if value not in get_args(kind):
            raise InvalidInput(field, value, f"one of {', '.join(get_args(kind))} is allowed")
        return value

    return read


def _read_text(field: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not value:
            raise InvalidInput(field, value, "a text is allowed")
        return value

    return read


def _read_bool(field: str) -> Callable[[Any], bool]:
    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise InvalidInput(field, value, "True or False is allowed")
        return value

    return read


def _read_span(field: str) -> Callable[[Any], int | None]:
    return lambda value: parse_duration(field, value) or None  # 0 means: none


def _read_rate(value: Any) -> str:
    try:
        return str(Rate.parse(value))
    except InvalidInput as error:
        raise InvalidInput("rate_limit", value, error.allowed) from None


_OPTION_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "queue": lambda value: check_name("queue", value),
    "priority": parse_priority,
    "retries": read_retries,
    "backoff": lambda value: None if callable(value) else str(Backoff.parse(value)),
    "timeout": read_timeout,
    "rate_limit": _read_rate,
    "rate_key": _read_text("rate_key"),
    "running_key": _read_text("running_key"),
    "max_running": _read_whole("max_running"),
    "max_ready": _read_whole("max_ready"),
    "max_crashes": _read_whole("max_crashes"),
    "overflow": _read_one_of("overflow", Overflow),
    "isolate": _read_one_of("isolate", Isolation),
    "durability": _read_one_of("durability", Durability),
    "speculate": _read_bool("speculate"),
    "retry_on": _read_errors("retry_on"),
    "give_up_on": _read_errors("give_up_on"),
    "tags": read_tags,
    "description": check_description,
    "codec": _read_text("codec"),
    "result_ttl": lambda value: parse_duration("result_ttl", value),
    **{field: _read_span(field) for field in ("ttl", "once")},
}


def _check_template(field: str, template: str | None, hints: Hints) -> None:
    """A key like `"customer:{customer_id}"` may only name parameters of the task."""
    if template is None:
        return
    try:
        used = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InvalidInput(field, template, f"it cannot be read: {error}") from None
    for name in used:
        first = name.split(".")[0].split("[")[0]
        if first not in hints.signature.parameters:
            known = ", ".join(hints.signature.parameters) or "none"
            raise InvalidInput(
                field, template, f"{{{name}}} is no parameter of {hints.name} (it has: {known})"
            )
