"""The backend: enqueues Django's tasks as jobs of a dray app, reads their results, checks its settings."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, partial
from typing import Any, Final

from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils.module_loading import import_string
from uuid_utils import uuid7

from dray.app import App
from dray.contrib.django.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from dray.contrib.django.result import ENQUEUED, PRIORITY, RUN_AFTER, new_result, result_of
from dray.contrib.django.run import job_function
from dray.contrib.django.task import DrayTask
from dray.errors import DrayError, InvalidInput, JobNotFound
from dray.task import Call

TRANSACTIONS: Final = ("now", "on_commit")
OPTIONS: Final = {"APP", "TRANSACTION", "DATABASE"}


def dray_priority(priority: int) -> int:
    """Django's -100 (last) to 100 (first) as dray's 9 (last) to 0 (first); 0 is `normal`, 5.

    Twenty neighbours of Django's share one of dray's; a higher one never becomes a lower one.
    """
    return 5 - (priority + 19) // 20 if priority > 0 else 5 + (-priority + 24) // 25


class DrayBackend(BaseTaskBackend):
    """Enqueues Django's tasks as jobs of the dray app that `"OPTIONS": {"APP": "proj.jobs:app"}` names."""

    task_class = DrayTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.transaction = self.options.get("TRANSACTION", "now")
        self.database = self.options.get("DATABASE", DEFAULT_DB_ALIAS)
        self._defined: dict[str, Any] = {}
        """Tasks by the name of their dray task, until the app is loaded."""

    @cached_property
    def app(self) -> App:
        """The dray app, imported when it is first needed; it knows all tasks that are defined."""
        app = import_string(self.options["APP"].replace(":", "."))
        if not isinstance(app, App):
            raise DrayError(
                f"TASKS[{self.alias!r}]: {self.options['APP']} is a {type(app).__name__}, no dray App"
            )
        for task in self._defined.values():
            self._register(app, task)
        return app

    def validate_task(self, task: Any) -> None:
        super().validate_task(task)
        if task.module_path not in self._defined:
            self._defined[task.module_path] = task
            if "app" in self.__dict__:
                self._register(self.app, task)

    def _register(self, app: App, task: Any) -> None:
        if task.module_path in app.tasks:
            return
        options = task.task_options() if isinstance(task, DrayTask) else {"retries": 0}
        try:
            app.task(name=task.module_path, queue=task.queue_name, **options)(job_function(task, self))
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result, call = self._prepare(task, args, kwargs)
        if self.transaction == "on_commit" and connections[self.database].in_atomic_block:
            transaction.on_commit(partial(self._submit, call, result), using=self.database)
        else:
            self._submit(call, result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        if self.transaction != "now":  # transactions belong to a thread
            return await super().aenqueue(task, args, kwargs)
        result, call = self._prepare(task, args, kwargs)
        await self.app.asubmit(call)
        task_enqueued.send(type(self), task_result=result)
        return result

    def _prepare(self, task: Any, args: Any, kwargs: Any) -> tuple[Any, Call[Any]]:
        self.validate_task(task)
        id = f"{task.queue_name}:{uuid7().hex}"
        result = new_result(task, id, args, kwargs, self.alias, self.app.now())
        headers = {PRIORITY: str(task.priority), ENQUEUED: result.enqueued_at.isoformat()}
        options: dict[str, Any] = task.call_options() if isinstance(task, DrayTask) else {}
        if task.run_after is not None:
            headers[RUN_AFTER] = task.run_after.isoformat()
            options["at"] = task.run_after.astimezone()
        prepared = self.app.using(
            id=id, queue=task.queue_name, priority=dray_priority(task.priority), headers=headers, **options
        )
        return result, prepared.call(task.module_path, *result.args, **result.kwargs)

    def _submit(self, call: Call[Any], result: Any) -> None:
        self.app.submit(call)
        task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        try:
            return result_of(self.app.job(result_id).info(), self.alias)
        except (JobNotFound, InvalidInput) as error:
            raise TaskResultDoesNotExist(result_id) from error

    async def aget_result(self, result_id: str) -> Any:
        try:
            return result_of(await self.app.job(result_id).ainfo(), self.alias)
        except (JobNotFound, InvalidInput) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        yield from super().check(**kwargs)
        where = f"TASKS[{self.alias!r}]"
        if unknown := sorted(set(self.options) - OPTIONS):
            allowed = ", ".join(sorted(OPTIONS))
            yield checks.Error(
                f"{where}: OPTIONS has {', '.join(unknown)}; allowed: {allowed}", id="dray.E001"
            )
        if self.transaction not in TRANSACTIONS:
            allowed = " or ".join(TRANSACTIONS)
            yield checks.Error(
                f"{where}: TRANSACTION is {self.transaction!r}; allowed: {allowed}", id="dray.E002"
            )
        if self.database not in connections:
            yield checks.Error(f"{where}: DATABASE {self.database!r} is not in DATABASES", id="dray.E003")
        elif self.transaction == "now" and connections[self.database].settings_dict.get("ATOMIC_REQUESTS"):
            yield checks.Warning(
                f"{where}: with ATOMIC_REQUESTS a job may start before its request is committed",
                hint='"TRANSACTION": "on_commit" enqueues after the commit',
                id="dray.W001",
            )
        yield from self._check_app(where)

    def _check_app(self, where: str) -> Iterable[checks.CheckMessage]:
        if "APP" not in self.options:
            yield checks.Error(f'{where}: OPTIONS needs "APP": "proj.jobs:app"', id="dray.E004")
            return
        try:
            _ = self.app
        except Exception as error:
            yield checks.Error(
                f"{where}: APP {self.options['APP']!r} cannot be used: {error}", id="dray.E005"
            )
