"""Checks a call against a function's annotations, and converts decoded values to their classes.

Bytes never name a class (see `dray.codec.values`), so a decoded argument is plain data until its annotation
says otherwise. `msgspec.convert` does that for dataclasses, Structs, attrs classes, Enums, NamedTuples,
TypedDicts, the types of `datetime`, UUID, Decimal, Literal, unions and any nesting of these; classes with a
`model_validate` (pydantic's) build themselves.

An annotation that cannot be resolved (a name that exists only for the type checker) or that msgspec cannot
handle (a union of two dataclasses, an arbitrary class) leaves the value untouched. A value that does not fit
an annotation is a DecodeError that names the parameter. Where a text stands for a datetime, UUID, Decimal and
the like, it is read as one.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final
from uuid import UUID

import msgspec

from dray.codec.hash_safety import check_plain, may_hash
from dray.codec.values import describe
from dray.errors import DecodeError, did_you_mean

_LEAVES: Final = frozenset(
    {NoneType, bool, int, float, str, bytes, datetime, date, time, timedelta, UUID, Decimal}
)
_SCALARS: Final = frozenset({NoneType, bool, int, float, str})
"""Types that every codec returns unchanged."""
_UNTYPED: Final = (Any, object, inspect.Parameter.empty)
_Parameter = inspect.Parameter


class _Untouched(Exception):
    """A part of the annotation is a class that cannot be built from plain values."""


def _build(kind: Any, value: Any) -> object:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise _Untouched


class Hint:
    """One annotation."""

    __slots__ = ("annotation", "hashes", "leaf")

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self.leaf = annotation if isinstance(annotation, type) and annotation in _LEAVES else None
        """The class whose instances need no conversion, because they contain nothing."""
        self.hashes = self.leaf is None and may_hash(annotation)
        """True if values go into hash tables by keys that a caller can choose."""

    @staticmethod
    def of(annotation: Any) -> Hint | None:
        """None if values of this annotation need no conversion."""
        if annotation is None:
            annotation = NoneType
        try:
            return _hint(annotation)
        except TypeError:  # not hashable: Annotated with a list, for one
            return _hint.__wrapped__(annotation)

    def convert(self, value: Any, *, text: bool = False) -> Any:
        """Convert `value` to the annotation. If it does not fit, any error: classes check themselves.

        `text`: it comes from a format with texts only, so bytes are base64 and keys of dicts are texts.
        """
        if self.leaf is not None and isinstance(value, self.leaf):
            return value
        if self.hashes:
            check_plain(value)
        annotation = self.annotation
        if isinstance(annotation, type) and issubclass(annotation, Enum):
            return annotation(value)  # any value and any combination of flags; msgspec knows fewer
        try:
            return msgspec.convert(
                value,
                annotation,
                builtin_types=() if text else (bytes, bytearray),
                str_keys=text,
                dec_hook=_build,
            )
        except _Untouched:
            return value


@functools.lru_cache(maxsize=4096)
def _hint(annotation: Any) -> Hint | None:
    if annotation in _UNTYPED:
        return None
    if not (isinstance(annotation, type) and issubclass(annotation, Enum)):
        try:
            msgspec.msgpack.Decoder(annotation)
        except Exception:
            return None  # msgspec cannot handle it
    return Hint(annotation)


def annotations_of(function: Callable[..., object]) -> dict[str, Any]:
    """The annotations of parameters and `return`, texts resolved; those that cannot be are left out."""
    signature = _signature(function)
    found = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    found["return"] = signature.return_annotation
    namespace = _globals_of(function)
    resolved = {}
    for name, annotation in found.items():
        if annotation is _Parameter.empty:
            continue

        def holder() -> None: ...

        holder.__annotations__ = {"it": annotation}
        try:
            # One by one: a missing name in one annotation must not affect the others.
            resolved[name] = typing.get_type_hints(holder, namespace, include_extras=True)["it"]
        except Exception:  # noqa: S112  # evaluating a text may raise anything
            continue
    return resolved


def _signature(function: Callable[..., object]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.FORWARDREF)
    return inspect.signature(function)


def _globals_of(function: Any) -> dict[str, Any]:
    target = inspect.unwrap(function)
    while isinstance(target, functools.partial):
        target = inspect.unwrap(target.func)
    if not hasattr(target, "__globals__"):
        target = type(target).__call__
    return getattr(target, "__globals__", {})


class Hints:
    """The annotations of one function; made once, used for every call."""

    def __init__(self, name: str, signature: inspect.Signature, annotations: Mapping[str, Any]) -> None:
        self.name = name
        self.signature = signature
        self.returns: Any = annotations.get("return", Any)
        """The annotation of the result, for `Codecs.decode_value`."""
        self.positional: list[tuple[str, Hint | None]] = []
        self._keywords: dict[str, Hint | None] = {}
        self._rest: Hint | None = None
        self._rest_keywords: Hint | None = None
        for parameter in signature.parameters.values():
            self._add(parameter, annotations.get(parameter.name, Any))
        self._fits = _fits(list(signature.parameters.values()))

    @classmethod
    def of(cls, function: Callable[..., object], skip: frozenset[str] = frozenset()) -> Hints:
        """The hints of a function; `skip` are parameters that the worker fills in and callers do not give."""
        signature = _signature(function)
        given = [p for name, p in signature.parameters.items() if name not in skip]
        name = getattr(function, "__qualname__", type(function).__qualname__)
        return cls(name, signature.replace(parameters=given), annotations_of(function))

    def _add(self, parameter: inspect.Parameter, annotation: Any) -> None:
        if parameter.default is None and annotation is not Any:
            annotation = typing.Optional[annotation]  # noqa: UP045  # `x: int = None` is common, and meant so
        hint = Hint.of(annotation)
        match parameter.kind:
            case _Parameter.VAR_POSITIONAL:
                self._rest = hint
            case _Parameter.VAR_KEYWORD:
                self._rest_keywords = hint
            case kind:
                if kind is not _Parameter.KEYWORD_ONLY:
                    self.positional.append((parameter.name, hint))
                if kind is not _Parameter.POSITIONAL_ONLY:
                    self._keywords[parameter.name] = hint

    def of_parameter(self, name: str) -> Hint | None:
        """None if values of this parameter stay as they are."""
        return self._keywords.get(name) or dict(self.positional).get(name)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """TypeError if the function cannot be called with so many arguments, or ones of these names."""
        given = len(args)
        if given < len(self._fits):
            must, may = self._fits[given]
            names = kwargs.keys()
            if must <= names <= may:
                return
        self._check_names(kwargs)
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}(): {error}") from None

    def _check_names(self, kwargs: Mapping[str, Any]) -> None:
        """Report a wrong name rather than the argument that it leaves missing."""
        known = self.signature.parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
            return
        for name in kwargs:
            if name not in known:
                hint = did_you_mean(name, known).strip()
                problem = f"got an unexpected keyword argument {name!r}"
                raise TypeError(f"{self.name}(): {problem}{'; ' + hint if hint else ''}")

    def check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The same, and TypeError if the worker would refuse a value for its type.

        Only values that arrive unchanged are checked: numbers, texts and the like, not the contents of lists
        or classes.
        """
        self.check(args, kwargs)
        for (name, hint), value in zip(self.positional, args, strict=False):
            if hint is not None and type(value) is not hint.leaf and type(value) in _SCALARS:
                self._check_one(name, hint, value)
        for name, value in kwargs.items():
            hint = self._keywords.get(name, self._rest_keywords)
            if hint is not None and type(value) is not hint.leaf and type(value) in _SCALARS:
                self._check_one(name, hint, value)

    def fitting_types(self) -> frozenset[tuple[type, ...]]:
        """Types of positional arguments that `check_call` surely accepts, one tuple per number of them."""
        fitting: set[tuple[type, ...]] = set()
        leaves: list[type] = []
        for given, (must, _) in enumerate(self._fits):
            if not must:
                fitting.add(tuple(leaves))
            hint = self.positional[given][1] if given < len(self.positional) else None
            if hint is None or hint.leaf is None:
                break
            leaves.append(hint.leaf)
        return frozenset(fitting)

    def _check_one(self, name: str, hint: Hint, value: Any) -> None:
        try:
            hint.convert(value)
        except msgspec.ValidationError as error:
            raise TypeError(f"{self.name}(): argument {name!r}: {error}") from None
        except Exception as error:  # a class that checks itself
            raise TypeError(f"{self.name}(): argument {name!r}: {describe(error)}") from None

    @property
    def first_parameter(self) -> str:
        """The name of the first parameter that takes a positional argument."""
        return self.positional[0][0] if self.positional else "*args"

    def fits(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """True if the function accepts such a call."""
        try:
            self.check(args, kwargs)
        except TypeError:
            return False
        return True

    def of_place(self, place: int | str) -> Hint | None:
        """The hint of an argument given by position or by name."""
        if isinstance(place, str):
            return self._keywords.get(place, self._rest_keywords)
        return self.positional[place][1] if place < len(self.positional) else self._rest

    def name_of(self, place: int | str) -> str:
        """The name of the parameter of an argument."""
        if isinstance(place, str):
            return place
        return self.positional[place][0] if place < len(self.positional) else f"*{place}"

    def convert(
        self,
        args: list[Any],
        kwargs: dict[str, Any],
        *,
        text: bool = False,
        native: Collection[int | str] = (),
        ready: Collection[int | str] = (),
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Decoded arguments as the annotations want them. Changes what it is given.

        `native` arguments do not come from a text, whatever the others do; `ready` ones are left as they are.
        """
        known = len(self.positional)
        for place, value in enumerate(args):
            name, hint = self.positional[place] if place < known else (f"*{place}", self._rest)
            if hint is not None and type(value) is not hint.leaf and place not in ready:
                args[place] = self._one(name, hint, value, text and place not in native)
        for name, value in kwargs.items():
            hint = self._keywords.get(name, self._rest_keywords)
            if hint is not None and type(value) is not hint.leaf and name not in ready:
                kwargs[name] = self._one(name, hint, value, text and name not in native)
        return tuple(args), kwargs

    def _one(self, name: str, hint: Hint, value: Any, text: bool) -> Any:
        try:
            return hint.convert(value, text=text)
        except Exception as error:
            wrong = DecodeError(f"argument {name!r} of {self.name}: {describe(error)}")
            wrong.argument = name
            raise wrong from error


def _fits(parameters: list[inspect.Parameter]) -> list[tuple[frozenset[str], frozenset[str]]]:
    """For each number of positional arguments: which names must, and which may, be given by keyword."""
    places = [
        p for p in parameters if p.kind in (_Parameter.POSITIONAL_ONLY, _Parameter.POSITIONAL_OR_KEYWORD)
    ]
    by_name = [p for p in parameters if p.kind is _Parameter.KEYWORD_ONLY]
    table = []
    for given in range(len(places) + 1):
        left = places[given:] + by_name
        must = frozenset(p.name for p in left if p.default is _Parameter.empty)
        may = frozenset(p.name for p in left if p.kind is not _Parameter.POSITIONAL_ONLY)
        table.append((must, may))
    return table
