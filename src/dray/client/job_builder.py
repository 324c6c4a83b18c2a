"""Turns calls into jobs: the call's options win over its task's, and these over the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from uuid_utils import uuid7

from dray.context import CURRENT
from dray.job import Job
from dray.options import CALL_OPTIONS, TASK_OPTIONS, Durability, TaskOptions
from dray.settings import Settings
from dray.task import Call, Task

if TYPE_CHECKING:
    from dray.app import App

_NO_OPTIONS: Final = TaskOptions()
_JOB_DEFAULTS: Final = {field.name: field.default for field in msgspec.structs.fields(Job)}
_TASK_FIELDS: Final = [
    option.field for option in TASK_OPTIONS.values() if option.field and not option.name.endswith("_key")
]
"""Fields of a job that a task's options fill alike for every call: `rate_key` and `running_key` do not."""
_CALL_FIELDS: Final = {
    option.name: option.field for option in CALL_OPTIONS.values() if option.field and option.field != "due"
}


class _Basis(msgspec.Struct, frozen=True):
    """The part of a task's jobs that is the same for every call."""

    task: Task[..., Any] | None
    settings: Settings
    queue: str
    codec: str
    durability: Durability | None
    keyed: bool
    """`rate_key` or `running_key` are filled from the arguments."""
    fields: dict[str, Any]
    """The fields of the job that differ from a job's defaults."""


class JobBuilder:
    """Makes jobs of an app's calls."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._bases: dict[str | None, _Basis] = {}

    def queue_of(self, call: Call[Any]) -> str:
        queue: str = call.options.get("queue") or self._basis(call).queue
        return queue

    def durability_of(self, call: Call[Any]) -> Durability | None:
        chosen: Durability | None = call.options.get("durability")
        return chosen or self._basis(call).durability

    def build(self, call: Call[Any], headers: dict[str, str] | None = None) -> Job:
        """The job of a call; `headers` are sent instead of the call's own."""
        basis = self._basis(call)
        fields, queue = basis.fields, basis.queue
        if call.options or headers is not None or basis.keyed or CURRENT.get() is not None:
            fields = self._fields(call, basis, headers)
            queue = fields.get("queue", "default")
        job_id = fields.pop("id") if "id" in fields else f"{queue}:{uuid7().hex}"
        payload = self._app.codecs.encode_call(
            call.args, call.kwargs, codec=basis.codec, limit=basis.settings.max_payload
        )
        return Job(id=job_id, task=call.task, payload=payload, **fields)

    def _basis(self, call: Call[Any]) -> _Basis:
        task, settings = self._app.tasks.get(call.task), self._app.settings
        name = None if task is None else call.task
        basis = self._bases.get(name)
        if basis is None or basis.task is not task or basis.settings is not settings:
            basis = self._bases[name] = _basis_of(task, settings)
        return basis

    def _fields(self, call: Call[Any], basis: _Basis, headers: dict[str, str] | None) -> dict[str, Any]:
        options, fields = call.options, dict(basis.fields)
        for name, value in options.items():
            if name in _CALL_FIELDS:
                fields[_CALL_FIELDS[name]] = value
        if options.get("delay"):
            fields["due"] = self._app.clock() + options["delay"]
        elif "at" in options:
            fields["due"] = options["at"]
        if "tags" in options:
            fields["tags"] = tuple(dict.fromkeys((*basis.fields.get("tags", ()), *options["tags"])))
        if options.get("description") == "":
            fields["description"] = basis.fields.get("description", "")
        if headers is not None:
            fields["headers"] = headers
        if basis.task is not None and basis.keyed:
            fields["rate_key"], fields["running_key"] = basis.task.keys(call.args, call.kwargs)
        running = CURRENT.get()
        if running is not None:
            fields["parent"] = running.taken.job.id
        return fields


def _basis_of(task: Task[..., Any] | None, settings: Settings) -> _Basis:
    options = _NO_OPTIONS if task is None else task.options
    fields = {name: getattr(options, name) for name in _TASK_FIELDS}
    if fields["isolate"] == "thread":  # the default: the job leaves it open
        fields["isolate"] = None
    for name in ("retries", "max_crashes"):
        if fields[name] is None:
            fields[name] = getattr(settings, name)
    return _Basis(
        task=task,
        settings=settings,
        queue=options.queue or "default",
        codec=options.codec or settings.codec,
        durability=options.durability or ("full" if settings.durability == "full" else None),
        keyed=options.rate_key is not None or options.running_key is not None,
        fields={
            name: value
            for name, value in fields.items()
            if value is not None and value != _JOB_DEFAULTS[name]
        },
    )
