"""One durable operation: looks into the log first, and parks the job if the code has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from dray.durable.calls import First
from dray.durable.entries import Accepted, Failure, Value, Winner
from dray.durable.identity import ACCEPT
from dray.durable.journal import Memory
from dray.durable.references import rebuild_error
from dray.errors import DecodeError
from dray.worker.run.durable_run import Caller, DurableRun
from dray.worker.run.requests import ReadMail

HOLD: Final = 0.5
"""Seconds that a new step waits for remembered ones whose turn is earlier: then the code has changed."""
HOLD_STEP: Final = 0.02
DIFFERENCE_MAX: Final = 400


class Operation:
    """One call of an operation: its identity, and what is remembered of it."""

    here: Caller | None = None
    """The thread of a plain task that waits for it."""
    direct = False

    def __init__(self, durable: DurableRun, name: str, key: str | None = None) -> None:
        self.durable = durable
        self._name = name if key is None else None
        durable.check_alive()
        self.id, self.call, self.memory = durable.journal.claim(name, key)

    async def run(self, here: Caller | None = None) -> Any:
        self.here, self.direct = here, self.direct or self.durable.is_direct
        return await self.durable.perform(self.act, self._name)

    async def act(self) -> Any:
        raise NotImplementedError

    def give_up(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """It was called, and is not awaited."""
        coroutine.close()
        if self._name is not None:
            self.durable.journal.release(self._name)

    def common(self) -> dict[str, Any]:
        """The fields that every entry has."""
        return {"id": self.id, "call": self.call, "at": self.durable.judge.now()}

    async def admit(self) -> None:
        """A new operation begins: park the job if it stands where a remembered one should."""
        durable, journal, held = self.durable, self.durable.journal, 0.0
        while (skipped := journal.skipped(self.call)) and not durable.plain and held < HOLD:
            await asyncio.sleep(HOLD_STEP)  # operations that run side by side may come in another order
            held += HOLD_STEP
        if skipped:
            await accept_or_park(durable, journal.skipped_text(self.id, skipped))
        await durable.flush()

    async def compare(self, memory: Memory, digest: str, shown: str) -> None:
        """Park the job if the arguments of a remembered operation are others now."""
        difference = self.durable.journal.changed_arguments(memory, digest, shown)
        if difference:
            await accept_or_park(self.durable, difference)

    def recall(self, done: Value | Failure, type: Any) -> Any:
        """The value that is remembered, or its error."""
        durable = self.durable
        durable.run.steps_replayed += 1
        if isinstance(done, Value):
            return decode(durable, done.value, type)
        raise durable.final(rebuild_error(durable.job.id, self.id, done.error, done.raised))


def decode(durable: DurableRun, data: bytes, type: Any) -> Any:
    """A stored value, as its annotation wants it if it fits."""
    codecs, limit = durable.app.codecs, durable.app.settings.max_result
    try:
        return codecs.decode_value(data, type, limit=max(limit, len(data)))
    except DecodeError:
        return codecs.decode_value(data, limit=max(limit, len(data)))


async def accept_or_park(durable: DurableRun, difference: str) -> None:
    difference = difference[:DIFFERENCE_MAX]
    number = 0
    while mail := await durable.ask(ReadMail(ACCEPT, number)):
        number = mail[0].number
        if mail[0].body == difference.encode():
            entry = Accepted(at=durable.judge.now(), difference=difference)
            await durable.write(entry, consumed={ACCEPT: number})
            return
    durable.park(difference)


class FirstOperation(Operation):
    """Several operations, of which the first to end counts."""

    def __init__(
        self, durable: DurableRun, operations: list[tuple[Coroutine[Any, Any, Any], Operation]]
    ) -> None:
        super().__init__(durable, "first()")
        self._operations = operations

    async def act(self) -> First:
        done = self.memory.done if self.memory is not None else None
        winner = done.index if isinstance(done, Winner) else self._remembered()
        if winner is not None:
            for index, (coroutine, operation) in enumerate(self._operations):
                if index != winner:
                    operation.give_up(coroutine)
            value = await self.durable.aside().until(self._operations[winner][0])
        else:
            winner, value = await self._race()
        if not isinstance(done, Winner):
            await self.durable.write(Winner(**self.common(), index=winner))
        return First(winner, value)

    def _remembered(self) -> int | None:
        """The one that ended first in an earlier run, which could not write that any more."""
        ended = [
            (operation.memory.position, index)
            for index, (_, operation) in enumerate(self._operations)
            if operation.memory is not None and operation.memory.done is not None
        ]
        return min(ended)[1] if ended else None

    async def _race(self) -> tuple[int, Any]:
        aside = self.durable.aside()
        tasks = []
        for coroutine, operation in self._operations:
            operation.direct = self.direct
            tasks.append(asyncio.ensure_future(aside.until(coroutine)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            index = next(index for index, task in enumerate(tasks) if task.done())
            return index, tasks[index].result()
        finally:
            aside.end()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
