"""A task: a named function with options for its jobs. It stays a plain callable. A call of it is a value."""

from __future__ import annotations

import functools
import inspect
import re
import string
from collections.abc import Callable, Coroutine, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    get_args,
    overload,
)

import msgspec

from dray.codec.signature import Hints, annotations_of
from dray.codec.values import describe
from dray.context import Context, detached
from dray.errors import InvalidInput
from dray.job import check_name, check_word
from dray.options import TaskSettings, Using, read_options, read_task_options
from dray.policy import Backoff, BackoffFunction

if TYPE_CHECKING:
    from dray.app import App
    from dray.handle import JobHandle

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


BUILT_IN: Final = "dray."
"""The first letters of the names of dray's own tasks."""


class Call(msgspec.Struct, Generic[R], eq=False):
    """A call of a task that has not been enqueued yet: for `app.enqueue_many` and flows."""

    task: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    options: dict[str, Any] = {}
    """The options of this one call, as `read_options` returns them."""
    app: Any = None
    """The app whose task it calls."""
    missing: str = ""
    """The parameter that is left out, for the result of an earlier job of a flow."""

    def __repr__(self) -> str:
        parts = [repr(value) for value in self.args]
        parts += [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"<Call {self.task}({', '.join(parts)})>"


def check_complete(call: Call[Any]) -> None:
    """TypeError if an argument was left out: only a flow fills it."""
    if call.missing:
        raise TypeError(
            f"{call.task}(): missing argument {call.missing!r}: it may be left out only where the result of "
            "an earlier job of a chain, chord or flow fills it"
        )


class Task(Generic[P, R]):
    """A registered function. Call it like any function, or `enqueue` the call for a worker."""

    built_in: bool = False
    """It is dray's own: run by every worker, and not seen by middleware."""

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
        self._fitting = self.hints.fitting_types()
        settings = settings or {}
        self.options = read_task_options(name, settings)
        backoff = settings.get("backoff")
        self.backoff: Backoff | BackoffFunction | None = (
            backoff if callable(backoff) else None if backoff is None else Backoff.parse(backoff)
        )
        self._key_parameters = {
            name: self.hints.of_parameter(name)
            for field in ("rate_key", "running_key")
            for name in _template_parameters(field, getattr(self.options, field), self.hints)
        }
        """The parameters that keys are filled from."""
        self.__name__ = getattr(function, "__name__", name)
        self.__qualname__ = getattr(function, "__qualname__", name)
        self.__doc__, self.__module__ = function.__doc__, function.__module__
        self.__wrapped__ = function

    def __repr__(self) -> str:
        return f"<Task {self.name} of {self.app.name}>"

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Have a worker call it; returns as soon as the job is safe in the broker."""
        return self.app.client.block(self.app.send, self._complete(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        return await self.app.client.run(self.app.send, self._complete(args, kwargs))

    delay = enqueue

    def _complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        """A call with all its arguments."""
        if kwargs or tuple(map(type, args)) not in self._fitting:
            self.hints.check_call(args, kwargs)
        return Call(self.name, args, kwargs)

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def call(self: Task[Concatenate[Any, Q], R], *args: Q.args, **kwargs: Q.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **kwargs: Any) -> Call[R]:
        """The call as a value, to be enqueued later or together with others.

        In a flow the first argument may be left out, for the result of an earlier job.
        """
        return self.make_call(args, kwargs, {})

    def make_call(self, args: tuple[Any, ...], kwargs: dict[str, Any], options: dict[str, Any]) -> Call[R]:
        """The call with options that `read_options` has checked."""
        try:
            if kwargs or tuple(map(type, args)) not in self._fitting:
                self.hints.check_call(args, kwargs)
        except TypeError:
            if not self.hints.fits((None, *args), kwargs):
                raise
            return Call(self.name, args, kwargs, options, self.app, self.hints.first_parameter)
        return Call(self.name, args, kwargs, options, self.app)

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
        given, wrong = bound.arguments, {}
        for name, hint in self._key_parameters.items():
            if hint is not None:  # a dict becomes the class that the task gets
                try:
                    given[name] = hint.convert(given[name])
                except Exception as error:  # reported only if a key needs this argument
                    wrong[name] = error
        return _fill("rate_key", rate, given, wrong), _fill("running_key", running, given, wrong)

    def place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call, with the context where the signature has it."""
        return self._place(args, kwargs, context, self.context_parameters)

    def _place(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: Context, names: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        placed = list(args)
        for name in names:
            index = self._context_places.get(name)
            if index is not None and index <= len(placed):
                placed.insert(index, context)
            else:  # keyword-only, or an argument before it was given by keyword
                kwargs = {**kwargs, name: context}
        return tuple(placed), kwargs

    def run_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A direct call; a missing context is filled in, one that belongs to no job."""
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

    def __init__(self, task: Task[P, R], options: dict[str, Any]) -> None:
        self.task, self.options = task, options

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        app = self.task.app
        return app.client.block(app.send, self._complete(args, kwargs))

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        app = self.task.app
        return await app.client.run(app.send, self._complete(args, kwargs))

    def _complete(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[R]:
        self.task.hints.check_call(args, kwargs)
        return Call(self.task.name, args, kwargs, self.options)

    delay = enqueue

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def call(self: Prepared[Concatenate[Any, Q], R], *args: Q.args, **kwargs: Q.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **kwargs: Any) -> Call[R]:
        return self.task.make_call(args, kwargs, self.options)

    def using(self, **options: Unpack[Using]) -> Prepared[P, R]:
        return Prepared(self.task, read_options(options, self.options))


class CallsByName:
    """`app.using(...)`: options for calls by name."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self._app, self._options = app, options

    def enqueue(self, name: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return self._app.submit(self._app.call_by_name(name, args, kwargs, self._options))

    async def aenqueue(self, name: str, /, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await self._app.asubmit(self._app.call_by_name(name, args, kwargs, self._options))

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Call[Any]:
        return self._app.open_call(name, args, kwargs, self._options)


def is_async(function: Callable[..., Any]) -> bool:
    """True if calling it gives a coroutine: an `async def`, a partial of one, or an async `__call__`."""
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
    if isinstance(annotation, str):  # not resolvable: imported for type checkers only
        return _CONTEXT_NAME.fullmatch(annotation.strip("'\" ")) is not None
    return annotation is Context or Context in get_args(annotation)


_CONTEXT_NAME: Final = re.compile(r"(dray\.)?Context( *\| *None)?")


def _fill(
    field: str, template: str | None, arguments: Mapping[str, Any], wrong: Mapping[str, Exception]
) -> str | None:
    """A key like `"customer:{customer_id}"` with the arguments of one call."""
    if template is None:
        return None
    try:
        return check_word(field, template.format_map(arguments))
    except (LookupError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        why = _unfilled(template, arguments, wrong) or repr(error)
        raise InvalidInput(field, template, f"it cannot be filled from this call: {why}") from error


def _unfilled(template: str, arguments: Mapping[str, Any], wrong: Mapping[str, Exception]) -> str | None:
    """The parameter that lacks a field of the template, as a sentence."""
    for field, name in _template_fields(template):
        try:
            string.Formatter().get_field(field, (), arguments)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            lacking = f"parameter {name!r} gives nothing for {{{field}}} ({describe(error)})"
            if name in wrong:
                return f"{lacking}, because it does not fit its annotation: {describe(wrong[name])}"
            if isinstance(arguments[name], dict) and "." in field:
                return f"{lacking}: annotate it with a class, or write {{{name}[…]}} for an item of a dict"
            return lacking
    return None


def _template_parameters(field: str, template: str | None, hints: Hints) -> list[str]:
    """A key like `"customer:{customer_id}"` may only name parameters of the task."""
    if template is None:
        return []
    try:
        fields = _template_fields(template)
    except ValueError as error:
        raise InvalidInput(field, template, f"it cannot be read: {error}") from None
    for used, parameter in fields:
        if parameter not in hints.signature.parameters:
            known = ", ".join(hints.signature.parameters) or "none"
            raise InvalidInput(
                field, template, f"{{{used}}} is no parameter of {hints.name} (it has: {known})"
            )
    return [parameter for _, parameter in fields]


def _template_fields(template: str) -> list[tuple[str, str]]:
    """Each field in braces, and the parameter it begins with."""
    fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    return [(field, field.split(".")[0].split("[")[0]) for field in fields]
