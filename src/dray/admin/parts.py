"""The parts of an app, each loaded at first use: most programs only enqueue, or run jobs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from dray.admin.api_keys import ApiKeys
    from dray.admin.dead import Dead
    from dray.admin.events import Events
    from dray.admin.external import External
    from dray.admin.guarantees import Guarantees
    from dray.admin.jobs import Jobs
    from dray.admin.queues import Queues
    from dray.admin.workers import Workers
    from dray.history.api import History

T = TypeVar("T")


class AppPart(Generic[T]):
    """An attribute of an app, the class at `module:name`, which is loaded and made at first use."""

    def __init__(self, path: str) -> None:
        self._path = path

    @overload
    def __get__(self, app: None, owner: type[AppParts]) -> Self: ...
    @overload
    def __get__(self, app: AppParts, owner: type[AppParts]) -> T: ...
    def __get__(self, app: AppParts | None, owner: type[AppParts]) -> Self | T:
        if app is None:
            return self
        module, _, name = self._path.partition(":")
        part: T = getattr(import_module(module), name)(app)
        vars(app)[self._name] = part  # found there from now on
        return part

    def __set_name__(self, owner: type[AppParts], name: str) -> None:
        self._name = name


class AppParts:
    """Base of `App`: what operators do with one."""

    jobs: AppPart[Jobs] = AppPart("dray.admin.jobs:Jobs")
    queues: AppPart[Queues] = AppPart("dray.admin.queues:Queues")
    dead: AppPart[Dead] = AppPart("dray.admin.dead:Dead")
    workers: AppPart[Workers] = AppPart("dray.admin.workers:Workers")
    events: AppPart[Events] = AppPart("dray.admin.events:Events")
    keys: AppPart[ApiKeys] = AppPart("dray.admin.api_keys:ApiKeys")
    history: AppPart[History] = AppPart("dray.history.api:History")
    guarantees: AppPart[Guarantees] = AppPart("dray.admin.guarantees:Guarantees")
    external: AppPart[External] = AppPart("dray.admin.external:External")
