"""What happened, in sentences: the few events out of hundreds that somebody would want to hear of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from dray.broker.verbs import Broker
from dray.job import Record

if TYPE_CHECKING:
    from dray.demo.follower import Happening

NAMED_MOST: Final = 4


async def tell_news(broker: Broker, events: Sequence[Happening]) -> list[tuple[str, str]]:
    """Lines of a word and a sentence, one for all jobs of a task that the same happened to at once."""
    groups: dict[tuple[str, str], list[Happening]] = {}
    for event in events:
        if event.kind in _SENTENCES or _is_comeback(event):
            groups.setdefault((event.kind, event.task), []).append(event)
    return [await _line(broker, kind, group) for (kind, _), group in groups.items()]


def named(ids: Sequence[str]) -> str:
    """
    >>> named(["email-1", "email-2"])
    'email-1, email-2'
    """
    unique = list(dict.fromkeys(ids))
    if len(unique) <= NAMED_MOST:
        return ", ".join(unique)
    return f"{', '.join(unique[: NAMED_MOST - 1])} and {len(unique) - NAMED_MOST + 1} more"


def _is_comeback(event: Happening) -> bool:
    """A success is news when something had gone wrong before."""
    return event.kind == "succeeded" and event.run > 1


async def _line(broker: Broker, kind: str, group: Sequence[Happening]) -> tuple[str, str]:
    (record,) = await broker.get([group[-1].id])
    who = named([event.id for event in group])
    if kind == "succeeded":
        return "done", f"{who} succeeded in run {group[-1].run}"
    word, sentence = _SENTENCES[kind]
    return word, f"{who} {sentence(record)}"


def _failure(record: Record | None) -> str:
    error = None if record is None else record.error
    return "an error" if error is None else error.message


def _reason(record: Record | None) -> str:
    return (None if record is None else record.reason) or "no reason is known"


_SENTENCES: Final[dict[str, tuple[str, Callable[[Record | None], str]]]] = {
    "retried": ("retry", lambda record: f"failed ({_failure(record)}), to be tried again"),
    "died": ("dead", lambda record: f"dead, {_reason(record)}"),
    "cancelled": ("cancel", lambda record: f"cancelled: {_reason(record)}"),
    "crashed": ("crash", lambda record: "lost with the process, ready again"),
}
"""Kind of event → the word in front of its line, and what is said of the jobs."""
