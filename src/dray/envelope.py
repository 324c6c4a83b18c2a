"""The job that a call becomes: what the call says, else its task, else the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from msgspec import UNSET
from uuid_utils import uuid7

from dray.call import PLAIN, Call, Durability, unusual
from dray.context import CURRENT
from dray.job import Job
from dray.settings import Settings
from dray.task import Task, TaskOptions

if TYPE_CHECKING:
    from dray.app import App

NO_RULES: Final = TaskOptions()


class Envelopes:
    """Makes jobs of an app's calls."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._usual: dict[str, tuple[Task[..., Any], Settings, str, dict[str, Any]]] = {}
        """Of each task: itself, the settings it was made with, its queue, and what its plain calls share."""

    def queue_of(self, call: Call[Any]) -> str:
        if call.options.queue is not UNSET:
            return call.options.queue
        task = self._app.tasks.get(call.task)
        return "default" if task is None else task.options.queue or "default"

    def durability_of(self, call: Call[Any]) -> Durability | None:
        chosen = call.options.durability
        if chosen is not UNSET:
            return chosen
        task = self._app.tasks.get(call.task)
        if task is not None and task.options.durability is not None:
            return task.options.durability
        return "full" if self._app.settings.durability == "full" else None

    def of(self, call: Call[Any], headers: dict[str, str] | None = None) -> Job:
        """The job a call becomes: what the call says, else its task, else the settings."""
        options, settings = call.options, self._app.settings
        task = self._app.tasks.get(call.task)
        if options is PLAIN and headers is None and task is not None and CURRENT.get() is None:
            usual = self._usual.get(call.task)
            if usual is not None and usual[0] is task and usual[1] is settings:
                codec = task.options.codec or settings.codec
                sent = self._app.codecs.encode_call(
                    call.args, call.kwargs, codec=codec, limit=settings.max_payload
                )
                return Job(id=f"{usual[2]}:{uuid7().hex}", task=call.task, payload=sent, **usual[3])
            job = self._made(call, headers, task)
            if task.options.rate_key is None and task.options.running_key is None:
                self._usual[call.task] = (task, settings, job.queue, unusual(job))
            return job
        return self._made(call, headers, task)

    def _made(self, call: Call[Any], headers: dict[str, str] | None, task: Task[..., Any] | None) -> Job:
        options, settings = call.options, self._app.settings
        rules = NO_RULES if task is None else task.options
        rate_key, running_key = (None, None) if task is None else task.keys(call.args, call.kwargs)
        queue = rules.queue or "default" if options.queue is UNSET else options.queue
        running = CURRENT.get()
        return Job(
            id=options.id or f"{queue}:{uuid7().hex}",
            task=call.task,
            queue=queue,
            payload=self._app.codecs.encode_call(
                call.args, call.kwargs, codec=rules.codec or settings.codec, limit=settings.max_payload
            ),
            priority=rules.priority if options.priority is UNSET else options.priority,
            due=self._app.clock() + options.delay if options.delay else options.due,
            ttl=rules.ttl if options.ttl is UNSET else options.ttl or None,
            key=options.key,
            key_ttl=options.key_ttl,
            once=rules.once if options.once is UNSET else options.once or None,
            on_duplicate=options.on_duplicate,
            group=options.group,
            rate=rules.rate,
            rate_key=rate_key,
            max_running=rules.max_running,
            running_key=running_key,
            max_ready=rules.max_ready,
            overflow=rules.overflow,
            parent=None if running is None else running.taken.job.id,
            tags=tuple(dict.fromkeys((*rules.tags, *options.tags))) if options.tags else rules.tags,
            description=options.description or rules.description,
            retries=_first(options.retries, rules.retries, settings.retries),
            backoff=rules.backoff if options.backoff is UNSET else options.backoff,
            timeout=rules.timeout if options.timeout is UNSET else options.timeout,
            max_crashes=settings.max_crashes if rules.max_crashes is None else rules.max_crashes,
            result_ttl=rules.result_ttl if options.result_ttl is UNSET else options.result_ttl,
            isolate="process" if rules.isolate == "process" else None,
            speculate=rules.speculate,
            headers=options.headers if headers is None else headers,
        )


def _first(option: Any, rule: int | None, setting: int) -> int:
    if option is not UNSET:
        return cast(int, option)
    return setting if rule is None else rule
