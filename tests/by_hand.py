"""Apps whose jobs the test itself takes and settles, and calls that are made blocking or awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, TypeVar

import dray
from dray import App, Context, JobHandle
from dray.broker import Broker
from dray.broker.verbs import Beat, Filter, run_blocking
from dray.context import detached
from dray.job import Error, Outcome, OutcomeKind, Settled, Taken

P = ParamSpec("P")
T = TypeVar("T")


class Say:
    """Calls something, or awaits its twin: `say(job.status)` is `job.status()` or `await job.astatus()`."""

    def __init__(self, runner: asyncio.Runner | None) -> None:
        self.runner = runner

    def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self.runner is None:
            return call(*args, **kwargs)
        result: T = self.runner.run(_awaited(twin(call), *args, **kwargs))
        return result


async def _awaited(call: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T:
    return await call(*args, **kwargs)


def twin(call: Callable[..., Any]) -> Callable[..., Any]:
    name = "a" + getattr(call, "__name__", "")
    found: Callable[..., Any] = getattr(getattr(call, "__self__", dray), name)
    return found


class Hand:
    """A worker by hand, on a broker object of its own. Belongs to the thread that made it."""

    def __init__(self, app: App, session: str = "hand/1") -> None:
        self.app, self.session = app, session
        self.broker: Broker = run_blocking(app.connect(blocking=True))
        self._request = 0
        run_blocking(self.broker.renew([Beat(session, 3_600_000)]))

    def __enter__(self) -> Hand:
        return self

    def __exit__(self, *_: object) -> None:
        run_blocking(self.broker.close())

    def take(self, want: int = 100, queues: Sequence[str] = ("default",)) -> list[Taken]:
        self._request += 1
        return run_blocking(self.broker.take(self.session, self._request, queues, Filter(), want))

    def one(self, queue: str = "default") -> Taken:
        (taken,) = self.take(1, (queue,))
        return taken

    def settle(self, taken: Taken, kind: str, **fields: Any) -> Settled:
        outcome = Outcome(id=taken.job.id, run=taken.run, kind=OutcomeKind(kind), **fields)
        (settled,) = run_blocking(self.broker.settle(self.session, [outcome]))
        return settled

    def succeed(self, taken: Taken, value: object = None) -> Settled:
        result = self.app.codecs.encode_value(value, limit=self.app.settings.max_result)
        return self.settle(taken, "succeeded", result=result)

    def die(
        self, taken: Taken, type: str = "ValueError", message: str = "no", reason: str = "failed"
    ) -> None:
        error = Error(type, message, f"Traceback …\n{type}: {message}\n")
        self.settle(taken, "dead", error=error, reason=reason)

    def retry(self, taken: Taken, at: int | None = None) -> None:
        self.settle(taken, "retry", error=Error("OSError", "line is down"), at=at)

    def work(self, queues: Sequence[str] = ("default",)) -> int:
        """Run what is ready as a worker would, as far as arguments and results go. How many that were."""
        done = 0
        while batch := self.take(queues=queues):
            for taken in batch:
                self.succeed(taken, self.call(taken))
                done += 1
        return done

    def call(self, taken: Taken, context: Context | None = None) -> Any:
        task = self.app.tasks[taken.job.task]
        args, kwargs = self.app.codecs.decode_call(taken.job.payload, task.hints, limit=1 << 30)
        args, kwargs = task.place(args, kwargs, context or detached(self.app, task.name))
        result = task.function(*args, **kwargs)
        return asyncio.run(result) if asyncio.iscoroutine(result) else result


def in_thread(target: Callable[[], object], after: float = 0.0) -> threading.Timer:
    """Run something in another thread, a little later. Join it."""
    thread = threading.Timer(after, target)
    thread.start()
    return thread


def ids(jobs: Sequence[JobHandle[Any]]) -> list[str]:
    return [job.id for job in jobs]
