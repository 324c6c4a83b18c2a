"""Whether a result can be the argument of another task, by the annotations of both.

Only what cannot fit is refused: an annotation that is missing, or that this module does not know, fits.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Annotated, Any, Final, Union, get_args, get_origin

_TEXTS: Final = (str, bytes)
_LISTS: Final = (list, tuple, set, frozenset, Sequence, Set, Iterable)
_CLASSES: Final = (int, float, str, bytes, bool, list, tuple, set, frozenset, dict, type(None))
_WIDER: Final[dict[type, tuple[type, ...]]] = {
    bool: (int, float),
    int: (float, bool),
    list: (tuple, set, frozenset),
    tuple: (list, set, frozenset),
    set: (list, tuple, frozenset),
    frozenset: (list, tuple, set),
}
"""Classes that a value of a class is converted to, where an annotation asks for it."""


def fits(given: Any, wanted: Any) -> bool:
    """False if no value annotated as `given` can be an argument annotated as `wanted`."""
    given, wanted = _plain(given), _plain(wanted)
    return any(_fits(one, other) for one in _members(given) for other in _members(wanted))


def item_of(annotation: Any) -> Any:
    """The annotation of the items of a list; None if it is that of something else."""
    for one in _members(_plain(annotation)):
        origin = get_origin(one) or one
        if origin in _LISTS:
            return (get_args(one) or (Any,))[0]
        if origin not in _CLASSES and origin is not Mapping:
            return Any
    return None


def list_of(annotations: Sequence[Any]) -> Any:
    """The annotation of a list of such results, if all are the same."""
    first = annotations[0] if annotations else Any
    return list[first] if all(one == first for one in annotations) else list  # type: ignore[valid-type]


def _plain(annotation: Any) -> Any:
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return type(None) if annotation is None else annotation


def _members(annotation: Any) -> tuple[Any, ...]:
    """The members of a union."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(_plain(one) for one in get_args(annotation))
    return (annotation,)


def _fits(given: Any, wanted: Any) -> bool:
    had, want = get_origin(given) or given, get_origin(wanted) or wanted
    if had not in _CLASSES or want not in _CLASSES:
        return True
    if had is not want and want not in _WIDER.get(had, ()):
        return False
    items, others = get_args(given), get_args(wanted)
    if had in _LISTS and want in _LISTS and tuple not in (had, want) and items and others:
        return fits(items[0], others[0])
    return True
