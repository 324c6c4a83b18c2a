"""Runs a task of Django's as a job: signals, context, return value, database connections."""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from traceback import format_exception
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections
from django.utils import timezone

from dray.context import Context
from dray.contrib.django.framework import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from dray.contrib.django.result import result_of


def job_function(task: Any, backend: Any) -> Callable[..., Any]:
    """The function that a worker calls for a Django task: plain for a plain one, async for an async one."""
    return _async(task, backend) if iscoroutinefunction(task.func) else _plain(task, backend)


def _plain(task: Any, backend: Any) -> Callable[..., Any]:
    def run(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        close_old_connections()
        try:
            attempt = _Attempt(task, backend, ctx, ctx.job.info())
            try:
                return attempt.succeeded(task.func(*attempt.context, *args, **kwargs))
            except BaseException as error:
                attempt.failed(error)
                raise
        finally:
            close_old_connections()

    return run


def _async(task: Any, backend: Any) -> Callable[..., Any]:
    async def run(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        in_thread = sync_to_async
        await in_thread(close_old_connections)()
        try:
            attempt = await in_thread(_Attempt)(task, backend, ctx, await ctx.job.ainfo())
            try:
                value = await task.func(*attempt.context, *args, **kwargs)
                return await in_thread(attempt.succeeded)(value)
            except BaseException as error:
                await in_thread(attempt.failed)(error)
                raise
        finally:
            await in_thread(close_old_connections)()

    return run


class _Attempt:
    """One attempt: its `TaskResult`, kept up to date for the receivers of signals."""

    def __init__(self, task: Any, backend: Any, ctx: Context, info: Any) -> None:
        self._sender, self._last = type(backend), ctx.attempt > info.retries
        self._result = result_of(info, backend.alias)
        self.context = (TaskContext(task_result=self._result),) if task.takes_context else ()
        task_started.send_robust(self._sender, task_result=self._result)

    def succeeded(self, value: Any) -> Any:
        """The value as Django stores it: what JSON can hold, anything else is a TypeError."""
        value = normalize_json(value)
        self._set(_return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())
        task_finished.send_robust(self._sender, task_result=self._result)
        return value

    def failed(self, error: BaseException) -> None:
        if not self._last or self._result.is_finished:
            return  # it is tried again, or what failed came after its end
        path = f"{type(error).__module__}.{type(error).__qualname__}"
        self._result.errors.append(
            TaskError(exception_class_path=path, traceback="".join(format_exception(error)))
        )
        self._set(status=TaskResultStatus.FAILED, finished_at=timezone.now())
        task_finished.send_robust(self._sender, task_result=self._result)

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self._result, name, value)
