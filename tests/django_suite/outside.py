"""DrayBackend as Django's own tests need it: with what they reach for in their own backends."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from dray import App
from dray.contrib.django.backend import DrayBackend

app = App("django-suite")


class Store(DrayBackend):
    """Ours, and what Django's tests reach for in their own backend: the list of results."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.results: list[Any] = []

    def clear(self) -> None:
        self.app.jobs.delete([result.id for result in self.results])
        self.results.clear()

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.results.append(result := super().enqueue(task, args, kwargs))
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.results.append(result := await super().aenqueue(task, args, kwargs))
        return result


class RunAtOnce(DrayBackend):
    """Ours, and `app.testing()` runs the job before `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        with self.app.testing() as jobs:
            result = super().enqueue(task, args, kwargs)
            jobs.drain()
            result.refresh()
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        enqueue = partial(self.enqueue, task, args, kwargs)
        return await asyncio.get_running_loop().run_in_executor(None, enqueue)
