"""A Django task with the options of dray: `@task(retries=5, timeout="30s", queue_name="email")`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dray.contrib.django.framework import Task
from dray.options import Duration, Errors, Isolation

TASK_OPTIONS: Final = (
    *("retries", "backoff", "timeout", "deadline", "ttl", "result_ttl", "once", "rate_limit"),
    *("max_running", "isolate", "retry_on", "give_up_on"),
)
"""Options of the task itself."""
CALL_OPTIONS: Final = ("key", "group", "tags")
"""Options of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrayTask(Task):
    """A task of Django's, with options of dray. None means the setting of the dray app."""

    retries: int = 0
    """None by default, as with Django's own backends."""
    backoff: str | None = None
    timeout: Duration | None = None
    deadline: Duration | None = None
    ttl: Duration | None = None
    result_ttl: Duration | None = None
    once: Duration | None = None
    rate_limit: str | None = None
    max_running: int | None = None
    isolate: Isolation | None = None
    retry_on: Errors | None = None
    give_up_on: Errors | None = None
    key: str | None = None
    group: str | None = None
    tags: Sequence[str] = ()

    def using(self, **options: Any) -> Any:
        """A copy with other options: those of Django (`queue_name`, …), and `key`, `group`, `tags`."""
        own = {name: options.pop(name) for name in CALL_OPTIONS if name in options}
        return replace(super(DrayTask, self).using(**options), **own)

    def task_options(self) -> dict[str, Any]:
        """The options that its dray task is made with."""
        given = {name: getattr(self, name) for name in TASK_OPTIONS}
        return {name: value for name, value in given.items() if value is not None}

    def call_options(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in CALL_OPTIONS}
        return {name: value for name, value in given.items() if value}
