"""Turns calls into jobs: the call's options win over its task's, and these over the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec
from uuid_utils import uuid7

from dray.context import CURRENT
from dray.job import Job
from dray.options import CALL_OPTIONS, TASK_OPTIONS, Durability, TaskOptions
from dray.policy import check_job
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

    settings: Settings
    queue: str
    codec: str
    durability: Durability | None
    keyed: bool
    """`rate_key` or `running_key` are filled from the arguments."""
    known: bool
    """The task is known, and so its name is valid."""
    fields: dict[str, Any]
    """The fields of the job that differ from a job's defaults; valid together."""


class JobBuilder:
    """Makes jobs of an app's calls. They are valid: no broker has to check them again."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._bases: dict[Task[..., Any] | None, _Basis] = {}

    def queue_of(self, call: Call[Any]) -> str:
        queue: str = call.options.get("queue") or self._basis(call).queue
        return queue

    def build(
        self, call: Call[Any], headers: dict[str, str] | None = None, *, incomplete: bool = False
    ) -> Job:
        """The job of a call; see `outgoing`."""
        return self.outgoing(call, headers, incomplete=incomplete)[0]

    def outgoing(
        self, call: Call[Any], headers: dict[str, str] | None = None, *, incomplete: bool = False
    ) -> tuple[Job, Durability | None]:
        """The job of a call, and its durability; `headers` are sent instead of the call's own. `incomplete`:
        some arguments are only known when it runs; the caller sets the keys."""
        basis = self._bases.get(self._app.tasks.get(call.task))
        if basis is None or basis.settings is not self._app.settings:
            basis = self._basis(call)
        codec = basis.codec
        if incomplete and codec == "protobuf":  # it holds one message, which is not there yet
            codec = "msgpack"
        payload = self._app.codecs.encode_call(
            call.args, call.kwargs, codec=codec, limit=basis.settings.max_payload
        )
        if call.options or headers is not None or basis.keyed or CURRENT.get() is not None:
            return self._build_special(call, basis, headers, payload, incomplete)
        job = Job(id=f"{basis.queue}:{uuid7().hex}", task=call.task, payload=payload, **basis.fields)
        if not basis.known:
            check_job(job)
        return job, basis.durability

    def _build_special(
        self,
        call: Call[Any],
        basis: _Basis,
        headers: dict[str, str] | None,
        payload: bytes,
        incomplete: bool,
    ) -> tuple[Job, Durability | None]:
        """The job of a call with options, headers, keys or a parent of its own."""
        fields = self._fields(call, basis, headers, incomplete)
        job_id = fields.pop("id", None) or f"{fields.get('queue', 'default')}:{uuid7().hex}"
        job = Job(id=job_id, task=call.task, payload=payload, **fields)
        check_job(job)
        return job, call.options.get("durability") or basis.durability

    def _basis(self, call: Call[Any]) -> _Basis:
        task, settings = self._app.tasks.get(call.task), self._app.settings
        basis = self._bases.get(task)
        if basis is None or basis.settings is not settings:
            basis = self._bases[task] = _basis_of(task, settings)
        return basis

    def _fields(
        self, call: Call[Any], basis: _Basis, headers: dict[str, str] | None, incomplete: bool
    ) -> dict[str, Any]:
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
        if basis.keyed and not incomplete:
            task = self._app.tasks[call.task]
            fields["rate_key"], fields["running_key"] = task.keys(call.args, call.kwargs)
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
    differing = {
        name: value for name, value in fields.items() if value is not None and value != _JOB_DEFAULTS[name]
    }
    check_job(Job(id="sample", task="sample", payload=b"", **differing))
    return _Basis(
        settings=settings,
        queue=options.queue or "default",
        codec=options.codec or settings.codec,
        durability=options.durability or ("full" if settings.durability == "full" else None),
        keyed=options.rate_key is not None or options.running_key is not None,
        known=task is not None,
        fields=differing,
    )
