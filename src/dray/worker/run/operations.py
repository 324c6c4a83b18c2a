"""The durable operations as `ctx` calls them: an async task gets a coroutine, a plain one the value."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from dray.durable.calls import StepOptions
from dray.durable.entries import Marker, Value
from dray.errors import InvalidInput
from dray.info import moment
from dray.options import Duration
from dray.task import Call
from dray.worker.run.durable_run import DurableRun
from dray.worker.run.operation import FirstOperation, Operation, decode
from dray.worker.run.step_operation import StepOperation
from dray.worker.run.wait_operations import CallOperation, EventOperation, SleepOperation

T = TypeVar("T")


class RunSteps:
    """Makes the operations of one run."""

    def __init__(self, durable: DurableRun) -> None:
        self.durable = durable
        self._operations: WeakKeyDictionary[Coroutine[Any, Any, Any], Operation] = WeakKeyDictionary()
        self._collecting = threading.local()
        """Its `on` is true in a thread whose operations are meant for `first`."""

    def _start(self, make: Callable[..., Operation], *args: Any) -> Any:
        try:
            operation = make(self.durable, *args)
        except InvalidInput as error:  # another run would make the same mistake
            for coroutine in list(self._operations):
                if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                    coroutine.close()
            raise self.durable.final(error) from None
        if self.durable.plain and not getattr(self._collecting, "on", False):
            return self.durable.block(operation.run)
        coroutine = operation.run()
        self._operations[coroutine] = operation
        return coroutine

    def step(self, function: Callable[..., Any], args: tuple[Any, ...], options: StepOptions) -> Any:
        return self._start(StepOperation, function, args, options)

    def sleep(self, length: Duration | datetime, key: str | None) -> Any:
        return self._start(SleepOperation, length, key)

    def event(self, name: str, timeout: Duration | None, type: Any, key: str | None) -> Any:
        return self._start(EventOperation, name, timeout, type, key)

    def call(self, call: Call[Any], key: str | None) -> Any:
        return self._start(CallOperation, call, key)

    def first(self, operations: tuple[Any, ...]) -> Any:
        if self.durable.plain:
            self._collecting.on = True
            try:
                operations = tuple(make() for make in operations)
            finally:
                self._collecting.on = False
        known = [(coroutine, self._operations.get(coroutine)) for coroutine in operations]
        chosen = [(coroutine, operation) for coroutine, operation in known if operation is not None]
        if not chosen or len(chosen) < len(known):
            raise InvalidInput("operations", operations, "operations of ctx, not yet awaited, are allowed")
        return self._start(FirstOperation, chosen)

    def remember(self, name: str, make: Callable[[], T], type: type[T]) -> T:
        durable = self.durable
        durable.check_alive()
        id, call, memory = durable.journal.claim(name)
        durable.journal.release(name)
        if memory is not None and isinstance(memory.done, Value):
            value: T = decode(durable, memory.done.value, type)
            return value
        made = make()
        data = durable.app.codecs.encode_value(made)
        durable.remember_later(Value(id=id, call=call, at=durable.judge.now(), value=data))
        return made

    def changed(self, name: str) -> bool:
        durable, id = self.durable, f"changed({name})"
        durable.check_alive()
        answer = durable.journal.says_changed(id)
        if answer is None or id not in durable.journal.memories:
            answer = answer is None
            durable.remember_later(Marker(id=id, call=0, at=durable.judge.now(), new=answer))
        return answer

    def now(self) -> datetime:
        return moment(self.durable.judge.now())
