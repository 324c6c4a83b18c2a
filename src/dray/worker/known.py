"""The tasks that an executor runs: which, for how long at most, where, and in which book they are kept."""

from __future__ import annotations

from typing import Any, NamedTuple

from dray.settings import Settings
from dray.task import Task
from dray.worker.accounting import Account, Accounts
from dray.worker.run import Judge
from dray.worker.runners import Runner, Runners


class Known(NamedTuple):
    task: Task[..., Any]
    timeout: float
    """Seconds, unless the job says otherwise."""
    runner: Runner
    account: Account


def known_tasks(
    tasks: dict[str, Task[..., Any]], settings: Settings, judge: Judge, runners: Runners, accounts: Accounts
) -> dict[str, Known]:
    known = {}
    for name, task in tasks.items():
        if settings.tasks is not None and name not in settings.tasks:
            continue
        options = task.options
        runner = runners.in_threads
        if options.isolate == "process":
            runner = runners.in_children
        elif task.is_async or judge.middleware:
            runner = runners.on_loop
        timeout = (options.timeout or settings.timeout) / 1000
        known[name] = Known(task, timeout, runner, accounts.open(task))
    return known
